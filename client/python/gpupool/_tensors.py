# SPDX-License-Identifier: Apache-2.0
"""A directory of tensors: which storages lie where in a few buffers, and which tensor is which part of a storage.

A Directory has no memory. It has a list of storages, each a range of one of the buffers, and a list of entries, each a named tensor in
one of the storages. Tensors of one storage are views of one memory, as tied weights are. A storage without bytes still says by its
buffer on which device its tensors are. check() has looked at each Directory that decode() returns: no tensor leaves its storage, and no
storage its buffer.

As bytes, a directory is a head of fixed size and a body, which is JSON that zlib has compressed. JSON is read and written by any
language, and quickly by Python. zlib removes most of the names' repetition: with 2,000 tensors a body has some 30 KB. The head has a
checksum of the body. A body that is too large for its place lies in one of the buffers, and the head says where (split()).
"""
import json
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gpupool._safetensors import is_count, is_shape, is_text

INLINE_MAX = 64 << 10  # bytes of a directory that a name holds
TEXT_MAX = 256 << 20  # bytes of JSON: a million tensors
IS_CONJ, IS_NEG = 1, 2  # flags of an entry: the tensor is lazily conjugated, lazily negated

_MAGIC, _VERSION = b"gpupoolT", 1
_HEAD = struct.Struct("<8sHHIQQ")  # magic, version, place, checksum, bytes of the body, bytes of its JSON
_ELSEWHERE = struct.Struct("<IQ")  # the body's buffer, and its offset there
_BEHIND, _IN_BUFFER = 0, 1  # places of the body


class Storage(NamedTuple):
    """In bytes. buffer: an index."""

    buffer: int
    offset: int
    n_bytes: int


class Entry(NamedTuple):
    """storage: an index. offset: in bytes, in the storage. stride: in elements."""

    name: str
    storage: int
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    flags: int = 0


class Directory(NamedTuple):
    """source: of what the tensors were made, in words of the program that made them."""

    storages: list[Storage]
    entries: list[Entry]
    source: str = ""


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    stride, step = [], 1
    for length in reversed(shape):
        stride.append(step)
        step *= max(length, 1)
    return tuple(reversed(stride))


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The elements of a storage from a tensor's first one to its last one."""
    return 0 if 0 in shape else 1 + sum((length - 1) * step for length, step in zip(shape, stride))


def dtype_of(name: Any) -> torch.dtype:
    """The type of PyTorch with a name. A quantised type, whose tensors have more than their contents, is none. Raises ValueError."""
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype) or str(dtype).startswith("torch.q"):
        raise ValueError(f"PyTorch {torch.__version__} has no dtype {name!r}")
    return dtype


# --- checks ---


def _check_storage(storage, sizes):
    if storage.buffer >= len(sizes):
        raise ValueError(f"a storage lies in buffer {storage.buffer}, and there are {len(sizes)}")
    if storage.offset + storage.n_bytes > sizes[storage.buffer]:
        raise ValueError(f"a storage of {storage.n_bytes} bytes at offset {storage.offset} leaves buffer {storage.buffer}, which has "
                         f"{sizes[storage.buffer]} bytes")


def _check_entry(entry, storages):
    if entry.storage >= len(storages):
        raise ValueError(f"the tensor {entry.name!r} lies in storage {entry.storage}, and there are {len(storages)}")
    storage, itemsize = storages[entry.storage], entry.dtype.itemsize
    if entry.offset % itemsize or storage.offset % itemsize:
        raise ValueError(f"the tensor {entry.name!r} lies at offset {entry.offset} of a storage at offset {storage.offset}: {entry.dtype} has "
                         f"elements of {itemsize} bytes")
    if entry.offset + span(entry.shape, entry.stride) * itemsize > storage.n_bytes:
        raise ValueError(f"the tensor {entry.name!r} leaves its storage, which has {storage.n_bytes} bytes")


def check(directory: Directory, sizes: Sequence[int]) -> None:
    """sizes: bytes of the buffers. Raises ValueError."""
    for storage in directory.storages:
        _check_storage(storage, sizes)
    names = set()
    for entry in directory.entries:
        _check_entry(entry, directory.storages)
        if entry.name in names:
            raise ValueError(f"the tensor {entry.name!r} is there twice")
        names.add(entry.name)


# --- JSON ---


def _row(entry, dtypes):
    row = [entry.name, entry.storage, dtypes.setdefault(str(entry.dtype).removeprefix("torch."), len(dtypes)), entry.shape]
    is_contiguous = entry.stride == contiguous_stride(entry.shape)
    if entry.offset or entry.flags or not is_contiguous:
        row += [entry.offset, None if is_contiguous else entry.stride, entry.flags]
    return row


