# SPDX-License-Identifier: Apache-2.0
"""gpupool.torch.load(path, name=...): one process reads a file, and the others have its tensors by the name."""
import gc
import json
import multiprocessing
import os
import pathlib
import signal
import tempfile
import threading
import unittest
import unittest.mock

import gpupool
import scene
from gpupool import names
from safetensors_files import make
from scene import torch

if hasattr(getattr(torch, "float32", None), "itemsize"):
    import gpupool.torch
    from gpupool import _torch_load, _torch_memory

CONTEXT = multiprocessing.get_context("spawn")


def file_of(byte, n_bytes=1000):
    return make({"weight": ("U8", (n_bytes,), bytes([byte]) * n_bytes), "bias": ("F32", (2,), bytes(8))})


def byte_of(tensors):
    first, last = tensors["weight"][0].item(), tensors["weight"][-1].item()
    if first != last:
        raise AssertionError(f"{first} and {last}")
    return first


def load(path, name="model", timeout=scene.WAIT_S):
    return gpupool.torch.load(path, name=name, pool=gpupool.device_pool(0), timeout=timeout)


def count_reads():
    """A patch of the function that reads files. Its call_count is the number of calls."""
    return unittest.mock.patch.object(_torch_load, "read", wraps=_torch_load.read)


def load_and_tell(connection, path):
    """In another process: loads, and tells the tensors and the number of files that it has read."""
    with count_reads() as reads:
        tensors = load(path)
        connection.send((byte_of(tensors), reads.call_count, tensors.generation))
    connection.poll(scene.WAIT_S)  # it lives until the other side is closed


def die_while_it_reads(connection, path):
    def read(*_):
        connection.send("reads")
        os.kill(os.getpid(), signal.SIGSTOP)

    with unittest.mock.patch.object(_torch_load, "read", read):
        load(path)


