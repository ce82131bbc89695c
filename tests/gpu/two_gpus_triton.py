# SPDX-License-Identifier: Apache-2.0
"""Kernels that Triton launches on GPU 1, on memory of GPU 0: memory of PyTorch and of pools of both kinds, the process's own and another
process's. Triton asks the driver for the address that the current context reaches the memory by
(CU_POINTER_ATTRIBUTE_DEVICE_POINTER), and refuses memory that has none.

Each kind of memory has a process of its own, and is tried in four states: at first, after a copy by PyTorch from GPU to GPU, after
cuCtxEnablePeerAccess(), and memory that is made or received after that. Each line tells the driver's answer, what Triton says, and the
kernel's result. Memory of a pool can be used wherever PyTorch's memory of its kind can: else the exit status is 1. All memory of an ipc
pool is of the kind that PyTorch receives from another process, by a legacy handle. The driver lets the GPU use it that it was opened for.

    python3 tests/gpu/two_gpus_triton.py

Further lines tell what a kernel does that is launched past the check of Triton, and how a legacy handle can be opened for both GPUs. They
decide nothing.

The Python package gpupool has to be importable. The daemon is $GPUPOOL_TEST_DAEMON, which finds its libraries in
$GPUPOOL_LIBRARY_PATH. Exit status 77: there are not two GPUs that reach each other, or no PyTorch or Triton.
"""
import ctypes
import json
import os
import subprocess
import sys

from nccl import COPY_WORDS, OK, SKIPPED, Cuda, Failed, daemon_of

N = 1 << 20  # floats
MORE = 80 << 20  # floats of memory that fits no segment that is there: 320 MiB
CASE_S = 100
DEVICE_POINTER = 3  # CU_POINTER_ATTRIBUTE_DEVICE_POINTER
LAZY_PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess
STATES = ("at first", "after a copy", "peer access", "made afterwards")
RAW_STATES = STATES[:2]  # in which a kernel is tried past the check, in a process that it may cost its context

# Of each kind of memory: the daemon's kind, and the kind of PyTorch's memory that it is compared with.
KINDS = {
    "PyTorch's own": (None, None),
    "PyTorch's, received": (None, None),
    "ipc, own": ("ipc", "PyTorch's, received"),
    "ipc, received": ("ipc", "PyTorch's, received"),
    "vmm, own": ("vmm", "PyTorch's own"),
    "vmm, received": ("vmm", "PyTorch's, received"),
}


class Handle(ctypes.Structure):
    """cudaIpcMemHandle_t"""
    _fields_ = [("reserved", ctypes.c_uint8 * 64)]


