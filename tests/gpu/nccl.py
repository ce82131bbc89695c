# SPDX-License-Identifier: Apache-2.0
"""Device memory of a pool on two GPUs. A process on one GPU uses a buffer that a process on the other GPU has shared: by copies, on
pools of both kinds, and by a kernel, on a pool with export = vmm. Two processes of NCCL, one on each GPU, reduce buffers of
such a pool, before and after they register them.

The Python package gpupool has to be importable. The daemon is $GPUPOOL_TEST_DAEMON, which finds its libraries in
$GPUPOOL_LIBRARY_PATH. NCCL and the CUDA runtime are those of the PyTorch wheels, else those of the system. Exit status 77: there
are not two GPUs, or there is no NCCL.
"""
import array
import ctypes
import glob
import importlib.util
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench" / "driver"))
import gpupool  # noqa: E402
from daemon import Daemon  # noqa: E402

MIB = 1 << 20
SIZE = 256 * MIB
ROUNDS = 20
CASE_S = 100  # after which a case has failed
SKIPPED = 77
OK, HOST_TO_DEVICE, DEVICE_TO_HOST = 0, 1, 2
NCCL_FLOAT32, NCCL_SUM = 7, 0
CONFIGURATION = "[device]\nexport = {}\nlimit = 2GiB\nstep = 256MiB\n[host]\nlimit = 64MiB\n"

# to[i] = from[i], for 64-bit words
COPY_WORDS = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry copy_words(.param .u64 to, .param .u64 from, .param .u64 count)
{
    .reg .pred %stop;
    .reg .b32 %block, %blocks, %threads, %thread;
    .reg .b64 %to, %from, %count, %i, %stride, %offset, %source, %target, %first, %word;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    ld.param.u64 %count, [count];
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %from, %from;
    mov.u32 %block, %ctaid.x;
    mov.u32 %blocks, %nctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %stride, %blocks, %threads;
    mul.wide.u32 %first, %block, %threads;
    cvt.u64.u32 %i, %thread;
    add.u64 %i, %i, %first;
next:
    setp.ge.u64 %stop, %i, %count;
    @%stop bra done;
    shl.b64 %offset, %i, 3;
    add.u64 %source, %from, %offset;
    ld.global.u64 %word, [%source];
    add.u64 %target, %to, %offset;
    st.global.u64 [%target], %word;
    add.u64 %i, %i, %stride;
    bra next;
done:
    ret;
}
\0"""


class Failed(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Failed(what)
    print(f"ok: {what}", flush=True)


def pattern(seed):
    return random.Random(seed).randbytes(MIB) * (SIZE // MIB)


# --- libraries ----------------------------------------------------------------------------------------------------------


def load_library(in_wheels, names):
    """A library of the wheels "nvidia-…", else one that the loader or the toolkit's folder has; None."""
    spec = importlib.util.find_spec("nvidia")
    found = [path for folder in (spec.submodule_search_locations if spec else [])
             for path in sorted(glob.glob(f"{folder}/{in_wheels}"), reverse=True)]
    system = [path for name in names for path in (name, f"/usr/local/cuda/lib64/{name}", f"/usr/local/cuda/lib/{name}")]
    for path in found + system:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


