# SPDX-License-Identifier: Apache-2.0
"""gpupool.torch: tensors over the pools, in one process and several, and batches of a DataLoader."""
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import unittest
import weakref
from multiprocessing.reduction import ForkingPickler

import gpupool
import scene
from scene import torch

if hasattr(getattr(torch, "float32", None), "itemsize"):
    import gpupool.torch
    import torch.multiprocessing


def add_one(questions, answers):
    """In another process: adds 1 to each tensor that comes and describes it, until None comes."""
    while (tensor := questions.get(timeout=scene.WAIT_S)) is not None:
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        with torch.no_grad():
            tensor.add_(1)
        told = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad, is_parameter, tensor.float().sum().item())
        del tensor
        answers.put(told)


@scene.needs_torch_2
class Tensors(scene.Scene):
    def tearDown(self):
        self.wait_until_nothing_is_leased()

    def pools(self):
        return self.host, self.device

    def test_a_tensor_keeps_its_buffer_and_gives_it_back(self):
        for pool in self.pools():
            for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.bool, torch.complex64):
                tensor = gpupool.torch.zeros((2, 3), dtype=dtype, pool=pool)
                self.assertEqual((tuple(tensor.shape), tensor.dtype), ((2, 3), dtype))
                self.assertFalse(tensor.any())
                part = tensor[1]
                del tensor
                self.assertGreater(self.daemon.leases(), 0)
                part.fill_(1)
                del part

    def test_tensors_without_elements_and_defaults(self):
        for pool in self.pools():
            for make in (gpupool.torch.empty, gpupool.torch.zeros):
                for shape in ((0, 5), (0,), (3, 0), 0):
                    empty = make(shape, pool=pool)
                    self.assertEqual((empty.shape, empty.device), (torch.empty(shape).shape, make(1, pool=pool).device))
                    self.assertEqual(pickle.loads(ForkingPickler.dumps(empty)).shape, empty.shape)
        self.assertEqual(gpupool.torch.empty(7, pool=self.host).dtype, torch.get_default_dtype())
        with self.assertRaises(ValueError):
            gpupool.torch.empty(7, pool=self.host, device="cpu")
        with self.assertRaises(ValueError):
            gpupool.torch.empty(7, device="meta")
        with self.assertRaises(MemoryError):
            gpupool.torch.empty(1 << 50, pool=self.host, timeout=0)

    def test_a_view_of_a_buffer(self):
        with self.host.acquire(100, zero=True) as buffer:
            tensor = gpupool.torch.from_buffer(buffer, (5, 2), torch.int32, 8)
            tensor[:] = -1
            self.assertEqual(bytes(memoryview(buffer)), b"\0" * 8 + b"\xff" * 40 + b"\0" * 52)
            with self.assertRaises(ValueError):
                gpupool.torch.from_buffer(buffer, (5, 20), torch.int32, 8)
            del tensor

    def test_other_tensors_are_not_of_a_pool(self):
        for call in (gpupool.torch.reuse, lambda tensor: gpupool.torch.record_stream(tensor, 0)):
            with self.assertRaises(ValueError):
                call(torch.ones(3))

    def run_worker(self, context):
        questions, answers = context.Queue(), context.Queue()
        process = context.Process(target=add_one, args=(questions, answers), daemon=True)
        process.start()

        def ask(tensor):
            questions.put(tensor)
            return answers.get(timeout=scene.WAIT_S)

        def end():
            questions.put(None)
            process.join(scene.WAIT_S)
            self.assertEqual(process.exitcode, 0)
        return ask, end

    def test_tensors_go_to_another_process_and_back(self):
        for context in (multiprocessing.get_context("spawn"), torch.multiprocessing.get_context("forkserver")):
            ask, end = self.run_worker(context)
            for pool in self.pools():
                tensor = gpupool.torch.zeros((3, 4), pool=pool)
                self.assertEqual(ask(tensor), ((3, 4), (4, 1), torch.float32, False, False, 12.0))
                self.assertEqual(ask(tensor.t()[1:, ::2]), ((3, 2), (1, 8), torch.float32, False, False, 12.0))
                scene.wait_until(lambda tensor=tensor: self.may_write(tensor), "the other process has dropped it")
                self.assertEqual(tensor.tolist(), [[1, 2, 2, 2], [1, 1, 1, 1], [1, 2, 2, 2]])
                self.assertEqual(ask(gpupool.torch.zeros((), dtype=torch.bfloat16, pool=pool))[5], 1.0)
                parameter = torch.nn.Parameter(gpupool.torch.zeros(5, pool=pool))
                self.assertEqual(ask(parameter)[3:], (True, True, 5.0))
            self.assertEqual(ask(torch.zeros(3))[5], 3.0)  # as PyTorch sends it
            end()

    def may_write(self, tensor):
        try:
            gpupool.torch.reuse(tensor)
        except gpupool.SharedError:
            return False
        return True

    def test_a_tensor_that_was_dropped_after_it_was_sent_arrives(self):
        ask, end = self.run_worker(multiprocessing.get_context("spawn"))
        for i in range(50):
            self.assertEqual(ask(gpupool.torch.zeros(1000, pool=self.pools()[i % 2]).fill_(i))[5], 1000.0 * (i + 1))
        end()

    def test_a_tensor_may_come_back_to_its_process(self):
        pickler = multiprocessing.reduction.ForkingPickler
        for pool in self.pools():
            tensor = gpupool.torch.zeros(1000, pool=pool)
            again = pickler.loads(pickler.dumps(tensor))
            again.fill_(7)
            del again
            self.assertEqual(float(tensor.sum()), 7000.0)
            third = pickler.loads(pickler.dumps(tensor))
            self.assertEqual(float(third[0]), 7.0)
            del third
            gpupool.torch.reuse(tensor)

    def test_views_of_all_kinds_arrive(self):
        pickler = multiprocessing.reduction.ForkingPickler
        for pool in self.pools():
            odd = gpupool.torch.from_buffer(pool.acquire(100), 80, torch.uint8, 4).view(torch.float64)
            odd[:] = torch.arange(10)
            self.assertEqual(pickler.loads(pickler.dumps(odd[2:4])).tolist(), [2.0, 3.0])
            tensor = gpupool.torch.zeros((3, 4), pool=pool)
            empty = pickler.loads(pickler.dumps(tensor[3:]))
            self.assertEqual((empty.shape, empty.dtype), ((0, 4), torch.float32))
            self.assertEqual(pickler.loads(pickler.dumps(tensor[1].expand(5, 4))).stride(), (0, 1))

    def test_tensors_of_one_memory_go_with_one_token(self):
        pickler = multiprocessing.reduction.ForkingPickler
        for pool in self.pools():
            tensor = gpupool.torch.zeros((4, 5), pool=pool)
            whole, row, again = pickler.loads(pickler.dumps([tensor, tensor[2], tensor]))
            row.fill_(3)
            again[0, 0] = 1
            self.assertEqual((float(whole.sum()), float(tensor.sum())), (16.0, 16.0))
            self.assertIs(gpupool.torch._find(whole), gpupool.torch._find(row))
            self.assertEqual(gpupool.torch._find(tensor).query().holders, 2)
            del whole, again
            self.assertEqual(row.tolist(), [3.0] * 5)
            self.assertFalse(self.may_write(tensor))
            del row
            scene.wait_until(lambda tensor=tensor: self.may_write(tensor), "all views are dropped")

    def test_what_cannot_be_sent_says_why(self):
        tensor = gpupool.torch.zeros(3, pool=self.host).requires_grad_()
        pickler = multiprocessing.reduction.ForkingPickler
        with self.assertRaisesRegex(RuntimeError, "detach"):
            pickler.dumps(tensor * 2 if gpupool.torch._find(tensor * 2) else tensor.view(3))

    def test_batches_lie_in_pinned_memory_and_come_by_token(self):
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.arange(60).float().reshape(60, 1), torch.arange(60))
        expected = list(DataLoader(data, batch_size=8))
        for workers, context in ((0, None), (2, "fork"), (2, "spawn")):
            batches = list(DataLoader(data, batch_size=8, num_workers=workers, collate_fn=gpupool.torch.collate,
                                      multiprocessing_context=context))
            for (x, y), (other_x, other_y) in zip(batches, expected, strict=True):
                self.assertTrue(torch.equal(x, other_x) and torch.equal(y, other_y))
                for tensor in x, y:
                    self.assertEqual(gpupool.torch._find(tensor).kind, "host")
            del batches, x, y, tensor

    def test_batches_that_a_trainer_leaves_unread_come_back(self):
        program = """
import os, signal, sys
import gpupool.torch, torch
from torch.utils.data import DataLoader

loader = DataLoader([torch.ones(5000)] * 64, batch_size=8, num_workers=2, collate_fn=gpupool.torch.collate, persistent_workers=True)
batches = iter(loader)
next(batches)
print("begun", flush=True)
sys.stdin.readline()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "left":
    del batches, loader
"""
        for end in "left", "killed", "ended":
            process = subprocess.Popen([sys.executable, "-c", program, end], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       env=self.daemon.environment)
            try:
                self.assertEqual(scene.read_line(process.stdout), "begun\n")
                # A worker that has just been forked takes its parent of then for the trainer, and does not end when that is init.
                # Four; three where the trainer has taken the second batch before the first, which then lies in the trainer.
                scene.wait_until(lambda: self.parcels() >= 3, "batches of both workers are on their way")
                process.stdin.write("\n")
                process.stdin.flush()
                process.wait(scene.WAIT_S)
            finally:
                process.kill()
                process.communicate()
            scene.wait_until(lambda: self.parcels() == 0, "nothing is on its way")

    def test_batches_wait_for_a_trainer_that_pauses(self):
        program = """
import sys
import gpupool.torch, torch
from torch.utils.data import DataLoader

gpupool._transfer.LIFETIME_S = 0.1
batches = iter(DataLoader([torch.ones(5000)] * 64, batch_size=8, num_workers=2, collate_fn=gpupool.torch.collate))
if sys.argv[1] == "later":
    next(batches)
print("begun", flush=True)
sys.stdin.readline()
print(sum(1 for batch in batches), flush=True)
"""
        for pause, count in ("first", 8), ("later", 7):
            process = subprocess.Popen([sys.executable, "-c", program, pause], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       env=self.daemon.environment)
            try:
                self.assertEqual(scene.read_line(process.stdout), "begun\n")
                scene.wait_until(lambda: self.parcels() >= 3, "batches are on their way")  # four, as above
                scene.wait_until(lambda: min(parcel["sent_ns"] for parcel in self.daemon.ask("parcels")["parcels"]) > 10**9, "they are old")
                self.assertGreaterEqual(self.parcels(), 3)
                process.stdin.write("\n")
                process.stdin.flush()
                self.assertEqual(scene.read_line(process.stdout), f"{count}\n")
            finally:
                process.kill()
                process.communicate()
            scene.wait_until(lambda: self.parcels() == 0, "nothing is on its way")

    def parcels(self):
        return sum(pool["parcels"] for pool in self.daemon.ask("pools")["pools"])

    @scene.needs_numpy
    def test_small_tensors_of_a_batch_hold_no_large_ones(self):
        from torch.utils.data import DataLoader
        data = [(torch.full((3000,), float(i)), i, scene.numpy.float32(i)) for i in range(16)]
        for workers in 0, 2:
            kept = []
            for images, labels, weights in DataLoader(data, batch_size=8, num_workers=workers, collate_fn=gpupool.torch.collate):
                self.assertEqual(images[:, 7].tolist(), labels.tolist())
                for tensor, n_bytes in (images, 8 * 12000), (labels, 64), (weights, 32):
                    self.assertEqual(gpupool.torch._find(tensor).nbytes, n_bytes)
                kept += [labels, weights]
                large = weakref.ref(gpupool.torch._find(images))
            del images, labels, weights, tensor
            self.assertIsNone(large())
            self.assertEqual([part.tolist() for part in kept[::2]], [list(range(8)), list(range(8, 16))])
            self.assertEqual(kept[3].dtype, torch.float32)
            del kept

    def test_a_small_tensor_arrives_where_the_pool_is_full(self):
        program = """
import gpupool.torch, torch
from torch.utils.data import DataLoader
loader = DataLoader([torch.tensor([5, 6])] * 4, batch_size=2, num_workers=1, collate_fn=gpupool.torch.collate)
pool, held = gpupool.host_pool(), []
for size in (1 << power for power in range(20, 3, -1)):
    try:
        while True:
            held.append(pool.acquire(size, timeout=1 if size == 1 << 20 else 0))  # the pool grows first
    except gpupool.ExhaustedError:
        pass
for batch in loader:
    assert batch.tolist() == [[5, 6], [5, 6]] and gpupool.torch._find(batch) is None, batch
"""
        daemon = scene.Daemon("[host]\nlimit = 4MiB\nstep = 1MiB\n")
        try:
            done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=scene.WAIT_S,
                                  env=daemon.environment)
            self.assertEqual(done.returncode, 0, done.stderr)
        finally:
            daemon.close()

    def test_a_full_pool_slows_a_training_and_does_not_end_it(self):
        """The trainer keeps more batches than the pool holds. In the second program the pool is full of batches that come after the
        one that the trainer waits for."""
        keeps = """
import gc, gpupool.torch, torch
from torch.utils.data import DataLoader
class Data(torch.utils.data.Dataset):
    def __len__(self): return 96
    def __getitem__(self, i): return torch.full((1 << 16,), float(i))
loader = DataLoader(Data(), batch_size=4, num_workers=2, collate_fn=gpupool.torch.collate, multiprocessing_context="fork")
kept = list(loader)
assert [batch[0, 0].item() for batch in kept] == [4.0 * n for n in range(24)]
are_pinned = [gpupool.torch._find(batch) is not None for batch in kept]
assert are_pinned[0] and not are_pinned[-1], are_pinned
"""
        prefetches = """
import gpupool, gpupool.torch, torch
from torch.utils.data import DataLoader
class Data(torch.utils.data.Dataset):
    def __len__(self): return 80
    def __getitem__(self, i):
        while i < 4:  # until the later batches fill the pool
            pool = gpupool.torch._host_pool().info()
            if pool.largest_free_bytes + pool.limit_bytes - pool.reserved_bytes < 1 << 20: break
        return torch.full((1 << 16,), float(i))
loader = DataLoader(Data(), batch_size=4, num_workers=6, collate_fn=gpupool.torch.collate, multiprocessing_context="fork")
assert [batch[0, 0].item() for batch in loader] == [4.0 * n for n in range(20)]
"""
        daemon = scene.Daemon("[host]\nlimit = 8MiB\nstep = 2MiB\n")
        try:
            for program in keeps, prefetches:
                done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=scene.WAIT_S,
                                      env=daemon.environment)
                self.assertEqual(done.returncode, 0, done.stderr)
                warnings = done.stderr.count("RuntimeWarning: gpupool.torch.collate: no room for a batch")
                self.assertIn(warnings, range(1, 7), done.stderr)
        finally:
            daemon.close()

    def test_collate_keeps_the_structure(self):
        self.assertEqual(gpupool.torch.collate([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])["b"], ["x", "y"])
        batch = gpupool.torch.collate([(torch.ones(2), 1.5), (torch.zeros(2), 2.5)])
        self.assertEqual((batch[0].tolist(), batch[1].tolist()), ([[1, 1], [0, 0]], [1.5, 2.5]))
        self.assertEqual(gpupool.torch.collate([True, False]).dtype, torch.utils.data.default_collate([True, False]).dtype)
        mixed = [torch.ones(2), torch.ones(2, dtype=torch.float64)]
        self.assertEqual(gpupool.torch.collate(mixed).dtype, torch.utils.data.default_collate(mixed).dtype)
        self.assertEqual(gpupool.torch.collate([torch.ones(2, requires_grad=True)] * 2).shape, (2, 2))
        for values in ([1, 2], [1.5, 2.5], [torch.ones(2, 2), torch.zeros(2, 2)]):
            ours, theirs = gpupool.torch.collate(values), torch.utils.data.default_collate(values)
            self.assertTrue(torch.equal(ours, theirs) and ours.dtype == theirs.dtype)
            self.assertIsNotNone(gpupool.torch._find(ours))
        del ours
        del batch


@scene.needs_torch_2
class Storm(scene.Scene):
    def test_tensors_are_passed_on_while_processes_are_killed(self):
        program = pathlib.Path(os.environ["GPUPOOL_SOURCE"]) / "tests/python/storm.py"
        for device in ("sim", "host"):
            done = subprocess.run([sys.executable, program, "--device", device, "--messages", "1500", "--kill-every", "300"],
                                  check=False, capture_output=True, text=True, timeout=5 * scene.WAIT_S, env=self.daemon.environment)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("nothing held", done.stdout)


if __name__ == "__main__":
    unittest.main()