# --- the driver ---


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def name(self, error):
        text = ctypes.c_char_p()
        self.library.cuGetErrorName(error, ctypes.byref(text))
        return (text.value or str(error).encode()).decode().removeprefix("CUDA_")

    def address_in_current_context(self, memory):
        """The answer to Triton's question."""
        address = ctypes.c_uint64()
        return self.name(self.library.cuPointerGetAttribute(ctypes.byref(address), DEVICE_POINTER, ctypes.c_uint64(memory)))

    def enable_peer_access(self, peer):
        """The current context reaches the primary context of another device."""
        context, device = ctypes.c_void_p(), ctypes.c_int()
        error = self.library.cuDeviceGet(ctypes.byref(device), peer)
        error = error or self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        return self.name(error or self.library.cuCtxEnablePeerAccess(context, 0))

    def copy_by_kernel(self, to, source, size):
        """Launches a kernel in the current context. Returns the name of the error."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        values = [ctypes.c_uint64(value) for value in (to, source, size // 8)]
        arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        error = self.library.cuModuleLoadData(ctypes.byref(module), COPY_WORDS)
        error = error or self.library.cuModuleGetFunction(ctypes.byref(function), module, b"copy_words")
        error = error or self.library.cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, None, arguments, None)
        return self.name(error or self.library.cuCtxSynchronize())


# --- one kind of memory ---


def make(kind, count=N):
    """A tensor on GPU 0, of the numbers from 0 on."""
    import torch
    if kind.startswith("PyTorch"):
        tensor = torch.empty(count, dtype=torch.float32, device="cuda:0")
    else:
        import gpupool.torch
        tensor = gpupool.torch.empty(count, dtype=torch.float32, device="cuda:0")
    tensor.copy_(torch.arange(count, dtype=torch.float32))
    torch.cuda.synchronize(0)
    return tensor


def serve_tensors(connection, kind):
    """The other process: sends a tensor for each number that it receives, until None."""
    import torch
    torch.cuda.set_device(0)
    sent = []
    try:
        while (count := connection.recv()) is not None:
            sent.append(make(kind, count))
            connection.send(sent[-1])
    except EOFError:  # the process that tries a kernel past the check says no farewell
        pass


class Source:
    """Tensors of one kind."""

    def __init__(self, kind):
        self.kind, self.connection = kind, None
        if kind.endswith("received"):
            import torch.multiprocessing
            context = torch.multiprocessing.get_context("spawn")
            self.connection, other = context.Pipe()
            self.process = context.Process(target=serve_tensors, args=(other, kind))
            self.process.start()

    def tensor(self, count=N):
        if self.connection is None:
            return make(self.kind, count)
        self.connection.send(count)
        return self.connection.recv()

    def close(self):
        if self.connection is not None:
            self.connection.send(None)
            self.process.join()


def triton_kernel():
    import triton
    import triton.language as tl

    # tl is looked up among the globals when the kernel is compiled.
    globals()["tl"] = tl

    @triton.jit
    def copy_kernel(source, to, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(to + at, tl.load(source + at, mask=at < count), mask=at < count)

    return lambda source, to: copy_kernel[(N // 1024,)](source, to, N, 1024)


def try_kernel(driver, launch, tensor):
    """Returns (answer of the driver, what became of Triton's launch), on GPU 1."""
    import torch
    with torch.cuda.device(1):
        to = torch.full((N,), -1.0, device="cuda:1")
        torch.cuda.synchronize()
        answer = driver.address_in_current_context(tensor.data_ptr())
        try:
            launch(tensor, to)
            torch.cuda.synchronize()
        except Exception as error:  # of Triton, or of the GPU
            return answer, f"{type(error).__name__}: {str(error).splitlines()[0]}"
        is_right = torch.equal(to.cpu(), torch.arange(N, dtype=torch.float32))
    return answer, "ok" if is_right else "other contents"


def play(kind, raw_state=""):
    """Prints a line of JSON for each state. raw_state: only the last line, of a kernel past Triton's check."""
    import torch
    torch.cuda.set_device(1)
    torch.zeros(1, device="cuda:0"), torch.zeros(1, device="cuda:1")
    driver, source = Driver(), Source(kind)
    launch = None if raw_state else triton_kernel()
    if launch:
        launch(torch.zeros(N, device="cuda:1"), torch.zeros(N, device="cuda:1"))
    tensor = source.tensor()
    for state in STATES:
        note = ""
        if state == "after a copy":
            to = torch.empty(N, device="cuda:1").copy_(tensor)
            note = "" if torch.equal(to.cpu(), tensor.cpu()) else "the copy has other contents"
        elif state == "peer access":
            with torch.cuda.device(1):
                note = driver.enable_peer_access(0)
        elif state == "made afterwards":
            tensor = source.tensor(MORE)
        if raw_state == state:
            with torch.cuda.device(1):
                to = torch.full((N,), -1.0, device="cuda:1")
                torch.cuda.synchronize()
                error = driver.copy_by_kernel(to.data_ptr(), tensor.data_ptr(), 4 * N)
                is_right = error == "SUCCESS" and torch.equal(to.cpu(), torch.arange(N, dtype=torch.float32))
            print(json.dumps({"raw": error if error != "SUCCESS" or is_right else "other contents"}), flush=True)
            os._exit(0)  # the context may be lost: there is nothing to take down
        if not raw_state:
            answer, told = try_kernel(driver, launch, tensor)
            print(json.dumps({"state": state, "answer": answer, "triton": told, "note": note}), flush=True)
    del tensor
    source.close()


# --- a legacy handle, opened for two GPUs ---


def play_handle_owner():
    cuda = Cuda()
    cuda.use(0)
    memory, handle = ctypes.c_void_p(), Handle()
    cuda.call("cudaMalloc", ctypes.byref(memory), ctypes.c_size_t(4 << 20))
    cuda.call("cudaIpcGetMemHandle", ctypes.byref(handle), memory)
    print(bytes(handle).hex(), flush=True)
    sys.stdin.readline()


def play_handle(first):
    """Opens one handle on both GPUs, first on the one of that number, and asks GPU 1 for the address."""
    owner = subprocess.Popen([sys.executable, __file__, "--handle-owner"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    handle = Handle.from_buffer_copy(bytes.fromhex(owner.stdout.readline()))
    cuda, driver = Cuda(), Driver()
    cuda.runtime.cudaIpcOpenMemHandle.argtypes = (ctypes.c_void_p, Handle, ctypes.c_uint)
    cuda.use(0)
    cuda.use(1)
    pointers = {}

    def told(step):
        cuda.use(1)
        print(f"handle, opened on GPU {first} first: {step}: " + (", ".join(
            f"opened on GPU {device} {driver.address_in_current_context(pointer)}" for device, pointer in pointers.items())), flush=True)

    for device in (int(first), 1 - int(first)):
        cuda.use(device)
        memory = ctypes.c_void_p()
        error = cuda.runtime.cudaIpcOpenMemHandle(ctypes.byref(memory), handle, LAZY_PEER_ACCESS)
        print(f"handle, opened on GPU {first} first: on GPU {device}: {cuda.runtime.cudaGetErrorString(error).decode()}, "
              f"at {memory.value or 0:#x}", flush=True)
        if error == OK:
            pointers[device] = memory.value
        told("at first")
        if device == 0:
            print(f"handle, opened on GPU {first} first: cuCtxEnablePeerAccess: {driver.enable_peer_access(0)}", flush=True)
            told("with peer access")
    for device in (1, 0):  # the second one costs the context
        if device in pointers:
            print(f"handle, opened on GPU {first} first: a kernel of GPU 1 on what was opened on GPU {device}: "
                  f"{copy_to_gpu_1(cuda, driver, pointers[device])}", flush=True)
    owner.stdin.close()
    owner.wait()


def copy_to_gpu_1(cuda, driver, pointer):
    cuda.use(1)
    to = ctypes.c_void_p()
    cuda.call("cudaMalloc", ctypes.byref(to), ctypes.c_size_t(4 << 20))
    return driver.copy_by_kernel(to.value, pointer, 4 << 20)


# --- the whole ---


def run_part(environment, *arguments):
    """The lines of a process, and whether it ended well."""
    try:
        ran = subprocess.run([sys.executable, __file__, *arguments], env=environment, stdout=subprocess.PIPE, text=True, timeout=CASE_S,
                             check=False)
    except subprocess.TimeoutExpired:
        print(f"FAILED: {' '.join(arguments)}: not done in {CASE_S} s", flush=True)
        return [], False
    if ran.returncode != 0:
        print(f"FAILED: {' '.join(arguments)}: exit status {ran.returncode}", flush=True)
    return ran.stdout.splitlines(), ran.returncode == 0


def try_kind(environment, kind, results):
    """Prints what was found, and notes the states in which Triton's kernel works. Returns whether the process ended well."""
    lines, is_content = run_part(environment, "--kind", kind)
    for line in lines:
        found = json.loads(line)
        results[kind, found["state"]] = found["triton"] == "ok"
        note = f" ({found['note']})" if found["note"] else ""
        print(f"{kind}: {found['state']}{note}: driver {found['answer']}, Triton {found['triton']}", flush=True)
    for state in RAW_STATES:
        if not results.get((kind, state)):
            for line in run_part(environment, "--kind", kind, state)[0]:
                print(f"{kind}: {state}: a kernel past the check: {json.loads(line)['raw']}", flush=True)
    return is_content


def is_as_usable(kind, results):
    """Whether memory of a pool works in each state in which PyTorch's memory of the same kind does."""
    model = KINDS[kind][1]
    worse = [state for state in STATES if model and results.get((model, state)) and not results.get((kind, state))]
    for state in worse:
        print(f"FAILED: {kind}: {state}: {model} memory can be used in this state", flush=True)
    return not worse


def try_all():
    results, is_content = {}, True
    for export in (None, "ipc", "vmm"):
        kinds = [kind for kind, (daemon_kind, _) in KINDS.items() if daemon_kind == export]
        if export is None:
            is_content &= all([try_kind(dict(os.environ), kind, results) for kind in kinds])
        else:
            with daemon_of(export) as daemon:
                is_content &= all([try_kind(daemon.environment(dict(os.environ)), kind, results) for kind in kinds])
        is_content &= all([is_as_usable(kind, results) for kind in kinds])
    for first in ("0", "1"):
        print("\n".join(run_part(dict(os.environ), "--handle", first)[0]), flush=True)
    return is_content


def main():
    parts = {"--kind": play, "--handle-owner": play_handle_owner, "--handle": play_handle}
    if len(sys.argv) > 1:
        if sys.argv[1] not in parts:
            sys.exit(__doc__)
        parts[sys.argv[1]](*sys.argv[2:])
        return 0
    try:
        import torch
        import triton
        cuda = Cuda()
    except (ImportError, OSError) as error:
        print(error)
        return SKIPPED
    if cuda.device_count() < 2 or not cuda.can_access(1, 0):
        print(f"{cuda.device_count()} GPUs here, and two are needed, of which GPU 1 reaches the memory of GPU 0")
        return SKIPPED
    print(f"PyTorch {torch.__version__}, Triton {triton.__version__}", flush=True)
    return 0 if try_all() else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"FAILED: {failure}")
