# SPDX-License-Identifier: Apache-2.0
"""Each error of the library is an exception, with the library's text."""
import copy
import multiprocessing
import multiprocessing.reduction
import os
import pathlib
import pickle
import re
import sys
import types
import unittest
from unittest import mock

import gpupool
import scene
from gpupool import _errors  # noqa: F401, as mock.patch.dict() drops what is imported meanwhile

HEADER = pathlib.Path(os.environ["GPUPOOL_SOURCE"]) / "client/include/gpupool/gpupool.h"
PYTHONS = {"InvalidError": ValueError, "TooLargeError": MemoryError, "ExhaustedError": MemoryError, "NoMemoryError": MemoryError,
           "LimitError": MemoryError, "TimedOutError": TimeoutError, "ConnectError": ConnectionError, "DisconnectedError": ConnectionError,
           "ShutdownError": ConnectionError, "StaleError": ValueError, "NoPoolError": LookupError, "NoNameError": LookupError, "NoTokenError": LookupError,
           "SharedError": BufferError, "CancelledError": gpupool.Error, "VersionError": RuntimeError, "DriverError": RuntimeError,
           "ProtocolError": RuntimeError, "ForkedError": RuntimeError, "CapturingError": RuntimeError, "NoGpuError": RuntimeError,
           "LostError": RuntimeError, "EndedError": EOFError, "VacantError": RuntimeError}


