# SPDX-License-Identifier: Apache-2.0
"""CuPy's arrays in gpupool's memory, by libgpupool-hooks.so. Before the first array is made, one of:

    import cupy_allocator
    cupy_allocator.use_pool()     # below CuPy's own memory pool: any streams, graphs, CuPy's cache
    cupy_allocator.use_streams()  # in the place of CuPy's memory pool: idle memory goes back by itself
    cupy_allocator.use_pinned()   # besides: pinned memory

use_pool(): the pool that it returns keeps idle memory until its free_all_blocks() is called, which waits for the device. That is
not the pool of cupy.get_default_memory_pool(), which serves no arrays from then on.

use_streams(): an array's memory is given back on the stream that was current when it was made. Work on it by other streams is
done, or ordered before that stream's next work, when the array goes. No graph is captured. CUDA's driver crashes where gpupool
leaves a fence on a stream that was destroyed, so each stream on which an array was made is kept as long as the process. A stream
that another library destroys (cupy.cuda.ExternalStream) cannot be kept: use such a stream only while its owner keeps it.

Where there is no memory, after GPUPOOL_ALLOC_TIMEOUT (10 s), the allocation raises a RuntimeError, which lists its holders.
"""
import ctypes

import cupy

LIBRARY = "libgpupool-hooks.so.0"
ANY_STREAM = -1  # GPUPOOL_NO_STREAM


def _load(library):
    hooks = ctypes.CDLL(library)
    hooks.gpupool_cupy_malloc_pinned.restype = ctypes.c_void_p
    hooks.gpupool_cupy_malloc_pinned.argtypes = (ctypes.c_size_t,)
    hooks.gpupool_cupy_free_pinned.restype = None
    hooks.gpupool_cupy_free_pinned.argtypes = (ctypes.c_void_p,)
    hooks.gpupool_error_text.restype = ctypes.c_char_p  # of the client library, which the hooks bring along
    return hooks


def allocator(stream=ANY_STREAM, library=LIBRARY):
    """A cupy.cuda.CFunctionAllocator for the arrays of one stream, by its handle (stream.ptr), or for any stream. library: a path,
    unless the loader finds it."""
    hooks = _load(library)

    def address(name):
        return ctypes.cast(getattr(hooks, name), ctypes.c_void_p).value

    return cupy.cuda.CFunctionAllocator(stream, address("gpupool_cupy_malloc"), address("gpupool_cupy_free"), hooks)


def use_pool(library=LIBRARY):
    pool = cupy.cuda.MemoryPool(allocator(ANY_STREAM, library).malloc)
    cupy.cuda.set_allocator(pool.malloc)
    return pool


def use_streams(library=LIBRARY):
    kept = {}  # by handle: a stream and its allocator. CuPy destroys a stream with its last reference

    def malloc(size):
        stream = cupy.cuda.get_current_stream()
        if stream.ptr not in kept:
            kept[stream.ptr] = stream, allocator(stream.ptr, library)
        return kept[stream.ptr][1].malloc(size)

    cupy.cuda.set_allocator(malloc)


class _Pinned(cupy.cuda.PinnedMemory):
    def __init__(self, hooks, size):  # in the place of cudaHostAlloc()
        self.hooks, self.size, self.ptr = hooks, size, 0
        self.ptr = hooks.gpupool_cupy_malloc_pinned(size) or 0
        if size > 0 and self.ptr == 0:
            raise MemoryError(hooks.gpupool_error_text().decode())

    def __del__(self):
        if self.ptr:
            self.hooks.gpupool_cupy_free_pinned(self.ptr)


def pinned_allocator(library=LIBRARY):
    """For cupy.cuda.set_pinned_memory_allocator(). A program that copies from such memory itself keeps it until the copy is done,
    as CuPy does."""
    hooks = _load(library)
    return lambda size: cupy.cuda.PinnedMemoryPointer(_Pinned(hooks, size), 0)


def use_pinned(library=LIBRARY):
    cupy.cuda.set_pinned_memory_allocator(pinned_allocator(library))