def _to_text(directory):
    dtypes: dict[str, int] = {}
    rows = [_row(entry, dtypes) for entry in directory.entries]
    told = {"dtypes": list(dtypes), "storages": directory.storages, "tensors": rows, "source": directory.source}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def _entry_of(row, dtypes):
    if not isinstance(row, list) or len(row) not in (4, 7) or not is_text(row[0]):
        raise ValueError("an entry is not a row of a tensor")
    name, storage, dtype, shape, offset, stride, flags = (*row, 0, None, 0)[:7] if len(row) == 4 else row
    if not is_shape(shape) or not all(map(is_count, (storage, dtype, offset, flags))) or dtype >= len(dtypes) or flags > IS_CONJ | IS_NEG:
        raise ValueError(f"the entry of the tensor {name!r} is not valid")
    if flags & IS_CONJ and not dtypes[dtype].is_complex:
        raise ValueError(f"the tensor {name!r} of {dtypes[dtype]} cannot be conjugated")
    if stride is None:
        stride = contiguous_stride(shape)
    elif not isinstance(stride, list) or len(stride) != len(shape) or not all(map(is_count, stride)):
        raise ValueError(f"the tensor {name!r} has no valid stride")
    return Entry(name, storage, offset, dtypes[dtype], tuple(shape), tuple(stride), flags)


def _from_text(text):
    try:
        told = json.loads(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    lists = [told.get(name) for name in ("dtypes", "storages", "tensors")] if isinstance(told, dict) else [None]
    if not all(isinstance(part, list) for part in lists):
        raise ValueError("it has no lists of dtypes, storages and tensors")
    source = told.get("source", "")
    if not is_text(source):
        raise ValueError("its source is not text")
    dtypes = list(map(dtype_of, lists[0]))
    for row in lists[1]:
        if not isinstance(row, list) or len(row) != 3 or not all(map(is_count, row)):
            raise ValueError("a storage is not a buffer, an offset and a size")
    return Directory([Storage(*row) for row in lists[1]], [_entry_of(row, dtypes) for row in lists[2]], source)


# --- bytes ---


def _compress(directory):
    text = _to_text(directory)
    if len(text) > TEXT_MAX:
        raise ValueError(f"{len(directory.entries)} tensors are too many for one directory: split them")
    return text, zlib.compress(text)


def _head(text, body, place):
    return _HEAD.pack(_MAGIC, _VERSION, place, zlib.crc32(body), len(body), len(text))


def encode(directory: Directory) -> bytes:
    """A directory as bytes, with its body behind its head."""
    text, body = _compress(directory)
    return _head(text, body, _BEHIND) + body


def split(directory: Directory, buffer: int, offset: int = 0) -> tuple[bytes, bytes]:
    """A directory as a head, and a body that the caller puts into a buffer, at an offset. buffer: an index."""
    text, body = _compress(directory)
    return _head(text, body, _IN_BUFFER) + _ELSEWHERE.pack(buffer, offset), body


def _body_of(data, place, n_bytes, sizes, read):
    if place == _BEHIND:
        body = data[_HEAD.size:]
    elif place == _IN_BUFFER and len(data) == _HEAD.size + _ELSEWHERE.size:
        buffer, offset = _ELSEWHERE.unpack_from(data, _HEAD.size)
        _check_storage(Storage(buffer, offset, n_bytes), sizes)
        body = read(buffer, offset, n_bytes)
    else:
        raise ValueError("its head is not valid")
    if len(body) != n_bytes:
        raise ValueError(f"it was cut: its body has {len(body)} bytes, and not {n_bytes}")
    return body


def _decode(data, sizes, read):
    if not data.startswith(_MAGIC) or len(data) < _HEAD.size:
        raise ValueError("its head is not valid")
    _, version, place, checksum, n_bytes, text_bytes = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"it has version {version} of the format, and this gpupool reads version {_VERSION}")
    body = _body_of(data, place, n_bytes, sizes, read)
    if zlib.crc32(body) != checksum or text_bytes > TEXT_MAX:
        raise ValueError("its contents are damaged")
    inflater = zlib.decompressobj()
    text = inflater.decompress(body, text_bytes + 1)
    if len(text) != text_bytes or not inflater.eof:
        raise ValueError("its contents are damaged")
    directory = _from_text(text)
    check(directory, sizes)
    return directory


def decode(data: bytes, sizes: Sequence[int], read: Callable[[int, int, int], bytes]) -> Directory:
    """The directory of bytes from encode() or split(). sizes: bytes of the buffers. read(buffer, offset, n_bytes): contents of a buffer,
    where the body lies there. Raises ValueError for bytes that are no directory of these buffers."""
    try:
        return _decode(data, sizes, read)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"this is not a directory of tensors: {error}") from error
