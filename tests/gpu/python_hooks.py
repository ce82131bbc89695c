# SPDX-License-Identifier: Apache-2.0
"""The allocator hooks of the Python package on a GPU: Numba, cuda.core and Triton compute in memory of the pools.

    PYTHONPATH=... python3 tests/gpu/python_hooks.py [numba|cuda_core|triton]

Each package has a process of its own, and is left out where it cannot be imported. Each check prints a line. Exit status 0: all hold; 1;
77: there is no GPU, or none of the packages.

The daemon is the one that GPUPOOL_SOCKET names.
"""
import contextlib
import ctypes
import gc
import multiprocessing
import os
import subprocess
import sys
import time
import traceback

import gpupool

SKIPPED = 77
WAIT_S = 120
PART_S = 180
N = 1 << 20
ROUNDS = 20
SPIN_NS = 20_000_000

checks = []


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def leased(kind="device"):
    """Bytes of a pool that this process or another one has, without those that lie idle here."""
    gpupool.trim()
    pool = gpupool.device_pool(0) if kind == "device" else gpupool.host_pool()
    return pool.info().leased_bytes


def wait_until_leased(expected, what):
    end = time.monotonic() + WAIT_S
    while (now := leased()) + leased("host") > expected:
        check(time.monotonic() < end, f"{what}: {now} bytes of device memory are leased, and {leased('host')} of host memory")
        time.sleep(0.001)


def is_in_pool(count=1, size=4 * N, kind="device"):
    """In the with statement so much memory is taken, and it is the pool's."""
    @contextlib.contextmanager
    def taken():
        before = leased(kind)
        yield
        more = leased(kind) - before
        check(more >= count * size, f"{more} bytes more are leased of the {kind} pool, instead of {count * size}")
    return taken()


def a_check(function):
    checks.append(function)
    return function


