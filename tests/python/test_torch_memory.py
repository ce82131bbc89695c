# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory of the pools: every type, storages that PyTorch moves, and the handles of reduce_tensor()."""
import copy
import io
import multiprocessing
import pickle
import types
import unittest
import unittest.mock
from multiprocessing.reduction import ForkingPickler

import gpupool
import scene
from scene import torch

if hasattr(getattr(torch, "float32", None), "itemsize"):
    import gpupool.torch
    import torch.multiprocessing
    import torch.multiprocessing.reductions
    from gpupool import _torch_handles, _torch_memory

    DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)

    class Tagged(torch.Tensor):
        """A subclass, which goes by its storage."""


METHODS = "fork", "spawn", "forkserver"
DEVICE_PLACE = 6  # among the arguments of a handle, in PyTorch and in the programs that replace it


def echo(questions, answers):
    """In another process: describes each object that comes, writes 7 to its first byte, until None comes."""
    while (value := questions.get(timeout=scene.WAIT_S)) is not None:
        contents = contents_of(value)
        bytes_of(value)[0] = 7
        told = (value.dtype, tuple(value.size()), value.stride(), value.storage_offset(), contents)
        del value
        answers.put(told)


def rebuild(questions, answers):
    """In another process: rebuilds each handle that comes twice, adds 1 to it, and answers, until None comes."""
    kept = []
    while (handle := questions.get(timeout=scene.WAIT_S)) is not None:
        try:
            function, arguments = pickle.loads(handle)
            first, second = function(*arguments), function(*arguments)
            first.add_(1)
            kept.append(first)
            answers.put(second.sum().item())
        except Exception as error:  # the test reads it
            answers.put(f"{type(error).__name__}: {error}")


