# SPDX-License-Identifier: Apache-2.0
"""PyTorch under gpupoolctl run, on a GPU: its own allocator works on the daemon's memory, with all that it can do. Each part
runs in a process of its own, natively and with gpupool; where it has results, they have to be equal.

    torch_preload.py GPUPOOLCTL ADMIN-SOCKET [PART...]

Connects to the daemon that GPUPOOL_SOCKET names. GPUPOOLCTL_LIBRARY_PATH: where gpupoolctl, and it alone, finds its
libraries. One line a part. Exit status 0: all hold; 1; 77: there is no PyTorch, or no GPU for it.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import torch_plugin  # noqa: E402

MIB = 1 << 20
WAIT_S = 240
TOLERANCE = 1e-4


def check(holds, what):
    if not holds:
        sys.exit(f"torch_preload: {what}")


def ask(admin_socket, command):
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(admin_socket)
        admin.sendall(json.dumps({"command": command}).encode() + b"\n")
        return json.loads(admin.makefile().readline())


def session(admin_socket):
    """Of this process, in the daemon's stats; None natively."""
    mine = [entry for entry in ask(admin_socket, "sessions")["sessions"] if entry["pid"] == os.getpid()]
    return mine[0] if mine else None


def in_use(admin_socket):
    mine = session(admin_socket)
    return mine["in_use_bytes"] if mine else 0


def small_model(torch):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 512), torch.nn.GELU(),
                               torch.nn.Linear(512, 16)).cuda()


# --- the parts: each returns numbers, which the two runs have to agree on -----------------------------------------------


def train(torch, _):
    return torch_plugin.train(torch)


def lent(torch, admin_socket):
    """Tensors lie in the daemon's memory: the stats show them."""
    before = in_use(admin_socket)
    tensor = torch.full((64 * MIB,), 7, dtype=torch.uint8, device="cuda")
    if under_gpupool():
        check(in_use(admin_socket) - before >= tensor.numel(), "the stats do not show the tensor")
    return [int(tensor.sum(dtype=torch.int64).item())]


def graphs(torch, _):
    """A captured graph, with tensors of its private pool, launched many times among other allocations."""
    model = small_model(torch)
    inputs = torch.randn(64, 256, generator=torch.Generator().manual_seed(2)).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        large = torch.zeros(48 * MIB, dtype=torch.uint8, device="cuda")  # allocated while the capture goes on
        result = model(inputs) + large[:16].float()
    sums = []
    for round_ in range(20):
        inputs.copy_(torch.randn(64, 256, generator=torch.Generator().manual_seed(round_)))
        graph.replay()
        sums.append(result.double().sum().item())
        noise = torch.full(((round_ + 1) * MIB,), 255, dtype=torch.uint8, device="cuda")
        with torch.no_grad():
            check(torch.allclose(result, model(inputs), rtol=1e-3, atol=1e-4), "a graph's result is another one")
        del noise
    return sums


