# SPDX-License-Identifier: Apache-2.0
"""gpupool.vllm and gpupool.sglang, with the interfaces of fake_frameworks.py: one process reads a checkpoint, the others have its tensors."""
import gc
import multiprocessing
import pathlib
import tempfile
import unittest
import unittest.mock
import warnings

import gpupool
import scene
from gpupool import names
from scene import torch

if hasattr(getattr(torch, "float32", None), "itemsize"):
    import fake_frameworks as fake
    import gpupool.torch
    from gpupool import _torch_memory

CONTEXT = multiprocessing.get_context("spawn")


def value_of(model):
    return model.scale.item()


def load_and_tell(connection, framework, path):
    """A process that loads a model, tells of it, and ends as a kill ends it."""
    getattr(fake, "install_" + framework)()
    model = getattr(fake, "load_" + framework)(path)
    connection.send((value_of(model), fake.reads, model.layer.weight.tolist() == expected(value_of(model)).tolist()))
    connection.recv()


def expected(value):
    return -(torch.arange(40.0 * 41).reshape(40, 41) + value).t()


class Loaders:
    """The tests of both frameworks."""

    config = "[device]\nlimit = 64MiB\n[host]\nlimit = 64MiB\n"

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpupool-model-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        fake.write_checkpoint(self.path, 1.0)
        getattr(fake, "install_" + self.framework)()
        fake.reads, fake.tp[:] = 0, [1, 0]

    def tearDown(self):
        for one in names.names():
            names.unpublish(one.name)
        gc.collect()
        gpupool.trim()
        self.wait_until_nothing_is_leased()

    def load(self, **options):
        return getattr(fake, "load_" + self.framework)(options.pop("path", self.path), **options)

    def check(self, model, value):
        self.assertEqual(value_of(model), value)
        self.assertTrue(torch.equal(model.layer.weight, expected(value)))
        self.assertTrue(torch.equal(model.layer.derived, expected(value) * 2))
        self.assertTrue(torch.equal(model.embed.weight, torch.full((40, 40), value)))
        self.assertTrue(torch.equal(model.rope, torch.arange(40.0)))
        self.assertIs(model.head.weight, model.embed.weight)
        self.assertFalse(any(tensor.device.type == "meta" for tensor in model.parameters()))
        self.assertFalse(model.training)

    def test_a_checkpoint_is_read_once_and_the_final_tensors_are_shared(self):
        first, second = self.load(), self.load()
        self.assertEqual(fake.reads, 1)
        for model in (first, second):
            self.check(model, 1.0)
            for tensor in (model.layer.weight, model.embed.weight):
                self.assertIsNotNone(_torch_memory.keeper_of(tensor))
        self.assertTrue(_torch_memory.keeper_of(second.layer.weight).buffer.read_only)
        first.embed.weight.data[0, 0] = 5  # one memory, on pools that do not map for reading alone
        self.assertEqual(second.embed.weight[0, 0], 5)
        (name,) = names.names()
        self.assertTrue(name.keep)

    def test_what_a_program_may_write_to_is_its_own(self):
        models = [self.load() for _ in range(3)]
        for place, model in enumerate(models):
            for tensor in (model.layer.workspace, model.rope, model.scale):
                tensor.fill_(place)
        for place, model in enumerate(models):
            for tensor in (model.layer.workspace, model.rope, model.scale):
                self.assertTrue(torch.all(tensor == place))

    def test_tensors_that_no_name_can_have_are_not_shared(self):
        write, fake.process = fake.process, lambda model: (write(model), model.register_buffer("sparse", torch.eye(3).to_sparse()))
        self.addCleanup(setattr, fake, "process", write)
        with self.assertWarnsRegex(RuntimeWarning, "sparse has its contents not in one memory"):
            self.check(self.load(), 1.0)
        self.assertEqual(names.names(), [])

    def test_the_tensors_outlive_the_process_that_has_read_them(self):
        for n_reads in (1, 0):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=load_and_tell, args=(theirs, self.framework, self.path))
            process.start()
            self.addCleanup(process.join)
            self.addCleanup(process.kill)
            self.assertTrue(ours.poll(scene.WAIT_S))
            self.assertEqual(ours.recv(), (1.0, n_reads, True))
            process.kill()
            process.join()

    def test_each_configuration_has_its_own_name(self):
        for options, rank in (({}, [1, 0]), ({}, [2, 0]), ({}, [2, 1]), ({"quantization": "fp8"}, [1, 0])):
            fake.tp[:] = rank
            self.load(**options)
        self.assertEqual((fake.reads, len(names.names())), (4, 4))

    def test_a_changed_checkpoint_is_read_again_under_its_name(self):
        first = self.load()
        (before,) = names.names()
        fake.write_checkpoint(self.path, 2.0)
        self.check(self.load(), 2.0)
        self.check(self.load(), 2.0)
        self.check(first, 1.0)
        (after,) = names.names()
        self.assertEqual((fake.reads, after.name), (2, before.name))
        self.assertGreater(after.generation, before.generation)

    def test_a_failure_leaves_the_name_to_others(self):
        (self.path / "weights.pt").unlink()
        with self.assertRaises(FileNotFoundError):
            self.load()
        self.assertEqual(names.names(), [])
        fake.write_checkpoint(self.path, 3.0)
        self.check(self.load(timeout=0), 3.0)

    def test_a_draft_is_not_shared(self):
        for _ in range(2):
            self.check(self.load(is_draft=True), 1.0)
        self.assertEqual((fake.reads, names.names()), (2, []))

    def test_weights_without_room_stay_with_the_process(self):
        with warnings.catch_warnings(record=True) as caught, unittest.mock.patch.object(
                gpupool.torch, "_acquire_in", side_effect=gpupool.TooLargeError("no room")):
            warnings.simplefilter("always")
            self.check(self.load(), 1.0)
        self.assertIn("are not shared", str(caught[-1].message))
        self.assertEqual(names.names(), [])

    def test_a_repository_is_told_by_its_commit(self):
        read, fake.read_checkpoint = fake.read_checkpoint, lambda name: read(self.path)
        self.addCleanup(setattr, fake, "read_checkpoint", read)
        for commit, n_reads in ((None, 1), (None, 2), ("1a", 3), ("1a", 3), ("2b", 4)):
            self.check(self.load(path="owner/model", commit=commit), 1.0)
            self.assertEqual(fake.reads, n_reads)


