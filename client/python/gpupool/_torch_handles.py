# SPDX-License-Identifier: Apache-2.0
"""Handles of tensors, as torch.multiprocessing.reductions.reduce_tensor() returns them: (function, arguments).

A program hands a handle to any number of processes, by any means, and each of them calls function(*arguments), any number of times. A
handle names a token of Buffer.share(). It holds no memory: it serves as long as any process has the tensor.

A tensor on a GPU has PyTorch's own function, rebuild_cuda_tensor(), with PyTorch's own arguments, as programs count on both: they send
the arguments alone, or put another device at their place. The function finds the storage by the bytes of a Handle, in the place of
CUDA's. A tensor in host memory has rebuild_shared(), with the same arguments.
"""
import contextlib
import json
import threading
import types

import torch
import torch.multiprocessing.reductions as reductions
from torch._namedtensor_internals import check_serializing_named_tensor

import gpupool
from gpupool import _torch_memory as memory

_PREFIX = b"gpupool\0"
_HOST_INDEX = 0  # at the place of a device's, which programs replace

_sending = threading.local()  # depth: of calls of PyTorch's functions for a message that holds its memory


def _pools():
    """Imported at the first use: gpupool.torch imports this module."""
    import gpupool.torch
    return gpupool.torch


class Handle(bytes):
    """Pickled, it has the process that unpickles it import gpupool.torch, as rebuild_cuda_tensor() of PyTorch does not."""

    def __reduce__(self):
        return _handle, (bytes(self),)


def _handle(contents):
    _pools()
    return Handle(contents)


def _make_handle(storage, keeper):
    buffer = keeper.buffer
    token = buffer.share(_pools()._writer_of(buffer))
    part = storage.data_ptr() - buffer.ptr, storage.nbytes()
    return Handle(_PREFIX + json.dumps([token.hex(), part, _pools()._place_of(buffer)]).encode())


def _attach(handle):
    """A keeper of the memory, and the storage's part of it."""
    token, part, place = json.loads(handle[len(_PREFIX):])
    try:
        return _pools()._attach(bytes.fromhex(token), *place), part
    except gpupool.NoTokenError as error:
        raise gpupool.NoTokenError("the tensor of this handle is gone: the process that called reduce_tensor() keeps its tensor until "
                                   f"the others have rebuilt it ({error})") from error


def _open(handle):
    keeper, (offset, n_bytes) = _attach(handle)
    return memory.storage_over(keeper, n_bytes, offset)


def _is_handle(value):
    return isinstance(value, bytes) and value.startswith(_PREFIX)


# --- reduce_tensor() ---


@contextlib.contextmanager
def sending():
    """In the with statement reduce_tensor() is called for a message, whose parts hold their memory until it is received."""
    _sending.depth = getattr(_sending, "depth", 0) + 1
    try:
        yield
    finally:
        _sending.depth -= 1


def check(tensor):
    """Raises what a tensor that cannot be sent by its memory raises."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("a tensor that has a history of operations cannot be sent to another process: send tensor.detach()")
    check_serializing_named_tensor(tensor)


def rebuild_shared(tensor_class, size, stride, offset, _storage_class, dtype, _device, handle, _n_bytes, _storage_offset, requires_grad,
                   *_events):
    """As PyTorch's rebuild_cuda_tensor(), for host memory."""
    tensor = memory.typed(_open(handle), dtype, size, stride, offset)
    return _pools()._finish(tensor, tensor_class is torch.nn.Parameter, requires_grad)


def _reduce(tensor, keeper):
    check(tensor)
    if tensor.is_neg() or tensor.is_conj():
        raise RuntimeError("a lazily negated or conjugated tensor has no handle: take that of tensor.resolve_neg().resolve_conj()")
    if tensor.is_quantized:
        raise RuntimeError("a quantised tensor has no handle: take that of a tensor of its bytes, and send the scale beside it")
    if tensor.device.type == "cuda":
        return _pytorch_reduce(tensor)
    storage = tensor.untyped_storage()
    return rebuild_shared, (
        torch.nn.Parameter if type(tensor) is torch.nn.Parameter else torch.Tensor, tensor.size(), tensor.stride(),
        tensor.storage_offset(), torch.storage.TypedStorage, tensor.dtype, _HOST_INDEX, _make_handle(storage, keeper), storage.nbytes(), 0,
        tensor.requires_grad, b"", 0, b"", False)


def reduce_tensor(tensor):
    """PyTorch's reduce_tensor() calls this function."""
    keeper = memory.keeper_of(tensor)
    if keeper is not None:
        return _pools()._reduce(tensor) if getattr(_sending, "depth", 0) else _reduce(tensor, keeper)
    try:
        return _pytorch_reduce(tensor)
    except RuntimeError as error:
        if tensor.device.type != "cuda":
            raise
        raise RuntimeError(f"PyTorch has no handle for the tensor's memory: {error}. If use_pool(), enable() or from_dlpack() took it of a "
                           "pool, make tensors that other processes are to have by gpupool.torch.empty() or from_buffer()") from error


def _hook(tensor):
    from gpupool import _torch_handles
    return _torch_handles.reduce_tensor(tensor)


def _hook_reduce_tensor():
    """Returns PyTorch's function. Programs and libraries import it by its name, also before this module is imported: so the function
    itself calls the hook from now on."""
    function = reductions.reduce_tensor
    if not isinstance(function, types.FunctionType) or function.__closure__ is not None:  # another library's
        reductions.reduce_tensor = _hook
        return function
    original = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    function.__code__ = _hook.__code__
    return original


# --- storages on a GPU ---


def _hook_storages():
    """The storages' part of PyTorch's reduce_tensor() and rebuild_cuda_tensor()."""
    storages = torch.UntypedStorage
    share, make, release = storages._share_cuda_, storages._new_shared_cuda, storages._release_ipc_counter_cuda

    def _share_cuda_(self, *arguments, **keywords):
        keeper = memory.keeper_of_storage(self)
        if keeper is None:
            return share(self, *arguments, **keywords)
        handle = _make_handle(self, keeper)
        return self.device.index, handle, self.nbytes(), 0, handle, 0, b"", False

    def _new_shared_cuda(device, handle, *arguments, **keywords):
        return _open(handle) if _is_handle(handle) else make(device, handle, *arguments, **keywords)

    def _release_ipc_counter_cuda(handle, *arguments, **keywords):
        """PyTorch has found the storage in its cache, and this thread's stream has to wait for the contents all the same. A program that
        does not rebuild a tensor calls it, too, and there may be nothing to wait for any more."""
        if not _is_handle(handle):
            return release(handle, *arguments, **keywords)
        with contextlib.suppress(gpupool.NoTokenError):
            _attach(handle)

    storages._share_cuda_ = _share_cuda_
    storages._new_shared_cuda = staticmethod(_new_shared_cuda)
    storages._release_ipc_counter_cuda = staticmethod(_release_ipc_counter_cuda)


_pytorch_reduce = _hook_reduce_tensor()
_hook_storages()