def compiled(torch, _):
    """torch.compile with CUDA graph trees."""
    model = small_model(torch)
    try:
        fast = torch.compile(model, mode="reduce-overhead")
        with torch.no_grad():
            fast(torch.zeros(8, 256, device="cuda"))
    except Exception as error:  # no Triton, no C compiler
        print(f"torch.compile does not work here: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        return []
    sums = []
    with torch.no_grad():
        for round_ in range(10):
            inputs = torch.randn(64, 256, generator=torch.Generator().manual_seed(round_)).cuda()
            torch.compiler.cudagraph_mark_step_begin()
            sums.append(fast(inputs).double().sum().item())
    return sums


def other_streams(torch, _):
    check(torch_plugin.other_streams(torch) == 0, "memory was used again while another stream used it")
    return []


def statistics(torch, admin_socket):
    """memory_stats() counts, and empty_cache() gives memory back."""
    tensor = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    stats = torch.cuda.memory_stats()
    check(stats["allocated_bytes.all.current"] >= tensor.numel(), "memory_stats() does not count")
    check(torch.cuda.memory_reserved() >= 200 * MIB, "memory_reserved() does not count")
    full = in_use(admin_socket)
    del tensor
    torch.cuda.empty_cache()
    check(torch.cuda.memory_reserved() < 200 * MIB, "empty_cache() freed nothing")
    if under_gpupool():
        check(full - in_use(admin_socket) >= 200 * MIB, "empty_cache() gave nothing back")
    return []


def out_of_memory(torch, _):
    """Its own exception, after which it goes on."""
    for _ in range(2):
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
            check(False, "a tensor of 1 PiB was made")
        except torch.cuda.OutOfMemoryError as error:
            check("Tried to allocate" in str(error), f"another text: {error}")
    return [torch.ones(1000, device="cuda").sum().item()]


def pinned(torch, _):
    host = torch.arange(16 * MIB, dtype=torch.int32).pin_memory()
    check(host.is_pinned(), "not pinned")
    device = host.to("cuda", non_blocking=True)
    back = torch.empty_like(host, pin_memory=True)
    back.copy_(device, non_blocking=True)
    torch.cuda.synchronize()
    check(torch.equal(host, back), "a copy is another one")
    return [int(back.sum(dtype=torch.int64))]


def add_one(queue, done):
    tensor = queue.get()
    tensor += 1
    import torch
    torch.cuda.synchronize()
    del tensor
    done.put(True)


def shared(torch, _):
    """Two processes, one tensor, by torch.multiprocessing."""
    import torch.multiprocessing as processes
    context = processes.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    other = context.Process(target=add_one, args=(queue, done))
    other.start()
    tensors = [torch.full((4 * MIB,), float(number), device="cuda") for number in range(3)]
    torch.cuda.synchronize()
    queue.put(tensors[1])  # in the middle of PyTorch's own segment, perhaps
    check(done.get(timeout=WAIT_S), "the other process failed")
    other.join(WAIT_S)
    check(other.exitcode == 0, f"the other process ended with {other.exitcode}")
    sums = [tensor.double().mean().item() for tensor in tensors]
    check(sums == [0, 2, 2], f"the tensors are {sums}")
    return sums


def hold_cache(torch, size):
    """For reclaim(): keeps the memory of a tensor cached, and says when it has gone."""
    tensor = torch.empty(int(size), dtype=torch.uint8, device="cuda")
    del tensor
    print("cached", flush=True)
    deadline = time.monotonic() + WAIT_S
    while torch.cuda.memory_reserved() >= int(size) and time.monotonic() < deadline:
        time.sleep(0.01)
    check(torch.cuda.memory_reserved() < int(size), "nobody emptied the cache")
    print("emptied", flush=True)
    sys.stdin.readline()
    return []


def reclaim(torch, admin_socket):
    """Memory that one PyTorch keeps cached goes to another that needs it."""
    if not under_gpupool():
        return []
    index = torch.cuda.current_device()
    pools = [pool for pool in ask(admin_socket, "pools")["pools"] if pool["kind"] == "device" and pool["device"] == index]
    size = pools[0]["limit_bytes"] * 6 // 10
    holder = subprocess.Popen(command("gpupool", sys.argv[1], admin_socket, "hold_cache", str(size)), text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    check(holder.stdout.readline() == "cached\n", "the other process failed")
    deadline = time.monotonic() + 30
    tensor = None
    while tensor is None and time.monotonic() < deadline:
        try:
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            pass  # the wait in cudaMalloc() is short: freeing so much takes its time
    check(tensor is not None, "the other process's cache did not come")
    check(holder.stdout.readline() == "emptied\n", "the other process did not notice")
    holder.communicate("\n", timeout=WAIT_S)
    check(holder.returncode == 0, f"the other process ended with {holder.returncode}")
    return []


PARTS = {part.__name__: part for part in (lent, train, graphs, compiled, other_streams, statistics, out_of_memory, pinned,
                                          shared, reclaim)}


# --- both runs ------------------------------------------------------------------------------------------------------------


def under_gpupool():
    return "libgpupool-preload" in os.environ.get("LD_PRELOAD", "")


def command(mode, ctl, admin_socket, part, *arguments):
    python = [sys.executable, __file__, ctl, admin_socket, "--part", part, *arguments]
    if mode == "native" or under_gpupool():  # which its children inherit
        return python
    path = os.environ.get("GPUPOOLCTL_LIBRARY_PATH")
    before = ["env", f"LD_LIBRARY_PATH={path}"] if path else []
    after = ["env", "-u", "LD_LIBRARY_PATH"] if path else []
    return [*before, ctl, "run", *after, *python]


def run(mode, ctl, admin_socket, part):
    """The numbers; None: it failed, and has said why."""
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run(command(mode, ctl, admin_socket, part), env=environment, stdout=subprocess.PIPE, text=True,
                          timeout=WAIT_S, check=False)
    if done.returncode != 0 or not done.stdout:
        print(f"FAILED {part}: {mode}: exit status {done.returncode}")
        return None
    return json.loads(done.stdout.splitlines()[-1])


def compare(part, native, ours):
    if native is None or ours is None:
        return False
    if len(native) != len(ours):
        print(f"FAILED {part}: {len(native)} results natively, {len(ours)} with gpupool")
        return False
    worst = max((abs(a - b) / max(abs(a), 1e-6) for a, b in zip(native, ours)), default=0)
    if worst > TOLERANCE:
        print(f"FAILED {part}: the results differ, by {worst:.2g}")
        return False
    print(f"ok     {part}" + (f": {len(native)} results, " + ("equal" if native == ours else f"equal but for {worst:.2g}")
                              if native else ""), flush=True)
    return True


def main():
    ctl, admin_socket = sys.argv[1:3]
    try:
        import torch
    except ImportError:
        print("there is no PyTorch")
        sys.exit(77)
    if len(sys.argv) > 4 and sys.argv[3] == "--part":
        if sys.argv[4] == "hold_cache":
            hold_cache(torch, sys.argv[5])
        else:
            print(json.dumps(PARTS[sys.argv[4]](torch, admin_socket)))
        return
    if not torch.cuda.is_available():
        print("PyTorch has no GPU")
        sys.exit(77)
    good = True
    for part in sys.argv[3:] or PARTS:
        start = time.monotonic()
        native, ours = run("native", ctl, admin_socket, part), run("gpupool", ctl, admin_socket, part)
        good = compare(part, native, ours) and good
        print(f"       {time.monotonic() - start:.1f} s", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
