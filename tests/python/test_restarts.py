# SPDX-License-Identifier: Apache-2.0
"""The default client of a process whose daemon is started anew: its next use connects to the new one."""
import gc
import multiprocessing.reduction
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import unittest
import weakref

import gpupool
import scene

SIZE = 1 << 20
LARGE = 256 << 20  # more than a client keeps
THREADS = 4


class Restarts(unittest.TestCase):
    """Each test has a daemon of its own, which is this process's by its environment."""

    def setUp(self):
        self.daemon = scene.Daemon()
        self.addCleanup(self.end)
        os.environ.update({name: self.daemon.environment[name]
                           for name in ("GPUPOOL_SOCKET", "GPUPOOL_ADMIN_SOCKET", "GPUPOOL_SIM_LATENCY")})

    def end(self):
        gc.collect()
        self.daemon.close()

    def restart(self):
        self.daemon.kill()
        self.daemon.start()

    def sessions(self):
        return len(self.daemon.ask("sessions")["sessions"])

    @staticmethod
    def belongings():
        """Of all clients in this process: (threads, descriptors, mappings of memory of pools)."""
        maps = pathlib.Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), maps.count("memfd:gpupool")

    @staticmethod
    def use(pool):
        with pool.acquire(SIZE, timeout=scene.WAIT_S) as buffer, memoryview(buffer) as memory:
            memory[:4] = b"used"
            return bytes(memory[:4]) == b"used"

    def test_the_next_use_connects_to_the_new_daemon(self):
        old = gpupool.host_pool()
        buffer = old.acquire(SIZE)
        memoryview(buffer)[:] = b"x" * SIZE
        self.restart()
        self.assertFalse(old.client.connected)
        pool = gpupool.host_pool()
        self.assertIsNot(pool.client, old.client)
        self.assertTrue(pool.client.connected)
        self.assertIs(gpupool.default_client(), pool.client)
        self.assertTrue(self.use(pool) and self.use(gpupool.device_pool(1)))
        self.assertEqual(len(gpupool.pools()), 3)
        with self.assertRaises(gpupool.DisconnectedError):
            old.acquire(LARGE)
        other = pool.acquire(SIZE)
        memoryview(other)[:] = b"y" * SIZE
        self.assertEqual(bytes(buffer), b"x" * SIZE)
        buffer.close()
        self.assertEqual(bytes(other), b"y" * SIZE)
        self.assertEqual(self.sessions(), 1)
        with self.assertRaisesRegex(ValueError, "default client"):
            old.client.close()

    def test_a_daemon_that_stopped_in_an_orderly_way_is_replaced_likewise(self):
        old = gpupool.default_client()
        self.daemon.process.terminate()
        self.daemon.process.wait(scene.WAIT_S)
        self.daemon.start()
        self.assertTrue(self.use(gpupool.device_pool(0)))
        self.assertFalse(old.connected)

    def test_while_there_is_no_daemon_the_error_says_so(self):
        buffer = gpupool.host_pool().acquire(SIZE)
        client = gpupool.default_client()
        self.daemon.kill()
        for call in (gpupool.default_client, gpupool.host_pool, gpupool.device_pool, gpupool.pools, gpupool.trim,
                     lambda: gpupool.attach(bytes(64)), lambda: gpupool.revoke(bytes(64)), gpupool.Stream):
            with self.assertRaisesRegex(gpupool.ConnectError, "data"):
                call()
        memoryview(buffer)[0] = 1
        self.assertIs(buffer.pool.client, client)
        self.daemon.start()
        self.assertTrue(self.use(gpupool.host_pool()))

    def test_all_functions_of_the_module_follow(self):
        gpupool.default_client()
        self.restart()
        with self.assertRaises(gpupool.NoTokenError):
            gpupool.attach(bytes(64))
        self.restart()
        with self.assertRaises(gpupool.NoTokenError):
            gpupool.revoke(bytes(64))
        self.restart()
        with gpupool.Stream(0) as stream, gpupool.device_pool(0).acquire(SIZE, stream) as buffer:
            self.assertIs(buffer.stream, stream)
        self.restart()
        self.assertEqual(gpupool.trim(), 0)
        self.restart()
        buffer = gpupool.host_pool().acquire(10, zero=True)
        again = pickle.loads(pickle.dumps(buffer))
        self.assertIs(again.pool.client, buffer.pool.client)

    def test_a_client_without_objects_ends(self):
        self.use(gpupool.host_pool())
        client = weakref.ref(gpupool.default_client())
        self.restart()
        self.use(gpupool.host_pool())
        self.assertIsNone(client())
        before = self.belongings()
        for _ in range(4):
            self.restart()
            self.use(gpupool.host_pool())
        scene.wait_until(lambda: self.belongings() == before, "what the clients had is gone")

    def test_a_client_lives_as_long_as_its_buffers(self):
        self.use(gpupool.host_pool())
        before, kept = self.belongings(), []
        for i in range(4):
            buffer = gpupool.host_pool().acquire(SIZE)
            memory = memoryview(buffer)
            memory[:] = bytes([i]) * SIZE
            kept.append((buffer, memory))
            self.restart()
        self.use(gpupool.host_pool())
        self.assertEqual(self.sessions(), 1)
        self.assertGreater(min(now - then for now, then in zip(self.belongings(), before)), 0)
        for i, (buffer, memory) in enumerate(kept):
            self.assertEqual(memory, bytes([i]) * SIZE)
        del buffer
        while kept:
            client = weakref.ref(kept[-1][0].pool.client)
            memory = kept.pop()[1]
            self.assertIsNotNone(client())  # the memoryview has the buffer
            memory[:4] = b"last"
            del memory
            self.assertIsNone(client())
        self.use(gpupool.host_pool())
        scene.wait_until(lambda: self.belongings() == before, "what the clients had is gone")

    def test_threads_that_race_get_one_client(self):
        def use():
            try:
                start.wait(scene.WAIT_S)
                pool = gpupool.host_pool()
                found.append(pool.client)
                self.use(pool)
            except BaseException as error:
                found.append(error)

        for _ in range(10):
            self.restart()
            start, found = threading.Barrier(THREADS), []
            threads = [threading.Thread(target=use, daemon=True) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(scene.WAIT_S)
            self.assertEqual(found, [gpupool.default_client()] * THREADS)
            scene.wait_until(lambda: self.sessions() == 1, "one session is left")
        found.clear()

    def test_threads_that_acquire_go_on(self):
        ends, failures, restarted, served = threading.Event(), [], [0], [0] * THREADS

        def work(number):
            kept = []
            try:
                while not ends.is_set():
                    try:
                        count = restarted[0]
                        buffer = gpupool.host_pool().acquire(SIZE)
                        memoryview(buffer)[:8] = bytes([number] * 8)
                        kept = (kept + [buffer])[-4:]
                        if any(bytes(memoryview(buffer)[:8]) != bytes([number] * 8) for buffer in kept):
                            raise AssertionError("another thread has the same memory")
                        served[number] = count
                    except ConnectionError:
                        pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for i in range(5):
            self.restart()
            restarted[0] = i + 1
            scene.wait_until(lambda: failures or min(served) > i, "each thread was served by the new daemon")
        ends.set()
        for thread in threads:
            thread.join(scene.WAIT_S)
        self.assertEqual((failures, [thread.is_alive() for thread in threads]), ([], [False] * THREADS))

    def test_connected_tells_of_the_end(self):
        client = gpupool.Client()
        self.assertTrue(client.connected)
        self.assertEqual(client.connection_state, "there")
        with self.assertRaises(AttributeError):
            client.connected = True
        pid = os.fork()
        if pid == 0:
            os._exit(client.connected or client.connection_state != "lost")
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.daemon.kill()
        self.assertFalse(client.connected)
        self.assertEqual(client.connection_state, "lost")
        self.assertFalse(client.closed)
        self.daemon.start()
        self.assertFalse(client.connected)
        client.close()
        self.assertFalse(client.connected)

    def test_a_forked_child_after_a_restart(self):
        kept = gpupool.host_pool().acquire(SIZE)
        self.restart()
        mine = gpupool.host_pool().client
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                pool = gpupool.host_pool()
                status = 0 if self.use(pool) and pool.client is not mine and gpupool.default_client() is pool.client else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertIs(gpupool.default_client(), mine)
        memoryview(kept)[0] = 1

    def test_buffers_of_a_further_daemon_are_unpickled(self):
        other = scene.Daemon()
        self.addCleanup(other.close)
        for _ in range(2):
            with gpupool.Client(other.socket) as client:
                buffer = client.host_pool().acquire(10)
                memoryview(buffer)[:] = b"0123456789"
                again = pickle.loads(pickle.dumps(buffer))
                self.assertEqual((bytes(again), again.pool.client.socket_path), (b"0123456789", other.socket))
                self.assertIsNot(again.pool.client, gpupool.default_client())
                del buffer, again
            other.kill()
            other.start()

    @scene.needs_torch_2
    def test_tensors(self):
        import gpupool.torch
        old = gpupool.torch.empty(1000).fill_(1)
        self.restart()
        new = gpupool.torch.empty(1000).fill_(2)
        self.assertEqual((float(old.sum()), float(new.sum())), (1000, 2000))
        again = pickle.loads(multiprocessing.reduction.ForkingPickler.dumps(new))
        self.assertEqual(float(again.fill_(3).sum() + new.sum()), 6000)
        del old
        self.assertEqual(float(new.sum()), 3000)


class Programs(unittest.TestCase):
    """Programs that restart their daemon, and end."""

    def run_program(self, text):
        program = ("import os, sys\nsys.path.insert(0, sys.argv[1])\nimport scene\ndaemon = scene.Daemon()\n"
                   "os.environ.update(daemon.environment)\nimport gpupool\n"
                   "def restart():\n    daemon.kill()\n    daemon.start()\n" + text)
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", program, str(pathlib.Path(__file__).parent)], check=False,
                              capture_output=True, text=True, timeout=scene.WAIT_S)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def test_a_program_says_farewell_to_the_new_daemon(self):
        self.run_program("import atexit\n"
                         "@atexit.register\ndef last():\n"
                         "    scene.wait_until(lambda: daemon.ask('sessions')['sessions'] == [], 'the client said farewell')\n"
                         "    assert all(pool['quarantined_peak_bytes'] == 0 for pool in daemon.ask('pools')['pools'])\n"
                         "    daemon.close()\n"
                         "from gpupool import _gpupool\natexit.register(_gpupool._say_farewell)\n"  # before last()
                         "gpupool.host_pool().acquire(100)\nrestart()\ngpupool.device_pool(0).acquire(100)\n")

    def test_a_program_ends_with_buffers_of_all_its_clients(self):
        self.run_program("import atexit, builtins\natexit.register(daemon.close)\nbuiltins.kept = kept = []\n"
                         "for _ in range(3):\n    kept.append(gpupool.host_pool().acquire(100))\n"
                         "    kept.append(memoryview(gpupool.device_pool(0).acquire(100)))\n    restart()\n")

    def test_the_module_is_imported_again(self):
        output = self.run_program(
            "import atexit, gc\natexit.register(daemon.close)\nbuffer = gpupool.host_pool().acquire(100)\nold = gpupool\nrestart()\n"
            "for name in [name for name in sys.modules if name.startswith('gpupool')]: del sys.modules[name]\n"
            "import gpupool\nassert gpupool is not old\n"
            "buffers = [gpupool.host_pool().acquire(100), old.host_pool().acquire(100)]\n"
            "print(len(daemon.ask('sessions')['sessions']), buffers[0].pool.client.connected, buffer.pool.client.connected)\n"
            "restart()\nbuffers += [old.host_pool().acquire(100), gpupool.host_pool().acquire(100)]\n"
            "print(len(daemon.ask('sessions')['sessions']))\n"
            "del old, buffer\nfor i in (1, 0):\n    memoryview(buffers[i])[0] = 1\n    del buffers[i]\ngc.collect()\n"
            "gpupool.host_pool().acquire(100)\n")
        self.assertEqual(output, "1 True False\n1\n")

    def test_a_private_daemon_that_was_killed_is_replaced(self):
        output = self.run_program(
            "import atexit, signal\natexit.register(daemon.close)\nos.environ['GPUPOOL_SOCKET'] = 'private'\n"
            "os.environ.update(GPUPOOL_DAEMON=os.environ['GPUPOOLD'], GPUPOOL_DAEMON_ARGS='--gpu sim --log-level error')\n"
            "first = gpupool.default_client()\nbuffer = gpupool.host_pool().acquire(100)\n"
            "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
            "    try:\n        command = open(f'/proc/{pid}/cmdline').read()\n    except OSError:\n        continue\n"
            "    if first.socket_path in command:\n        os.kill(int(pid), signal.SIGKILL)\n"
            "scene.wait_until(lambda: not first.connected, 'the daemon ended')\n"
            "assert gpupool.default_client().identity != first.identity\n"
            "gpupool.host_pool().acquire(100)\nmemoryview(buffer)[0] = 1\nprint('served')\n")
        self.assertEqual(output, "served\n")

    def test_memory_of_the_allocators_keeps_their_client(self):
        for first in ("gpupool.host_pool()\n", ""):  # the package opens the library's default client, or the allocator does
            output = self.run_program(
                "import atexit, ctypes\natexit.register(daemon.close)\nfrom gpupool import _gpupool\n" + first +
                "_gpupool._keep_for_allocators()\nfunctions = ctypes.CDLL(_gpupool.__file__)\n"
                "malloc, free = functions.gpupool_torch_pool_malloc, functions.gpupool_torch_pool_free\n"
                "malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]\n"
                "free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]\n"
                "memory = malloc(4096, 0, None)\nctypes.memset(memory, 7, 4096)\n"
                "for _ in range(3):\n    restart()\n    gpupool.host_pool().acquire(100)\n"
                "assert ctypes.string_at(memory, 4096) == b'\\7' * 4096\nfree(memory, 4096, 0, None)\nprint('whole')\n")
            self.assertEqual(output, "whole\n")


if __name__ == "__main__":
    unittest.main()
