# SPDX-License-Identifier: Apache-2.0
"""Safetensors files, read straight into buffers of a pool.

The data of a file becomes one buffer, up to BUFFER_BYTES. The tensors lie in it as in the file, so that one upload reads all of them.
Where a tensor would lie at an address that kernels do not take, it gets a better one, and a further upload begins with it. An upload
reads by several threads into pinned blocks, from which the GPU copies (staging.h). Pinned host memory is read into by the threads of
this module.

Files are read through the page cache. After a worker's restart they are there already, and a file that is not is read ahead by the
kernel. O_DIRECT would have each start of a worker read the disk again, and network file systems may refuse it.
"""
import concurrent.futures
import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from typing import NamedTuple

import gpupool
from gpupool import _safetensors, _torch_set, _tensors
from gpupool._gpupool import _upload_file
from gpupool._safetensors import Place
from gpupool._tensors import Directory, Entry, Storage
from gpupool._torch_set import TensorSet, round_up

# The types of PyTorch. Those of six bits have none.
DTYPES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32", "I64": "int64",
          "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
          "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
          "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2"}

VECTOR_BYTES = 16  # the largest access of a GPU's thread, whose address has to be a multiple of it; TMA wants it, too
UPLOAD_BYTES = 1 << 30  # of one call, between two of which the interpreter handles signals
READ_BYTES = 16 << 20  # of one call that reads into host memory
READERS_MAX = 8  # threads, as of staging
AGAIN_S = 1.0  # how long smaller buffers are waited for, when a large one was waited for in vain
SMALL_BUFFER_BYTES = 64 << 20  # where a pool has no room for a buffer, it is not made of smaller ones than these


class Run(NamedTuple):
    """Bytes that lie behind each other in a file and in a buffer. offset: in the buffer."""

    begin: int
    end: int
    offset: int


class Part:
    """The tensors of a file that lie in one buffer: each place, and its offset there."""

    def __init__(self):
        self.places, self.runs, self.n_bytes = [], [], 0

    def add(self, place):
        size, offset = place.end - place.begin, self.n_bytes
        if size > 0 and self.runs and self.runs[-1].end == place.begin and offset % _alignment_of(place) == 0:
            self.runs[-1] = self.runs[-1]._replace(end=place.end)
        elif size > 0:
            offset = round_up(offset)
            self.runs.append(Run(place.begin, place.end, offset))
        else:
            offset = 0
        self.places.append((place, offset))
        self.n_bytes = max(self.n_bytes, offset + size)


