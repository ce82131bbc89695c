# SPDX-License-Identifier: Apache-2.0
"""Scratch memory of Triton's kernels, from the device pools.

    import gpupool.triton
    triton.set_allocator(gpupool.triton.allocator)

Triton asks for memory at each launch of a kernel that makes tensor descriptors on the GPU, and drops it when the launch is enqueued. The
memory is the launch's stream's: it goes back behind the kernel, and no call waits.

Triton keeps the allocator for each thread: each thread that launches such kernels sets it.
"""
import gpupool
from gpupool._gpupool import _is_captured

__all__ = ["Allocator", "allocator"]

_ALIGNMENT = 512  # of all memory of the pools


class Scratch:
    """Memory of one launch. It goes back, in stream order, when the object dies."""

    __slots__ = ("_address", "_buffer")

    def __init__(self, buffer: gpupool.Buffer, alignment: int) -> None:
        self._buffer = buffer
        self._address = -(-buffer.ptr // alignment) * alignment

    def data_ptr(self) -> int:
        return self._address


class Allocator:
    """For triton.set_allocator().

    pool: a gpupool.Pool; None: the pool of the device that is current at the launch.

    captured: the memory of launches that were captured into CUDA graphs. It is the graphs': a program that has dropped its graphs, and
    has waited for their work, gives it back by captured.clear()."""

    def __init__(self, pool: gpupool.Pool | None = None) -> None:
        if pool is not None and pool.device is None:
            raise ValueError(f"{pool} has no memory of a GPU of this process: gpupool.device_pool() has")
        self._pool = pool
        self.captured: list[gpupool.Buffer] = []

    def __call__(self, size: int, alignment: int, stream: int | None = None) -> Scratch:
        if alignment < 1:
            raise ValueError(f"alignment is {alignment}: it must be 1 or more")
        pool = gpupool.device_pool() if self._pool is None else self._pool
        spare = alignment - 1 if _ALIGNMENT % alignment else 0
        buffer = pool.acquire(max(size, 1) + spare, stream)
        # The cache would lend memory that a captured stream gives back, and asks no driver. The graph uses it at each launch.
        if stream and _is_captured(pool.client, pool.device, stream):
            self.captured.append(buffer)
        return Scratch(buffer, alignment)


allocator = Allocator()
