# SPDX-License-Identifier: Apache-2.0
"""Sets of tensors in few buffers, and their directories: random tensors arrive as they were, also in another process, and a
directory that is damaged is refused."""
import json
import pickle
import random
import struct
import tracemalloc
import unittest
import unittest.mock
import zlib

import gpupool
import scene
from scene import torch

if hasattr(getattr(torch, "float32", None), "itemsize"):
    import gpupool.torch
    from gpupool import _tensors, _torch_memory, _torch_set
    from gpupool._tensors import Directory, Entry, Storage
    from gpupool._torch_set import TensorSet

    DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
    QUANTISED = [dtype for dtype in DTYPES if str(dtype).startswith("torch.q")]
    PLAIN = [dtype for dtype in DTYPES if dtype not in QUANTISED]

    class Tagged(torch.Tensor):
        """A subclass, whose contents may be anywhere."""

ROUNDS = 40
READER = """
import pickle, sys, gpupool, gpupool.torch
from gpupool._torch_set import TensorSet
data, tokens = pickle.loads(bytes.fromhex(sys.argv[1]))
found = TensorSet.unpack(data, [gpupool.attach(token) for token in tokens]).tensors()
print(sorted((name, tuple(tensor.shape), tensor.stride(), tensor.sum().item()) for name, tensor in found.items()))
print(found["tied"].untyped_storage()._cdata == found["weight"].untyped_storage()._cdata)
"""