def _alignment_of(place):
    """Kernels access a tensor by its elements, or by vectors where it is as large as one."""
    return max(VECTOR_BYTES if place.end - place.begin >= VECTOR_BYTES else 1, _safetensors.BITS[place.dtype] // 8)


def cut(places, buffer_bytes):
    """The Parts of the places of a file. A part has at most buffer_bytes, or one tensor."""
    parts = []
    for place in places:
        size = place.end - place.begin
        if not parts or (size > 0 < parts[-1].n_bytes and round_up(parts[-1].n_bytes) + size > buffer_bytes):
            parts.append(Part())
        parts[-1].add(place)
    return parts


# --- files ---


class File(NamedTuple):
    path: os.PathLike
    fd: int
    places: list[Place]


def _dtype_of(place):
    """The type of PyTorch, and the shape in its elements."""
    if place.dtype not in DTYPES:
        raise ValueError(f"the tensor {place.name!r} has the dtype {place.dtype}, for which PyTorch has no type")
    dtype, shape = _tensors.dtype_of(DTYPES[place.dtype]), place.shape
    per_element = dtype.itemsize * 8 // _safetensors.BITS[place.dtype]
    if per_element > 1:
        if not shape or shape[-1] % per_element:
            raise ValueError(f"the tensor {place.name!r} of {place.dtype} has the shape {shape}: PyTorch has {per_element} values in an element")
        shape = (*shape[:-1], shape[-1] // per_element)
    return dtype, shape


def _open_fd(path, stack):
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _open_file(path, names, stack):
    fd = _open_fd(path, stack)
    places = _safetensors.read(fd, path).places
    if names is not None:
        missing = names - {place.name for place in places}
        if missing:
            raise ValueError(f"{path} has no tensor {min(missing)!r}, which the index says that it has")
        places = [place for place in places if place.name in names]
    try:
        for place in places:
            _dtype_of(place)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return File(path, fd, places)


def _open_files(path, stack):
    """The files that a path names. All of their headers have been checked."""
    files = [_open_file(file, names, stack) for file, names in _safetensors.files_of(path).items()]
    owners = {}
    for file in files:
        for place in file.places:
            if place.name in owners:
                raise ValueError(f"the tensor {place.name!r} is in {owners[place.name]} and in {file.path}: name one of them, or an index")
            owners[place.name] = file.path
    return files


def identity(path: str | os.PathLike) -> str:
    """A text that is the same while the files that a path names have the same contents. Raises OSError, ValueError.

    It is a hash of each file's size, times and header, and of the names that an index takes of it, and not of the folder. The system notes a
    change of the contents in the time ctime, also where a program sets the time mtime back. A file that was copied, renamed or given other
    permissions has another ctime, and so another identity, although its contents are the same."""
    digest = hashlib.sha256()
    for file, names in _safetensors.files_of(path).items():
        with contextlib.ExitStack() as stack:
            fd = _open_fd(file, stack)
            status, header = os.fstat(fd), _safetensors.read_bytes(fd, file)
        told = [file.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, names and sorted(names), len(header)]
        digest.update(json.dumps(told).encode() + header)
    return "safetensors " + digest.hexdigest()


# --- buffers ---


def _acquire(part, acquire, timeout):
    """Buffers for the tensors of a part: [(part, buffer)]. A pool that has no room for it in one piece may have it in several."""
    try:
        return [(part, acquire(max(part.n_bytes, 1), timeout))]
    except (gpupool.TooLargeError, gpupool.ExhaustedError):
        smaller = cut([place for place, _ in part.places], part.n_bytes // 2)
        if part.n_bytes < 2 * SMALL_BUFFER_BYTES or len(smaller) == 1:
            raise
        with contextlib.suppress(gpupool.TooLargeError, gpupool.ExhaustedError):
            return [made for piece in smaller for made in _acquire(piece, acquire, AGAIN_S)]
        raise


def _read_host(part, buffer, fd, path):
    def read(begin, end, offset):
        while begin < end:
            with contents[offset:offset + end - begin] as rest:
                n_bytes = os.preadv(fd, [rest], begin)
            if n_bytes == 0:
                raise ValueError(f"{path} was cut while it was read: it ends at byte {begin}")
            begin, offset = begin + n_bytes, offset + n_bytes

    readers = min(READERS_MAX, (len(os.sched_getaffinity(0)) + 1) // 2)
    with memoryview(buffer) as contents, concurrent.futures.ThreadPoolExecutor(readers, "gpupool-load") as executor:
        reads = [executor.submit(read, begin, min(begin + READ_BYTES, run.end), run.offset + begin - run.begin)
                 for run in part.runs for begin in range(run.begin, run.end, READ_BYTES)]
        try:
            for done in reads:
                done.result()
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise


def _read_device(part, buffer, fd):
    for run in part.runs:
        for begin in range(run.begin, run.end, UPLOAD_BYTES):
            _upload_file(buffer, run.offset + begin - run.begin, fd, begin, min(UPLOAD_BYTES, run.end - begin))


# --- a set ---


def _describe(parts):
    """The directory of parts, each of which has a buffer of its own."""
    directory = Directory([], [])
    for index, part in enumerate(parts):
        for place, offset in part.places:
            dtype, shape = _dtype_of(place)
            directory.entries.append(Entry(place.name, len(directory.storages), 0, dtype, shape, _tensors.contiguous_stride(shape)))
            directory.storages.append(Storage(index, offset, place.end - place.begin))
    return directory


def read(path: str | os.PathLike, acquire: Callable[[int, float | None], gpupool.Buffer], timeout: float | None) -> TensorSet:
    """The tensors of a file, an index or a folder, in buffers, in the order of the buffers' streams. acquire(n_bytes, timeout): makes a
    buffer. timeout: for each buffer. Raises ValueError for a file that is not valid, before it makes a buffer."""
    with contextlib.ExitStack() as stack:
        made = []
        for file in _open_files(path, stack):
            for part in cut(file.places, _torch_set.BUFFER_BYTES):
                made += [(file, *taken) for taken in _acquire(part, acquire, timeout)]
        for file, part, buffer in made:
            if buffer.kind == "host":
                _read_host(part, buffer, file.fd, file.path)
            else:
                _read_device(part, buffer, file.fd)
        return TensorSet(_describe([part for _, part, _ in made]), [buffer for *_, buffer in made])