@scene.needs_torch_2
class Vllm(Loaders, scene.Scene):
    framework = "vllm"

    def test_later_processes_only_rebuild_kernels(self):
        self.assertEqual([self.load().layer.kernel for _ in range(2)], ["built", "rebuilt"])
        self.assertEqual(self.load().layer.placeholder.numel(), 3)  # as in vLLM's own loader of processed weights

    def test_a_quantisation_that_cannot_be_shared_is_loaded_from_disk(self):
        with unittest.mock.patch.object(fake.QuantMethod, "supports_pre_processed_weights", False):
            for _ in range(2):
                self.check(self.load(timeout=0), 1.0)
        self.assertEqual((fake.reads, names.names()), (2, []))

    def test_experts_that_move_are_loaded_from_disk(self):
        self.check(self.load(enable_eplb=True), 1.0)
        self.assertEqual(names.names(), [])

    def test_vllm_is_told_what_lies_in_the_pool_already(self):
        memory = []
        models = [self.load(memory=memory) for _ in range(2)]
        self.assertEqual(memory[0], 0)
        self.assertGreaterEqual(memory[1], sum(tensor.nbytes for tensor in models[0].parameters()))
        self.load(is_draft=True, memory=memory)
        self.assertEqual(memory[2], 0)

    def test_an_unknown_key_is_refused(self):
        with self.assertRaisesRegex(ValueError, "unknown keys.*colour"):
            self.load(colour=1)


@scene.needs_torch_2
class Sglang(Loaders, scene.Scene):
    framework = "sglang"

    def test_parameters_stay_the_objects_that_the_model_has(self):
        self.load()
        model = self.load()
        self.assertTrue(model.is_rebound)
        self.assertNotIn("layer.placeholder", dict(model.named_parameters()))

    def test_a_model_with_more_tensors_is_refused(self):
        self.load()
        with unittest.mock.patch.object(fake.Model, "further", None, create=True), unittest.mock.patch.object(
                fake, "process", lambda model: model.register_buffer("more", torch.ones(3))), self.assertRaisesRegex(ValueError, "more"):
            self.load()


if __name__ == "__main__":
    unittest.main()
