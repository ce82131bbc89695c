# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors in gpupool's memory. For a region of a program, with PyTorch's own caching allocator above it:

    import torch, torch_allocator
    with torch.cuda.use_mem_pool(torch_allocator.pool()):
        ...

For all of a program, without PyTorch's caching allocator, before the first tensor on a GPU is made:

    torch_allocator.use_gpupool()

The daemon is the one that GPUPOOL_SOCKET names, else the machine's. A program that is to change nothing runs under
`gpupoolctl run`.
"""
import ctypes

import torch

LIBRARY = "libgpupool-torch.so"
_kept = []  # PyTorch calls the allocators for as long as there are tensors


def pool(library=LIBRARY):
    """A torch.cuda.MemPool whose segments are gpupool's: statistics and OutOfMemoryError are as with PyTorch's own memory. A CUDA
    graph is captured outside the region, with torch.cuda.graph(graph, pool=pool.id). library: a path, unless the loader finds
    it. PyTorch 2.6 or newer."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "gpupool_torch_pool_malloc", "gpupool_torch_pool_free")
    _kept.append(allocator)
    return torch.cuda.MemPool(allocator.allocator())


def use_gpupool(library=LIBRARY):
    """The lean allocator: gpupool's cache in place of PyTorch's. It has no CUDA graphs, no MemPool and no memory_stats().
    When the daemon cannot lend memory in GPUPOOL_ALLOC_TIMEOUT (10 s), the allocation raises a RuntimeError, which lists the
    holders of the memory. library: a path, unless the loader finds it. PyTorch 2.3 or newer."""
    functions = ctypes.CDLL(library)

    def address(name):
        return ctypes.cast(getattr(functions, name), ctypes.c_void_p).value

    allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "gpupool_torch_malloc", "gpupool_torch_free")
    hooks = allocator.allocator()
    hooks.set_record_stream_fn(address("gpupool_torch_record_stream"))   # Tensor.record_stream()
    hooks.set_begin_allocate_to_pool(address("gpupool_torch_begin_pool"))  # refuses CUDA graphs
    hooks.set_reset_fn(address("gpupool_torch_empty_cache"))             # torch.cuda.empty_cache()
    torch.cuda.memory.change_current_allocator(allocator)
    return allocator
