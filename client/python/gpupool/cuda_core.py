# SPDX-License-Identifier: Apache-2.0
"""Memory resources of cuda.core over the pools.

    import gpupool.cuda_core
    device.memory_resource = gpupool.cuda_core.DeviceMemoryResource()
    buffer = device.allocate(1 << 20, stream=stream)
    pinned = gpupool.cuda_core.PinnedMemoryResource().allocate(1 << 20, stream=stream)

Memory goes back in stream order, on the stream that cuda.core names: that of Buffer.close(), else that of the allocation.
"""
import inspect
from collections.abc import Callable
from typing import Any

try:
    from cuda.core import Buffer, MemoryResource
except ImportError as error:
    raise ImportError("gpupool.cuda_core needs the package cuda-core, 1.2 or newer") from error

import gpupool

if "stream" not in inspect.signature(Buffer.from_handle).parameters:
    raise ImportError("gpupool.cuda_core needs cuda-core 1.2 or newer: an older one does not say on which stream a buffer was used that "
                      "is dropped")

__all__ = ["DeviceMemoryResource", "PinnedMemoryResource"]

_LEGACY = 1  # the legacy default stream


class _PoolResource(MemoryResource):
    """A resource over one pool.

    Memory is acquired for no stream, and leaves a fence on the stream that it goes back on. So nothing of a stream is kept once its
    memory was given back, and the program may close it then. The legacy default stream always exists: it keeps its memory for the next
    allocation, without a fence.

    kept: memory that could not be given back, as a rule because its stream was being captured into a CUDA graph. It is the graph's. A
    program that has dropped its graphs, and has waited for their work, gives it back by kept.clear()."""

    def __init__(self, pool: gpupool.Pool, find: Callable[[], gpupool.Pool] | None) -> None:
        self.pool = pool
        self._find = find  # the pool of a daemon that was restarted; None where the program named the pool
        self.kept: list[gpupool.Buffer] = []
        self._buffers: dict[int, gpupool.Buffer] = {}  # by address

    def _acquire(self, size, owner):
        return self.pool.acquire(max(size, 1), owner)

    def allocate(self, size: int, *, stream: Any) -> Buffer:
        """Returns a Buffer of cuda.core.

        Raises gpupool.ExhaustedError, a MemoryError, when there was no room for as long as GPUPOOL_ALLOC_TIMEOUT says (10 s)."""
        is_legacy = stream.__cuda_stream__()[1] in (0, _LEGACY)
        owner = _LEGACY if is_legacy and self.pool.kind == "device" else gpupool.NO_STREAM
        try:
            buffer = self._acquire(size, owner)
        except gpupool.DisconnectedError:
            if self._find is None:
                raise
            self.pool = self._find()
            buffer = self._acquire(size, owner)
        address = buffer.ptr
        self._buffers[address] = buffer
        try:
            return Buffer.from_handle(address, size, mr=self, stream=stream)
        except BaseException:
            self._buffers.pop(address, None)
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Gives memory back behind the work of a stream. cuda.core calls this."""
        buffer = self._buffers.pop(int(ptr), None)
        if buffer is None:
            raise ValueError(f"{int(ptr):#x} is not memory of this resource")
        try:
            buffer.close(stream)
        except gpupool.CapturingError:
            self.kept.append(buffer)
        except BaseException:
            self.kept.append(buffer)
            raise

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_managed(self) -> bool:
        return False


class DeviceMemoryResource(_PoolResource):
    """Memory of a GPU. pool: a device pool; None: that of the current device, also of a daemon that was restarted."""

    def __init__(self, pool: gpupool.Pool | None = None) -> None:
        is_named = pool is not None
        pool = gpupool.device_pool() if pool is None else pool
        if pool.device is None:
            raise ValueError(f"{pool} has no memory of a GPU of this process: PinnedMemoryResource is for host pools")
        device = pool.device
        super().__init__(pool, None if is_named else lambda: gpupool.device_pool(device))
        self._device_id = device

    @property
    def is_host_accessible(self) -> bool:
        return False

    @property
    def device_id(self) -> int:
        return self._device_id


class PinnedMemoryResource(_PoolResource):
    """Pinned host memory. pool: a host pool; None: that near the calling thread, also of a daemon that was restarted."""

    def __init__(self, pool: gpupool.Pool | None = None) -> None:
        is_named = pool is not None
        pool = gpupool.host_pool() if pool is None else pool
        if pool.kind != "host":
            raise ValueError(f"{pool} has no host memory: DeviceMemoryResource is for it")
        super().__init__(pool, None if is_named else gpupool.host_pool)

    @property
    def is_host_accessible(self) -> bool:
        return True

    @property
    def device_id(self) -> int:
        """-1: the memory is of no device."""
        return -1
