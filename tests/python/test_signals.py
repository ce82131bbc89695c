# SPDX-License-Identifier: Apache-2.0
"""Signals during a wait for room: an exception of a handler ends the wait, and everything else lets it go on."""
import _thread
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import gpupool
import scene


class Interrupted(Exception):
    pass


class Waits(scene.Scene):
    """One buffer has most of a pool, so that a half of it is to be waited for."""

    def setUp(self):
        self.handled = []
        self.half = self.device.limit_bytes // 2
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, self.on_signal))
        self.in_handler = lambda: None

    def on_signal(self, *_):
        self.handled.append(threading.current_thread() is threading.main_thread())
        self.in_handler()

    def waiting(self):
        return any(session["waiting"] for session in self.daemon.ask("sessions")["sessions"])

    def wait_until_waiting(self):
        scene.wait_until(self.waiting, "a request waits")

    @contextlib.contextmanager
    def during_the_wait(self, do):
        """Has a thread do something once a request waits."""
        failures = []

        def run():
            try:
                self.wait_until_waiting()
                do()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join(scene.WAIT_S)
        self.assertEqual((failures, thread.is_alive()), ([], False))

    @staticmethod
    def signal_process():
        os.kill(os.getpid(), signal.SIGUSR1)

    def fill(self, pool=None):
        return (pool or self.device).acquire((pool or self.device).limit_bytes * 3 // 4, timeout=scene.WAIT_S)

    def acquire_half(self, **options):
        return self.device.acquire(self.half, timeout=scene.WAIT_S, **options)

    def raise_in_handler(self):
        def interrupt():
            raise Interrupted
        self.in_handler = interrupt

    def test_an_exception_leaves_nothing(self):
        stream = gpupool.Stream(0, client=self.client)
        self.raise_in_handler()
        held = self.fill()
        for _ in range(3):
            open_files = len(os.listdir("/proc/self/fd"))
            with self.during_the_wait(self.signal_process), self.assertRaises(Interrupted):
                self.acquire_half(stream=stream, zero=True)
            self.assertFalse(self.waiting())  # although the pool is still full
            self.assertEqual(len(os.listdir("/proc/self/fd")), open_files)
        self.assertEqual(self.handled, [True] * 3)
        stream.close()  # no buffer uses it
        held.close()
        self.acquire_half().close()
        self.wait_until_nothing_is_leased()

    def test_memory_that_is_granted_while_the_handler_runs_goes_back(self):
        def grant_and_raise():
            held.pop().close()
            self.client.trim()
            scene.wait_until(lambda: not self.waiting(), "the request was granted")
            raise Interrupted

        self.in_handler = grant_and_raise
        for options in ({}, {"zero": True}, {"stream": gpupool.NO_STREAM}, {"stream": gpupool.PER_THREAD, "zero": True}) * 3:
            held = [self.fill()]
            with self.during_the_wait(self.signal_process), self.assertRaises(Interrupted):
                self.acquire_half(**options)
            self.assertEqual(held, [])
            self.fill().close()
            self.wait_until_nothing_is_leased()

    def test_a_handler_that_returns_lets_the_wait_go_on(self):
        held = [self.fill()]

        def signal_twice_and_release():
            for count in (1, 2):
                self.signal_process()
                scene.wait_until(lambda count=count: len(self.handled) == count, "the handler ran")
                self.assertTrue(self.waiting())
            held.pop().close()
            self.client.trim()

        with self.during_the_wait(signal_twice_and_release), self.acquire_half() as buffer:
            self.assertEqual(buffer.nbytes, self.half)
        self.assertEqual(self.handled, [True] * 2)

    def test_signals_neither_shorten_nor_prolong_the_timeout(self):
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, self.on_signal))
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        with self.fill():
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)  # for ever: a wait that begins anew each time would have no end
            begin = time.monotonic()
            with self.assertRaises(gpupool.ExhaustedError):
                self.device.acquire(self.half, timeout=0.5)
            self.assertGreaterEqual(time.monotonic() - begin, 0.5)
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertGreater(len(self.handled), 1)

    def test_a_signal_that_another_thread_takes_interrupts(self):
        self.raise_in_handler()
        with self.fill():
            with self.during_the_wait(lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)), self.assertRaises(Interrupted):
                self.acquire_half()
        self.assertEqual(self.handled, [True])

    def test_an_interrupt_without_a_signal_interrupts(self):
        with self.fill(), self.during_the_wait(_thread.interrupt_main), self.assertRaises(KeyboardInterrupt):
            self.acquire_half()
        self.assertFalse(self.waiting())

    def test_a_numpy_array_is_waited_for_likewise(self):
        if scene.numpy is None:
            self.skipTest("NumPy cannot be imported")
        self.raise_in_handler()
        with self.fill(), self.during_the_wait(self.signal_process), self.assertRaises(Interrupted):
            self.device.empty(self.half, "u1")
        self.fill().close()

    def test_memory_that_was_waited_for_is_zeroed(self):
        for options in ({}, {"stream": gpupool.NO_STREAM}, {"stream": gpupool.PER_THREAD}):
            held = [self.fill()]
            memoryview(held[0])[:] = b"\xff" * held[0].nbytes

            def release():
                held.pop().close()
                self.client.trim()

            with self.during_the_wait(release), self.acquire_half(zero=True, **options) as buffer, memoryview(buffer) as memory:
                self.assertEqual(memory[:1 << 20], bytes(1 << 20))
                self.assertEqual(memory[-1 << 20:], bytes(1 << 20))

    def test_a_handler_cannot_close_the_client(self):
        self.in_handler = self.client.close
        with self.fill(), self.during_the_wait(self.signal_process), self.assertRaisesRegex(RuntimeError, "under way"):
            self.acquire_half()
        self.assertFalse(self.client.closed)

    def test_another_thread_waits_on_while_the_main_thread_is_interrupted(self):
        self.raise_in_handler()
        held, found = self.fill(), []
        thread = threading.Thread(target=lambda: found.append(self.acquire_half()), daemon=True)
        thread.start()
        self.wait_until_waiting()
        with self.assertRaises(Interrupted):
            self.signal_process()
            thread.join(scene.WAIT_S)
        self.assertTrue(self.waiting())
        held.close()
        self.client.trim()
        thread.join(scene.WAIT_S)
        self.assertEqual([buffer.nbytes for buffer in found], [self.half])

    def test_two_threads_wait_and_one_is_interrupted(self):
        self.raise_in_handler()
        held, found = self.fill(), []
        thread = threading.Thread(target=lambda: found.append(self.acquire_half()), daemon=True)
        thread.start()
        self.wait_until_waiting()
        two_wait = lambda: sum(session["waiting"] for session in self.daemon.ask("sessions")["sessions"]) == 2
        with self.during_the_wait(lambda: (scene.wait_until(two_wait, "both wait"), self.signal_process())):
            with self.assertRaises(Interrupted):
                self.acquire_half()
        self.assertTrue(self.waiting())
        held.close()
        self.client.trim()
        thread.join(scene.WAIT_S)
        self.assertEqual(len(found), 1)


