# SPDX-License-Identifier: Apache-2.0
"""gpupool.torch.load(): the tensors of safetensors files in memory of the pools, as the files and the package safetensors have them."""
import json
import os
import pathlib
import pickle
import random
import tempfile
import unittest
import unittest.mock
from multiprocessing.reduction import ForkingPickler

import gpupool
import safetensors_files as files
import scene
from gpupool import _gpupool
from safetensors_files import entry, frame, make
from scene import torch

if hasattr(getattr(torch, "float32", None), "itemsize"):
    import gpupool.torch
    from gpupool import _torch_load, _torch_set

    KNOWN = [name for name in files.BITS if hasattr(torch, _torch_load.DTYPES.get(name, "none"))]

try:
    import safetensors.torch as safetensors
except ImportError:
    safetensors = None

ROUNDS = 30
MIB = 1 << 20


def contents_of(tensor):
    """The bytes of a contiguous tensor's storage."""
    return bytes(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).tolist())


@scene.needs_torch_2
class Loading(scene.Scene):
    config = "[device]\nlimit = 64MiB\n"

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpupool-load-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def tearDown(self):
        self.wait_until_nothing_is_leased()

    def pools(self):
        return self.host, self.device

    def write(self, contents, name="model.safetensors"):
        path = self.folder / name
        path.write_bytes(contents)
        return path

    def check_loaded(self, loaded, tensors):
        """tensors: {name: (dtype, shape, contents)}, as they are in files."""
        self.assertEqual(loaded.keys(), tensors.keys())
        for name, (dtype, shape, contents) in tensors.items():
            tensor = loaded[name]
            if dtype == "F4":
                shape = (*shape[:-1], shape[-1] // 2)
            self.assertEqual((tensor.dtype, tensor.shape, tensor.requires_grad), (getattr(torch, _torch_load.DTYPES[dtype]), shape, False), name)
            self.assertEqual(tensor.stride(), torch.empty(shape).stride())
            self.assertEqual(contents_of(tensor), contents, name)
            alignment = 16 if len(contents) >= 16 else tensor.dtype.itemsize
            self.assertEqual(tensor.data_ptr() % alignment, 0, name)

    def test_random_files_are_loaded_as_they_are(self):
        chance = random.Random(1)
        for number in range(ROUNDS):
            tensors = files.random_tensors(chance, KNOWN)
            path = self.write(make(tensors, {"format": "pt"}, chance.random() < 0.5, chance))
            for pool in self.pools():
                with self.subTest(number=number, pool=pool.kind):
                    self.check_loaded(gpupool.torch.load(path, pool=pool), tensors)

    def test_files_are_loaded_in_pieces_of_any_size(self):
        chance = random.Random(2)
        for number in range(ROUNDS):
            tensors = files.random_tensors(chance, KNOWN)
            path = self.write(make(tensors))
            buffer_bytes, piece_bytes = chance.choice((1, 600, 4096)), chance.choice((1, 7, 100))
            with unittest.mock.patch.multiple(_torch_load, UPLOAD_BYTES=piece_bytes, READ_BYTES=piece_bytes), \
                    unittest.mock.patch.object(_torch_set, "BUFFER_BYTES", buffer_bytes):
                for pool in self.pools():
                    with self.subTest(number=number, pool=pool.kind):
                        self.check_loaded(gpupool.torch.load(path, pool=pool), tensors)

    @unittest.skipIf(safetensors is None, "the package safetensors cannot be imported")
    def test_tensors_are_those_that_the_package_loads(self):
        generator = torch.Generator().manual_seed(1)
        saved = {}
        for name in KNOWN:
            dtype = getattr(torch, _torch_load.DTYPES[name])
            contents = torch.randint(0, 2, (3, 16), dtype=torch.uint8, generator=generator)
            saved[name] = contents.to(torch.bool) if dtype == torch.bool else contents.view(dtype)
        saved |= {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 7), "long": torch.arange(100000)}
        path = self.folder / "model.safetensors"
        safetensors.save_file(saved, path)
        expected = safetensors.load_file(path)
        for pool in self.pools():
            loaded = gpupool.torch.load(path, pool=pool)
            self.assertEqual(loaded.keys(), expected.keys())
            for name, tensor in expected.items():
                found = loaded[name]
                self.assertEqual((found.dtype, found.shape, found.stride()), (tensor.dtype, tensor.shape, tensor.stride()), name)
                self.assertEqual(contents_of(found), contents_of(tensor.clone()), name)

    def test_the_data_of_a_usual_file_is_one_buffer_with_the_layout_of_the_file(self):
        tensors = {"a": ("BF16", (64, 8), bytes(1024)), "b": ("F32", (16,), bytes(64)), "empty": ("F32", (0,), b""), "c": ("U8", (3,), b"abc")}
        path = self.write(make(tensors))
        made = _torch_load.read(path, lambda n_bytes, _: self.device.acquire(n_bytes), None)
        self.assertEqual([buffer.nbytes for buffer in made.buffers], [1024 + 64 + 3])
        self.assertEqual([(storage.offset, storage.n_bytes) for storage in made.directory.storages], [(0, 1024), (1024, 64), (0, 0), (1088, 3)])
        places = _torch_load._open_file(path, None, unittest.mock.Mock()).places
        self.assertEqual(len(_torch_load.cut(places, 1 << 30)[0].runs), 1)

    def test_a_tensor_behind_an_odd_one_is_aligned(self):
        tensors = {"odd": ("U8", (3,), b"abc"), "small": ("F32", (1,), b"1234"), "next": ("F32", (1,), b"5678"),
                   "large": ("F32", (9,), bytes(36))}
        made = {}
        path = self.write(make(tensors))
        for pool in self.pools():
            loaded = gpupool.torch.load(path, pool=pool)
            self.check_loaded(loaded, tensors)
            made[pool.kind] = [tensor.data_ptr() - loaded["odd"].data_ptr() for tensor in loaded.values()]
        self.assertEqual(made["host"], [0, 512, 516, 1024])  # a scalar lies behind another one
        self.assertEqual(made["device"], made["host"])

    def test_an_index_and_a_folder_give_the_tensors_of_their_files(self):
        chance = random.Random(3)
        first = {"a": ("F32", (5,), chance.randbytes(20)), "b": ("U8", (7,), chance.randbytes(7)), "stale": ("U8", (1,), b"x")}
        second = {"c": ("BF16", (2, 2), chance.randbytes(8)), "stale": ("U8", (1,), b"y")}
        self.write(make(first), "model-1.safetensors")
        self.write(make(second), "model-2.safetensors")
        with self.assertRaisesRegex(ValueError, "'stale' is in .*model-1.safetensors and in .*model-2.safetensors"):
            gpupool.torch.load(self.folder, pool=self.device)
        weight_map = {"a": "model-1.safetensors", "c": "model-2.safetensors", "stale": "model-2.safetensors", "b": "model-1.safetensors"}
        index = self.write(json.dumps({"metadata": {}, "weight_map": weight_map}).encode(), "model.safetensors.index.json")
        expected = {name: first.get(name) for name in ("a", "b")} | second
        for path in (self.folder, index, str(index)):
            for pool in self.pools():
                self.check_loaded(gpupool.torch.load(path, pool=pool), expected)
        self.write(json.dumps({"weight_map": {**weight_map, "d": "model-2.safetensors"}}).encode(), index.name)
        with self.assertRaisesRegex(ValueError, "no tensor 'd'"):
            gpupool.torch.load(index, pool=self.device)
        self.write(json.dumps({"weight_map": {"a": "model-3.safetensors"}}).encode(), index.name)
        with self.assertRaises(FileNotFoundError):
            gpupool.torch.load(index, pool=self.device)

    def test_a_file_that_is_not_valid_is_refused_before_memory_is_taken(self):
        bad = [(frame({"a": entry("U8", (4,), 1)}, bytes(5)), "leaves a hole"), (b"", "too short"),
               (frame({"a": entry("F6_E2M3", (4,), 0)}, bytes(3)), "model.safetensors: the tensor 'a' has the dtype F6_E2M3")]
        if "F4" in KNOWN:
            bad += [(frame({"a": entry("F4", (2, 3), 0)}, bytes(3)), "2 values in an element")]
        for contents, word in bad:
            path = self.write(contents)
            with self.assertRaisesRegex(ValueError, word):
                _torch_load.read(path, None, None)
            with self.assertRaisesRegex(ValueError, word):
                gpupool.torch.load(path, pool=self.device)
        with self.assertRaises(FileNotFoundError):
            gpupool.torch.load(self.folder / "none.safetensors", pool=self.device)
        with self.assertRaisesRegex(ValueError, "the pool says which device"):
            gpupool.torch.load(path, pool=self.device, device="cpu")

    def test_a_file_that_is_cut_while_it_is_read_is_an_error(self):
        for pool in self.pools():
            path = self.write(make({"a": ("U8", (100000,), bytes(100000))}))

            def acquire(n_bytes, _, pool=pool, path=path):
                os.truncate(path, 50000)
                return pool.acquire(n_bytes)

            with self.assertRaisesRegex(ValueError, "50000"):
                _torch_load.read(path, acquire, None)

    def test_a_pool_with_room_in_pieces_holds_a_file_in_several_buffers(self):
        chance = random.Random(4)
        tensors = {f"layer.{number}": ("U8", (2 * MIB,), chance.randbytes(2 * MIB)) for number in range(12)}
        path = self.write(make(tensors))
        waits = []

        def acquire(n_bytes, timeout):
            waits.append((n_bytes // MIB, timeout))
            if n_bytes > 5 * MIB:
                raise gpupool.ExhaustedError(f"{n_bytes // MIB} MiB are not free")
            return self.device.acquire(n_bytes)

        with self.assertRaisesRegex(gpupool.ExhaustedError, "24 MiB"):
            _torch_load.read(path, acquire, 7)
        self.assertEqual(waits, [(24, 7)])
        with unittest.mock.patch.multiple(_torch_load, SMALL_BUFFER_BYTES=MIB, AGAIN_S=0.1):
            made = _torch_load.read(path, acquire, 7)
        self.assertEqual(waits[1:4], [(24, 7), (12, 0.1), (6, 0.1)])
        self.assertEqual([buffer.nbytes for buffer in made.buffers], [2 * MIB] * 12)
        loaded = made.tensors()
        self.assertEqual(loaded.keys(), tensors.keys())
        for name, (_, _, contents) in tensors.items():
            self.assertTrue(torch.equal(loaded[name], torch.frombuffer(bytearray(contents), dtype=torch.uint8)), name)

    def test_a_pool_without_room_says_so_and_nothing_is_kept(self):
        path = self.folder / "model.safetensors"
        with open(path, "wb") as file:
            file.write(frame({f"layer.{number}": entry("U8", (16 * MIB,), number * 16 * MIB) for number in range(8)}))
            file.truncate(file.tell() + 128 * MIB)
        with unittest.mock.patch.multiple(_torch_load, SMALL_BUFFER_BYTES=MIB, AGAIN_S=0.1), self.assertRaises(MemoryError) as caught:
            gpupool.torch.load(path, pool=self.device, timeout=0.1)
        self.assertIn("128", str(caught.exception))  # of the whole file, and not of a part of it

    def test_each_tensor_keeps_the_memory_and_the_last_one_gives_it_back(self):
        path = self.write(make({"a": ("F32", (2,), bytes(8)), "b": ("I32", (2,), (7).to_bytes(4, "little") * 2)}))
        for pool in self.pools():
            kept = gpupool.torch.load(path, pool=pool).pop("b")
            self.client.trim()
            self.assertGreater(self.daemon.leases(), 0)
            self.assertEqual(kept.tolist(), [7, 7])
            del kept
            self.wait_until_nothing_is_leased()

    def test_loaded_tensors_are_sent_without_a_copy(self):
        path = self.write(make({"a": ("F32", (2,), bytes(8)), "b": ("I32", (2,), bytes(8))}))
        loaded = gpupool.torch.load(path, pool=self.device)
        again = pickle.loads(ForkingPickler.dumps(loaded))
        loaded["b"].fill_(5)
        self.assertEqual(again["b"].tolist(), [5, 5])


class Uploads(scene.Scene):
    """The function of the module that reads a file into a buffer of a device pool."""

    def test_a_part_of_a_file_is_read_into_a_part_of_a_buffer(self):
        contents = random.Random(5).randbytes(5 * MIB)
        with tempfile.TemporaryFile() as file:
            file.write(contents)
            file.flush()
            with gpupool.Stream(0, client=self.client) as stream:
                for on in (None, stream):
                    with self.device.acquire(6 * MIB, on, zero=True) as buffer:
                        _gpupool._upload_file(buffer, 1000, file.fileno(), 33, 5 * MIB - 40)
                        found = bytes(memoryview(buffer))
                        self.assertEqual(found[1000:1000 + 5 * MIB - 40], contents[33:-7])
                        self.assertFalse(any(found[:1000]) or any(found[1000 + 5 * MIB - 40:]))
                        _gpupool._upload_file(buffer, 6 * MIB, file.fileno(), 0, 0)

    def test_wrong_arguments_are_refused(self):
        with tempfile.TemporaryFile() as file, self.device.acquire(100) as buffer, self.host.acquire(100) as on_host, \
                self.device.acquire(100, gpupool.NO_STREAM) as unordered:
            file.write(bytes(1000))
            file.flush()
            fd = file.fileno()
            for error, arguments in (
                    (gpupool.InvalidError, (buffer, 0, fd, 0, 101)), (gpupool.InvalidError, (buffer, 101, fd, 0, 0)),
                    (gpupool.InvalidError, (buffer, 50, fd, 0, 2**64 - 1)), (gpupool.InvalidError, (on_host, 0, fd, 0, 1)),
                    (gpupool.InvalidError, (buffer, 0, -1, 0, 1)), (gpupool.InvalidError, (buffer, 0, fd, 990, 11)),
                    (gpupool.InvalidError, (buffer, 0, fd, 2**63, 1)), (gpupool.InvalidError, (unordered, 0, fd, 0, 1)),
                    (ValueError, (buffer, -1, fd, 0, 1)), (ValueError, (buffer, 0, 1 << 40, 0, 1)), (TypeError, (buffer, "0", fd, 0, 1)),
                    (TypeError, (7, 0, fd, 0, 1)), (TypeError, (buffer,)), (TypeError, ())):
                with self.subTest(arguments), self.assertRaises(error):
                    _gpupool._upload_file(*arguments)
        with self.assertRaises(gpupool.StaleError):
            _gpupool._upload_file(buffer, 0, 0, 0, 1)


if __name__ == "__main__":
    unittest.main()
