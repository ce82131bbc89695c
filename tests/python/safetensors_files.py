# SPDX-License-Identifier: Apache-2.0
"""Files of tensors for tests, good and bad ones. They are written here byte by byte, so that the tests need no package."""
import json
import math

BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16,
        "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}


def n_bytes_of(dtype, shape):
    return math.prod(shape) * BITS[dtype] // 8


def entry(dtype, shape, begin, end=None):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + n_bytes_of(dtype, shape) if end is None else end]}


def frame(header, data=b"", length=None):
    """A file. header: bytes, or what JSON has of it."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def make(tensors, metadata=None, pad=True, chance=None):
    """A file of tensors {name: (dtype, shape, contents)}, in the order of the mapping. chance: its header is in another order."""
    entries, data = [], b""
    for name, (dtype, shape, contents) in tensors.items():
        assert len(contents) == n_bytes_of(dtype, shape)
        entries.append((name, entry(dtype, shape, len(data))))
        data += contents
    if metadata is not None:
        entries.append(("__metadata__", metadata))
    if chance is not None:
        chance.shuffle(entries)
    header = json.dumps(dict(entries)).encode()
    return frame(header + b" " * (-len(header) % 8 if pad else 0), data)


def random_tensors(chance, dtypes, count=None):
    """Tensors of random types, shapes and contents, some of them without elements or dimensions."""
    tensors = {}
    for number in range(chance.randrange(12) if count is None else count):
        dtype = chance.choice(dtypes)
        shape = tuple(chance.choice((0, 1, 2, 3, 5, 16, 40)) for _ in range(chance.randrange(4)))
        if BITS[dtype] % 8:
            shape = (*shape, 8)
        contents = chance.randbytes(n_bytes_of(dtype, shape))
        if dtype == "BOOL":
            contents = bytes(byte & 1 for byte in contents)
        tensors[f"layers.{number}.{chance.choice(('weight', 'bias', 'größe', 'a b'))}"] = dtype, shape, contents
    return tensors
