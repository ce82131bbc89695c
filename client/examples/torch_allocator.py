# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors in gpupool's memory. Before the first tensor on a GPU is made:

    import torch_allocator
    torch_allocator.use_gpupool()

The daemon is the one that GPUPOOL_SOCKET names, else the machine's. What the daemon cannot lend in
GPUPOOL_ALLOC_TIMEOUT (10 s) is a RuntimeError that says who holds what.
"""
import ctypes

import torch


def use_gpupool(library="libgpupool-torch.so"):
    """library: a path, unless the loader finds it. PyTorch 2.3 or newer."""
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