def run_checks(after):
    """Each check, and that it gives all memory back."""
    failed = 0
    before = leased() + leased("host")
    for function in checks:
        try:
            told = function()
            after()
            wait_until_leased(before, "memory did not go back")
            print(f"  {function.__name__}: passed{f' ({told})' if told else ''}", flush=True)
        except Exception:
            failed += 1
            print(f"  {function.__name__}: FAILED\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0


# --- Numba ---


def open_handle(connection):
    """In another process: opens a handle of an array, sums it, and doubles it."""
    handle = connection.recv()
    with handle as array:
        host = array.copy_to_host()
        array.copy_to_device(host * 2)
        del array
    connection.send(float(host.sum()))


def run_numba():
    os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "gpupool.numba"
    try:
        import numba  # noqa: F401
        from numba import cuda
        from numba.cuda.cudadrv import driver, nvvm
    except ImportError as error:
        print(error)
        return SKIPPED
    import numpy
    manager = cuda.current_context().memory_manager
    check(type(manager).__module__ == "gpupool.numba", f"the manager is {type(manager)}")

    def flush():
        gc.collect()
        manager.deallocations.clear()

    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack  # numba-cuda 0.30 needs the name, which NumPy 2.5 has dropped
    has_compiler = nvvm.is_available()
    if has_compiler:
        @cuda.jit
        def add(to, value):
            i = cuda.grid(1)
            if i < to.size:
                to[i] += value

        def add_to(array, value, stream=0):
            add[(array.size + 255) // 256, 256, stream](array, value)
    else:
        print("  there is no NVVM: kernels of PyTorch work on Numba's arrays", flush=True)
        import torch

        def add_to(array, value, stream=0):
            side = torch.cuda.ExternalStream(int(stream.handle)) if stream else torch.cuda.default_stream()
            with torch.cuda.stream(side):
                torch.as_tensor(array, device="cuda").add_(value)

    @a_check
    def arrays_and_copies():
        with is_in_pool():
            array = cuda.device_array(N, numpy.float32)
        host = numpy.arange(N, dtype=numpy.float32)
        array.copy_to_device(host)
        add_to(array, 1)
        part = array[10:20]
        del array
        gc.collect()
        manager.deallocations.clear()
        check((part.copy_to_host() == numpy.arange(11, 21)).all(), "a slice outlives its array")
        check((cuda.to_device(host.reshape(1024, -1)).copy_to_host() == host.reshape(1024, -1)).all(), "an array of two dimensions")
        check(cuda.device_array(0).size == 0, "an empty array")

    @a_check
    def pinned_and_mapped_arrays_with_streams():
        with is_in_pool(2, kind="host"):
            pinned, mapped = cuda.pinned_array(N, numpy.float32), cuda.mapped_array(N, numpy.float32)
        streams = [cuda.stream() for _ in range(4)]
        for turn in range(ROUNDS):
            arrays = []
            for i, stream in enumerate(streams):
                pinned[:] = turn + i
                array = cuda.device_array(N, numpy.float32, stream=stream)
                array.copy_to_device(pinned, stream=stream)
                add_to(array, 1, stream)
                stream.synchronize()
                arrays.append(array)
            for i, (array, stream) in enumerate(zip(arrays, streams, strict=True)):
                array.copy_to_host(pinned, stream=stream)
                stream.synchronize()
                check((pinned == turn + i + 1).all(), "a copy by a stream")
        mapped[:] = 0
        mapped.gpu_data.memset(1)  # by the GPU
        cuda.synchronize()
        check((numpy.asarray(mapped).view(numpy.uint8) == 1).all(), "the GPU writes to mapped memory")
        if has_compiler:
            mapped[:] = 3
            add_to(mapped, 4)
            cuda.synchronize()
            check((mapped == 7).all(), "a kernel works on mapped memory")
        with cuda.pinned(numpy.ones(N)), cuda.defer_cleanup():  # memory that Numba pins itself
            cuda.to_device(numpy.ones(N))

    @a_check
    def many_streams_and_arrays_that_die_early():
        """Each array dies as soon as its work is enqueued. Its memory serves the next one when the work is done."""
        streams = [cuda.stream() for _ in range(4)]
        sums = cuda.pinned_array((ROUNDS, len(streams), 8), numpy.float32)
        for turn in range(ROUNDS):
            for i, stream in enumerate(streams):
                array = cuda.device_array(N, numpy.float32, stream=stream)
                array.copy_to_device(numpy.zeros(N, numpy.float32), stream=stream)
                for _ in range(10):
                    add_to(array, turn + i, stream)
                array[:8].copy_to_host(sums[turn, i], stream=stream)
                del array
        cuda.synchronize()
        expected = (numpy.arange(ROUNDS)[:, None, None] + numpy.arange(len(streams))[None, :, None]) * 10
        check((sums == expected).all(), "an array was overwritten")

    @a_check
    def memory_waits_for_streams_that_numba_does_not_know():
        try:
            import torch
        except ImportError:
            return "no PyTorch: not checked"
        side = torch.cuda.Stream()  # non-blocking: the default stream does not wait for it
        manager.deallocations.clear()  # so that the next array that dies waits in Numba's list
        torch.zeros(8, device="cuda").fill_(1)  # the first launch of a kernel loads it, which waits for the device
        torch.cuda.synchronize()
        array = cuda.device_array(N, numpy.float32)
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000_000)  # about a second
            torch.as_tensor(array, device="cuda").fill_(1)
        del array
        check(not side.query(), "the GPU still works")
        manager.deallocations.clear()
        check(side.query(), "memory went back before the work on it was done")

    @a_check
    def an_array_in_another_process():
        array = cuda.to_device(numpy.arange(N, dtype=numpy.float64))
        for part in (array, array[1000:2000]):
            before = part.copy_to_host()
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(target=open_handle, args=(theirs,), daemon=True)
            process.start()
            handle = part.get_ipc_handle()
            ours.send(handle)
            check(ours.poll(WAIT_S), "the other process does not answer")
            check(ours.recv() == float(before.sum()), "another sum")
            process.join(WAIT_S)
            check(process.exitcode == 0, f"the other process ended with {process.exitcode}")
            check((part.copy_to_host() == before * 2).all(), "the other process's writes")

    @a_check
    def figures_and_failures():
        info = cuda.current_context().get_memory_info()
        check(info.total == gpupool.device_pool(0).limit_bytes and 0 < info.free <= info.total, f"{info}")
        try:
            cuda.device_array(1 << 50, numpy.uint8)
        except MemoryError:
            return
        raise AssertionError("more than there is")

    print(f"Numba {numba.__version__}, {driver.__file__}", flush=True)
    return run_checks(flush)


# --- cuda.core ---

FILL = """
extern "C" __global__ void fill(float *to, float value, unsigned n, unsigned long long spin_ns) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - began < spin_ns);
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        to[i] = value;
}
"""


def run_cuda_core():
    try:
        import cuda.core
        from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

        import gpupool.cuda_core
    except ImportError as error:
        print(error)
        return SKIPPED
    import numpy
    device = Device(0)
    device.set_current()
    resource = gpupool.cuda_core.DeviceMemoryResource(gpupool.device_pool(0))
    pinned = gpupool.cuda_core.PinnedMemoryResource()
    device.memory_resource = resource
    kernel = Program(FILL, code_type="c++", options=ProgramOptions(std="c++17", arch=f"sm_{device.arch}")).compile("cubin").get_kernel("fill")
    few = LaunchConfig(grid=8, block=256)

    def fill(buffer, value, stream, spin_ns=0):
        launch(stream, few, kernel, buffer, numpy.float32(value), numpy.uint32(N), numpy.uint64(spin_ns))

    def values(buffer):
        return numpy.frombuffer((ctypes.c_char * buffer.size).from_address(int(buffer.handle)), numpy.float32)

    def read(buffer, stream):
        with contextlib.closing(pinned.allocate(4 * N, stream=stream)) as host:
            buffer.copy_to(host, stream=stream)
            stream.sync()
            return values(host).copy()

    @a_check
    def kernels_and_copies():
        stream = device.create_stream()
        with is_in_pool():
            buffer = device.allocate(4 * N, stream=stream)
        check(buffer.memory_resource is resource, "the device's resource")
        with is_in_pool(kind="host"):
            host = pinned.allocate(4 * N, stream=stream)
        fill(buffer, 7, stream)
        buffer.copy_to(host, stream=stream)
        stream.sync()
        check((values(host) == 7).all(), "a copy to pinned memory")
        values(host)[:] = 5
        fill(host, 6, stream)
        stream.sync()
        check((values(host) == 6).all(), "a kernel on pinned memory")
        check(buffer.__dlpack_device__() == (2, 0), "DLPack's device")
        buffer.close()
        host.close()

    @a_check
    def memory_serves_another_stream_behind_the_work():
        """The kernel of the first stream writes late. Where its memory were handed out before, the other stream's contents would go."""
        one, other = device.create_stream(), device.create_stream()
        did_not_wait = 0
        for turn in range(ROUNDS):
            first = device.allocate(4 * N, stream=one)
            fill(first, 1, one, SPIN_NS)
            event = one.record()
            if turn % 2 == 0:
                first.close()
            del first
            did_not_wait += not event.is_done
            second = device.allocate(4 * N, stream=other)
            fill(second, 2, other)
            one.sync()
            check((read(second, other) == 2).all(), "memory was handed out while a kernel was to write to it")
            second.close()
        check(did_not_wait > 0, "each release waited for the GPU")
        return f"{did_not_wait} of {ROUNDS} releases came back before the kernel was done"

    @a_check
    def pinned_memory_serves_behind_the_copy():
        stream = device.create_stream()
        buffer = device.allocate(4 * N, stream=stream)
        for _ in range(ROUNDS):
            host = pinned.allocate(4 * N, stream=stream)
            values(host)[:] = 3
            fill(buffer, 0, stream, SPIN_NS)
            buffer.copy_from(host, stream=stream)  # late
            host.close()
            again = pinned.allocate(4 * N, stream=stream)
            values(again)[:] = 4
            check((read(buffer, stream) == 3).all(), "pinned memory was handed out before the copy was done")
            again.close()
        buffer.close()

    @a_check
    def memory_is_used_again():
        stream = device.create_stream()
        for given in (stream, device.default_stream):
            addresses = set()
            for _ in range(ROUNDS):
                buffer = device.allocate(4 * N, stream=given)
                addresses.add(int(buffer.handle))
                fill(buffer, 1, given)
                buffer.close()
                given.sync()
            check(len(addresses) < ROUNDS, f"{len(addresses)} addresses in {ROUNDS} rounds")

    @a_check
    def streams_end_before_the_memory_goes_back():
        """The client would name a stream to the driver that is not there any more, if it kept memory for it."""
        for _ in range(ROUNDS):
            stream = device.create_stream()
            buffers = [device.allocate(4 * N, stream=stream), pinned.allocate(4 * N, stream=stream)]
            fill(buffers[0], 1, stream, SPIN_NS // 10)
            for buffer in buffers:
                buffer.close()
            stream.close()
            gpupool.trim()

    @a_check
    def a_captured_graph_keeps_what_is_closed_meanwhile():
        stream = device.create_stream()
        result = device.allocate(4 * N, stream=stream)
        builder = device.create_graph_builder().begin_building()
        temporary = device.allocate(4 * N, stream=builder)
        fill(temporary, 8, builder)
        temporary.copy_to(result, stream=builder)
        temporary.close()
        graph = builder.end_building().complete()
        check(len(resource.kept) == 1, f"{len(resource.kept)} buffers are kept for graphs")
        for _ in range(3):
            others = [device.allocate(4 * N, stream=stream) for _ in range(8)]
            for other in others:
                fill(other, 9, stream)
            graph.launch(stream)
            check((read(result, stream) == 8).all(), "the graph's memory was handed out")
            check(all((read(other, stream) == 9).all() for other in others), "the graph writes to others' memory")
            for other in others:
                other.close()
        stream.sync()
        graph.close()
        resource.kept.clear()
        result.close()

    print(f"cuda.core {cuda.core.__version__}", flush=True)
    return run_checks(gc.collect)


# --- Triton ---


def run_triton():
    global tl, triton
    try:
        import torch
        import triton
        import triton.language as tl

        import gpupool.triton
    except ImportError as error:
        print(error)
        return SKIPPED
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        print("PyTorch has no GPU that makes tensor descriptors")
        return SKIPPED
    asked = []

    class Counting(gpupool.triton.Allocator):
        def __call__(self, size, alignment, stream):
            asked.append((size, alignment, stream))
            return super().__call__(size, alignment, stream)

    allocator = Counting()
    triton.set_allocator(allocator)

    @triton.jit
    def double(source, to, rows, columns, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
        first = tl.make_tensor_descriptor(source, shape=[rows, columns], strides=[columns, 1], block_shape=[BLOCK_ROWS, BLOCK_COLUMNS])
        second = tl.make_tensor_descriptor(to, shape=[rows, columns], strides=[columns, 1], block_shape=[BLOCK_ROWS, BLOCK_COLUMNS])
        row, column = tl.program_id(0) * BLOCK_ROWS, tl.program_id(1) * BLOCK_COLUMNS
        second.store([row, column], first.load([row, column]) * 2)

    def launch(source, to):
        rows, columns = source.shape
        double[(rows // 32, columns // 32)](source, to, rows, columns, 32, 32)

    source = torch.arange(1024 * 1024, device="cuda", dtype=torch.float32).view(1024, 1024)

    @a_check
    def a_kernel_with_tensor_descriptors():
        to = torch.zeros_like(source)
        launch(source, to)
        check(bool((to == source * 2).all()), "another result")
        check(asked, "Triton did not ask for memory")
        check(gpupool.device_pool(0).info().leased_bytes >= asked[-1][0], "the memory is not the pool's")
        return f"{asked[-1][0]} bytes, aligned to {asked[-1][1]}"

    @a_check
    def many_launches_on_many_streams():
        torch.cuda.synchronize()
        streams = [torch.cuda.default_stream()] + [torch.cuda.Stream() for _ in range(3)]
        results = [[torch.zeros_like(source) for _ in range(ROUNDS)] for _ in streams]
        torch.cuda.synchronize()
        n_asked = len(asked)
        for turn in range(ROUNDS):
            for stream, own in zip(streams, results, strict=True):
                with torch.cuda.stream(stream):
                    if turn == 0:
                        torch.cuda._sleep(20_000_000)  # so that the launches queue up
                    launch(source, own[turn])
        torch.cuda.synchronize()
        check(len(asked) - n_asked == ROUNDS * len(streams), f"Triton asked {len(asked) - n_asked} times")
        check({stream for _, _, stream in asked[n_asked:]} == {stream.cuda_stream for stream in streams}, "the streams")
        check(all(bool((to == source * 2).all()) for own in results for to in own), "another result")
        check(allocator.captured == [], "no launch was captured")

    @a_check
    def a_graph_keeps_its_memory():
        to = torch.zeros_like(source)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            launch(source, to)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                launch(source, to)
        check(len(allocator.captured) == 4, f"{len(allocator.captured)} pieces of memory are kept for the graph")
        others = [gpupool.device_pool(0).acquire(buffer.nbytes, zero=True) for buffer in allocator.captured for _ in range(8)]
        kept = {buffer.ptr for buffer in allocator.captured}
        check(kept.isdisjoint(other.ptr for other in others), "the graph's memory was handed out")
        for _ in range(3):
            to.zero_()
            graph.replay()
            check(bool((to == source * 2).all()), "another result")
        torch.cuda.synchronize()
        del graph, others
        allocator.captured.clear()

    print(f"Triton {triton.__version__}", flush=True)
    return run_checks(gc.collect)


PARTS = {"numba": run_numba, "cuda_core": run_cuda_core, "triton": run_triton}


def main():
    if len(sys.argv) > 1:
        return PARTS[sys.argv[1]]()
    if gpupool.default_client().gpu_kind != "cuda":
        print("the daemon has no GPU")
        return SKIPPED
    results = {}
    for part in PARTS:
        print(f"{part}:", flush=True)
        try:
            results[part] = subprocess.run([sys.executable, "-X", "faulthandler", __file__, part], check=False, timeout=PART_S).returncode
        except subprocess.TimeoutExpired:
            results[part] = f"no end in {PART_S} s"
        if results[part] not in (0, SKIPPED):
            print(f"{part}: FAILED ({results[part]})", flush=True)
    if set(results.values()) == {SKIPPED}:
        print("neither Numba nor cuda.core nor Triton is here")
        return SKIPPED
    print(", ".join(f"{part}: {'passed' if status == 0 else 'left out' if status == SKIPPED else 'FAILED'}" for part, status in results.items()))
    return 0 if set(results.values()) <= {0, SKIPPED} else 1


if __name__ == "__main__":
    sys.exit(main())
