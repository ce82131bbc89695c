# SPDX-License-Identifier: Apache-2.0
"""The headers of safetensors files, and which files a path names. No data is read here, and no package is needed.

A file is 8 bytes with the header's length, the header in JSON, and the data. The header has a place in the data for each tensor. The
places lie behind each other without a hole, from the first byte of the data to the last one of the file. All of this is checked, so that
a reader can trust a Header.
"""
import json
import math
import os
import pathlib
import stat
from typing import NamedTuple

LENGTH_BYTES = 8
HEADER_MAX = 100_000_000  # as the package safetensors has it
DIMENSIONS_MAX = 64
NUMEL_MAX = 2**63 - 1
INDEX_MAX = 1 << 30
INDEX_SUFFIX = ".safetensors.index.json"
USUAL_INDEX = "model" + INDEX_SUFFIX

# Bits of an element. The names are those of the format.
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
        "U64": 64}


class Place(NamedTuple):
    """A tensor of a file. The bytes count from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    places: list[Place]  # in the order of their bytes
    metadata: dict[str, str]


# --- a header ---


def _refuse_constant(text):
    raise ValueError(f"{text} is not JSON")


def _unique(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r} is there twice")
            seen.add(name)
    return found


def _number(text):
    return -1 if text.startswith("-") else int(text)  # each number is a count: -0 is refused as others with a sign are


def _parse(data, what):
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_int=_number, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"{what} is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{what} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{what} is not an object of JSON")
    return found


def is_text(value):
    """Whether a value from JSON is a string. An escape can stand for half of a character, which no text has."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def is_count(value, maximum=NUMEL_MAX):
    """Whether a value from JSON is a whole number from 0 on. True and False are none."""
    return type(value) is int and 0 <= value <= maximum


def is_shape(value):
    """Whether a value from JSON is the shape of a tensor. The strides of a shape with a zero have to fit into 63 bits, too."""
    return (isinstance(value, list) and len(value) <= DIMENSIONS_MAX and all(map(is_count, value))
            and math.prod(length or 1 for length in value) <= NUMEL_MAX)


def _place_of(name, told, data_begin):
    if not is_text(name):
        raise ValueError(f"the name {name!r} is not text")
    if not isinstance(told, dict) or not {"dtype", "shape", "data_offsets"} <= told.keys():
        raise ValueError(f"the tensor {name!r} has no dtype, shape and data_offsets")
    dtype, shape, offsets = told["dtype"], told["shape"], told["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"the tensor {name!r} has the unknown dtype {dtype!r}")
    if not is_shape(shape):
        raise ValueError(f"the tensor {name!r} has no valid shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)) or offsets[0] > offsets[1]:
        raise ValueError(f"the tensor {name!r} has no valid data_offsets")
    bits = math.prod(shape) * BITS[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        raise ValueError(f"the tensor {name!r} of {dtype} and the shape {shape} has {bits / 8:.15g} bytes, and data_offsets has "
                         f"{offsets[1] - offsets[0]}")
    return Place(name, dtype, tuple(shape), data_begin + offsets[0], data_begin + offsets[1])


def _check_metadata(metadata):
    if not isinstance(metadata, dict) or not all(map(is_text, (*metadata, *metadata.values()))):
        raise ValueError("__metadata__ is not an object of strings")
    return metadata


def parse(data, file_bytes):
    """The Header of a file. data: its bytes behind the length; file_bytes: the size of the file. Raises ValueError."""
    if not data.startswith(b"{"):
        raise ValueError("the header does not begin with '{'")
    told = _parse(data, "the header")
    metadata = _check_metadata(told.pop("__metadata__", {}))
    end = LENGTH_BYTES + len(data)
    places = sorted((_place_of(name, entry, end) for name, entry in told.items()), key=lambda place: (place.begin, place.end))
    before = None
    for place in places:
        if place.begin != end:
            kind = "overlaps with" if place.begin < end else "leaves a hole behind"
            raise ValueError(f"the tensor {place.name!r} {kind} {repr(before) if before else 'the header'}")
        before, end = place.name, place.end
    if end != file_bytes:
        raise ValueError(f"the file has {file_bytes} bytes, and its header describes {end}")
    return Header(places, metadata)


def _read_all(fd, n_bytes, offset):
    parts = []
    while n_bytes > 0 and (part := os.pread(fd, n_bytes, offset)):
        parts.append(part)
        n_bytes, offset = n_bytes - len(part), offset + len(part)
    return b"".join(parts)


def _read(fd, path, use):
    """Calls use(data, file_bytes) with the header of an open file, its bytes behind the length, and returns the result."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is not a regular file")
    try:
        length = int.from_bytes(_read_all(fd, LENGTH_BYTES, 0), "little")
        if status.st_size < LENGTH_BYTES or length > status.st_size - LENGTH_BYTES:
            raise ValueError(f"it has {status.st_size} bytes, which is too short for its header")
        if length > HEADER_MAX:
            raise ValueError(f"its header has {length} bytes, and {HEADER_MAX} at most are allowed")
        data = _read_all(fd, length, LENGTH_BYTES)
        if len(data) != length:
            raise ValueError("it was cut while it was read")
        return use(data, status.st_size)
    except ValueError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def read(fd, path):
    """The Header of an open file. path: for the text of errors. Raises ValueError."""
    return _read(fd, path, parse)


def read_bytes(fd, path):
    """The bytes of the header of an open file, which are not looked at. Raises ValueError for a file that is too short for them."""
    return _read(fd, path, lambda data, _: data)


# --- files ---


def _index_of(folder):
    """The index file of a folder; None: it has none."""
    if (folder / USUAL_INDEX).exists():
        return folder / USUAL_INDEX
    found = sorted(folder.glob("*" + INDEX_SUFFIX))
    if len(found) > 1:
        raise ValueError(f"{folder} has several indices: name one of {', '.join(path.name for path in found)}")
    return found[0] if found else None


def _read_index(path):
    if path.stat().st_size > INDEX_MAX:
        raise ValueError(f"{path} has more than {INDEX_MAX} bytes")
    weight_map = _parse(path.read_bytes(), str(path)).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{path} has no object weight_map")
    names = {}
    for name, file in weight_map.items():
        if not is_text(file) or not file or "\0" in file or os.path.isabs(file) or ".." in pathlib.PurePath(file).parts:
            raise ValueError(f"{path}: the tensor {name!r} is not in a file of this folder, but in {file!r}")
        names.setdefault(path.parent / file, set()).add(name)
    return dict(sorted(names.items()))


def files_of(path):
    """The files of a model, each with the set of the names that it gives; None: all that it has.

    path: a file, an index, or a folder with an index or with files."""
    path = pathlib.Path(path)
    if path.is_dir():
        index = _index_of(path)
        if index is None:
            found = sorted(path.glob("*.safetensors"))
            if not found:
                raise FileNotFoundError(f"{path} has no file *.safetensors and no *{INDEX_SUFFIX}")
            return dict.fromkeys(found)
        return _read_index(index)
    return _read_index(path) if path.name.endswith(".json") else {path: None}