class Programs(scene.Scene):
    """The signal that interrupts a program, and what is left of it."""

    def waits(self):
        return any(session["waiting"] for session in self.daemon.ask("sessions")["sessions"])

    @contextlib.contextmanager
    def waiting_program(self, text):
        """A program that waits for a whole pool, of which this process has a part: (the program, the part)."""
        program = ("import gpupool, os, signal, sys\npool = gpupool.device_pool(0)\npool.acquire(1).close()\ngpupool.trim()\n"
                   "print('ready', flush=True)\n" + text)
        with self.device.acquire(1 << 20) as held, subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", program], text=True,
                                                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                self.assertEqual(scene.read_line(process.stdout), "ready\n")
                scene.wait_until(self.waits, "the program waits")
                yield process, held
            finally:
                process.kill()
                process.wait(scene.WAIT_S)

    def test_it_interrupts_the_wait(self):
        with self.waiting_program("try:\n    pool.acquire(pool.limit_bytes)\n"
                                  "except KeyboardInterrupt:\n    sys.exit(3)\n") as (process, _):
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(scene.WAIT_S), 3)

    def test_an_exception_that_is_not_caught_ends_the_program(self):
        with self.waiting_program("sys.stderr = open(os.devnull, 'w')\npool.acquire(pool.limit_bytes)\n") as (process, _):
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(scene.WAIT_S), -signal.SIGINT)
        self.wait_until_nothing_is_leased()

    def test_the_program_goes_on_with_what_was_released_later(self):
        with self.waiting_program("try:\n    pool.acquire(pool.limit_bytes)\nexcept KeyboardInterrupt:\n    pass\n"
                                  "print('interrupted', flush=True)\nsys.stdin.readline()\n"
                                  "pool.acquire(pool.limit_bytes, timeout=60).close()\nprint('served')\n") as (process, held):
            process.send_signal(signal.SIGINT)
            self.assertEqual(scene.read_line(process.stdout), "interrupted\n")
            self.assertFalse(self.waits())
            held.close()
            self.client.trim()
            self.assertEqual(process.communicate("\n", timeout=scene.WAIT_S)[0], "served\n")
            self.assertEqual(process.returncode, 0)

    def test_it_interrupts_a_wait_for_a_daemon_that_hangs(self):
        with self.waiting_program("try:\n    pool.acquire(pool.limit_bytes)\n"
                                  "except KeyboardInterrupt:\n    os._exit(3)\n") as (process, _):
            self.daemon.process.send_signal(signal.SIGSTOP)
            self.addCleanup(self.daemon.process.send_signal, signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(scene.WAIT_S), 3)
            self.daemon.process.send_signal(signal.SIGCONT)
        self.wait_until_nothing_is_leased()

    def test_it_interrupts_a_share_that_a_daemon_does_not_answer(self):
        program = ("import gpupool, signal, sys\nraised = []\n"
                   "def once(*_):\n    if not raised:\n        raised.append(True)\n        raise KeyboardInterrupt\n"
                   "signal.signal(signal.SIGINT, once)\nbuffer = gpupool.host_pool().acquire(4096)\n"
                   "print('ready', flush=True)\nsys.stdin.readline()\n"
                   "try:\n    buffer.share()\nexcept KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
                   "sys.stdin.readline()\nbuffer.share()\nbuffer.close()\nprint('shared')\n")
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            self.assertEqual(scene.read_line(process.stdout), "ready\n")
            self.daemon.process.send_signal(signal.SIGSTOP)
            self.addCleanup(self.daemon.process.send_signal, signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            said = threading.Event()
            sender = threading.Thread(target=lambda: [process.send_signal(signal.SIGINT) for _ in iter(lambda: said.wait(0.05), True)])
            sender.start()  # one may come before the share has begun to wait
            self.assertEqual(scene.read_line(process.stdout), "interrupted\n")
            said.set()
            sender.join()
            self.daemon.process.send_signal(signal.SIGCONT)
            self.assertEqual(process.communicate("\n", timeout=scene.WAIT_S)[0], "shared\n")
            self.assertEqual(process.returncode, 0)

    def test_a_request_that_a_daemon_left_open_costs_nothing_later(self):
        with self.waiting_program("try:\n    pool.acquire(pool.limit_bytes)\nexcept KeyboardInterrupt:\n    pass\n"
                                  "print('interrupted', flush=True)\nsys.stdin.readline()\n"
                                  "pool.acquire(pool.limit_bytes, timeout=60).close()\ngpupool.trim()\nprint('served')\n") as (process, held):
            self.daemon.process.send_signal(signal.SIGSTOP)
            self.addCleanup(self.daemon.process.send_signal, signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            self.assertEqual(scene.read_line(process.stdout), "interrupted\n")
            self.daemon.process.send_signal(signal.SIGCONT)
            held.close()
            self.client.trim()
            self.assertEqual(process.communicate("\n", timeout=scene.WAIT_S)[0], "served\n")
            self.assertEqual(process.returncode, 0)

    def test_without_a_free_descriptor_the_wait_has_its_timeout(self):
        with self.device.acquire(1 << 20):
            output, _ = self.run_program(
                "import gpupool, os, resource\npool = gpupool.device_pool(0)\n"
                "def wait():\n    try:\n        pool.acquire(pool.limit_bytes, timeout=0.2)\n"
                "    except gpupool.ExhaustedError:\n        print('exhausted')\n"
                "wait()\nhighest = max(map(int, os.listdir('/proc/self/fd')))\n"
                "taken = [os.dup(0) for _ in range(highest)]\nresource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))\n"
                "wait()\n")
        self.assertEqual(output, "exhausted\nexhausted\n")


if __name__ == "__main__":
    unittest.main()
