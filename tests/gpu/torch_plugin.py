# SPDX-License-Identifier: Apache-2.0
"""The allocators for PyTorch, on a GPU. The same training with each of them and with PyTorch's own gives the same numbers, and the
daemon's stats show the memory while it is used. Each allocator does what the table of docs/pytorch.md says of it. Each has a
process of its own, because an allocator cannot be changed once used.

    torch_plugin.py LIBGPUPOOL-TORCH ADMIN-SOCKET [native|lean|mempool]

Connects to the daemon that GPUPOOL_SOCKET names. Exit status 77: there is no PyTorch, or no GPU for it.
"""
import contextlib
import gc
import json
import os
import pathlib
import socket
import subprocess
import sys

STEPS, BATCH = 60, 64
MODE_S = 200
TENSOR_BYTES = 64 << 20
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client/examples"))


def check(holds, what):
    if not holds:
        sys.exit(f"torch_plugin: {what}")


@contextlib.contextmanager
def refused(error, text, what):
    """The block has to raise the error, with the text in it. Torch's OutOfMemoryError is a RuntimeError, too."""
    try:
        yield
    except error as found:
        check("OutOfMemory" in error.__name__ or "OutOfMemory" not in type(found).__name__, f"{what}: {type(found).__name__}")
        check(text in str(found), f"{what}: not our text: {found}")
        return
    check(False, f"{what}: nothing was refused")


def train(torch):
    """Losses and a sum of all parameters: sizes vary from step to step, so that memory changes hands."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024),
                                torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    numbers = []
    for step in range(STEPS):
        batch = BATCH + 37 * step % 200
        inputs = torch.randn(batch, 512, generator=torch.Generator().manual_seed(step)).cuda()
        target = (inputs[:, :10].argmax(dim=1) + step) % 10
        loss = torch.nn.functional.cross_entropy(model(inputs), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        numbers.append(loss.item())
    numbers.append(sum(parameter.double().sum().item() for parameter in model.parameters()))
    return numbers


def other_streams(torch):
    """Tensors that another stream still reads when they go: none may be overwritten before it has."""
    side, wrong = torch.cuda.Stream(), 0
    weight = torch.randn(2048, 2048, device="cuda")
    for round_ in range(40):
        value = torch.full((1 << 20,), float(round_), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):
                weight @ weight  # so that the copy comes late
            copy = value.clone()
        value.record_stream(side)
        del value
        for _ in range(4):  # takes the memory, if it may be had
            torch.full((1 << 20,), -1.0, device="cuda")
        side.synchronize()
        wrong += int((copy != float(round_)).any().item())
    return wrong


def stats(admin_socket):
    """The stats, as "gpupoolctl stats --json" shows them."""
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(admin_socket)
        admin.sendall(b'{"command":"stats"}\n')
        return json.loads(admin.makefile().readline())


def leased_bytes(admin_socket):
    """By this process."""
    mine = [entry for entry in stats(admin_socket)["sessions"] if entry["pid"] == os.getpid()]
    check(len(mine) == 1, f"{len(mine)} sessions of this process")
    return mine[0]["leased_bytes"]


def shows_a_tensor(torch, admin_socket):
    held = torch.empty(TENSOR_BYTES, dtype=torch.uint8, device="cuda")
    check(leased_bytes(admin_socket) >= held.numel(), "the stats do not show the tensor")


def with_lean(torch, library, admin_socket):
    import torch_allocator
    torch_allocator.use_gpupool(library)
    numbers = train(torch)
    shows_a_tensor(torch, admin_socket)
    check(other_streams(torch) == 0, "memory was lent again while another stream used it")
    with refused(RuntimeError, "CUDA out of memory. ", "a tensor of 1 PiB"):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    before = leased_bytes(admin_socket)
    torch.cuda.empty_cache()
    check(leased_bytes(admin_socket) < before, "empty_cache() gave nothing back")
    with refused(RuntimeError, "gpupool", "a graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(16, device="cuda")
    check(torch.ones(1000, device="cuda").sum().item() == 1000, "nothing works after a refused capture")
    with refused(RuntimeError, "", "memory_stats()"):
        torch.cuda.memory_stats()
    return numbers


def graphs(torch, graph_pool):
    """A graph whose memory comes from a pool: replayed with other inputs, beside tensors that are made and go meanwhile."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
    inputs = torch.randn(32, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, pool=graph_pool):
        outputs = model(inputs)
    for round_ in range(20):
        inputs.copy_(torch.randn(32, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(round_)))
        graph.replay()
        others = [torch.full((1 << 16,), -1.0, device="cuda") for _ in range(4)]
        with torch.no_grad():
            check(torch.allclose(outputs, model(inputs), atol=1e-3), "a graph's memory was overwritten")
        del others


