# SPDX-License-Identifier: Apache-2.0
"""Numba's memory manager over the pools (External Memory Management).

    NUMBA_CUDA_MEMORY_MANAGER=gpupool.numba python3 program.py

or, before the program uses a GPU: numba.cuda.set_memory_manager(gpupool.numba.MemoryManager)

Device arrays lie in the device pools, pinned and mapped arrays in the host pools. Managed memory, and memory that cuda.pinned() pins, stay
Numba's own.

Numba tells of no stream, neither when it asks for memory nor when the memory is dropped. So memory is idle when it is handed out, and
goes back when all work of the process on the device is done, as with cuMemFree(). As in Numba's own manager it goes back in batches
(NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT, NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO), and not within cuda.defer_cleanup().
"""
import collections
import contextlib
import ctypes
import weakref
from typing import Any

import gpupool
from gpupool._gpupool import _wait_for_device
from gpupool._transfer import attach_sent, origin_of

try:
    from numba.cuda.cudadrv import driver
except ImportError as error:
    raise ImportError("gpupool.numba needs the package numba-cuda, or a Numba with its own CUDA target") from error

__all__ = ["IpcHandle", "MemoryManager"]

_LEGACY = 1  # the legacy default stream, behind which all streams are that Numba makes
# How long a first try waits while memory of this process waits to go back. A pool's growth takes 0.1 to 10 ms.
_FIRST_TRY_S = 0.2

# Numba's own CUDA target has a second form of the driver's types, which numba-cuda has dropped.
_HAS_CTYPES = not getattr(driver, "USE_NV_BINDING", True)


def _host_pointer(address):
    return ctypes.c_void_p(address) if _HAS_CTYPES else address


def _device_pointer(address):
    return ctypes.c_void_p(address) if _HAS_CTYPES else driver.binding.CUdeviceptr(address)


# --- giving back ---


def _devices_of(buffer):
    """The devices whose work may use a buffer: of host memory, all that Numba has a context on."""
    if buffer.kind == "device":
        return [buffer.device]
    return [device.id for device in list(driver.driver.devices.values()) if device.primary_context is not None]


class _Outlet:
    """Gives buffers back behind the work of their devices. A buffer stays until the next one goes back where that may help: while a stream
    is captured, while a program has a memoryview of it, and where the driver could not tell that the work is done."""

    def __init__(self):
        self._refused = collections.deque()

    def give_back(self, buffer):
        kept, waited = [], set()
        self._refused.append(buffer)
        try:
            with contextlib.suppress(IndexError):  # one step, during which no signal's handler runs and no other thread
                kept.extend(iter(self._refused.popleft, None))
            number = 0
            while number < len(kept):
                if self._is_over(kept[number], waited):
                    del kept[number]
                else:
                    number += 1
        finally:  # also after a KeyboardInterrupt
            self._refused.extend(kept)

    @staticmethod
    def _is_over(buffer, waited):
        """Gives a buffer back. waited: the devices whose work is known to be done. Returns whether there is nothing more to be done for
        it. Finalizers call this, which cannot report an error."""
        try:
            for device in _devices_of(buffer):
                if device not in waited:
                    _wait_for_device(buffer.pool.client, device)
                    waited.add(device)
            buffer.close(gpupool.NO_STREAM)
        except (gpupool.CapturingError, gpupool.DriverError, BufferError):
            return False
        except gpupool.Error:  # of a client that is closed, a process that forked, or a daemon that is gone: the wait asks no daemon
            pass
        return True


_outlet = _Outlet()

# --- Numba's objects over a buffer ---


class _DeviceMemory(driver.MemoryPointer):
    """Device memory. It goes back when this and all views of it are gone."""

    def __init__(self, context, buffer, size, finalizer):
        super().__init__(context, _device_pointer(buffer.ptr), size, finalizer=finalizer)
        self.gpupool_buffer = buffer


class _MappedMemory(driver.MappedMemory):
    """Host memory with the address by which the GPU reaches it. The base class asks the driver by a call that does not know the memory
    of pools with export = vmm."""

    def __init__(self, context, buffer, size, finalizer):
        self.owned = None
        self.host_pointer = _host_pointer(buffer.ptr)
        self._bufptr_ = buffer.ptr
        self._buflen_ = size
        on_device = driver.get_devptr_for_active_ctx(buffer.ptr)
        on_device = getattr(on_device, "value", on_device)
        driver.AutoFreePointer.__init__(self, context, _device_pointer(int(on_device)), size, finalizer=finalizer)
        self.handle = self.host_pointer


def _buffer_of(memory):
    """The Buffer that Numba's memory lies in, or None."""
    owner = memory.owner
    if isinstance(owner, gpupool.Array):  # by cuda.as_cuda_array()
        return owner.buffer
    return owner if isinstance(owner, gpupool.Buffer) else getattr(owner, "gpupool_buffer", None)


# --- other processes ---