@scene.needs_torch_2
class LoadingByName(scene.Scene):
    config = "[device]\nlimit = 64MiB\n"

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpupool-load-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "model.safetensors"
        self.path.write_bytes(file_of(1))

    def tearDown(self):
        for one in names.names():
            names.unpublish(one.name)
        gc.collect()
        gpupool.trim()
        self.wait_until_nothing_is_leased()

    def start(self, function):
        """A process, and this side of its connection. It is killed at the end."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=function, args=(theirs, self.path))
        process.start()
        theirs.close()
        self.addCleanup(process.join)
        self.addCleanup(process.kill)
        return process, ours

    def receive(self, connection):
        self.assertTrue(connection.poll(scene.WAIT_S))
        return connection.recv()

    def test_a_file_is_read_once(self):
        with count_reads() as reads:
            first = load(self.path)
            again = load(str(self.path), timeout=0)
        self.assertEqual((byte_of(first), byte_of(again), reads.call_count), (1, 1, 1))
        self.assertEqual((first.generation, first.keep, first.live), (again.generation, True, False))
        self.assertEqual([one.name for one in names.names()], ["model"])
        self.assertTrue(_torch_memory.keeper_of(first["weight"]).buffer.read_only)
        self.assertEqual(byte_of(gpupool.open("model")), 1)

    def test_the_tensors_outlive_the_process_that_has_read_the_file(self):
        process, connection = self.start(load_and_tell)
        self.assertEqual(self.receive(connection)[:2], (1, 1))
        process.kill()
        process.join()
        for _ in range(2):
            process, connection = self.start(load_and_tell)
            self.assertEqual(self.receive(connection)[:2], (1, 0))
            process.kill()

    def test_of_processes_that_start_together_one_reads(self):
        started = [self.start(load_and_tell) for _ in range(4)]
        told = [self.receive(connection) for _, connection in started]
        self.assertEqual(sorted(n_reads for _, n_reads, _ in told), [0, 0, 0, 1])
        self.assertEqual(len({(byte, generation) for byte, _, generation in told}), 1)

    def test_when_the_process_that_reads_is_killed_another_one_reads(self):
        process, connection = self.start(die_while_it_reads)
        self.assertEqual(self.receive(connection), "reads")
        with self.assertRaises(gpupool.NoNameError):
            load(self.path, timeout=0)
        _, waiting = self.start(load_and_tell)
        process.kill()
        self.assertEqual(self.receive(waiting)[:2], (1, 1))

    def test_a_changed_file_makes_a_new_generation(self):
        old, before = load(self.path), self.path.stat()
        self.path.write_bytes(file_of(2))
        os.utime(self.path, ns=(before.st_atime_ns, before.st_mtime_ns))
        new = load(self.path)
        self.assertEqual((byte_of(old), byte_of(new)), (1, 2))
        self.assertGreater(new.generation, old.generation)
        self.assertEqual(load(self.path).generation, new.generation)

    def test_of_processes_that_see_a_changed_file_one_reads(self):
        generation = load(self.path).generation
        self.path.write_bytes(file_of(3))
        started = [self.start(load_and_tell) for _ in range(3)]
        told = [self.receive(connection) for _, connection in started]
        self.assertEqual((sorted(n_reads for _, n_reads, _ in told), {byte for byte, _, _ in told}), ([0, 0, 1], {3}))
        self.assertGreater(told[0][2], generation)

    def test_a_file_that_changes_while_it_is_read_is_read_again(self):
        original, read = file_of(4), _torch_load.read
        changed = []

        def read_and_change(*arguments):
            made = read(*arguments)
            if not changed:
                self.path.write_bytes(original)
                changed.append(True)
            return made

        with unittest.mock.patch.object(_torch_load, "read", read_and_change):
            self.assertEqual(byte_of(load(self.path)), 4)

    def test_threads_of_a_process_read_once(self):
        found = []
        with count_reads() as reads:
            threads = [threading.Thread(target=lambda: found.append(byte_of(load(self.path)))) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(scene.WAIT_S)
        self.assertEqual((found, reads.call_count), ([1] * 4, 1))

    def test_after_a_failure_the_name_is_free(self):
        self.path.write_bytes(file_of(5)[:-1])
        with self.assertRaisesRegex(ValueError, "model.safetensors"):
            load(self.path)
        with self.assertRaises(FileNotFoundError):
            load(self.folder / "none.safetensors")
        self.path.write_bytes(file_of(5, 100 << 20))
        with self.assertRaises(MemoryError):
            load(self.path, timeout=0)
        self.assertEqual(names.names(), [])
        self.path.write_bytes(file_of(6))
        self.assertEqual(byte_of(load(self.path, timeout=0)), 6)

    def test_a_name_of_something_else_is_refused_and_stays(self):
        generation = gpupool.publish("model", {"weight": torch.ones(3)}, pool=gpupool.device_pool(0))
        with self.assertRaisesRegex(ValueError, "not loaded from a file"):
            load(self.path)
        with gpupool.host_pool().acquire(100) as buffer:
            names.publish_buffers("bytes", [buffer])
        with self.assertRaisesRegex(ValueError, "holds no tensors"):
            load(self.path, "bytes")
        self.assertEqual(gpupool.open("model").generation, generation)
        load(self.path, "on device")
        with self.assertRaisesRegex(ValueError, "a name for each device"):
            gpupool.torch.load(self.path, name="on device")

    def test_the_identity_is_of_the_files_and_not_of_the_folder(self):
        identity = _torch_load.identity
        seen = [identity(self.path)]
        link = self.folder / "link"
        link.mkdir()
        (link / self.path.name).symlink_to(self.path)
        self.assertEqual(identity(link / self.path.name), seen[0])
        self.assertEqual(identity(str(self.path)), seen[0])

        index = self.folder / "model.safetensors.index.json"
        for weight_map in ({"weight": self.path.name}, {"weight": self.path.name, "bias": self.path.name}):
            index.write_text(json.dumps({"weight_map": weight_map}))
            seen.append(identity(index))
            self.assertEqual(identity(self.folder), seen[-1])
        index.unlink()
        status = self.path.stat()
        for contents in (file_of(7), make({"weight": ("I8", (1000,), bytes(1000)), "bias": ("F32", (2,), bytes(8))})):
            self.path.write_bytes(contents)
            os.utime(self.path, ns=(status.st_atime_ns, status.st_mtime_ns))
            seen.append(identity(self.path))
        os.utime(self.path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        seen.append(identity(self.path))
        (self.folder / "second.safetensors").write_bytes(file_of(8))
        seen.append(identity(self.folder))
        self.assertEqual(len(set(seen)), len(seen))


if __name__ == "__main__":
    unittest.main()