def make_tensor(chance, dtype):
    """A tensor of a random shape and random contents, over a storage of its own that may be larger."""
    shape = [chance.choice((0, 1, 2, 3, 7)) for _ in range(chance.randrange(4))]
    n_bytes = torch.Size(shape).numel() * dtype.itemsize
    before = chance.choice((0, 0, 1, 100)) * dtype.itemsize
    contents = chance.randbytes(before + n_bytes)
    if dtype == torch.bool:
        contents = bytes(byte & 1 for byte in contents)
    storage = torch.UntypedStorage(len(contents))
    if contents:
        bytes_of(storage).copy_(torch.frombuffer(bytearray(contents), dtype=torch.uint8))
    return _torch_memory.typed(storage, dtype, shape, offset=before // dtype.itemsize)


def make_view(chance, tensor):
    """A tensor of the same storage."""
    kind = chance.randrange(5)
    if kind == 0 and tensor.dim() > 1:
        return tensor.transpose(0, 1)
    if kind == 1 and tensor.dim() > 0:
        return tensor[1:]
    if kind == 2 and tensor.dim() > 0:
        return tensor[::2]
    if kind == 3:
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor.detach()


def make_state(chance):
    tensors = {}
    for number in range(chance.randrange(1, 20)):
        name = f"model.layers.{number}.weight"
        if tensors and chance.random() < 0.3:
            tensors[name] = make_view(chance, chance.choice(list(tensors.values())))
        else:
            tensors[name] = make_tensor(chance, chance.choice(PLAIN))
    return tensors


def bytes_of(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def contents_of(tensor):
    """The elements of a tensor of any type, as bytes."""
    twin = tensor if tensor.dtype in (torch.bool, torch.uint8) else _torch_memory.typed(
        tensor.untyped_storage(), {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[tensor.dtype.itemsize],
        tensor.shape, tensor.stride(), tensor.storage_offset())
    flat = twin.contiguous().flatten().clone()
    return bytes(bytes_of(flat.untyped_storage()).tolist()) if flat.numel() else b""


def ties(tensors):
    """The groups of names whose tensors share a storage."""
    groups = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            groups.setdefault(tensor.untyped_storage()._cdata, set()).add(name)
    return sorted(map(sorted, groups.values()))


def is_in(tensor, buffer):
    return buffer.ptr <= tensor.data_ptr() < buffer.ptr + buffer.nbytes


def frame(text, **changes):
    """A directory whose JSON is the text, with a right checksum."""
    body = zlib.compress(text)
    told = {"magic": b"gpupoolT", "version": 1, "place": 0, "checksum": zlib.crc32(body), "n_bytes": len(body), "text_bytes": len(text)} | changes
    return struct.pack("<8sHHIQQ", *told.values()) + body


@scene.needs_torch_2
class Sets(scene.Scene):
    def tearDown(self):
        self.wait_until_nothing_is_leased()

    def acquire(self, device, n_bytes):
        return (self.host if device.type == "cpu" else self.device).acquire(n_bytes)

    def check_same(self, found, expected):
        self.assertEqual(list(found), list(expected))
        for name, tensor in expected.items():
            other = found[name]
            self.assertEqual((other.dtype, other.shape, other.stride(), other.requires_grad, type(other)),
                             (tensor.dtype, tensor.shape, tensor.stride(), False, torch.Tensor), name)
            self.assertEqual(contents_of(other), contents_of(tensor), name)
        self.assertEqual(ties(found), ties(expected))

    def round_trip(self, tensors, limit=1 << 16):
        """The tensors that the packed set of tensors has."""
        made = TensorSet.of(tensors, self.acquire)
        data, buffers = made.pack(self.device.acquire, limit)
        self.assertLessEqual(len(data), max(limit, 100))
        again = TensorSet.unpack(data, buffers)
        self.assertEqual(again.directory, made.directory)
        return again.tensors()

    def test_random_tensors_arrive_as_they_were(self):
        chance = random.Random(1)
        for number in range(ROUNDS):
            tensors = make_state(chance)
            with self.subTest(number):
                self.check_same(self.round_trip(tensors, chance.choice((0, 1 << 16))), tensors)

    def test_small_buffers_hold_all_of_it_too(self):
        chance = random.Random(2)
        with unittest.mock.patch.object(_torch_set, "BUFFER_BYTES", 2048):
            for number in range(ROUNDS):
                tensors = make_state(chance)
                with self.subTest(number):
                    made = TensorSet.of(tensors, self.acquire)
                    self.check_same(made.tensors(), tensors)
                    for buffer in made.buffers:
                        mine = [storage for storage in made.directory.storages if made.buffers[storage.buffer] is buffer]
                        self.assertTrue(buffer.nbytes <= 2048 or len(mine) == 1)

    def test_every_dtype_arrives(self):
        chance = random.Random(3)
        tensors = {str(dtype): make_tensor(chance, dtype) for dtype in PLAIN for _ in range(2)}
        self.assertIn("torch.float8_e4m3fn", tensors)
        self.check_same(self.round_trip(tensors), tensors)

    def test_lazily_conjugated_and_negated_tensors_arrive_as_such(self):
        whole = torch.complex(torch.arange(4.0), torch.ones(4))
        tensors = {"plain": whole, "conj": whole.conj(), "neg": torch._neg_view(whole), "imag": whole.conj().imag}
        found = self.round_trip(tensors)
        for name, tensor in tensors.items():
            self.assertEqual((found[name].is_conj(), found[name].is_neg()), (tensor.is_conj(), tensor.is_neg()), name)
            self.assertTrue(torch.equal(found[name].resolve_conj().resolve_neg(), tensor.resolve_conj().resolve_neg()), name)
        self.assertEqual(ties(found), ties(tensors))

    def test_parameters_arrive_as_tensors_without_gradients(self):
        layer = torch.nn.Linear(3, 3)
        other = torch.nn.Linear(3, 3)
        other.weight = layer.weight
        model = torch.nn.Sequential(layer, other, torch.nn.BatchNorm1d(3))
        expected = model.state_dict(keep_vars=True)
        found = self.round_trip(expected)
        self.check_same(found, expected)
        self.assertEqual(found["0.weight"].data_ptr(), found["1.weight"].data_ptr())
        model.load_state_dict(found, assign=True)

    def test_only_the_used_part_of_a_storage_is_copied(self):
        whole = torch.arange(1 << 16)
        made = TensorSet.of({"first": whole[30000:30010], "second": whole[30020:30030:3]}, self.acquire)
        self.assertLess(made.directory.storages[0].n_bytes, 1024)
        found = made.tensors()
        self.assertEqual((found["first"].tolist(), found["second"].tolist()), (whole[30000:30010].tolist(), whole[30020:30030:3].tolist()))
        self.assertEqual(len(ties(found)), 1)

    def test_views_of_several_types_keep_their_alignment(self):
        storage = torch.arange(600).untyped_storage()
        tensors = {"bytes": _torch_memory.typed(storage, torch.uint8, (30,), offset=2003),
                   "wide": _torch_memory.typed(storage, torch.int64, (5,), offset=251)}
        found = self.round_trip(tensors)
        self.check_same(found, tensors)
        self.assertEqual(found["wide"].data_ptr() - found["bytes"].data_ptr(), 5)
        self.assertEqual(found["wide"].data_ptr() % 512, 251 * 8 % 512)

    def test_tensors_that_lie_in_buffers_stay_where_they_are(self):
        first, second = self.device.acquire(8192, zero=True), self.host.acquire(100, zero=True)
        whole = gpupool.torch.from_buffer(first, (2048,), torch.float32)
        tensors = {"a": whole[200:300], "b": whole[250:260], "c": gpupool.torch.from_buffer(second, (5,), torch.int16, 8)}
        made = TensorSet.over(tensors)
        self.assertEqual(made.buffers, [first, second])
        found = TensorSet.unpack(*made.pack(self.host.acquire)).tensors()
        self.check_same(found, tensors)
        for name, tensor in tensors.items():
            self.assertEqual(found[name].data_ptr(), tensor.data_ptr())
        self.assertIsNone(TensorSet.over({**tensors, "d": torch.ones(3)}))

    def test_each_device_has_buffers_of_its_own(self):
        devices = [torch.device("cuda", 1), torch.device("cpu"), torch.device("cuda", 1), torch.device("cuda", 0), torch.device("cpu")]
        sources = [unittest.mock.Mock(device=device, n_bytes=n_bytes) for device, n_bytes in zip(devices, (1000, 1, 3000, 0, 700))]
        with unittest.mock.patch.object(_torch_set, "BUFFER_BYTES", 4000):
            buffers, storages = _torch_set._make_buffers(sources, lambda device, n_bytes: (str(device), n_bytes))
        self.assertEqual(buffers, [("cuda:1", 1000), ("cuda:1", 3000), ("cpu", 512 + 700), ("cuda:0", 1)])
        self.assertEqual(storages, [(0, 0, 1000), (2, 0, 1), (1, 0, 3000), (3, 0, 0), (2, 512, 700)])

    def test_each_storage_is_one_of_its_own_and_keeps_its_buffer(self):
        tensors = {"a": torch.ones(3), "b": torch.ones(3)}
        made = TensorSet.of(tensors, self.acquire)
        buffer, = made.buffers
        found = made.tensors()
        self.assertTrue(all(is_in(tensor, buffer) for tensor in found.values()))
        self.assertEqual([tensor.untyped_storage().nbytes() for tensor in found.values()], [12, 12])
        del made, buffer
        kept = found.pop("b")
        found.clear()
        self.assertGreater(self.daemon.leases(), 0)
        self.assertEqual(kept.tolist(), [1, 1, 1])

    def test_what_a_directory_cannot_describe_is_refused_by_its_name(self):
        meta, sparse = torch.empty(3, device="meta"), torch.ones(3).to_sparse()
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        values = [(dtype, torch.empty(4, dtype=dtype), "quantised") for dtype in QUANTISED]
        values += [(torch.qint8, torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantised"), ("meta", meta, "device meta"),
                   ("sparse", sparse, "to_dense"), ("nested", nested, "nested"), ("text", "x", "not a tensor"), ("none", None, "not a tensor"),
                   ("subclass", torch.ones(3).as_subclass(Tagged), "Tagged")]
        for what, value, word in values:
            with self.subTest(what), self.assertRaisesRegex((TypeError, ValueError), f"'bad'.*{word}"):
                TensorSet.of({"good": torch.ones(3), "bad": value}, self.acquire)
        with self.assertRaisesRegex(TypeError, "not a string"):
            TensorSet.of({7: torch.ones(3)}, self.acquire)
        with self.assertRaisesRegex(ValueError, "UTF-8"):
            TensorSet.of({"\ud800": torch.ones(3)}, self.acquire)

    def test_no_tensors_are_a_set_too(self):
        self.assertEqual(self.round_trip({}), {})
        only_empty = {"a": torch.empty(0, 5), "b": torch.empty((3, 0), dtype=torch.int8).t()}
        self.check_same(self.round_trip(only_empty), only_empty)

    def test_another_process_has_the_tensors_of_a_packed_set(self):
        weight = torch.arange(12.0).reshape(3, 4)
        tensors = {"weight": weight, "tied": weight.t(), "bias": torch.ones(5, dtype=torch.int32), "empty": torch.ones(0, 2)}
        for limit in (0, 1 << 16):
            data, buffers = TensorSet.of(tensors, self.acquire).pack(self.host.acquire, limit)
            self.assertEqual(len(buffers), 1 if limit else 2)
            message = pickle.dumps((data, [buffer.share() for buffer in buffers])).hex()
            output, _ = self.run_program(READER, message)
            expected = sorted((name, tuple(tensor.shape), tensor.stride(), tensor.sum().item()) for name, tensor in tensors.items())
            self.assertEqual(output, f"{expected}\nTrue\n")
            del buffers


@scene.needs_torch_2
class Directories(scene.Scene):
    def make(self, count):
        """As of a model with many experts."""
        storages, entries = [], []
        for number in range(count):
            part = ("down_proj", "gate_proj", "up_proj")[number % 3]
            name = f"model.layers.{number // 384}.mlp.experts.{number // 3 % 128}.{part}.weight_scale_inv"
            storages.append(Storage(number // 10000, number % 10000 * 512, 512))
            entries.append(Entry(name, number, 0, torch.float32, (16, 8), (8, 1)))
        return Directory(storages, entries), [10000 * 512] * (count // 10000 + 1)

    def test_two_thousand_tensors_fit_into_a_name_and_fifty_thousand_into_a_buffer(self):
        directory, sizes = self.make(500)
        self.assertLess(len(_tensors.encode(directory)), 1 << 14)
        directory, sizes = self.make(2000)
        data = _tensors.encode(directory)
        self.assertLess(len(data), 1 << 16)
        self.assertEqual(_tensors.decode(data, sizes, None), directory)
        directory, sizes = self.make(50000)
        self.assertGreater(len(_tensors.encode(directory)), 1 << 16)
        buffers = [self.device.acquire(size) for size in sizes]
        for pool in (self.host, self.device):
            data, packed = TensorSet(directory, buffers).pack(pool.acquire)
            self.assertLess(len(data), 100)
            self.assertEqual(len(packed), len(buffers) + 1)
            self.assertEqual(TensorSet.unpack(data, packed).directory, directory)

    def test_a_directory_that_was_cut_or_damaged_is_refused(self):
        directory, sizes = self.make(20)
        whole = _tensors.encode(directory)
        for length in range(len(whole)):
            with self.assertRaisesRegex(ValueError, "not a directory of tensors"):
                _tensors.decode(whole[:length], sizes, None)
        for at in range(len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            with self.assertRaisesRegex(ValueError, "not a directory of tensors"):
                _tensors.decode(bytes(damaged), sizes, None)
        for data in (b"", b"x" * 1000, whole + b"x"):
            with self.assertRaisesRegex(ValueError, "not a directory of tensors"):
                _tensors.decode(data, sizes, None)

    def test_a_head_that_points_outside_of_the_buffers_is_refused(self):
        buffer = self.host.acquire(1000, zero=True)
        directory, _ = self.make(1)
        for index, offset in ((1, 0), (2**32 - 1, 0), (0, 1000), (0, 2**64 - 1)):
            head, _ = _tensors.split(directory, index, offset)
            with self.assertRaisesRegex(ValueError, "not a directory of tensors"):
                TensorSet.unpack(head, [buffer])
        head, _ = _tensors.split(directory, 0)
        with self.assertRaisesRegex(ValueError, "damaged"):  # the buffer holds something else
            TensorSet.unpack(head, [buffer])

    def test_a_later_version_is_refused_as_such(self):
        with self.assertRaisesRegex(ValueError, "version 2"):
            _tensors.decode(frame(b"{}", version=2), [], None)

    def test_a_body_that_grows_without_end_is_refused(self):
        for told in (1000, 1 << 60):
            data = frame(bytes(64 << 20), text_bytes=told)
            tracemalloc.start()
            self.addCleanup(tracemalloc.stop)
            with self.assertRaisesRegex(ValueError, "damaged"):
                _tensors.decode(data, [], None)
            self.assertLess(tracemalloc.get_traced_memory()[1], 4 << 20)
            tracemalloc.stop()

    def test_contents_that_are_not_valid_are_refused(self):
        def refuse(what, dtypes=("float32",), storages=((0, 0, 64),), tensors=(("a", 0, 0, [4]),), source=""):
            text = json.dumps({"dtypes": dtypes, "storages": storages, "tensors": tensors, "source": source}).encode()
            with self.subTest(what), self.assertRaises(ValueError) as caught:
                _tensors.decode(frame(text), [64], None)
            self.assertIn(what, str(caught.exception))

        refuse("has no dtype 'float33'", dtypes=["float33"])
        refuse("has no dtype 'nn'", dtypes=["nn"])
        refuse("has no dtype 'qint8'", dtypes=["qint8"])
        refuse("has no dtype 7", dtypes=[7])
        refuse("source is not text", source=7)
        refuse("source is not text", source="\ud800")
        refuse("in buffer 1", storages=[[1, 0, 4]])
        refuse("leaves buffer 0", storages=[[0, 32, 64]])
        refuse("leaves buffer 0", storages=[[0, 2**62, 2**62]])
        refuse("not a buffer", storages=[[0, -4, 4]])
        refuse("not a buffer", storages=[[0, 0.0, 4]])
        refuse("in storage 1", tensors=[["a", 1, 0, [4]]])
        refuse("leaves its storage", tensors=[["a", 0, 0, [17]]])
        refuse("leaves its storage", tensors=[["a", 0, 0, [4, 4], 4, None, 0]])
        refuse("leaves its storage", tensors=[["a", 0, 0, [4], 0, [6], 0]])
        refuse("leaves its storage", tensors=[["a", 0, 0, [2, 2], 0, [2**62, 2**62], 0]])
        refuse("elements of 4 bytes", tensors=[["a", 0, 0, [4], 2, None, 0]])
        refuse("elements of 4 bytes", storages=[[0, 2, 32]])
        refuse("is there twice", tensors=[["a", 0, 0, [4]], ["a", 0, 0, [4]]])
        refuse("no valid stride", tensors=[["a", 0, 0, [4], 0, [], 0]])
        refuse("no valid stride", tensors=[["a", 0, 0, [4], 0, [-1], 0]])
        refuse("not valid", tensors=[["a", 0, 1, [4]]])
        refuse("not valid", tensors=[["a", 0, 0, [-4]]])
        refuse("not valid", tensors=[["a", 0, 0, [4], 0, None, 4]])
        refuse("cannot be conjugated", tensors=[["a", 0, 0, [4], 0, None, 1]])
        refuse("not a row", tensors=[["a", 0, 0]])
        refuse("not a row", tensors=[[7, 0, 0, [4]]])
        for text in (b"", b"[]", b"null", b"{}", b"\xff", b'{"dtypes":1,"storages":[],"tensors":[]}', b"[" * 100000):
            with self.subTest(text[:40]), self.assertRaises(ValueError):
                _tensors.decode(frame(text), [64], None)

    def test_damaged_contents_are_refused_or_describe_tensors_within_the_buffers(self):
        """The checksum is right. PyTorch uses each tensor of a directory that is not refused."""
        chance, used = random.Random(4), 0
        buffer = self.host.acquire(4096, zero=True)
        for _ in range(100 * ROUNDS):
            shapes = [[chance.randrange(9) for _ in range(chance.randrange(3))] for _ in range(3)]
            rows = [[name, 0, chance.randrange(3), shape, *chance.choice(([], [4, None, 0], [8, [1] * len(shape), chance.randrange(4)]))]
                    for name, shape in zip("abc", shapes)]
            text = bytearray(json.dumps({"dtypes": ["float32", "uint8", "complex64"], "storages": [[0, 512, 2048]], "tensors": rows}).encode())
            for _ in range(chance.randrange(1, 3)):
                at = chance.randrange(len(text))
                text[at:at + chance.choice((0, 1, 2))] = chance.choice((b"", b"0", b"7", b"99", b",", b"[", b"]", b"null", b"-", b"1e9", b'"'))
            try:
                made = TensorSet.unpack(frame(bytes(text)), [buffer])
            except ValueError:
                continue
            for tensor in made.tensors().values():
                self.assertLessEqual(set(contents_of(tensor)), {0})
                used += 1
        self.assertGreater(used, 0)


if __name__ == "__main__":
    unittest.main()
