# SPDX-License-Identifier: Apache-2.0
"""The allocator for PyTorch, on a GPU: the same training with it and with PyTorch's own gives the same numbers, and its
memory shows in the daemon's stats while it is used. Two processes, because an allocator cannot be changed once used.

    torch_plugin.py LIBGPUPOOL-TORCH ADMIN-SOCKET

Connects to the daemon that GPUPOOL_SOCKET names. Exit status 77: there is no PyTorch, or no GPU for it.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys

STEPS, BATCH = 60, 64
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client/examples"))


def check(holds, what):
    if not holds:
        sys.exit(f"torch_plugin: {what}")


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


def session(admin_socket):
    """Of this process, in the daemon's stats."""
    with socket.socket(socket.AF_UNIX) as admin:  # what "gpupoolctl stats --json" shows
        admin.connect(admin_socket)
        admin.sendall(b'{"command":"stats"}\n')
        stats = json.loads(admin.makefile().readline())
    mine = [entry for entry in stats["sessions"] if entry["pid"] == os.getpid()]
    check(len(mine) == 1, f"{len(mine)} sessions of this process")
    return mine[0]


def with_gpupool(torch, library, admin_socket):
    import torch_allocator
    torch_allocator.use_gpupool(library)
    numbers = train(torch)
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    check(session(admin_socket)["leased_bytes"] >= held.numel(), "the stats do not show the tensor")
    del held
    check(other_streams(torch) == 0, "memory was lent again while another stream used it")
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        check(False, "a tensor of 1 PiB was made")
    except RuntimeError as error:
        check("acquiring" in str(error), f"not our text: {error}")
    torch.cuda.synchronize()
    before = session(admin_socket)["leased_bytes"]
    torch.cuda.empty_cache()
    check(session(admin_socket)["leased_bytes"] < before, "empty_cache() gave nothing back")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            torch.zeros(16, device="cuda")
        check(False, "a graph was captured, which the allocator has to refuse")
    except RuntimeError as error:
        check("gpupool" in str(error), f"not our text: {error}")
    check(torch.ones(1000, device="cuda").sum().item() == 1000, "nothing works after a refused capture")
    return numbers


def run(mode, arguments):
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run([sys.executable, __file__, *arguments, mode], env=environment, stdout=subprocess.PIPE,
                          text=True, timeout=300)
    check(done.returncode == 0, f"with {mode}: exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    library, admin_socket = arguments = sys.argv[1:3]
    try:
        import torch
    except ImportError:
        sys.exit(77)
    if not torch.cuda.is_available():
        sys.exit(77)
    if len(sys.argv) == 4:
        print(json.dumps(train(torch) if sys.argv[3] == "native" else
                         with_gpupool(torch, library, admin_socket)))
        return
    native, ours = run("native", arguments), run("gpupool", arguments)
    check(len(native) == len(ours) == STEPS + 1, "not all steps were done")
    worst = max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(native, ours))
    check(worst <= 1e-4, f"the results differ, by {worst:.2g}")
    print(f"{STEPS} steps with PyTorch {torch.__version__}: "
          f"{'equal to the last bit' if native == ours else f'equal but for {worst:.2g}'}; "
          f"loss {native[0]:.4f} to {native[-2]:.4f}")


if __name__ == "__main__":
    main()