class IpcHandle(driver.IpcHandle):
    """In the place of a handle of cudaIpc: a token. It is pickled, opened and closed as Numba's is, and serves any number of processes
    while the memory of the process that made it is alive. It is a secret, as each token.

    open() returns when the work is done that the default stream, and all streams that Numba made, had when the handle was made."""

    def __init__(self, base: Any, token: bytes, origin: tuple[str, str], size: int, offset: int) -> None:
        super().__init__(base, token, size, offset=offset)
        self._origin = origin
        self._memory: Any = None

    def open(self, context: Any) -> Any:
        if self._memory is not None:
            raise ValueError("IpcHandle is already opened")
        buffer = attach_sent(self.handle, self._origin, False)
        if buffer.device != context.device.id:
            buffer.close(gpupool.NO_STREAM)
            raise ValueError(f"the memory is on device {buffer.device}, and the context is device {context.device.id}'s: open the handle "
                             f"within cuda.gpus[{buffer.device}], and copy from there")
        memory = _DeviceMemory(weakref.proxy(context), buffer, buffer.nbytes, lambda: _outlet.give_back(buffer))
        self._memory = memory
        return memory.view(self.offset, self.offset + self.size)

    open_direct = open_staged = open

    def close(self) -> None:
        if self._memory is None:
            raise ValueError("IpcHandle not opened")
        self._memory.free()
        self._memory = None

    def __reduce__(self):
        return _rebuild_handle, (self.handle, self._origin, self.size, self.offset)


def _rebuild_handle(token, origin, size, offset):
    return IpcHandle(None, token, origin, size, offset)


# --- the manager ---


class MemoryManager(driver.GetIpcHandleMixin, driver.HostOnlyCUDAMemoryManager):
    """One for each device. Numba makes it."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._pool: Any = None
        self._live: dict[int, gpupool.Buffer] = {}  # by id: those that arrays use

    def initialize(self) -> None:
        if self._pool is None:
            self._find_pool()

    def _find_pool(self):
        pool = gpupool.device_pool(self.context.device.id)
        self.deallocations.memory_capacity = pool.limit_bytes
        self._pool = pool
        return pool

    def _of_device_pool(self, do):
        """do(pool), and once more with the new pool where the daemon was restarted."""
        try:
            return do(self._pool or self._find_pool())
        except gpupool.DisconnectedError:
            return do(self._find_pool())

    def _acquire(self, pool, size):
        size = max(size, 1)
        if len(self.deallocations):
            try:
                return pool.acquire(size, gpupool.NO_STREAM, _FIRST_TRY_S)
            except gpupool.ExhaustedError:
                self.deallocations.clear()
        return pool.acquire(size, gpupool.NO_STREAM)

    def _note(self, buffer, size):
        """Notes a buffer, and returns what ends it: reset(), or the end of the array."""
        live, deallocations, allocations, key = self._live, self.deallocations, self.allocations, id(buffer)
        live[key] = buffer

        def finalize():
            allocations.pop(key, None)
            if live.pop(key, None) is not None:
                deallocations.add_item(_outlet.give_back, buffer, size)

        return key, finalize

    def memalloc(self, size: int) -> Any:
        buffer = self._of_device_pool(lambda pool: self._acquire(pool, size))
        return _DeviceMemory(weakref.proxy(self.context), buffer, size, self._note(buffer, size)[1])

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        """portable: all contexts use the memory in any case. wc: has no effect, the memory is not write-combined."""
        buffer = self._acquire(gpupool.host_pool(), size)
        key, finalize = self._note(buffer, size)
        context = weakref.proxy(self.context)
        if not mapped:
            return driver.PinnedMemory(context, _host_pointer(buffer.ptr), size, finalizer=finalize)
        try:
            memory = _MappedMemory(context, buffer, size, finalize)
        except BaseException:  # no array uses it
            self._live.pop(key, None)
            raise
        self.allocations[key] = memory  # which references count, as in Numba's own manager
        return memory.own()

    def get_ipc_handle(self, memory: Any) -> Any:
        """An IpcHandle, or for memory that is not of a pool what Numba's own manager returns."""
        buffer = _buffer_of(memory)
        if buffer is None:
            return super().get_ipc_handle(memory)
        address = getattr(memory.handle, "value", memory.handle)
        return IpcHandle(memory, buffer.share(_LEGACY), origin_of(buffer.pool.client), memory.size, int(address) - buffer.ptr)

    def get_memory_info(self) -> Any:
        """Returns the bytes that the pool may still hand out, and its limit. Memory that clients keep idle counts as used."""
        info = self._of_device_pool(lambda pool: pool.info())
        used = info.leased_bytes + info.quarantined_bytes
        return driver.MemoryInfo(free=max(info.limit_bytes - used, 0), total=info.limit_bytes)

    def reset(self) -> None:
        for key in list(self._live):
            buffer = self._live.pop(key, None)
            if buffer is not None:
                self.deallocations.add_item(_outlet.give_back, buffer, buffer.nbytes)
        super().reset()

    @property
    def interface_version(self) -> int:
        return 1


_numba_memory_manager = MemoryManager
