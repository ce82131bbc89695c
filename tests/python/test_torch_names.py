# SPDX-License-Identifier: Apache-2.0
"""gpupool.publish() and gpupool.open(): sets of tensors that other processes find by a text."""
import copy
import gc
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
import unittest
from multiprocessing.reduction import ForkingPickler

import gpupool
import scene
from gpupool import names
from scene import torch

if hasattr(getattr(torch, "float32", None), "itemsize"):
    import gpupool.torch
    from gpupool import _torch_memory, _torch_names

    DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype) and not str(value).startswith("torch.q")},
                    key=str)

PUBLISHER = """
import os, signal, torch, gpupool
weight = torch.arange(12.0).reshape(3, 4)
gpupool.publish("left", {"weight": weight, "tied": weight.t(), "other": torch.ones(5)}, keep=True, pool=gpupool.device_pool(0))
gpupool.publish("gone", {"weight": weight})
print("published", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
READER = """
import sys, gpupool
tensors = gpupool.open(sys.argv[1])
print(sorted((name, tensor.tolist(), tensor.stride()) for name, tensor in tensors.items()))
print(tensors["weight"].untyped_storage()._cdata == tensors["tied"].untyped_storage()._cdata)
"""
WRITER = """
import gpupool
gpupool.open("fixed")["weight"].fill_(7)
"""


def bytes_of(tensor):
    """The elements of a tensor, in their order, as bytes."""
    return tensor.contiguous().view(torch.uint8).tolist() if tensor.dim() else tensor.reshape(1).view(torch.uint8).tolist()


def buffer_of(tensor):
    return _torch_memory.keeper_of(tensor).buffer


@scene.needs_torch_2
class Sets(scene.Scene):
    config = "[device]\nlimit = 64MiB\n"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pools = gpupool.host_pool(), gpupool.device_pool(0)

    def tearDown(self):
        for one in names.names():
            names.unpublish(one.name)
        gc.collect()
        gpupool.trim()
        self.wait_until_nothing_is_leased()

    def check_same(self, found, expected):
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertEqual((found[name].dtype, found[name].shape, found[name].stride(), found[name].is_conj(), found[name].is_neg()),
                             (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()), name)

    def test_tensors_of_each_type_are_opened_as_they_were(self):
        generator = torch.Generator().manual_seed(1)
        tensors = {}
        for dtype in DTYPES:
            contents = torch.randint(0, 2, (3, 32), dtype=torch.uint8, generator=generator)
            tensors[str(dtype)] = contents.to(torch.bool) if dtype == torch.bool else contents.view(dtype)
        for pool in (None, *self.pools):
            with self.subTest(pool=pool and pool.kind):
                gpupool.publish("types", tensors, pool=pool)
                found = gpupool.open("types")
                self.check_same(found, tensors)
                for name, tensor in tensors.items():
                    self.assertEqual(bytes_of(found[name]), bytes_of(tensor), name)
                    self.assertEqual(buffer_of(found[name]).kind, "host" if pool is None else pool.kind)
                self.assertEqual(len({id(buffer_of(tensor)) for tensor in found.values()}), 1)

    def test_views_ties_and_tensors_without_elements_are_opened_as_they_were(self):
        weight = torch.arange(24.0).reshape(4, 6)
        numbers = torch.arange(6.0).to(torch.complex64)
        tensors = {"weight": weight, "tied": weight, "transposed": weight.t(), "part": weight[1:3, ::2], "scalar": torch.tensor(2.5),
                   "empty": torch.empty(0, 7), "expanded": torch.ones(3, 1).expand(3, 5), "conjugated": numbers.conj(),
                   "negated": numbers.conj().imag, "parameter": torch.nn.Parameter(torch.ones(2))}
        for pool in self.pools:
            gpupool.publish("views", tensors, pool=pool)
            found = gpupool.open("views")
            self.check_same(found, tensors)
            for name, tensor in tensors.items():
                self.assertTrue(torch.equal(found[name], tensor), name)
                self.assertFalse(found[name].requires_grad)
            self.assertEqual(found["weight"].data_ptr(), found["transposed"].data_ptr())
            self.assertEqual(found["weight"].untyped_storage()._cdata, found["part"].untyped_storage()._cdata)
            self.assertNotEqual(found["scalar"].untyped_storage()._cdata, found["weight"].untyped_storage()._cdata)

    def test_a_set_that_is_kept_outlives_its_publisher(self):
        done = subprocess.run([sys.executable, "-c", PUBLISHER], check=False, capture_output=True, text=True, timeout=scene.WAIT_S)
        self.assertEqual((done.returncode, done.stdout), (-signal.SIGKILL, "published\n"), done.stderr)
        scene.wait_until(lambda: {one.name for one in names.names()} == {"left"}, "the other name is gone")
        weight = torch.arange(12.0).reshape(3, 4)
        expected = sorted((name, tensor.tolist(), tensor.stride()) for name, tensor in
                          {"weight": weight, "tied": weight.t(), "other": torch.ones(5)}.items())
        self.assertEqual(self.run_program(READER, "left")[0], f"{expected}\nTrue\n")
        with gpupool.open("left") as tensors:
            self.assertEqual((tensors.name, tensors.keep, tensors.live), ("left", True, False))

    def test_tensors_in_buffers_are_published_where_they_are(self):
        for pool in self.pools:
            weight = gpupool.torch.zeros((64, 64), pool=pool)
            rest = gpupool.torch.empty(100, dtype=torch.int64, pool=pool).fill_(3)
            gpupool.trim()
            leased = self.daemon.leases()
            gpupool.publish("there", {"weight": weight, "part": weight[1:], "rest": rest, "empty": torch.empty(0)}, pool=pool)
            self.assertLessEqual(self.daemon.leases(), leased)
            weight[1, 1] = 5  # against the promise, which shows that it is one memory
            found = gpupool.open("there")
            self.assertEqual((found["part"][0, 1].item(), found["rest"].sum().item(), found["empty"].numel()), (5, 300, 0))
            del weight, rest
            self.assertEqual(found["weight"][1, 1].item(), 5)
            generation = gpupool.publish("again", found, pool=pool)
            self.assertLessEqual(self.daemon.leases(), leased)
            self.assertEqual(gpupool.open("again", generation=generation)["weight"][1, 1].item(), 5)
            del found

    def test_tensors_elsewhere_are_copied_beside_those_in_buffers(self):
        there = gpupool.torch.zeros(8, pool=self.pools[1])
        tensors = {"there": there, "plain": torch.arange(8.0), "on host": gpupool.torch.zeros(8) + 1}
        gpupool.publish("mixed", tensors, pool=self.pools[1])
        there.fill_(4)
        tensors["plain"].fill_(9)
        found = gpupool.open("mixed")
        self.assertEqual(found["there"].tolist(), [4] * 8)
        self.assertEqual(found["plain"].tolist(), list(range(8)))
        self.assertEqual({name: buffer_of(tensor).kind for name, tensor in found.items()}, dict.fromkeys(tensors, "device"))
        gpupool.publish("mixed", tensors)
        self.assertEqual({name: buffer_of(tensor).kind for name, tensor in gpupool.open("mixed").items()},
                         {"there": "device", "plain": "host", "on host": "host"})

    def test_tensors_of_another_client_are_copied(self):
        gpupool.publish("foreign", {"a": gpupool.torch.zeros(8, pool=self.device) + 2, "b": gpupool.torch.zeros(9, pool=self.device)})
        self.assertEqual(gpupool.open("foreign")["a"].tolist(), [2] * 8)
        client = gpupool.Client()
        self.assertEqual(gpupool.open("foreign", client=client)["b"].tolist(), [0] * 9)
        client.trim()
        client.close()

    def test_more_buffers_than_a_name_has_are_copied(self):
        tensors = {str(number): gpupool.torch.empty((number + 1, 100), pool=self.pools[1]).fill_(number) for number in range(100)}
        gpupool.publish("many", tensors, pool=self.pools[1])
        found = gpupool.open("many")
        self.check_same(found, tensors)
        for name, tensor in tensors.items():
            self.assertTrue(torch.equal(found[name], tensor))
        self.assertEqual(len({id(buffer_of(tensor)) for tensor in found.values()}), _torch_names.KEPT_MAX + 1)
        with self.assertRaisesRegex(ValueError, "live contents are not copied"):
            gpupool.publish("many", tensors, pool=self.pools[1], live=True)

    def test_a_large_directory_goes_into_a_buffer(self):
        tensors = {f"{os.urandom(40).hex()}.{number}": torch.full((2,), number) for number in range(3000)}
        for pool in self.pools:
            gpupool.publish("large", tensors, pool=pool)
            with names.open_buffers("large") as opened:
                self.assertEqual((len(opened.buffers), len(opened.directory) < 100), (2, True))
            found = gpupool.open("large")
            self.check_same(found, tensors)
            self.assertTrue(all(torch.equal(found[name], tensor) for name, tensor in tensors.items()))

    def test_each_tensor_keeps_the_memory_and_the_last_one_gives_it_back(self):
        gpupool.publish("short", {"a": torch.ones(1000), "b": torch.arange(3)}, pool=self.pools[1])
        with gpupool.open("short") as tensors:
            kept = tensors["b"]
        self.assertEqual(dict(tensors), {})
        names.unpublish("short")
        self.assertGreater(self.daemon.leases(), 0)
        self.assertEqual(kept.tolist(), [0, 1, 2])
        del kept
        gpupool.trim()
        self.wait_until_nothing_is_leased()

    def test_publishing_again_replaces_and_old_tensors_stay(self):
        first = gpupool.publish("twice", {"a": torch.zeros(4)})
        old = gpupool.open("twice")
        found = []
        waiter = threading.Thread(target=lambda: found.append(gpupool.open("twice", generation=first + 1, timeout=scene.WAIT_S)))
        waiter.start()
        second = gpupool.publish("twice", {"a": torch.ones(4)}, same_layout=True)
        waiter.join(scene.WAIT_S)
        new = found.pop()
        self.assertEqual((old["a"].tolist(), new["a"].tolist()), ([0] * 4, [1] * 4))
        self.assertEqual((old.generation, new.generation, old.layout), (first, second, new.layout))
        with self.assertRaises(gpupool.InvalidError):
            gpupool.publish("twice", {"a": torch.ones(5)}, same_layout=True)

    def test_live_tensors_are_written_to(self):
        tensor = gpupool.torch.zeros(4, pool=self.pools[1])
        gpupool.publish("live", {"a": tensor}, live=True)
        seen, written = gpupool.open("live"), gpupool.open("live", write=True)
        tensor[0] = 1
        written["a"][1] = 2
        self.assertEqual((seen["a"].tolist(), tensor.tolist(), seen.live), ([1, 2, 0, 0], [1, 2, 0, 0], True))
        with self.assertRaisesRegex(ValueError, "not copied"):
            gpupool.publish("live", {"a": torch.zeros(4)}, live=True)

    def test_opened_tensors_are_sent_and_copied_as_others_are(self):
        gpupool.publish("sent", {"a": torch.arange(4.0), "b": torch.arange(4.0)}, pool=self.pools[1])
        found = gpupool.open("sent")
        again = pickle.loads(ForkingPickler.dumps(found))
        self.assertEqual((type(again), again.generation), (gpupool.torch.NamedTensors, found.generation))
        for other in (again, copy.deepcopy(found), copy.copy(found)):
            self.assertEqual(other["b"].tolist(), [0, 1, 2, 3])
        model = torch.nn.Linear(2, 2, bias=False)
        model.load_state_dict({"weight": found["a"].reshape(2, 2)}, assign=True)
        self.assertEqual(model.weight.data_ptr(), found["a"].data_ptr())

    def test_the_functions_of_the_package_have_the_parameters_of_gpupool_torch(self):
        for name in ("publish", "open"):
            thin, full = (inspect.signature(getattr(module, name)).parameters for module in (gpupool, gpupool.torch))
            self.assertEqual([(one.name, one.kind, one.default) for one in thin.values()],
                             [(one.name, one.kind, one.default) for one in full.values()])

    def test_wrong_calls_are_refused(self):
        for error, tensors in ((ValueError, {}), (TypeError, {"a": 1}), (TypeError, {1: torch.ones(1)}), (ValueError, {"\ud800": torch.ones(1)}),
                               (TypeError, {"a": torch.eye(2).to_sparse()}), (ValueError, {"a": torch.ones(1, device="meta")})):
            with self.subTest(tensors), self.assertRaises((error, TypeError)):
                gpupool.publish("bad", tensors)
        with self.assertRaises(gpupool.InvalidError):
            gpupool.publish("", {"a": torch.ones(1)})
        with self.assertRaisesRegex(ValueError, "the pool says which device"):
            gpupool.publish("bad", {"a": torch.ones(1)}, device="cpu", pool=self.pools[0])
        with self.assertRaises(gpupool.NoNameError):
            gpupool.open("bad")
        with self.assertRaises(MemoryError):
            gpupool.publish("bad", {"a": torch.empty(128 << 20, dtype=torch.uint8)}, pool=self.pools[1], timeout=0)
        with gpupool.host_pool().acquire(100) as buffer:
            names.publish_buffers("bytes", [buffer], directory=b"something else")
        with self.assertRaisesRegex(ValueError, "'bytes' holds no tensors"):
            gpupool.open("bytes")
        gpupool.publish("fixed", {"a": torch.ones(1)})
        with self.assertRaises(gpupool.InvalidError):
            gpupool.open("fixed", write=True)


@scene.needs_torch_2
class ReadOnly(scene.Scene):
    config = "[device]\nlimit = 64MiB\nexport = vmm\n"

    def test_a_write_to_fixed_tensors_ends_the_process_and_they_stay(self):
        gpupool.publish("fixed", {"weight": torch.ones(4)}, pool=gpupool.device_pool(0))
        self.run_program(WRITER, status=-signal.SIGSEGV)
        self.assertEqual(gpupool.open("fixed")["weight"].tolist(), [1] * 4)


if __name__ == "__main__":
    unittest.main()
