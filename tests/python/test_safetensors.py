# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files: each good one is understood, each bad one is refused with a ValueError that says why."""
import json
import os
import pathlib
import random
import tempfile
import unittest

import safetensors_files as files
from gpupool import _safetensors
from safetensors_files import entry, frame, make

try:
    import safetensors
except ImportError:
    safetensors = None

ROUNDS = 300
A, B = entry("U8", (4,), 0), entry("F32", (2,), 4)
GOOD = frame({"a": A, "b": B}, bytes(12))
BAD = {  # a file: a word of the error
    "an empty file": (b"", "too short"),
    "a length alone": ((0).to_bytes(8, "little"), "does not begin"),
    "half a length": (b"\x10\0\0", "too short"),
    "a header that is longer than the file": (frame(b"{}", length=3), "too short"),
    "a length of 64 bits": (frame(b"{}", length=2**64 - 1), "too short"),
    "no JSON": (frame(b"{"), "not valid JSON"),
    "no object": (frame(b"[]"), "does not begin"),
    "a space before the object": (frame(b" {}"), "does not begin"),
    "no UTF-8": (frame(b'{"\xff": 1}'), "not valid JSON"),
    "half a character": (frame(b'{"\\ud800": ' + json.dumps(entry("U8", (), 0)).encode() + b"}", b"x"), "not text"),
    "a constant that is not JSON": (frame(b'{"a": NaN}'), "not valid JSON"),
    "a number of 5,000 digits": (frame(b'{"a": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    "deep nesting": (frame(b'{"a":' + b"[" * 200000 + b"]" * 200000 + b"}"), "too deeply"),
    "a name twice": (frame(b'{"a": 1, "a": 1}'), "twice"),
    "metadata that is no object": (frame({"__metadata__": []}), "__metadata__"),
    "metadata of numbers": (frame({"__metadata__": {"a": 1}}), "__metadata__"),
    "an entry that is no object": (frame({"a": 1}), "no dtype"),
    "an entry without a shape": (frame({"a": {"dtype": "U8", "data_offsets": [0, 0]}}), "no dtype"),
    "an unknown dtype": (frame({"a": {**A, "dtype": "F9"}}, bytes(4)), "unknown dtype"),
    "a dtype that is a list": (frame({"a": {**A, "dtype": ["U8"]}}, bytes(4)), "unknown dtype"),
    "a negative length": (frame({"a": {**A, "shape": [-4]}}, bytes(4)), "no valid shape"),
    "a length of minus zero": (frame(json.dumps({"a": {**A, "shape": [0], "data_offsets": [0, 0]}}).replace("[0]", "[-0]").encode()), "no valid shape"),
    "a length that is a fraction": (frame({"a": {**A, "shape": [4.0]}}, bytes(4)), "no valid shape"),
    "a length that is true": (frame({"a": {**A, "shape": [4, True]}}, bytes(4)), "no valid shape"),
    "more elements than 63 bits count": (frame({"a": {**A, "shape": [1 << 62, 4, 0], "data_offsets": [0, 0]}}), "no valid shape"),
    "too many dimensions": (frame({"a": {**A, "shape": [4] + [1] * 64}}, bytes(4)), "no valid shape"),
    "one offset": (frame({"a": {**A, "data_offsets": [4]}}, bytes(4)), "no valid data_offsets"),
    "offsets that are backward": (frame({"a": {**A, "data_offsets": [4, 0]}}, bytes(4)), "no valid data_offsets"),
    "offsets that are text": (frame({"a": {**A, "data_offsets": ["0", "4"]}}, bytes(4)), "no valid data_offsets"),
    "more bytes than the shape has": (frame({"a": entry("U8", (4,), 0, 5)}, bytes(5)), "has 4 bytes"),
    "fewer bytes than the shape has": (frame({"a": entry("F32", (4,), 0, 8)}, bytes(8)), "has 16 bytes"),
    "half a byte": (frame({"a": entry("F4", (3,), 0, 2)}, bytes(2)), "has 1.5 bytes"),
    "a hole before the first tensor": (frame({"a": entry("U8", (4,), 1)}, bytes(5)), "leaves a hole behind the header"),
    "a hole": (frame({"a": A, "b": entry("U8", (4,), 5)}, bytes(9)), "leaves a hole behind 'a'"),
    "an overlap": (frame({"a": A, "b": entry("U8", (4,), 3)}, bytes(7)), "'b' overlaps with 'a'"),
    "the same bytes twice": (frame({"a": A, "b": A}, bytes(4)), "overlaps"),
    "bytes behind the last tensor": (frame({"a": A}, bytes(5)), "its header describes"),
    "a file that was cut": (GOOD[:-1], "its header describes"),
    "data without a tensor": (frame({}, bytes(1)), "its header describes"),
}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpupool-safetensors-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, contents, name="file.safetensors"):
        path = self.folder / name
        path.write_bytes(contents)
        return path

    def read(self, contents):
        path = self.write(contents)
        with open(path, "rb") as file:
            return _safetensors.read(file.fileno(), path)


class Headers(Folder):
    def test_each_tensor_of_a_good_file_has_its_place(self):
        chance = random.Random(1)
        for _ in range(ROUNDS):
            tensors = files.random_tensors(chance, list(files.BITS))
            metadata = chance.choice((None, {}, {"format": "pt"}))
            contents = make(tensors, metadata, chance.random() < 0.8, chance)
            header = self.read(contents)
            self.assertEqual(header.metadata, metadata or {})
            self.assertEqual({place.name: (place.dtype, place.shape, contents[place.begin:place.end]) for place in header.places}, tensors)
            self.assertEqual(header.places, sorted(header.places, key=lambda place: (place.begin, place.end)))

    def test_a_bad_file_is_refused_and_the_error_says_why(self):
        self.assertEqual([place.name for place in self.read(GOOD).places], ["a", "b"])
        for what, (contents, word) in BAD.items():
            with self.subTest(what), self.assertRaises(ValueError) as caught:
                self.read(contents)
            self.assertIn(word, str(caught.exception), what)
            self.assertIn("file.safetensors is not a safetensors file", str(caught.exception))

    def test_a_header_that_is_too_long_is_not_read(self):
        path = self.write(b"")
        with open(path, "r+b") as file:
            file.write((_safetensors.HEADER_MAX + 1).to_bytes(8, "little"))
            file.truncate(_safetensors.HEADER_MAX + 100)
            with self.assertRaisesRegex(ValueError, "at most are allowed"):
                _safetensors.read(file.fileno(), path)

    def test_a_pipe_is_refused(self):
        reader, writer = os.pipe()
        os.close(writer)
        self.addCleanup(os.close, reader)
        with self.assertRaisesRegex(ValueError, "not a regular file"):
            _safetensors.read(reader, "pipe")

    def test_damage_is_refused_or_leaves_a_whole_file(self):
        """The places of a damaged file that is not refused tile its data. The package safetensors refuses no file that passes here."""
        chance, accepted = random.Random(2), 0
        for _ in range(10 * ROUNDS):
            whole = make(files.random_tensors(chance, ["U8", "F32", "BF16"]), {"a": "b"}, chance.random() < 0.5)
            contents = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(contents) + 1)
                contents[at:at + chance.choice((0, 1, 1, 1, 3))] = chance.choice((b"", b"0", b"9", b"{", b'"', b",", b"-", b"\0", b"\xff", b"e"))
            try:
                places = self.read(bytes(contents)).places
            except ValueError:
                continue
            accepted += 1
            ends = [len(contents) - sum(place.end - place.begin for place in places), *(place.end for place in places)]
            self.assertEqual([place.begin for place in places], ends[:-1])
            self.assertEqual(ends[-1], len(contents))
            if safetensors is not None:
                with safetensors.safe_open(self.folder / "file.safetensors", "numpy") as file:
                    self.assertEqual(set(file.keys()), {place.name for place in places})
        self.assertGreater(accepted, 0)


class Paths(Folder):
    def index(self, weight_map, name="model.safetensors.index.json"):
        return self.write(json.dumps({"metadata": {"total_size": 8}, "weight_map": weight_map}).encode(), name)

    def test_a_path_is_a_file_an_index_or_a_folder(self):
        file = self.write(GOOD, "model.safetensors")
        self.assertEqual(_safetensors.files_of(file), {file: None})
        self.assertEqual(_safetensors.files_of(str(file)), {file: None})
        self.assertEqual(_safetensors.files_of(self.folder), {file: None})
        other = self.write(GOOD, "other.safetensors")
        self.assertEqual(_safetensors.files_of(self.folder), {file: None, other: None})
        index = self.index({"b": "other.safetensors", "a": "model.safetensors", "c": "other.safetensors"}, "x.safetensors.index.json")
        expected = {file: {"a"}, other: {"b", "c"}}
        self.assertEqual(_safetensors.files_of(index), expected)
        self.assertEqual(_safetensors.files_of(self.folder), expected)
        self.index({"b": "other.safetensors"}, "y.safetensors.index.json")
        with self.assertRaisesRegex(ValueError, "several indices: name one of x.safetensors.index.json, y.safetensors.index.json"):
            _safetensors.files_of(self.folder)
        self.index({"b": "other.safetensors"})
        self.assertEqual(_safetensors.files_of(self.folder), {other: {"b"}})

    def test_a_folder_without_files_is_refused(self):
        with self.assertRaises(FileNotFoundError):
            _safetensors.files_of(self.folder)

    def test_an_index_that_leaves_its_folder_or_is_not_valid_is_refused(self):
        for file in ("/etc/passwd", "../other.safetensors", "a/../../b", "", "a\0b", 7, None, ["a"]):
            with self.subTest(file), self.assertRaisesRegex(ValueError, "not in a file of this folder"):
                _safetensors.files_of(self.index({"a": file}))
        for contents in (b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": "x", "a": "y"}}', b"\xff"):
            with self.subTest(contents), self.assertRaises(ValueError):
                _safetensors.files_of(self.write(contents, "model.safetensors.index.json"))


if __name__ == "__main__":
    unittest.main()
