# SPDX-License-Identifier: Apache-2.0
"""A set of tensors in few buffers of the pools, with its directory (_tensors.py).

    TensorSet.of(tensors, acquire)      copies tensors into buffers
    TensorSet.over(tensors)             takes tensors that lie in buffers as they are
    TensorSet.keeping(tensors, …)       takes those that lie in buffers as they are, and copies the others
    pack(acquire), TensorSet.unpack()   the set as buffers and a few bytes, and back, also in another process
    tensors()                           the tensors, which keep the buffers

A set keeps its buffers until it is dropped, and each of its tensors keeps the buffer that it lies in. Each storage of the set is a
storage of PyTorch of its own, so that no tensors seem to be tied but those that are.
"""
import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import gpupool
from gpupool import _tensors
from gpupool import _torch_memory as memory
from gpupool._safetensors import is_text
from gpupool._tensors import IS_CONJ, IS_NEG, Directory, Entry, Storage

ALIGNMENT = 512  # of storages in a buffer, as PyTorch and the pools align memory
BUFFER_BYTES = 8 << 30  # a buffer is not made larger, but for one storage that is


def round_up(n_bytes, alignment=ALIGNMENT):
    return -(-n_bytes // alignment) * alignment


# --- tensors into storages ---


def _check_tensor(name, tensor):
    """Raises TypeError or ValueError for what a directory cannot describe."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a tensor is {name!r}, and not a string")
    if not is_text(name):
        raise ValueError(f"the name {name!r} has characters that UTF-8 does not know")
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name!r} is not a tensor, but a {type(tensor).__name__}")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)):
        raise TypeError(f"{name!r} is a {type(tensor).__qualname__}: only plain tensors and parameters have their contents in one memory")
    if tensor.is_quantized:
        raise TypeError(f"{name!r} is quantised ({tensor.dtype}): store tensor.int_repr() and its scales")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise TypeError(f"{name!r} is {'nested' if tensor.is_nested else tensor.layout}: make it dense by to_dense(), or store its parts")
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name!r} is on the device {tensor.device}: the pools have memory of CUDA devices and of the host")


class _Source:
    """A storage of PyTorch, and the part of it that tensors use."""

    def __init__(self, tensor):
        self.storage, self.device = tensor.untyped_storage(), tensor.device
        self.begin, self.end = None, 0

    def add(self, begin, end):
        begin -= begin % ALIGNMENT  # addresses are aligned as before
        self.begin, self.end = begin if self.begin is None else min(self.begin, begin), max(self.end, end)

    @property
    def n_bytes(self):
        return self.end - (self.begin or 0)

    def contents(self):
        return memory.typed(self.storage, torch.uint8, (self.n_bytes,), (1,), self.begin)


def _describe(tensors):
    """The sources of tensors, and an entry for each tensor, whose offset counts from the beginning of PyTorch's storage."""
    sources, indices, entries = [], {}, []
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
        shape, stride, itemsize = tuple(tensor.shape), tensor.stride(), tensor.dtype.itemsize
        key = tensor.untyped_storage()._cdata if tensor.numel() else ("empty", tensor.device)
        if key not in indices:
            indices[key] = len(sources)
            sources.append(_Source(tensor))
        offset = tensor.storage_offset() * itemsize if tensor.numel() else 0
        if tensor.numel():
            sources[indices[key]].add(offset, offset + _tensors.span(shape, stride) * itemsize)
        flags = tensor.is_conj() * IS_CONJ | tensor.is_neg() * IS_NEG
        entries.append(Entry(name, indices[key], offset, tensor.dtype, shape, stride, flags))
    return sources, [entry._replace(offset=entry.offset - (sources[entry.storage].begin or 0)) for entry in entries]


# --- storages into buffers ---


class _Plan:
    """Buffers that are to be made for the storages of one device, filled one after the other."""

    def __init__(self):
        self.sizes = []

    def place(self, n_bytes):
        """The buffer of a storage, and its offset there."""
        if not self.sizes or self.sizes[-1] > 0 and round_up(self.sizes[-1]) + n_bytes > BUFFER_BYTES:
            self.sizes.append(0)
        offset = round_up(self.sizes[-1])
        self.sizes[-1] = offset + n_bytes
        return len(self.sizes) - 1, offset


def _make_buffers(sources, acquire):
    """Buffers for sources, and the storage of each source in them."""
    plans, places = {}, []
    for source in sources:
        places.append(plans.setdefault(source.device, _Plan()).place(source.n_bytes))
    firsts, buffers = {}, []
    for device, plan in plans.items():
        firsts[device] = len(buffers)
        buffers += [acquire(device, max(size, 1)) for size in plan.sizes]
    return buffers, [Storage(firsts[source.device] + index, offset, source.n_bytes) for source, (index, offset) in zip(sources, places)]


def _copy(sources, storages, buffers):
    keepers = list(map(memory.keep, buffers))
    with torch.no_grad():
        for source, storage in zip(sources, storages):
            if storage.n_bytes:
                memory.over(keepers[storage.buffer], storage.n_bytes, torch.uint8, storage.offset).copy_(source.contents())


def _choose_kept(sources, is_wanted, maximum):
    """The buffers that sources stay in. If there are more than maximum, those with the most bytes of sources."""
    buffers, n_bytes = {}, {}
    for source in sources:
        keeper = memory.keeper_of_storage(source.storage) if source.n_bytes else None
        if keeper is not None and is_wanted(keeper.buffer):
            buffers[id(keeper.buffer)] = keeper.buffer
            n_bytes[id(keeper.buffer)] = n_bytes.get(id(keeper.buffer), 0) + source.n_bytes
    return [buffers[key] for key in sorted(n_bytes, key=n_bytes.get, reverse=True)[:maximum]]


def _stay(source, buffers):
    """The storage of a source that lies in one of the buffers; None: it does not. A source without bytes lies on its device."""
    if source.n_bytes == 0:
        devices = [memory.device_of(buffer.pool) for buffer in buffers]
        return Storage(devices.index(source.device), 0, 0) if source.device in devices else None
    keeper = memory.keeper_of_storage(source.storage)
    for index, buffer in enumerate(buffers):
        if keeper is not None and keeper.buffer is buffer:
            return Storage(index, source.storage.data_ptr() - buffer.ptr + source.begin, source.n_bytes)
    return None


def _find_buffers(sources):
    """As _make_buffers(), for sources that lie in buffers. None: one of them does not."""
    buffers, storages = {}, []
    for source in sources:
        keeper = memory.keeper_of_storage(source.storage)
        if keeper is None:
            return None
        buffer = keeper.buffer
        index, _ = buffers.setdefault(id(buffer), (len(buffers), buffer))
        storages.append(Storage(index, source.storage.data_ptr() - buffer.ptr + source.begin, source.n_bytes))
    return [buffer for _, buffer in buffers.values()], storages


# --- bytes in buffers ---


def _write(buffer, data):
    memory.over(memory.keep(buffer), len(data), torch.uint8, 0).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def _read(buffer, offset, n_bytes):
    if n_bytes == 0:
        return b""
    contents = memory.over(memory.keep(buffer), n_bytes, torch.uint8, offset).cpu()
    return ctypes.string_at(contents.data_ptr(), n_bytes)


# --- a set ---


class TensorSet:
    def __init__(self, directory: Directory, buffers: Sequence[gpupool.Buffer]):
        self.directory, self.buffers = directory, list(buffers)

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], acquire: Callable[[torch.device, int], gpupool.Buffer]) -> "TensorSet":
        """Copies tensors into buffers, in the order of the current streams. acquire(device, n_bytes): makes a buffer.

        Tensors that share a storage share one again, and of a storage only the range that tensors use is copied. The set has no
        gradients and no requires_grad, and a parameter is a tensor in it. Raises TypeError or ValueError for a value that is not a
        dense tensor on a CUDA device or the host, and for a quantised one."""
        sources, entries = _describe(tensors)
        buffers, storages = _make_buffers(sources, acquire)
        _copy(sources, storages, buffers)
        return cls(Directory(storages, entries), buffers)

    @classmethod
    def over(cls, tensors: Mapping[str, torch.Tensor]) -> "TensorSet | None":
        """A set of the buffers that tensors lie in, without a copy. None: they do not all lie in buffers of pools."""
        sources, entries = _describe(tensors)
        found = _find_buffers(sources)
        return None if found is None else cls(Directory(found[1], entries), found[0])

    @classmethod
    def keeping(cls, tensors: Mapping[str, torch.Tensor], is_wanted: Callable[[gpupool.Buffer], bool],
                acquire: Callable[[torch.device, int], gpupool.Buffer], maximum: int) -> "TensorSet":
        """As of(), but tensors stay where they are if they lie in a buffer of which is_wanted(buffer) is true. They stay in at most
        maximum buffers: tensors in further ones are copied."""
        sources, entries = _describe(tensors)
        buffers = _choose_kept(sources, is_wanted, maximum)
        storages = {source: storage for source in sources if (storage := _stay(source, buffers)) is not None}
        others = [source for source in sources if source not in storages]
        made, places = _make_buffers(others, acquire)
        _copy(others, places, made)
        storages |= {source: place._replace(buffer=place.buffer + len(buffers)) for source, place in zip(others, places)}
        return cls(Directory([storages[source] for source in sources], entries), [*buffers, *made])

    def pack(self, acquire: Callable[[int], gpupool.Buffer], limit: int = _tensors.INLINE_MAX) -> tuple[bytes, list[gpupool.Buffer]]:
        """The set as bytes, at most limit of them, and the buffers that they are of. Where the directory is larger, acquire(n_bytes)
        makes a further buffer, which holds it."""
        data = _tensors.encode(self.directory)
        if len(data) <= limit:
            return data, list(self.buffers)
        head, body = _tensors.split(self.directory, len(self.buffers))
        buffer = acquire(len(body))
        _write(buffer, body)
        return head, [*self.buffers, buffer]

    @classmethod
    def unpack(cls, data: bytes, buffers: Sequence[gpupool.Buffer]) -> "TensorSet":
        """The set of bytes and buffers from pack(). Raises ValueError for bytes that do not describe the buffers."""
        sizes = [buffer.nbytes for buffer in buffers]
        return cls(_tensors.decode(data, sizes, lambda index, offset, n_bytes: _read(buffers[index], offset, n_bytes)), buffers)

    def tensors(self) -> dict[str, torch.Tensor]:
        keepers = [memory.keep(buffer) for buffer in self.buffers]
        storages = [self._storage(keepers, storage) for storage in self.directory.storages]
        return {entry.name: _tensor(entry, storages[entry.storage]) for entry in self.directory.entries}

    @staticmethod
    def _storage(keepers, storage):
        keeper = keepers[storage.buffer]
        if storage.n_bytes:
            return memory.storage_over(keeper, storage.n_bytes, storage.offset)
        return torch.UntypedStorage(0, device=memory.device_of(keeper.buffer.pool))


def _tensor(entry: Entry, storage: Any) -> torch.Tensor:
    tensor = memory.typed(storage, entry.dtype, entry.shape, entry.stride, entry.offset // entry.dtype.itemsize)
    tensor = tensor.conj() if entry.flags & IS_CONJ else tensor
    return torch._neg_view(tensor) if entry.flags & IS_NEG else tensor
