# SPDX-License-Identifier: Apache-2.0
"""The frameworks of the bursty programs: what a worker asks of each. All have the same methods.

    FAILURES             what a step raises when it fails
    SETTINGS             the variables of a process that uses the framework
    has_gpu()            makes its context, where the framework does so
    seed(seed)           for programs that take random numbers from the framework
    synchronize()        waits for the GPU
    empty_cache()        gives memory back that the framework keeps
    observe()            is called after each step
    memory(program)      bytes: what is allocated and reserved, and the most of both
    maker(size_bytes)    a function that allocates that much, and returns the object that holds it
    digest(result)       a number for what a step computed: equal for equal bits

Imports of the frameworks are in the constructors: the driver reads the list where there is none."""
import contextlib
import zlib


class Torch:
    NAME, FAILURES, SETTINGS = "PyTorch", (RuntimeError,), {}  # OutOfMemoryError is a RuntimeError
    DEVICE = "cuda"

    def __init__(self):
        import torch
        self.module = torch

    def has_gpu(self):
        return self.module.cuda.is_available()

    def seed(self, seed):
        self.module.manual_seed(seed)

    def synchronize(self):
        self.module.cuda.synchronize()

    def empty_cache(self):
        self.module.cuda.empty_cache()

    def observe(self):
        pass

    def reset_peaks(self):
        self.module.cuda.reset_peak_memory_stats()

    def memory(self, _):
        cuda = self.module.cuda
        return {"allocated": cuda.memory_allocated(), "reserved": cuda.memory_reserved(),
                "peak_allocated": cuda.max_memory_allocated(), "peak_reserved": cuda.max_memory_reserved()}

    def maker(self, size_bytes):
        return lambda: self.module.empty(size_bytes, dtype=self.module.uint8, device=self.DEVICE)

    def digest(self, result):
        return zlib.crc32(bytes(result.cpu().view(self.module.uint8).flatten().tolist()))  # PyTorch may be without NumPy

    @contextlib.contextmanager
    def weights_of(self, kind):
        """Weights are made on the GPU and in their type from the start: a copy on the processor would take long, one in single
        precision would be the program's peak."""
        torch = self.module
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, kind.DTYPE))
        try:
            with torch.device(self.DEVICE):
                yield
        finally:
            torch.set_default_dtype(before)


class Cupy:
    """Its pool keeps memory and does not say what was live at most: that is the pool's size, too."""
    NAME, FAILURES, SETTINGS = "CuPy", (RuntimeError, MemoryError), {}  # OutOfMemoryError is a MemoryError

    def __init__(self):
        import cupy
        self.module, self.peak = cupy, 0

    def has_gpu(self):
        return self.module.cuda.is_available()

    def seed(self, seed):
        pass

    def synchronize(self):
        self.module.cuda.Device().synchronize()

    def empty_cache(self):
        self.module.get_default_memory_pool().free_all_blocks()

    def observe(self):
        self.peak = max(self.peak, self.module.get_default_memory_pool().total_bytes())

    def reset_peaks(self):
        self.peak = 0
        self.observe()

    def memory(self, _):
        pool = self.module.get_default_memory_pool()
        return {"allocated": pool.used_bytes(), "reserved": pool.total_bytes(), "peak_allocated": self.peak, "peak_reserved": self.peak}

    def maker(self, size_bytes):
        return lambda: self.module.empty(size_bytes, dtype=self.module.uint8)

    def digest(self, result):
        return zlib.crc32(result.get().tobytes())

    def weights_of(self, _):
        return contextlib.nullcontext()


class Jax:
    """Each array is an allocation of the driver in stream order, as gpupoolctl run has it. Kernels are not chosen by their times, which would be other kernels,
    and other results, in each process."""
    NAME, FAILURES = "JAX", (RuntimeError,)
    SETTINGS = {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"}

    def __init__(self):
        import jax
        self.module = jax

    def has_gpu(self):
        try:
            return bool(self.module.devices("gpu"))
        except RuntimeError:  # JAX has no plug-in for a GPU, or the plug-in finds none
            return False

    def seed(self, seed):
        pass

    def synchronize(self):
        """A step waits for its own results."""

    def empty_cache(self):
        pass

    def observe(self):
        pass

    def reset_peaks(self):
        pass

    def memory(self, program):
        return {"allocated": program.weights_bytes, "reserved": program.weights_bytes,
                "peak_allocated": program.peak_bytes, "peak_reserved": program.peak_bytes}

    def maker(self, size_bytes):
        jax = self.module
        made = jax.jit(lambda: jax.numpy.zeros(size_bytes, jax.numpy.uint8)).lower().compile()
        return lambda: made().block_until_ready()

    def digest(self, result):
        import numpy
        return zlib.crc32(numpy.asarray(result).tobytes())

    def weights_of(self, _):
        return contextlib.nullcontext()


def of(kind):
    """The framework's class of a program's class. PyTorch is that of classes that name none."""
    return getattr(kind, "FRAMEWORK", Torch)