def compiled(torch):
    """torch.compile's graph trees. They want a compiler, which not every machine has. Returns whether it was tried."""
    def function(x, weight):
        return torch.nn.functional.gelu(x @ weight).sum(dim=1)

    fast = torch.compile(function, mode="reduce-overhead")
    weight = torch.randn(256, 256, device="cuda")
    torch.use_deterministic_algorithms(False)
    for round_ in range(8):
        x = torch.randn(64 if round_ % 2 else 96, 256, device="cuda")
        try:
            found = fast(x, weight)
        except Exception as error:  # pylint: disable=broad-except  # whatever a missing compiler raises
            if round_ > 0 or "gpupool" in str(error) or isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            return False
        check(torch.allclose(found, function(x, weight), rtol=1e-2, atol=1e-1), "a compiled function's result differs")
    return True


def with_mempool(torch, library, admin_socket):
    import torch_allocator
    pool = torch_allocator.pool(library)
    with torch.cuda.use_mem_pool(pool):
        numbers = train(torch)
        shows_a_tensor(torch, admin_socket)
        check(other_streams(torch) == 0, "memory was used again while another stream used it")
        with refused(torch.cuda.OutOfMemoryError, "", "a tensor of 1 PiB"):
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        limit = next(entry["limit_bytes"] for entry in stats(admin_socket)["pools"] if entry["kind"] == "device")
        with refused(torch.cuda.OutOfMemoryError, "", "a tensor larger than the pool"):
            torch.empty(limit + (1 << 30), dtype=torch.uint8, device="cuda")
        check(torch.ones(1000, device="cuda").sum().item() == 1000, "nothing works after an OutOfMemoryError")
    check(torch.cuda.memory_stats()["allocation.all.allocated"] > 0, "no statistics")
    outside = leased_bytes(admin_socket)
    beside = torch.empty(TENSOR_BYTES, dtype=torch.uint8, device="cuda")
    check(leased_bytes(admin_socket) <= outside, "a tensor outside the region came from the pool")
    del beside
    graphs(torch, None)  # PyTorch's own graph pool, beside one of ours
    graph_pool = torch_allocator.pool(library)
    graphs(torch, graph_pool.id)
    check(len(graph_pool.snapshot()) > 0, "the graph's memory is not ours")
    if not compiled(torch):
        print("torch.compile() was not tried: it does not work here", file=sys.stderr)
    torch.cuda.synchronize()
    before = leased_bytes(admin_socket)
    check(before > 0, "the pool's segments are not ours")
    del pool, graph_pool
    gc.collect()
    torch.cuda.empty_cache()
    check(leased_bytes(admin_socket) <= before, "empty_cache() took memory")
    return numbers


def run(mode, arguments):
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run([sys.executable, __file__, *arguments, mode], env=environment, stdout=subprocess.PIPE,
                          text=True, timeout=MODE_S)
    check(done.returncode == 0, f"with {mode}: exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def in_mode(torch, mode, library, admin_socket):
    if mode == "native":
        return train(torch)
    return {"lean": with_lean, "mempool": with_mempool}[mode](torch, library, admin_socket)


def main():
    library, admin_socket = arguments = sys.argv[1:3]
    try:
        import torch
    except ImportError:
        sys.exit(77)
    if not torch.cuda.is_available():
        sys.exit(77)
    if len(sys.argv) == 4:
        print(json.dumps(in_mode(torch, sys.argv[3], library, admin_socket)))
        return
    native = run("native", arguments)
    for mode in ("lean", "mempool"):
        ours = run(mode, arguments)
        check(len(native) == len(ours) == STEPS + 1, f"{mode}: not all steps were done")
        worst = max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(native, ours))
        check(worst <= 1e-4, f"{mode}: the results differ, by {worst:.2g}")
        print(f"{mode}: {STEPS} steps with PyTorch {torch.__version__}: "
              f"{'equal to the last bit' if native == ours else f'equal but for {worst:.2g}'}; "
              f"loss {native[0]:.4f} to {native[-2]:.4f}")


if __name__ == "__main__":
    main()