def bytes_of(tensor):
    """All bytes of the tensor's storage, as a tensor."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def contents_of(tensor):
    return bytes(bytes_of(tensor).tolist())


def arrive(value):
    """As another process gets it."""
    return pickle.loads(ForkingPickler.dumps(value))


class Tensors(scene.Scene):
    def tearDown(self):
        self.wait_until_nothing_is_leased()

    def pools(self):
        return self.host, self.device

    def start(self, method, function):
        """A process that answers: returns (ask, end)."""
        context = multiprocessing.get_context(method)
        questions, answers = context.Queue(), context.Queue()
        process = context.Process(target=function, args=(questions, answers), daemon=True)
        process.start()

        def ask(value):
            questions.put(value)
            return answers.get(timeout=scene.WAIT_S)

        def end():
            questions.put(None)
            process.join(scene.WAIT_S)
            self.assertEqual(process.exitcode, 0)
        return ask, end


@scene.needs_torch_2
class Types(Tensors):
    def make(self, dtype, pool):
        """Eighteen elements of bytes that differ."""
        tensor = gpupool.torch.zeros(18, dtype=dtype, pool=pool)
        part = bytes_of(tensor)
        part[:] = torch.arange(part.numel()).to(torch.uint8)
        return tensor

    def views_of(self, tensor):
        dtype, storage = tensor.dtype, tensor.untyped_storage()
        for size, stride, offset in ((18,), (1,), 0), ((2, 3), (1, 4), 1), ((), (), 5), ((3, 2), (0, 1), 2), ((0, 4), (4, 1), 0):
            yield torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)

    def test_every_type_is_made_and_sent(self):
        for dtype in DTYPES:
            for pool in self.pools():
                tensor = self.make(dtype, pool)
                self.assertEqual((tensor.dtype, tuple(tensor.size())), (dtype, (18,)))
                self.assertIsNotNone(gpupool.torch._find(tensor), dtype)
                self.assertEqual(tensor.untyped_storage().nbytes(), 18 * dtype.itemsize)
                for view in self.views_of(tensor):
                    other = arrive(view)
                    self.assertEqual((other.dtype, other.size(), other.stride()), (dtype, view.size(), view.stride()))
                    if view.numel() > 0:
                        self.assertEqual((other.storage_offset(), contents_of(other)), (view.storage_offset(), contents_of(view)))
                        bytes_of(other)[3 % dtype.itemsize] += 1
                        self.assertEqual(contents_of(other), contents_of(view), "one memory")
                    del other
                del tensor, view

    def test_every_type_goes_to_processes_of_each_start_method(self):
        for method in METHODS:
            ask, end = self.start(method, echo)
            for i, dtype in enumerate(DTYPES):
                tensor = self.make(dtype, self.host if method == "fork" else self.pools()[i % 2])  # a forked child has no GPU
                view, contents = next(view for view in self.views_of(tensor) if view.dim() == 2), contents_of(tensor)
                self.assertEqual(ask(view), (dtype, (2, 3), (1, 4), 1, contents))
                self.assertEqual(contents_of(tensor)[0], 7)
                del tensor, view
            end()

    def test_every_type_over_a_buffer(self):
        for dtype in DTYPES:
            with self.host.acquire(100, zero=True) as buffer:
                tensor = gpupool.torch.from_buffer(buffer, None, dtype, 16) if 84 % dtype.itemsize == 0 else \
                    gpupool.torch.from_buffer(buffer, 5, dtype, 16)
                bytes_of(tensor)[0] = 9
                self.assertEqual(memoryview(buffer)[16], 9)
                if dtype.itemsize > 1:
                    with self.assertRaises(ValueError):
                        gpupool.torch.from_buffer(buffer, 1, dtype, 1)
                with self.assertRaises(ValueError):
                    gpupool.torch.from_buffer(buffer, 101, dtype)
                del tensor

    def test_a_gradient_is_asked_for_as_in_the_sender(self):
        for dtype in torch.float8_e5m2, torch.float32, torch.complex64:
            for pool in self.pools():
                tensor = gpupool.torch.zeros(4, dtype=dtype, pool=pool).requires_grad_()
                parameter = torch.nn.Parameter(gpupool.torch.zeros(4, dtype=dtype, pool=pool), requires_grad=False)
                one, other = arrive([tensor, parameter])
                self.assertEqual((one.requires_grad, one.is_leaf, type(one)), (True, True, torch.Tensor))
                self.assertEqual((other.requires_grad, type(other)), (False, torch.nn.Parameter))
                with self.assertRaisesRegex(RuntimeError, "detach"):
                    ForkingPickler.dumps(tensor.view(2, 2))
                with self.assertRaisesRegex(RuntimeError, "detach"):
                    torch.multiprocessing.reductions.reduce_tensor(tensor.view(2, 2))
                del one, other

    def test_lazy_views_arrive_as_such(self):
        for pool in self.pools():
            tensor = gpupool.torch.zeros(3, dtype=torch.complex64, pool=pool)
            tensor[:] = torch.tensor([1 + 2j, 3 - 4j, 5j])
            for view in tensor.conj(), tensor.conj().imag, tensor.conj()[1:], tensor._neg_view():
                other = arrive(view)
                self.assertEqual((other.is_conj(), other.is_neg()), (view.is_conj(), view.is_neg()))
                self.assertEqual(other.tolist(), view.tolist())
                with self.assertRaisesRegex(RuntimeError, "resolve_conj"):
                    torch.multiprocessing.reductions.reduce_tensor(view)
                del view, other

    def test_quantised_tensors_arrive_with_their_quantiser(self):
        for pool in self.pools():
            memory = gpupool.torch.zeros(6, dtype=torch.uint8, pool=pool)
            memory[:] = torch.arange(6)
            tensor = torch._empty_affine_quantized([0], scale=.5, zero_point=1, dtype=torch.quint8)
            tensor.set_(memory.untyped_storage(), 0, (2, 3), (3, 1))
            other = arrive(tensor)
            self.assertEqual(other.dequantize().tolist(), [[-.5, 0, .5], [1, 1.5, 2]])
            memory[0] = 3
            self.assertEqual(other.dequantize()[0, 0].item(), 1)
            channels = torch._empty_per_channel_affine_quantized([2, 3], scales=torch.tensor([.5, 2.]), zero_points=torch.tensor([1, 0]),
                                                                 axis=0, dtype=torch.quint8)
            channels.set_(memory.untyped_storage(), 0, (2, 3), (3, 1))
            self.assertEqual(arrive(channels).dequantize().tolist(), [[1, 0, .5], [6, 8, 10]])
            with self.assertRaisesRegex(RuntimeError, "quantised"):
                torch.multiprocessing.reductions.reduce_tensor(tensor)
            del tensor, channels, other

    def test_batches_of_every_type(self):
        from torch.utils.data import DataLoader
        dtypes = [dtype for dtype in DTYPES if not str(dtype).startswith("torch.q")]
        data = []
        for i in range(4):
            small = torch.arange(16, dtype=torch.uint8) + i
            pairs = {dtype: small % 2 if dtype is torch.bool else small for dtype in dtypes}
            data.append({str(dtype): (pair.view(dtype), pair.repeat(2048).view(dtype)) for dtype, pair in pairs.items()})
        for workers in 0, 2:
            for n, batch in enumerate(DataLoader(data, batch_size=2, num_workers=workers, collate_fn=gpupool.torch.collate,
                                                 multiprocessing_context="fork" if workers else None)):
                for dtype in dtypes:
                    for k, part in enumerate(batch[str(dtype)]):
                        parts = data[2 * n][str(dtype)][k], data[2 * n + 1][str(dtype)][k]
                        self.assertEqual((part.dtype, tuple(part.size())), (dtype, (2, parts[0].numel())))
                        self.assertEqual(contents_of(part), b"".join(map(contents_of, parts)))
                        self.assertIsNotNone(gpupool.torch._find(part), dtype)
            del batch, part


@scene.needs_torch_2
class Marks(Tensors):
    def test_a_tensor_that_pytorch_moves_goes_its_way(self):
        for pool in self.pools():
            tensor = gpupool.torch.zeros((10, 10), pool=pool).fill_(5)
            row = tensor[2]
            self.assertEqual(self.daemon.leases() > 0, True)
            tensor.share_memory_()
            self.client.trim()
            scene.wait_until(lambda: self.daemon.leases() == 0, "the moved tensor's memory goes back")
            self.assertTrue(tensor.is_shared())
            for call in gpupool.torch.reuse, lambda tensor: gpupool.torch.record_stream(tensor, 0):
                with self.assertRaisesRegex(ValueError, "PyTorch has moved it"):
                    call(row)
            other = arrive(tensor)
            row[0] = 1
            self.assertEqual(float(other.sum()), 496.0)
            self.assertEqual(arrive(row).tolist(), row.tolist())
            function, arguments = torch.multiprocessing.reductions.reduce_tensor(tensor)
            self.assertEqual(float(function(*arguments).sum()), 496.0)

    def test_each_storage_has_a_mark_of_its_own(self):
        for pool in self.pools():
            buffer = pool.acquire(400, zero=True)
            one, other = arrive([gpupool.torch.from_buffer(buffer, 50, torch.float32, offset) for offset in (0, 200)])
            one.share_memory_()
            self.assertIsNone(gpupool.torch._find(one))
            self.assertIsNotNone(gpupool.torch._find(other))
            self.assertEqual((arrive(one).sum().item(), arrive(other).sum().item()), (0, 0))
            del buffer, one, other

    def test_a_tensor_that_gets_another_storage(self):
        for pool in self.pools():
            tensor, plain = gpupool.torch.zeros(100, pool=pool), torch.ones(3)
            tensor.set_(plain)
            self.assertIsNone(gpupool.torch._find(tensor))
            self.assertEqual(arrive(tensor).tolist(), [1, 1, 1])
            self.wait_until_nothing_is_leased()
            moved = torch.ones(3)
            moved.data = gpupool.torch.zeros(5, pool=pool)
            self.assertIsNotNone(gpupool.torch._find(moved))
            self.assertEqual(arrive(moved).tolist(), [0] * 5)
            view = torch.empty(0).set_(moved.untyped_storage(), 1, (2,))
            arrive(view).fill_(3)
            self.assertEqual(moved.tolist(), [0, 3, 3, 0, 0])
            del moved, view

    def test_a_size_that_pytorch_refuses_leaves_the_tensor_as_it_was(self):
        for pool in self.pools():
            tensor = gpupool.torch.zeros(100, pool=pool)
            for size in 0, 4000:
                with self.assertRaisesRegex(RuntimeError, "not resizable"):
                    tensor.untyped_storage().resize_(size)
            tensor.resize_(50)
            self.assertEqual((arrive(tensor).numel(), gpupool.torch._find(tensor).nbytes), (50, 400))
            gpupool.torch.reuse(tensor)
            del tensor

    def test_storages_go_by_token(self):
        for pool in self.pools():
            tensor = gpupool.torch.zeros((3, 4), pool=pool)
            storage, typed, again = arrive([tensor.untyped_storage(), tensor._typed_storage(), tensor[1]])
            self.assertFalse(tensor.is_shared())
            torch.empty(0).set_(storage).fill_(4)
            self.assertEqual((float(tensor.sum()), again.tolist(), typed[0]), (48.0, [4.0] * 4, 4.0))
            self.assertEqual(again.untyped_storage().data_ptr(), storage.data_ptr())
            del storage, typed, again
            gpupool.torch.reuse(tensor)
            sent = ForkingPickler.dumps(tensor.untyped_storage())
            del tensor
            self.assertEqual(torch.empty(0).set_(pickle.loads(sent)).tolist(), [4.0] * 12)

    def test_parts_of_other_tensors_go_by_token_and_hold_their_memory(self):
        for pool in self.pools():
            def make(values, dtype, pool=pool):
                made = gpupool.torch.empty(torch.tensor(values).shape, dtype=dtype, pool=pool)
                return made.copy_(torch.tensor(values))
            coo = torch.sparse_coo_tensor(make([[0, 1], [1, 0]], torch.int64), make([3., 4.], torch.float32), (2, 2))
            csr = torch.sparse_csr_tensor(make([0, 1, 2], torch.int64), make([1, 0], torch.int64), make([3., 4.], torch.float32), (2, 2))
            nested = torch._nested_view_from_buffer(make([1., 2., 3.], torch.float32), torch.tensor([[1], [2]]), torch.tensor([[1], [1]]),
                                                    torch.tensor([0, 1]))
            tagged = make([1., 2.], torch.float32).as_subclass(Tagged)
            sent = ForkingPickler.dumps([coo, csr, nested, tagged])
            self.assertFalse(coo._values().is_shared() or csr.values().is_shared() or tagged.is_shared())
            self.assertIsNotNone(gpupool.torch._find(coo._values()))
            del coo, csr, nested, tagged
            coo, csr, nested, tagged = pickle.loads(sent)
            self.assertEqual((coo.to_dense().tolist(), csr.to_dense().tolist()), ([[0, 3], [4, 0]],) * 2)
            self.assertEqual([part.tolist() for part in nested.unbind()], [[1], [2, 3]])
            self.assertEqual((type(tagged), tagged.tolist()), (Tagged, [1, 2]))
            self.assertIsNotNone(gpupool.torch._find(coo._values()))
            del coo, csr, nested, tagged

    def test_modules_and_state(self):
        for pool in self.pools():
            module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
            module[0].weight = torch.nn.Parameter(gpupool.torch.zeros((4, 4), pool=pool))
            module[1].weight = module[0].weight
            state = arrive(module.state_dict())
            self.assertEqual(state["0.weight"].data_ptr(), state["1.weight"].data_ptr())
            other = arrive(module)
            self.assertIs(other[0].weight, other[1].weight)
            with torch.no_grad():
                other[0].weight.fill_(2)
            self.assertEqual(float(module[1].weight.detach().sum()), 32.0)
            del other, state
            gpupool.torch.reuse(module[0].weight)
            optimizer = torch.optim.Adam([module[0].weight])
            module(torch.ones(4)).sum().backward()
            optimizer.step()
            self.assertEqual(arrive(optimizer.state_dict())["state"][0]["exp_avg"].shape, (4, 4))
            module.share_memory()
            self.assertTrue(module[0].weight.is_shared())
            self.assertTrue(torch.equal(arrive(module)[1].weight, module[0].weight))
            self.wait_until_nothing_is_leased()

    def test_copies_are_not_of_the_pool(self):
        tensor = gpupool.torch.zeros((2, 3), pool=self.host).fill_(2)
        file = io.BytesIO()
        torch.save(tensor, file)
        file.seek(0)
        copies = [copy.deepcopy(tensor), torch.load(file), pickle.loads(pickle.dumps(tensor)), tensor.clone()]
        if scene.numpy is not None:
            copies.append(torch.from_numpy(tensor.numpy().copy()))
            bridge = torch.from_numpy(tensor.numpy())
            self.assertEqual((arrive(bridge).sum().item(), tensor.sum().item(), gpupool.torch._find(bridge)), (12, 12, None))
            del bridge
        for other in copies:
            self.assertIsNone(gpupool.torch._find(other))
            self.assertTrue(torch.equal(arrive(other), tensor))
        self.assertIs(gpupool.torch._find(copy.copy(tensor)), gpupool.torch._find(tensor))

    def test_moved_tensors_go_to_processes_of_each_start_method(self):
        for method, pool in zip(METHODS, (self.host, self.device, self.host), strict=True):
            tensor = gpupool.torch.zeros(10, pool=pool).share_memory_()
            process = multiprocessing.get_context(method).Process(target=torch.Tensor.fill_, args=(tensor, 3), daemon=True)
            process.start()
            process.join(scene.WAIT_S)
            self.assertEqual((process.exitcode, tensor.tolist()), (0, [3] * 10))

    def test_the_end_of_a_program_with_tensors_says_nothing(self):
        said = self.run_program("import gpupool, gpupool.torch\nkept = [gpupool.torch.zeros(9), gpupool.torch.zeros(9).share_memory_()]\n"
                                "also = gpupool.torch.zeros(9, pool=gpupool.device_pool(0))\n")
        self.assertEqual(said, ("", ""))


@scene.needs_torch_2
class Handles(Tensors):
    def reduce(self, tensor):
        return torch.multiprocessing.reductions.reduce_tensor(tensor)

    def test_a_handle_serves_any_number_of_processes_any_number_of_times(self):
        for pool in self.pools():
            tensor = gpupool.torch.zeros((3, 4), pool=pool)
            handle = pickle.dumps(self.reduce(tensor[1:]))  # by plain pickle, as programs send it through sockets
            processes = [self.start(method, rebuild) for method in METHODS if method != "fork" or pool is self.host]  # which has no GPU
            for count, (ask, _) in enumerate(2 * processes, 1):
                self.assertEqual(ask(handle), 8.0 * count)
            with self.assertRaises(gpupool.SharedError):
                gpupool.torch.reuse(tensor)
            self.assertEqual(tensor.tolist(), [[0] * 4] + [[2 * len(processes)] * 4] * 2)
            for _, end in processes:
                end()
            gpupool.torch.reuse(tensor)
            function, arguments = pickle.loads(handle)
            self.assertEqual(function(*arguments).sum().item(), 16.0 * len(processes))
            del tensor

    def test_a_handle_holds_no_memory_and_says_when_the_tensor_is_gone(self):
        for pool in self.pools():
            tensor = gpupool.torch.zeros(100, pool=pool)
            function, arguments = self.reduce(tensor)
            first = function(*arguments)
            del tensor
            second = function(*arguments)  # while one process has the tensor
            self.assertEqual((first.numel(), second.numel()), (100, 100))
            del first, second
            self.wait_until_nothing_is_leased()
            with self.assertRaisesRegex(gpupool.NoTokenError, "the tensor of this handle is gone"):
                function(*arguments)

    def test_programs_replace_the_device(self):
        for pool in self.pools():
            tensor = torch.nn.Parameter(gpupool.torch.zeros(5, dtype=torch.int32, pool=pool), requires_grad=False)
            function, arguments = self.reduce(tensor)
            self.assertEqual(arguments[DEVICE_PLACE], 0)
            for device in 3, "GPU-12345678", None:
                patched = list(arguments)
                patched[DEVICE_PLACE] = device
                other = function(*patched)
                self.assertEqual((type(other), other.dtype, other.numel()), (torch.nn.Parameter, torch.int32, 5))
            del tensor, other

    def test_handles_have_every_type(self):
        for dtype in DTYPES:
            if str(dtype).startswith("torch.q"):
                continue
            tensor = gpupool.torch.zeros((2, 3), dtype=dtype, pool=self.device)
            bytes_of(tensor)[2] = 3
            function, arguments = self.reduce(tensor.t())
            other = function(*arguments)
            self.assertEqual((other.dtype, other.stride(), contents_of(other)), (dtype, (1, 3), contents_of(tensor)))
            del other, tensor

    def test_the_arguments_fit_the_function_of_pytorch(self):
        """As of a tensor on a GPU, without one: the storage is in host memory, and the functions are PyTorch's."""
        tensor = gpupool.torch.zeros((2, 3), pool=self.device)
        typed = tensor._typed_storage()
        device, handle, n_bytes, offset, counter, counter_offset, event, is_synced = typed._share_cuda_()
        arguments = (torch.Tensor, tensor.size(), tensor.stride(), 0, type(typed), tensor.dtype, device, handle, n_bytes, offset, False,
                     counter, counter_offset, event, is_synced)
        again = pickle.loads(pickle.dumps(arguments))
        self.assertEqual(again[7], handle)
        function = torch.multiprocessing.reductions.rebuild_cuda_tensor
        with unittest.mock.patch("torch.cuda._lazy_init"):
            first, second = function(*arguments), function(*again)
            first.fill_(3)
            self.assertEqual((float(second.sum()), float(tensor.sum())), (18, 18))
            del first, second
            as_bytes = [bytes(value) if isinstance(value, bytes) else value for value in arguments]  # as a program may decode them
            self.assertEqual(float(function(*as_bytes).sum()), 18)
            del tensor, typed
            self.wait_until_nothing_is_leased()
            with self.assertRaisesRegex(gpupool.NoTokenError, "the tensor of this handle is gone"):
                function(*as_bytes)
            torch.UntypedStorage._release_ipc_counter_cuda(counter, counter_offset)  # of a handle that is not used

    def test_a_process_without_the_package_imports_it(self):
        tensor = gpupool.torch.zeros(3, pool=self.host).fill_(2)
        handle = _torch_handles._make_handle(tensor.untyped_storage(), _torch_memory.keeper_of(tensor))
        program = "import pickle, sys, torch\nvalue = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        for value, use in ((handle, "storage = torch.UntypedStorage._new_shared_cuda(0, value, 12, 0, value, 0, b'', False)\n"
                            "print(torch.empty(0).set_(storage).tolist())"),
                           (self.reduce(tensor), "print(value[0](*value[1]).tolist())")):
            said, _ = self.run_program(program + use, pickle.dumps(value).hex())
            self.assertEqual(said, "[2.0, 2.0, 2.0]\n")

    def test_names_that_were_imported_before(self):
        """Programs and libraries import PyTorch's function by its name, and put functions of their own in its place."""
        patch = """
class Patch:
    _reduce_tensor_original = reductions.reduce_tensor
    calls = 0
def reduce_modified(*arguments, **keywords):
    Patch.calls += 1
    return Patch._reduce_tensor_original(*arguments, **keywords)
reductions.reduce_tensor = reduce_modified
reductions.init_reductions()
"""
        begin = "import pickle, torch\nfrom torch.multiprocessing import reductions\n" \
                "from torch.multiprocessing.reductions import reduce_tensor\n"
        check = """
from multiprocessing.reduction import ForkingPickler
for pool in gpupool.host_pool(), gpupool.device_pool(0):
    tensor = gpupool.torch.zeros(3, pool=pool)
    for count, reduce in enumerate(functions, 1):
        function, arguments = pickle.loads(pickle.dumps(reduce(tensor)))
        function(*arguments).add_(1)
        function(*arguments).add_(1)
        assert tensor.tolist() == [2 * count] * 3, tensor
    pickle.loads(ForkingPickler.dumps(tensor)).fill_(1)
    assert tensor.tolist() == [1] * 3, tensor
plain = torch.ones(3)
function, arguments = reductions.reduce_tensor(plain)
function(*arguments).add_(1)
assert plain.tolist() == [2] * 3, plain
"""
        imports = "import gpupool, gpupool.torch\n"
        both, present = "functions = reduce_tensor, reductions.reduce_tensor\n", "functions = reductions.reduce_tensor,\n"
        closure = """
def reduce_closed(original):
    return lambda tensor: original(tensor)
reductions.reduce_tensor = reduce_closed(reduce_tensor)
"""
        for text in begin + imports + both + check, begin + patch + imports + present + check + "assert Patch.calls", \
                begin + imports + patch + both + check + "assert Patch.calls", begin + closure + imports + present + check:
            self.run_program(text)

    def test_memory_of_the_allocators_names_the_way(self):
        """PyTorch refuses to make a handle of such memory."""
        for device, text in ("cpu", "^invalid argument$"), ("cuda", r"invalid argument.*gpupool\.torch\.empty\(\)"):
            tensor = types.SimpleNamespace(layout=torch.sparse_coo, device=torch.device(device))  # as far as it is looked at
            with unittest.mock.patch.object(_torch_handles, "_pytorch_reduce", side_effect=RuntimeError("invalid argument")), \
                    self.assertRaisesRegex(RuntimeError, text):
                self.reduce(tensor)

    def test_names_of_dimensions_are_refused(self):
        tensor = gpupool.torch.zeros((2, 3), pool=self.host).refine_names("a", "b")
        for call in self.reduce, ForkingPickler.dumps:
            with self.assertRaisesRegex(RuntimeError, "[Nn]amed"):
                call(tensor)


if __name__ == "__main__":
    unittest.main()
