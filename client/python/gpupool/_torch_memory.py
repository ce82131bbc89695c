# SPDX-License-Identifier: Apache-2.0
"""Storages and tensors of PyTorch over buffers, and the marks by which they are found again.

The memory of such a storage keeps a Keeper, and the Keeper keeps the Buffer. The storage has a Mark, which keeps neither. So the buffer
goes back when PyTorch frees the memory, also where it moves the storage to other memory, as share_memory_() does. A mark counts only
while its storage lies where it was marked.
"""
import contextlib
import weakref

import torch

import gpupool
from gpupool._gpupool import _lend, _set_owner

# Those that DLPack and buffers know. A tensor of another type is made over a twin, whose elements have the same size.
DLPACK_DTYPES = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                 torch.float32, torch.float64, torch.complex64, torch.complex128}
_TWINS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_DLPACK_CUDA = 2  # the type of a device
DLPACK_LEGACY = 1  # the legacy default stream


def current_stream(device):
    """The handle of torch.cuda.current_stream(device), which takes some microseconds to make its object."""
    return torch._C._cuda_getCurrentRawStream(device)


def used_devices():
    """Those that this process has a context on. Asked when each tensor in host memory dies, so by the quickest calls there are."""
    if not torch.cuda.is_initialized():
        return []
    return [device for device in range(torch._C._cuda_getDeviceCount()) if torch._C._cuda_hasPrimaryContext(device)]


# --- what keeps a buffer ---


class Keeper:
    """The storages of one keeper are sent with one token, where they are in one message."""

    __slots__ = ("buffer", "is_of_batch", "__weakref__")

    def __init__(self, buffer):
        self.buffer, self.is_of_batch = buffer, False


class HostKeeper(Keeper):
    """Copies to and from GPUs may not be over when the last storage dies. As a rule they are on the streams that are current then, so
    that the memory goes back behind these."""

    __slots__ = ()

    def __del__(self):
        current = torch._C._cuda_getDevice() if torch.cuda.is_initialized() else -1
        for device in used_devices():
            with contextlib.nullcontext() if device == current else torch.cuda.device(device):
                try:
                    self.buffer.record_stream(current_stream(device) or DLPACK_LEGACY)
                except gpupool.StaleError:  # closed by the program
                    return


def keep(buffer):
    return (HostKeeper if buffer.kind == "host" else Keeper)(buffer)


# --- marks ---


class Mark:
    """Of a storage: its keeper, and where the storage lay."""

    __slots__ = ("_keeper", "_address")

    def __init__(self, keeper, storage):
        self._keeper, self._address = weakref.ref(keeper), storage.data_ptr()

    @property
    def buffer(self):
        """The Buffer, or None: nothing lies in it any more."""
        keeper = self._keeper()
        return None if keeper is None else keeper.buffer

    def find(self, storage):
        """The keeper; None: PyTorch has moved the storage, or the buffer is closed."""
        keeper = self._keeper()
        return None if keeper is None or keeper.buffer.closed or storage.data_ptr() != self._address else keeper


def mark_of(tensor):
    """The attribute _gpupool of a tensor's storage, or None."""
    if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda") or tensor.is_nested:
        return None
    try:
        return getattr(tensor.untyped_storage(), "_gpupool", None)
    except RuntimeError:  # a tensor without a storage
        return None


def keeper_of_storage(storage):
    mark = getattr(storage, "_gpupool", None)
    return mark.find(storage) if isinstance(mark, Mark) else None


def keeper_of(tensor):
    """The Keeper of the buffer that a tensor lies in, or None."""
    mark = mark_of(tensor)
    return mark.find(tensor.untyped_storage()) if isinstance(mark, Mark) else None


# --- storages and tensors ---


def twin_of(dtype):
    """A type that DLPack knows, whose elements have the same size."""
    return _TWINS[dtype.itemsize]


def over(keeper, shape, dtype, offset):
    """A tensor. shape: None: all elements that there are; offset: in bytes, of the first element."""
    buffer = keeper.buffer
    twin = dtype if dtype in DLPACK_DTYPES else twin_of(dtype)
    view = buffer.view(shape, twin, offset)
    on_gpu = view.__dlpack_device__()[0] == _DLPACK_CUDA
    stream = (current_stream(buffer.device) or DLPACK_LEGACY) if on_gpu else None
    tensor = torch.from_dlpack(_set_owner(_lend(view, stream), keeper))  # PyTorch knows no memory that is read-only
    storage = tensor.untyped_storage()
    storage._gpupool = Mark(keeper, storage)
    return tensor if twin is dtype else typed(storage, dtype, tensor.size(), tensor.stride())


def device_of(pool):
    """PyTorch's device of the tensors in a pool. The memory of a simulated GPU is the host's."""
    is_on_gpu = pool.kind == "device" and pool.client.gpu_kind == "cuda"
    return torch.device("cuda", pool.device) if is_on_gpu else torch.device("cpu")


def storage_over(keeper, n_bytes, offset):
    return over(keeper, n_bytes, torch.uint8, offset).untyped_storage()


def typed(storage, dtype, size, stride=(), offset=0):
    """A tensor over a storage, of any type. stride: (): as of a contiguous tensor; offset: in elements."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)


def stack(parts, out=None):
    """torch.stack(), also of types that PyTorch does not copy."""
    dtype = parts[0].dtype
    if dtype in DLPACK_DTYPES or dtype.is_complex:
        return torch.stack(parts, 0) if out is None else torch.stack(parts, 0, out=out)
    twin = twin_of(dtype)
    stacked = stack([part.view(twin) for part in parts], None if out is None else out.view(twin))
    return stacked.view(dtype) if out is None else out