def raised_by(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError("no exception")


def fail_in_child(connection, what, imports_torch):
    """In another process: sends an exception as multiprocessing does."""
    if imports_torch:
        import torch  # noqa: F401
    pool = gpupool.device_pool(0) if what == "device" else gpupool.host_pool()
    error = raised_by(pool.acquire, 1 << 50)
    error.add_note("a note")
    connection.send(error)


def receive_in_child(connection):
    """In another process: how an exception arrives."""
    error = connection.recv()
    connection.send((type(error).__name__, isinstance(error, MemoryError), isinstance(error, RuntimeError), str(error), error.number,
                     error.name, error.__notes__))


class TooLarge:
    """A data set whose samples need more memory of the GPU than there is."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return gpupool.device_pool(0).acquire(1 << 50)


class StandIn(RuntimeError):
    """For PyTorch's exception, where PyTorch cannot be imported."""


def torch_is_loaded():
    """In the with statement a module torch is loaded: PyTorch, or one with its exception alone."""
    if scene.torch is not None:
        return mock.patch.dict(sys.modules, torch=scene.torch)
    module = types.ModuleType("torch")
    module.OutOfMemoryError = StandIn
    return mock.patch.dict(sys.modules, torch=module)


def torch_is_not_loaded():
    return mock.patch.dict(sys.modules, torch=None)


def accelerate_tries_again(error):
    """should_reduce_batch_size() of Hugging Face's Accelerate."""
    return isinstance(error, RuntimeError) and len(error.args) == 1 and " out of memory." in error.args[0]


def lightning_tries_again(error):
    """is_cuda_out_of_memory() of PyTorch Lightning."""
    return isinstance(error, RuntimeError) and len(error.args) == 1 and "CUDA" in error.args[0] and "out of memory" in error.args[0]


class Errors(scene.Scene):
    def test_each_number_of_the_header_has_a_class(self):
        numbers = {name: int(number) for name, number in re.findall(r"^ +(GPUPOOL_E_\w+) = (-\d+)", HEADER.read_text(), re.MULTILINE)}
        self.assertGreater(len(numbers), 15)
        classes = [value for value in vars(gpupool).values()
                   if isinstance(value, type) and issubclass(value, gpupool.Error) and value is not gpupool.Error]
        self.assertEqual({found.name: found.number for found in classes}, numbers)
        for found in classes:
            words = found.name.removeprefix("GPUPOOL_E_").split("_")
            self.assertEqual(found.__name__, "".join(word.capitalize() for word in words) + "Error")
            self.assertTrue(issubclass(found, PYTHONS[found.__name__]), found)
            self.assertTrue(found.__doc__)

    def test_the_text_is_the_librarys(self):
        with self.assertRaises(gpupool.TooLargeError) as raised:
            self.host.acquire(1 << 50)
        self.assertIn("1 PiB asked of host memory", str(raised.exception))
        self.assertEqual((raised.exception.number, raised.exception.name), (-4, "GPUPOOL_E_TOO_LARGE"))
        again = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual((type(again), str(again), again.number), (gpupool.TooLargeError, str(raised.exception), -4))
        with self.assertRaises(ConnectionError) as raised:
            gpupool.Client("/nowhere/socket")
        self.assertIn("/nowhere/socket", str(raised.exception))

    def test_tokens_that_name_nothing_are_refused(self):
        with self.assertRaises(gpupool.NoTokenError):
            gpupool.attach(bytes(64))
        with self.assertRaises(ValueError):
            gpupool.attach(b"short")
        with self.assertRaises(TypeError):
            gpupool.attach("x" * 64)
        with self.assertRaises(TypeError):
            gpupool.attach(bytes(64), client=1)

    def test_a_daemon_that_is_gone_is_reported_and_buffers_stay_usable(self):
        daemon = scene.Daemon()
        client = gpupool.Client(daemon.socket)
        pool = client.host_pool()
        buffer, other = pool.acquire(1 << 20), pool.acquire(1 << 20)
        daemon.close()
        memoryview(buffer)[:] = b"x" * (1 << 20)
        with self.assertRaises(ConnectionError):
            pool.info()
        with self.assertRaises(gpupool.DisconnectedError):
            pool.acquire(256 << 20)
        del other
        buffer.close()
        client.close()

    def fill(self, pool):
        """Buffers of a pool, until there is no more. Returns them and the exception."""
        held = []
        while True:
            try:
                held.append(pool.acquire(64 << 20, timeout=0.0))
            except gpupool.Error as error:
                return held, error

    def test_no_memory_of_a_host_pool(self):
        with torch_is_loaded():
            held, exhausted = self.fill(self.host)
            too_large = raised_by(self.host.acquire, 1 << 50)
        del held
        for error, kind in ((exhausted, gpupool.ExhaustedError), (too_large, gpupool.TooLargeError)):
            self.assertIs(type(error), kind)
            self.assertIsInstance(error, MemoryError)
            self.assertNotIsInstance(error, RuntimeError)
            self.assertNotIn("CUDA out of memory", str(error))

    def test_no_memory_of_a_device_pool_is_what_programs_of_pytorch_catch(self):
        with torch_is_loaded():
            held, exhausted = self.fill(self.device)
            del held
            too_large = raised_by(self.device.acquire, 1 << 50)
            prepared = raised_by(self.device.prepare, 1 << 50)
            torchs = sys.modules["torch"].OutOfMemoryError
            for error, kind in ((exhausted, gpupool.ExhaustedError), (too_large, gpupool.TooLargeError), (prepared, gpupool.TooLargeError)):
                for caught in (gpupool.Error, kind, MemoryError, RuntimeError, torchs):
                    self.assertIsInstance(error, caught)
                self.assertTrue(str(error).startswith("CUDA out of memory. "), error)
                self.assertTrue(accelerate_tries_again(error) and lightning_tries_again(error))
                self.assertEqual((type(error).__name__, type(error).__module__), (kind.__name__, kind.__module__))
                self.assertEqual((error.number, error.name), (kind.number, kind.name))
            self.assertIs(type(too_large), type(prepared))
            self.assertNotIsInstance(raised_by(self.device.acquire, 0), RuntimeError)

    def test_without_pytorch_it_is_a_memory_error(self):
        with torch_is_not_loaded():
            error = raised_by(self.device.acquire, 1 << 50)
        self.assertIs(type(error), gpupool.TooLargeError)
        self.assertTrue(str(error).startswith("CUDA out of memory. "), error)
        self.assertIn("1 PiB asked of", str(error))

    def test_a_torch_that_is_half_imported_or_old(self):
        with mock.patch.dict(sys.modules, torch=types.ModuleType("torch")):
            self.assertIs(type(raised_by(self.device.acquire, 1 << 50)), gpupool.TooLargeError)
        old = types.ModuleType("torch")
        old.cuda = types.SimpleNamespace(OutOfMemoryError=StandIn)
        with mock.patch.dict(sys.modules, torch=old):
            self.assertIsInstance(raised_by(self.device.acquire, 1 << 50), StandIn)

    def test_the_exceptions_are_copied_and_pickled(self):
        with torch_is_loaded():
            error = raised_by(self.device.acquire, 1 << 50)
            error.add_note("a note")
            error.place = 7
            for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
                again = pickle.loads(pickle.dumps(error, protocol))
                self.assertIs(type(again), type(error))
                self.assertEqual((str(again), again.args, again.number, again.place, again.__notes__),
                                 (str(error), error.args, -4, 7, ["a note"]))
            self.assertEqual((type(copy.copy(error)), str(copy.copy(error))), (type(error), str(error)))
            pickled = pickle.dumps(error)
        with torch_is_not_loaded():
            self.assertIs(type(pickle.loads(pickled)), gpupool.TooLargeError)
        with torch_is_loaded():
            self.assertIs(type(pickle.loads(pickle.dumps(pickle.loads(pickled)))), type(error))

    def test_the_classes_are_copied_and_pickled(self):
        with torch_is_loaded():
            kind = type(raised_by(self.device.acquire, 1 << 50))
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                self.assertIs(pickle.loads(pickle.dumps(kind, protocol)), kind)
            self.assertIs(pickle.loads(multiprocessing.reduction.ForkingPickler.dumps(kind)), kind)
            self.assertIs(copy.deepcopy(kind), kind)
            pickled = pickle.dumps(kind)
        with torch_is_not_loaded():
            self.assertIs(pickle.loads(pickled), gpupool.TooLargeError)

    @unittest.skipIf(scene.torch is None, "PyTorch is not installed")
    def test_an_exception_of_a_worker_of_a_loader_reaches_the_trainer(self):
        loader = scene.torch.utils.data.DataLoader(TooLarge(), num_workers=1, timeout=scene.WAIT_S, multiprocessing_context="spawn")
        with self.assertRaisesRegex(gpupool.TooLargeError, "(?s)Caught TooLargeError in DataLoader worker.*CUDA out of memory") as raised:
            next(iter(loader))
        self.assertIsInstance(raised.exception, type(raised_by(self.device.acquire, 1 << 50)))

    def test_each_exception_is_pickled(self):
        for kind in [value for value in vars(gpupool).values() if isinstance(value, type) and issubclass(value, gpupool.Error)]:
            error = kind("a text")
            error.add_note("a note")
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(again), again.args, again.number, again.name, again.__notes__),
                             (kind, ("a text",), kind.number, kind.name, ["a note"]))

    def test_exceptions_go_between_processes(self):
        for method in ("spawn", "forkserver", "fork"):
            for what in ("host", "device") if method != "fork" else ("host",):  # forked after the GPU was used
                for imports_torch in (False, True) if scene.torch is not None and method == "spawn" else (False,):
                    with self.subTest(method=method, what=what, imports_torch=imports_torch), torch_is_loaded():
                        self.check_between_processes(multiprocessing.get_context(method), what, imports_torch)

    def check_between_processes(self, context, what, imports_torch):
        ours, theirs = context.Pipe()
        sender = context.Process(target=fail_in_child, args=(theirs, what, imports_torch), daemon=True)
        sender.start()
        self.assertTrue(ours.poll(scene.WAIT_S))
        error = ours.recv()
        sender.join(scene.WAIT_S)
        self.assertEqual((error.number, error.name, error.__notes__), (-4, "GPUPOOL_E_TOO_LARGE", ["a note"]))
        self.assertIsInstance(error, gpupool.TooLargeError)
        receiver = context.Process(target=receive_in_child, args=(theirs,), daemon=True)
        receiver.start()
        ours.send(error)
        self.assertTrue(ours.poll(scene.WAIT_S))
        name, is_memory, is_runtime, text, *rest = ours.recv()
        receiver.join(scene.WAIT_S)
        self.assertEqual((name, is_memory, text, rest), ("TooLargeError", True, str(error), [-4, "GPUPOOL_E_TOO_LARGE", ["a note"]]))
        if what == "host":
            self.assertFalse(is_runtime)


if __name__ == "__main__":
    unittest.main()
