# SPDX-License-Identifier: Apache-2.0
"""The part of PyTorch that the workers of ../programs call, without a GPU, for tests of the benchmark itself. A plug-in allocates the
memory of tensors; without one they have none."""
import contextlib
import ctypes
import types

__version__ = "0.0"
uint8 = float32 = None
_current = None  # a plug-in's functions
_live_bytes = _peak_bytes = 0


class _Plugin:
    def __init__(self, library, malloc, free):
        functions = ctypes.CDLL(library)
        self.malloc, self.free = functions[malloc], functions[free]
        self.malloc.restype = ctypes.c_void_p
        self.malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.empty_cache = lambda: None
        for name in ("set_record_stream_fn", "set_begin_allocate_to_pool"):
            setattr(self, name, lambda address: None)

    def set_reset_fn(self, address):
        self.empty_cache = ctypes.CFUNCTYPE(None)(address)

    def allocator(self):
        return self


class _Tensor:
    def __init__(self, size):
        global _live_bytes, _peak_bytes
        self.size, self.plugin = size, _current
        self.address = self.plugin.malloc(size, 0, None) if self.plugin else None
        if self.plugin and not self.address:
            self.size = 0
            raise RuntimeError(f"out of memory: {size} bytes")
        _live_bytes += size
        _peak_bytes = max(_peak_bytes, _live_bytes)

    def __del__(self):
        global _live_bytes
        _live_bytes -= self.size
        if self.plugin and self.address:
            self.plugin.free(self.address, self.size, 0, None)


def _use(plugin):
    global _current
    _current = plugin


@contextlib.contextmanager
def _use_mem_pool(pool):
    _use(pool)
    try:
        yield
    finally:
        _use(None)


def _empty_cache():
    if _current:
        _current.empty_cache()


def _reset_peak():
    global _peak_bytes
    _peak_bytes = _live_bytes


def empty(size, dtype=None, device=None):
    del dtype, device
    return _Tensor(size)


def manual_seed(seed):
    del seed


def device(name):
    del name
    return contextlib.nullcontext()


def get_default_dtype():
    return float32


def set_default_dtype(dtype):
    del dtype


cuda = types.SimpleNamespace(
    is_available=lambda: True, synchronize=lambda: None, empty_cache=_empty_cache, reset_peak_memory_stats=_reset_peak,
    memory_allocated=lambda: _live_bytes, max_memory_allocated=lambda: _peak_bytes, memory_reserved=lambda: _live_bytes,
    max_memory_reserved=lambda: _peak_bytes,
    MemPool=lambda allocator: allocator, use_mem_pool=_use_mem_pool,
    memory=types.SimpleNamespace(CUDAPluggableAllocator=_Plugin, change_current_allocator=_use))
