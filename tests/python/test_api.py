# SPDX-License-Identifier: Apache-2.0
"""Clients, pools and buffers as Python shows them, and that the stubs have the names of the module."""
import ast
import importlib.util
import inspect
import math
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import unittest

import gpupool
import gpupool.channels
import scene

STUBS = pathlib.Path(gpupool.__file__).with_suffix(".pyi")


class Clients(scene.Scene):
    def test_the_default_client_is_one_and_stays_open(self):
        client = gpupool.default_client()
        self.assertIs(client, gpupool.default_client())
        self.assertEqual((client.socket_path, client.gpu_kind, client.closed), (self.daemon.socket, "sim", False))
        self.assertEqual(gpupool.host_pool(), client.host_pool())
        self.assertEqual(gpupool.device_pool(1).device, 1)
        self.assertEqual(gpupool.pools(), client.pools())
        self.assertEqual(gpupool.trim(), 0)
        with self.assertRaisesRegex(ValueError, "default client"):
            client.close()
        self.assertFalse(client.closed)

    def test_a_client_closes_at_the_end_of_its_with_statement_and_its_buffers_are_stale(self):
        with gpupool.Client(self.daemon.socket, decay=float("inf"), connect_timeout=scene.WAIT_S) as client:
            buffer = client.host_pool().acquire(100)
            pool, view = buffer.pool, buffer.view()
        self.assertTrue(client.closed and buffer.closed)
        client.close()
        buffer.close()
        for use in (client.pools, client.trim, pool.info, lambda: pool.acquire(1), lambda: buffer.ptr, lambda: memoryview(buffer),
                    buffer.share, lambda: memoryview(view), client.__enter__, buffer.__enter__):
            with self.assertRaises(gpupool.StaleError):
                use()
        scene.wait_until(lambda: len(self.daemon.ask("sessions")["sessions"]) <= 2, "the session ended")

    def test_a_client_is_not_closed_while_memory_of_it_is_exported(self):
        client = gpupool.Client()
        memory = memoryview(client.host_pool().acquire(100))
        with self.assertRaises(BufferError):
            client.close()
        memory[0] = 1
        memory.release()
        client.close()

    def test_a_private_daemon_serves_its_client(self):
        with gpupool.Client("private", daemon_path=os.environ["GPUPOOLD"],
                            daemon_arguments=["--gpu", "sim", "--log-level", "error"]) as client:
            self.assertNotEqual(client.socket_path, self.daemon.socket)
            self.assertEqual(client.gpu_kind, "sim")
            with client.device_pool().acquire(100, zero=True) as buffer:
                self.assertEqual(bytes(buffer), bytes(100))

    def test_a_client_without_a_cache_gives_memory_back_at_once(self):
        self.wait_until_nothing_is_leased()
        with gpupool.Client(cache=False) as client:
            buffer = client.host_pool().acquire(4096)
            self.assertEqual(self.daemon.leases(), 4096)
            buffer.close()
            self.assertEqual(self.daemon.leases(), 0)

    def test_without_cuda_there_are_host_pools_only(self):
        with gpupool.Client(cuda=False) as client:
            client.host_pool().acquire(100).close()
            with self.assertRaises((gpupool.NoGpuError, gpupool.NoPoolError)):
                client.device_pool(0)

    def test_wrong_options_are_refused(self):
        for error, options in ((ValueError, {"connect_timeout": -1}), (ValueError, {"decay": float("nan")}),
                               (TypeError, {"alloc_timeout": "soon"}), (TypeError, {"daemon_arguments": "--gpu sim"}),
                               (TypeError, {"unknown": 1}), (TypeError, {"socket": 1}),
                               (ValueError, {"daemon_arguments": ["x"] * 100}), (TypeError, {"daemon_arguments": [1]})):
            with self.assertRaises(error, msg=str(options)):
                gpupool.Client(**options)

    def test_pools_say_what_they_are(self):
        kinds = [(pool.kind, pool.device) for pool in self.client.pools()]
        self.assertEqual(kinds, [("device", 0), ("device", 1), ("host", None)])
        self.assertRegex(self.device.uuid, "^GPU-")
        self.assertEqual((self.host.uuid, self.host.kind), ("", "host"))
        self.assertIn("Simulated", self.device.name)
        self.assertGreater(self.device.limit_bytes, 1 << 20)
        self.assertIs(self.device.client, self.client)
        self.assertEqual(self.device, self.client.device_pool(0))
        self.assertEqual(len({self.device, self.client.device_pool(0), self.host}), 2)
        self.assertNotEqual(self.device, self.client.device_pool(1))
        self.assertNotEqual(self.host, gpupool.default_client().host_pool())
        self.assertIn("device 0", repr(self.device))
        for arguments in ((2,), (-2,)):
            with self.assertRaises(gpupool.Error):
                self.client.device_pool(*arguments)
        with self.assertRaises(gpupool.NoPoolError):
            self.client.host_pool(1000)

    def test_info_is_fresh(self):
        before = self.host.info()
        buffer = self.host.acquire(before.free_bytes + (8 << 20))
        after = self.host.info()
        self.assertGreaterEqual(after.leased_bytes, before.leased_bytes + buffer.nbytes)
        self.assertEqual(after[:7], before[:7])
        self.assertEqual(after.limit_bytes, self.host.limit_bytes)
        buffer.close()

    def test_prepare_maps_memory_ahead(self):
        self.host.prepare(1 << 20)
        self.assertGreaterEqual(self.host.info().reserved_bytes, 1 << 20)
        with self.assertRaises(gpupool.InvalidError):
            self.host.prepare(0)

    def test_a_buffer_says_what_it_is(self):
        buffer = self.host.acquire(1000)
        self.assertEqual((buffer.nbytes, buffer.kind, buffer.device, buffer.stream, buffer.pool, buffer.closed, buffer.read_only),
                         (1000, "host", None, gpupool.NO_STREAM, self.host, False, False))
        self.assertGreaterEqual(buffer.capacity, 1000)
        self.assertEqual(buffer.ptr % 512, 0)
        info = buffer.query()
        self.assertEqual((info.holders, info.shared), (1, False))
        self.assertIn("1000 bytes", repr(buffer))
        buffer.close()
        self.assertIn("closed", repr(buffer))
        on_device = self.device.acquire(nbytes=1000, stream=None, timeout=scene.WAIT_S, zero=False)
        self.assertEqual((on_device.kind, on_device.device, on_device.stream), ("device", 0, 1))

    def test_acquire_checks_its_arguments(self):
        for error, arguments, keywords in (
                (ValueError, (0,), {}), (ValueError, (-1,), {}), (ValueError, (1 << 70,), {}), (TypeError, ("1",), {}),
                (TypeError, (1.5,), {}), (TypeError, (), {}), (TypeError, (1,), {"nbytes": 1}), (TypeError, (1,), {"size": 1}),
                (TypeError, (1, None, None, False, 1), {}), (ValueError, (1,), {"timeout": -1}), (TypeError, (1,), {"stream": "s"}),
                (ValueError, (1,), {"stream": -2}), (MemoryError, (1 << 60,), {})):
            with self.assertRaises(error, msg=f"{arguments} {keywords}"):
                self.host.acquire(*arguments, **keywords)

    def test_no_bytes_are_refused_by_the_name_of_the_argument(self):
        for call in (self.host.acquire, self.device.acquire, self.host.prepare):
            with self.assertRaisesRegex(ValueError, "nbytes is 0: it must be 1 or more"):
                call(0)

    def test_one_export_is_in_the_singular(self):
        buffer = self.host.acquire(16)
        view = memoryview(buffer)
        with self.assertRaisesRegex(BufferError, "has 1 export, such as"):
            buffer.close()
        view.release()
        buffer.close()

    def test_zero_zeroes(self):
        for pool in (self.host, self.device):
            buffer = pool.acquire(4096)
            memoryview(buffer)[:] = b"\xff" * 4096
            del buffer
            self.assertEqual(bytes(pool.acquire(4096, zero=True)), bytes(4096))

    def test_a_full_pool_ends_the_wait_with_its_timeout(self):
        held = self.device.acquire(self.device.limit_bytes * 3 // 4)
        for timeout in (0, 0.05, 1.2):
            with self.assertRaisesRegex(gpupool.ExhaustedError, "pool"):
                self.device.acquire(self.device.limit_bytes // 2, timeout=timeout)
        held.close()
        self.device.acquire(self.device.limit_bytes // 2, timeout=scene.WAIT_S).close()
        self.client.trim()

    def test_without_a_timeout_the_wait_is_the_alloc_timeout_of_the_client(self):
        held = self.device.acquire(self.device.limit_bytes * 3 // 4)
        with gpupool.Client(alloc_timeout=0.05) as client:
            pool = client.device_pool(0)
            asks = [lambda **timeout: pool.acquire(pool.limit_bytes // 2, **timeout)]
            if scene.numpy is not None:
                asks.append(lambda **timeout: pool.empty(pool.limit_bytes // 2, "uint8", **timeout))
            for ask in asks:
                for timeout in ({}, {"timeout": None}):
                    with self.assertRaises(gpupool.ExhaustedError):
                        ask(**timeout)
            served = []
            waiting = threading.Thread(target=lambda: served.append(pool.acquire(pool.limit_bytes // 2, timeout=math.inf).nbytes))
            waiting.start()
            scene.wait_until(lambda: any(told["waiters"] for told in self.daemon.ask("pools")["pools"]), "the request waits")
            held.close()
            waiting.join(scene.WAIT_S)
            self.assertEqual(served, [pool.limit_bytes // 2])
        self.client.trim()

    def test_the_types_are_not_made_by_hand_or_inherited(self):
        for name in ("Pool", "Buffer", "Array"):
            with self.assertRaises(TypeError):
                getattr(gpupool, name)()
        with self.assertRaises(TypeError):
            type("Sub", (gpupool.Buffer,), {})

    def test_the_stats_are_those_of_the_daemon(self):
        found = gpupool.stats()
        self.assertEqual(set(found), {"daemon", "pools", "sessions"})
        self.assertEqual(set(gpupool.stats(pathlib.Path(self.daemon.admin_socket))), set(found))
        with self.assertRaisesRegex(gpupool.ConnectError, "/nowhere/admin"):
            gpupool.stats("/nowhere/admin")
        with self.assertRaises(gpupool.Error):
            gpupool.stats(self.daemon.socket)

    def test_the_time_of_stats_is_for_the_whole_answer(self):
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as server:
            server.bind(directory + "/admin")
            server.listen()
            ended = threading.Event()

            def drip():
                connection, _ = server.accept()
                with connection:
                    while not ended.wait(0.01):
                        connection.sendall(b" ")
            slow = threading.Thread(target=drip)
            slow.start()
            try:
                with self.assertRaises(gpupool.TimedOutError):
                    gpupool.stats(directory + "/admin", timeout=0.2)
            finally:
                ended.set()
                slow.join(scene.WAIT_S)


class Stubs(unittest.TestCase):
    """The stubs name what there is, with the same parameters, and nothing else."""

    @classmethod
    def setUpClass(cls):
        cls.tree = ast.parse(STUBS.read_text())

    @staticmethod
    def names_in(body):
        names = set()
        for node in body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                names.add(node.name)
            elif isinstance(node, ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign):
                names.add(node.target.id)
        return names

    def test_the_module_has_the_names_of_the_stubs(self):
        in_stubs = {name for name in self.names_in(self.tree.body) if not name.startswith("_") or name == "__version__"}
        self.assertEqual(in_stubs, set(gpupool.__all__))
        self.assertTrue((STUBS.parent / "py.typed").exists())

    def test_the_classes_have_the_names_of_the_stubs(self):
        # The names of every object, and protocols that a stub shows by the class's bases or not at all.
        ignored = set(dir(object)) | {"__module__", "__weakref__", "__dict__", "__match_args__", "__replace__", "__release_buffer__",
                                      "__buffer__"}
        for node in self.tree.body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            found = getattr(gpupool, node.name)
            in_stubs = self.names_in(node.body) - ignored
            if issubclass(found, tuple):
                self.assertEqual(list(found.__match_args__), [item.target.id for item in node.body])
            else:
                own = set(vars(found)) - ignored
                if issubclass(found, BaseException):
                    bases = [base.id for base in node.bases]
                    self.assertEqual([base.__name__ for base in found.__bases__], bases)
                    own = {"number", "name"} if node.name == "Error" else set()
                with self.subTest(node.name):
                    self.assertEqual(in_stubs, own)

    def test_functions_have_the_parameters_of_the_stubs(self):
        def check(node, function, is_method):
            try:
                parameters = list(inspect.signature(function).parameters)
            except ValueError:
                return
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            self.assertEqual([argument.arg for argument in arguments], parameters, f"{node.name} {is_method}")
            self.assertTrue(function.__doc__, node.name)

        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                check(node, getattr(gpupool, node.name), False)
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                for item in node.body:
                    if isinstance(item, ast.FunctionDef) and not item.decorator_list and not item.name.startswith("__"):
                        check(item, getattr(getattr(gpupool, node.name), item.name), True)
                    elif isinstance(item, ast.FunctionDef) and item.decorator_list:
                        self.assertTrue(getattr(gpupool, node.name).__dict__[item.name].__doc__, item.name)

    def test_channels_have_the_names_and_parameters_of_their_stubs(self):
        tree = ast.parse(STUBS.with_name("channels.pyi").read_text())
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.assertEqual({name for name in self.names_in(tree.body) if not name.startswith("_")}, set(gpupool.channels.__all__))
        ignored = set(dir(object)) | {"__buffer__", "__release_buffer__", "__dict__", "__weakref__", "__module__"}
        for name in "Frame", "Producer", "Consumer":
            found = getattr(gpupool.channels, name)
            in_stubs = {item for one in (name, "_Place") for item in self.names_in(classes[one].body) if name != "Frame" or one != "_Place"}
            own = {item for kind in found.__mro__[:-1] for item in vars(kind) if not item.startswith("_") or item.startswith("__")}
            self.assertEqual(in_stubs - ignored, own - ignored, name)
        for node in [*tree.body, *(item for node in classes.values() for item in node.body)]:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.decorator_list or node.name.startswith("__"):
                continue
            owner = next((getattr(gpupool.channels, "Consumer" if name == "_Place" else name) for name, one in classes.items() if node in one.body),
                         gpupool.channels)
            parameters = list(inspect.signature(getattr(owner, node.name)).parameters)
            self.assertEqual([argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)], parameters, node.name)
            self.assertTrue(getattr(owner, node.name).__doc__, node.name)

    def test_the_version_is_the_projects(self):
        self.assertEqual(gpupool.__version__, os.environ["GPUPOOL_VERSION"])

    def test_the_module_exports_its_beginning_and_the_allocators_for_pytorch(self):
        module = importlib.util.find_spec("gpupool._gpupool").origin
        done = subprocess.run(["nm", "-D", "--defined-only", "--format=just-symbols", module], check=True, capture_output=True,
                              text=True, timeout=scene.WAIT_S)
        names = [name for name in done.stdout.split() if not name.startswith("gpupool_torch_")]
        self.assertEqual(names, ["PyInit__gpupool"])


if __name__ == "__main__":
    unittest.main()
