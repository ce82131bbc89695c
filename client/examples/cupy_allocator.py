# SPDX-License-Identifier: Apache-2.0
"""CuPy's arrays in gpupool's memory. Before the first array is made:

    import cupy_allocator
    cupy_allocator.use_gpupool()

An array's memory is given back on the stream that was current when it was made: what other streams do with it must be
done, or ordered before that stream's next work, when the array goes.

gpupool leaves fences on a stream after its arrays are gone, and CUDA's driver crashes on a stream that was destroyed. So
each stream on which an array was made lives as long as the process. A stream that another library destroys
(cupy.cuda.ExternalStream) cannot be kept: use such a stream only while its owner keeps it.
"""
import ctypes

import cupy


class Gpupool:
    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        self.library.gpupool_alloc.restype = ctypes.c_void_p
        self.library.gpupool_alloc.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p)
        self.library.gpupool_free.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self.library.gpupool_error_text.restype = ctypes.c_char_p
        self.client = ctypes.c_void_p()
        self.check(self.library.gpupool_default(ctypes.byref(self.client)))
        self.pools = {}
        self.streams = {}  # by memory
        self.kept = {}  # streams, by handle: CuPy destroys a stream with its last reference

    def check(self, result):
        if result < 0:
            raise RuntimeError(self.library.gpupool_error_text().decode())

    def pool(self, device):
        if device not in self.pools:
            pool = ctypes.c_uint32()
            self.check(self.library.gpupool_device_pool(self.client, device, ctypes.byref(pool)))
            self.pools[device] = pool.value
        return self.pools[device]

    def malloc(self, size, device):
        stream = cupy.cuda.get_current_stream()
        memory = self.library.gpupool_alloc(self.client, self.pool(device), size, stream.ptr)
        if memory is None:
            raise MemoryError(self.library.gpupool_error_text().decode())
        self.kept[stream.ptr] = stream
        self.streams[memory] = stream.ptr
        return memory

    def free(self, memory, _device):
        self.library.gpupool_free(memory, self.streams.pop(memory))


def use_gpupool(library="libgpupool-client.so.0"):
    """library: a path, unless the loader finds it."""
    gpupool = Gpupool(library)
    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(gpupool.malloc, gpupool.free).malloc)
    return gpupool