class Cuda:
    """The runtime, and of the driver what starts a kernel."""

    def __init__(self):
        self.runtime = load_library("*/lib/libcudart.so.1[0-9]", ("libcudart.so.13", "libcudart.so.12", "libcudart.so"))
        if self.runtime is None:
            raise OSError("no CUDA runtime here")
        self.runtime.cudaGetErrorString.restype = ctypes.c_char_p
        self.driver = None

    def call(self, name, *arguments):
        error = getattr(self.runtime, name)(*arguments)
        if error != OK:
            raise Failed(f"{name}: {self.runtime.cudaGetErrorString(error).decode()}")

    def device_count(self):
        count = ctypes.c_int()
        return count.value if self.runtime.cudaGetDeviceCount(ctypes.byref(count)) == OK else 0

    def use(self, device):
        self.call("cudaSetDevice", device)
        self.call("cudaFree", None)  # makes the context, for the driver's calls

    def can_access(self, device, peer):
        can = ctypes.c_int()
        self.call("cudaDeviceCanAccessPeer", ctypes.byref(can), device, peer)
        return can.value != 0

    def write(self, memory, content):
        self.call("cudaMemcpy", ctypes.c_void_p(memory), content, ctypes.c_size_t(len(content)), HOST_TO_DEVICE)

    def read(self, memory, size):
        content = ctypes.create_string_buffer(size)
        self.call("cudaMemcpy", content, ctypes.c_void_p(memory), ctypes.c_size_t(size), DEVICE_TO_HOST)
        return content.raw

    def wait(self):
        self.call("cudaDeviceSynchronize")

    def copy(self, to, to_device, source, source_device):
        self.call("cudaMemcpyPeerAsync", ctypes.c_void_p(to), to_device, ctypes.c_void_p(source), source_device,
                  ctypes.c_size_t(SIZE), None)
        self.wait()

    def driver_call(self, name, *arguments):
        error = getattr(self.driver, name)(*arguments)
        if error != OK:
            raise Failed(f"{name}: CUresult {error}")

    def kernel(self):
        """The kernel that copies, for the current device."""
        self.driver = ctypes.CDLL("libcuda.so.1")
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver_call("cuModuleLoadData", ctypes.byref(module), COPY_WORDS)
        self.driver_call("cuModuleGetFunction", ctypes.byref(function), module, b"copy_words")
        return function

    def launch(self, function, to, source):
        values = [ctypes.c_uint64(value) for value in (to, source, SIZE // 8)]
        arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        self.driver_call("cuLaunchKernel", function, 1024, 1, 1, 256, 1, 1, 0, None, arguments, None)
        self.wait()


class UniqueId(ctypes.Structure):
    """ncclUniqueId"""
    _fields_ = [("internal", ctypes.c_uint8 * 128)]


class Nccl:
    def __init__(self):
        self.library = load_library("nccl/lib/libnccl.so.2", ("libnccl.so.2",))
        if self.library is None:
            raise OSError("no NCCL here")
        self.library.ncclGetErrorString.restype = ctypes.c_char_p
        self.library.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int)
        self.can_register = hasattr(self.library, "ncclCommRegister")
        self.communicator = ctypes.c_void_p()

    def call(self, name, *arguments):
        error = getattr(self.library, name)(*arguments)
        if error != OK:
            raise Failed(f"{name}: {self.library.ncclGetErrorString(error).decode()}")

    def version(self):
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        return number.value

    def unique_id(self):
        unique = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(unique))
        return bytes(unique)

    def join(self, unique, rank):
        self.call("ncclCommInitRank", ctypes.byref(self.communicator), 2, UniqueId.from_buffer_copy(unique), rank)

    def reduce(self, source, to):
        self.call("ncclAllReduce", ctypes.c_void_p(source), ctypes.c_void_p(to), ctypes.c_size_t(SIZE // 4), NCCL_FLOAT32,
                  NCCL_SUM, self.communicator, None)

    def register(self, memory):
        handle = ctypes.c_void_p()
        self.call("ncclCommRegister", self.communicator, ctypes.c_void_p(memory), ctypes.c_size_t(SIZE), ctypes.byref(handle))
        return handle

    def deregister(self, handle):
        self.call("ncclCommDeregister", self.communicator, handle)

    def leave(self):
        self.call("ncclCommDestroy", self.communicator)


# --- the processes ------------------------------------------------------------------------------------------------------


def tell(**message):
    print(json.dumps(message), flush=True)


def hear():
    line = sys.stdin.readline()
    if not line:
        raise Failed("the other process is gone")
    return json.loads(line)


def speed(function):
    """In GB/s, the median of some rounds after one that does not count."""
    function()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return SIZE / statistics.median(times) / 1e9


def acquire(device):
    """Memory of a pool that no stream owns: each use is waited for."""
    return gpupool.device_pool(device).acquire(SIZE, stream=gpupool.NO_STREAM)


def play_owner(_):
    """On GPU 0: shares a buffer; afterwards it has what the other wrote."""
    cuda = Cuda()
    cuda.use(0)
    with acquire(0) as buffer:
        cuda.write(buffer.ptr, pattern(1))
        tell(token=buffer.share(gpupool.NO_STREAM).hex())
        wrote = hear()["wrote"]
        check(cuda.read(buffer.ptr, SIZE) == pattern(wrote), "the owner reads what the other GPU wrote last")


def play_user(export):
    """On GPU 1: reads and writes the buffer on GPU 0."""
    cuda = Cuda()
    cuda.use(1)
    shared = gpupool.attach(bytes.fromhex(hear()["token"]), gpupool.NO_STREAM)
    own = acquire(1)
    cuda.copy(own.ptr, 1, shared.ptr, 0)
    check(cuda.read(own.ptr, SIZE) == pattern(1), f"{export}: a copy to GPU 1 has the contents of the buffer on GPU 0")
    cuda.write(own.ptr, pattern(2))
    cuda.copy(shared.ptr, 0, own.ptr, 1)
    wrote = 2
    print(f"{export}: copies of {SIZE // MIB} MiB: GPU 0 to GPU 1 {speed(lambda: cuda.copy(own.ptr, 1, shared.ptr, 0)):.1f} GB/s, "
          f"GPU 1 to GPU 0 {speed(lambda: cuda.copy(shared.ptr, 0, own.ptr, 1)):.1f} GB/s", flush=True)
    if export == "vmm":
        if cuda.can_access(1, 0):
            # Without cudaDeviceEnablePeerAccess(): the client has given all devices of the process access.
            kernel = cuda.kernel()
            cuda.write(own.ptr, bytes(SIZE))
            cuda.launch(kernel, own.ptr, shared.ptr)
            check(cuda.read(own.ptr, SIZE) == pattern(2), "vmm: a kernel on GPU 1 reads the buffer on GPU 0")
            cuda.write(own.ptr, pattern(3))
            cuda.launch(kernel, shared.ptr, own.ptr)
            wrote = 3
            print(f"vmm: a kernel on GPU 1 reads {speed(lambda: cuda.launch(kernel, own.ptr, shared.ptr)):.1f} GB/s from GPU 0",
                  flush=True)
        else:
            print("vmm: not tried: GPU 1 cannot reach the memory of GPU 0, so no kernel can", flush=True)
    own.close()
    shared.close()
    tell(wrote=wrote)


def play_rank(rank):
    """One rank of NCCL, on the GPU of the same number."""
    rank = int(rank)
    cuda, nccl = Cuda(), Nccl()
    cuda.use(rank)
    if rank == 0:
        unique = nccl.unique_id()
        tell(unique=unique.hex())
    else:
        unique = bytes.fromhex(hear()["unique"])
    source, target = acquire(rank), acquire(rank)
    # Small integers: their sum is exact.
    ours, sums = (array.array("f", ((rank + 1) * i if part == 0 else 3 * i for i in range(4096))).tobytes() * (SIZE // 16384)
                  for part in (0, 1))
    nccl.join(unique, rank)

    def reduce(to):
        nccl.reduce(source.ptr, to.ptr)
        cuda.wait()

    def check_reduce(what):
        cuda.write(source.ptr, ours)
        cuda.write(target.ptr, bytes(SIZE))
        reduce(target)
        check(cuda.read(target.ptr, SIZE) == sums, f"rank {rank}: an all-reduce from buffer to buffer, {what}")
        print(f"rank {rank}: {what}: {speed(lambda: reduce(target)):.1f} GB/s", flush=True)
        reduce(source)
        check(cuda.read(source.ptr, SIZE) == sums, f"rank {rank}: an all-reduce in place, {what}")

    check_reduce("not registered")
    if nccl.can_register:
        handles = [nccl.register(buffer.ptr) for buffer in (source, target)]
        check_reduce("registered")
        for handle in handles:
            nccl.deregister(handle)
        check_reduce("no longer registered")
    else:
        print(f"rank {rank}: not tried: NCCL {nccl.version()} has no ncclCommRegister", flush=True)
    nccl.leave()
    source.close()
    target.close()


PARTS = {"owner": play_owner, "user": play_user, "rank": play_rank}


# --- the whole ----------------------------------------------------------------------------------------------------------


def forward(process, others):
    """Hands the messages of a process to the others; its other lines are for the log."""
    for line in process.stdout:
        if line.startswith("{"):
            for other in others:
                try:
                    other.stdin.write(line)
                    other.stdin.flush()
                except BrokenPipeError:
                    pass  # it has failed, and said so
        else:
            print(line, end="", flush=True)


def run_case(daemon, *parts):
    """Two processes, until both have ended. Returns whether both are content."""
    environment = daemon.environment({**os.environ, "NCCL_CUMEM_ENABLE": "1", "PYTHONDONTWRITEBYTECODE": "1"})
    # Both processes are on this machine, and two GPUs need no multicast.
    for name, value in (("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_NVLS_ENABLE", "0"), ("NCCL_DEBUG", "WARN")):
        environment.setdefault(name, value)
    processes = [subprocess.Popen([sys.executable, __file__, "--part", part, argument], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True, env=environment) for part, argument in parts]
    threads = [threading.Thread(target=forward, args=(process, [other for other in processes if other is not process]))
               for process in processes]
    for thread in threads:
        thread.start()
    end, content = time.monotonic() + CASE_S, True
    while any(process.poll() is None for process in processes):
        late = time.monotonic() > end
        if late or any(process.poll() not in (None, OK) for process in processes):
            content = False
            if late:
                print(f"FAILED: not done in {CASE_S} s", flush=True)
            for process in processes:
                process.kill()
            break
        time.sleep(0.05)
    content &= all(process.wait() == OK for process in processes)
    for thread in threads:
        thread.join()
    return content


def daemon_of(export):
    libraries = os.environ.get("GPUPOOL_LIBRARY_PATH")
    environment = {**os.environ, **({"LD_LIBRARY_PATH": libraries} if libraries else {})}
    return Daemon(os.environ["GPUPOOL_TEST_DAEMON"], environment, "cuda", CONFIGURATION.format(export), "")


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--part":
        try:
            PARTS[sys.argv[2]](*sys.argv[3:])
        except (Failed, gpupool.Error) as failure:
            print(f"FAILED: {failure}", flush=True)
            return 1
        return 0
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    try:
        count = Cuda().device_count()
    except OSError as error:
        print(error)
        return SKIPPED
    if count < 2:
        print(f"{count} GPU{'' if count == 1 else 's'} here, and two are needed")
        return SKIPPED
    content = True
    for export in ("ipc", "vmm"):
        with daemon_of(export) as daemon:
            content &= run_case(daemon, ("owner", ""), ("user", export))
    try:
        print(f"NCCL {Nccl().version()}")
    except OSError as error:
        print(f"{error}: only copies and kernels were tried")
        return SKIPPED if content else 1
    with daemon_of("vmm") as daemon:
        content &= run_case(daemon, ("rank", "0"), ("rank", "1"))
    return 0 if content else 1


if __name__ == "__main__":
    sys.exit(main())
