# SPDX-License-Identifier: Apache-2.0
"""Buffers of several processes: tokens, and pickles through pipes and queues."""
import copy
import gc
import multiprocessing
import os
import pickle
import signal
import unittest
from unittest import mock

import gpupool
import scene
from gpupool import _transfer
from scene import needs_numpy, numpy


def add_one(connection):
    """In another process: adds 1 to each byte of what comes, until None comes."""
    while (thing := connection.recv()) is not None:
        with memoryview(thing) as memory:
            for i in range(len(memory)):
                memory[i] += 1
        del thing
        connection.send("done")


def answer_queue(questions, answers):
    """In another process: the sums of the arrays that come, until None comes."""
    while (array := questions.get(timeout=scene.WAIT_S)) is not None:
        answers.put((array.shape, array.dtype, int(sum(memoryview(array).cast("B")))))
        del array


def receive_token(connection):
    buffer = gpupool.attach(connection.recv_bytes(), gpupool.PER_THREAD)
    memoryview(buffer)[:4] = b"back"
    buffer.close()
    connection.send("done")


LIFETIME_S = 0.05


def receive_late(connection, go):
    """In another process: receives a buffer when it is told to."""
    go.recv_bytes()
    connection.send_bytes(bytes(memoryview(connection.recv())[:4]))


def send_and_wait(connection):
    """In another process: sends a buffer, and ends when it is told to."""
    _transfer.LIFETIME_S = LIFETIME_S
    buffer = gpupool.host_pool().acquire(100)
    memoryview(buffer)[:4] = b"sent"
    connection.send(buffer)
    del buffer
    connection.recv_bytes()


class Processes(scene.Scene):
    def start(self, method, target, *arguments):
        process = multiprocessing.get_context(method).Process(target=target, args=arguments, daemon=True)
        process.start()

        def end():
            process.join(scene.WAIT_S)
            if process.is_alive():
                process.kill()
            self.assertEqual(process.exitcode, 0)
        return end

    def receive(self, connection):
        self.assertTrue(connection.poll(scene.WAIT_S), "no answer")
        return connection.recv()

    def test_a_buffer_goes_through_a_pipe(self):
        for method in ("spawn", "forkserver"):
            ours, theirs = multiprocessing.Pipe()
            end = self.start(method, add_one, theirs)
            for pool in (self.host, self.device):
                buffer = pool.acquire(100, zero=True)
                view = buffer.view(10, offset=50)
                for sent in (buffer, view, view):
                    ours.send(sent)
                    self.assertEqual(self.receive(ours), "done")
                    buffer.reuse()
                self.assertEqual(list(memoryview(buffer)), [1] * 50 + [3] * 10 + [1] * 40)
                self.assertTrue(buffer.query().shared)
            ours.send(None)
            end()

    def test_an_array_goes_through_a_queue(self):
        for method in ("spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            questions, answers = context.Queue(), context.Queue()
            end = self.start(method, answer_queue, questions, answers)
            for value in range(5):
                buffer = self.host.acquire(24)
                memoryview(buffer)[:] = bytes([value] * 24)
                questions.put(buffer.view((2, 3), "int32"))
                del buffer
                self.assertEqual(answers.get(timeout=scene.WAIT_S), ((2, 3), "int32", 24 * value))
            questions.put(None)
            end()

    def test_an_argument_of_a_process_is_shared(self):
        buffer = self.host.acquire(8, zero=True)
        ours, theirs = multiprocessing.Pipe()
        end = self.start("spawn", add_one, theirs)
        ours.send(buffer)
        self.receive(ours)
        ours.send(None)
        end()
        self.assertEqual(bytes(buffer), b"\1" * 8)

    def test_a_token_goes_by_any_means(self):
        ours, theirs = multiprocessing.Pipe()
        end = self.start("spawn", receive_token, theirs)
        buffer = self.device.acquire(100)
        token = buffer.share()
        self.assertEqual((type(token), len(token)), (bytes, 64))
        ours.send_bytes(token)
        self.receive(ours)
        buffer.reuse(gpupool.PER_THREAD)
        self.assertEqual(bytes(memoryview(buffer)[:4]), b"back")
        end()

    def test_a_token_that_was_sent_holds_the_memory(self):
        with self.host.acquire(4) as buffer:
            memoryview(buffer)[:] = b"kept"
            token = buffer.send(takers=2, lifetime=scene.WAIT_S)
        pickled = pickle.dumps(self.host.acquire(1 << 20))
        for _ in range(2):
            self.assertEqual(bytes(gpupool.attach(token)), b"kept")
        self.assertEqual(pickle.loads(pickled).nbytes, 1 << 20)
        for again in (lambda: gpupool.attach(token), lambda: pickle.loads(pickled), lambda: gpupool.revoke(token)):
            with self.assertRaises(gpupool.NoTokenError):
                again()
        buffer = self.host.acquire(100)
        token = buffer.send(None)
        gpupool.revoke(token, client=self.client)
        with self.assertRaises(gpupool.NoTokenError):
            gpupool.attach(token)
        for error, keywords in ((ValueError, {"takers": 0}), (ValueError, {"lifetime": 0}), (ValueError, {"lifetime": 1e6}),
                                (ValueError, {"takers": 1 << 40}), (TypeError, {"takers": "1"}), (TypeError, {"unknown": 1})):
            with self.assertRaises(error, msg=str(keywords)):
                buffer.send(**keywords)

    def test_the_same_process_attaches_as_well(self):
        buffer = self.host.acquire(100)
        other = gpupool.attach(bytearray(buffer.share()), client=self.client)
        self.assertEqual(buffer.query().holders, 2)
        with self.assertRaises(gpupool.SharedError):
            buffer.reuse()
        memoryview(other)[0] = 5
        self.assertEqual(memoryview(buffer)[0], 5)
        self.assertEqual((other.pool, other.nbytes), (buffer.pool, 100))
        other.close()
        buffer.reuse()

    def test_a_buffer_of_another_daemon_is_attached_there(self):
        with gpupool.Client("private", daemon_path=os.environ["GPUPOOLD"],
                            daemon_arguments=["--gpu", "sim", "--log-level", "error"]) as client:
            buffer = client.host_pool().acquire(4)
            memoryview(buffer)[:] = b"here"
            ours, theirs = multiprocessing.Pipe()
            end = self.start("spawn", add_one, theirs)
            ours.send(buffer)
            self.receive(ours)
            ours.send(None)
            end()
            self.assertEqual(bytes(buffer), b"ifsf")
            again = pickle.loads(pickle.dumps(buffer))
            self.assertEqual(bytes(again), b"ifsf")
            again.pool.client.close()
            self.assertTrue(again.closed)

    def test_a_closed_buffer_is_not_pickled_and_none_is_copied(self):
        buffer = self.host.acquire(100)
        for function in (copy.copy, copy.deepcopy):
            for thing in (buffer, buffer.view()):
                with self.assertRaises(TypeError):
                    function(thing)
        buffer.close()
        with self.assertRaises(gpupool.StaleError):
            pickle.dumps(buffer)

    @needs_numpy
    def test_an_array_of_numpy_is_pickled_by_its_contents(self):
        array = self.host.empty(4, "u1")
        array[:] = [1, 2, 3, 4]
        again = pickle.loads(pickle.dumps(array))
        self.assertEqual((again.tolist(), numpy.shares_memory(again, array)), ([1, 2, 3, 4], False))

    def test_a_read_only_attachment_is_read_only(self):
        daemon = scene.Daemon("[device]\nexport = vmm\n")
        try:
            with gpupool.Client(daemon.socket) as client:
                buffer = client.device_pool(0).acquire(100, zero=True)
                other = gpupool.attach(buffer.share(), read_only=True, client=client)
                self.assertTrue(other.read_only)
                with memoryview(other) as memory:
                    self.assertTrue(memory.readonly)
                with memoryview(other.view(dtype="int32")) as memory:
                    self.assertTrue(memory.readonly)
                with self.assertRaises(BufferError):
                    other.__dlpack__()
                capsule = other.__dlpack__(max_version=(1, 0))
                self.assertIn("dltensor_versioned", repr(capsule))
                del capsule, other, buffer
        finally:
            daemon.close()


def end_or_hold(buffer, connection):
    """An argument of a process that ends at once, or holds it until it is killed."""
    if connection is not None:
        connection.send_bytes(bytes(memoryview(buffer)[:4]))
        connection.poll(None)


PAUSE_S = 0.02


class ShortLives(scene.Scene):
    """Processes with a buffer as an argument, which end before they have it, with it, or never start. The lifetime of messages is
    ten minutes."""

    def setUp(self):
        _transfer._forget()
        self.addCleanup(_transfer._forget)

    def parcels(self):
        return len(self.daemon.ask("parcels")["parcels"])

    def message(self):
        buffer = self.host.acquire(100)
        memoryview(buffer)[:4] = b"sent"
        return buffer

    def expect_nothing_left(self):
        scene.wait_until(lambda: not self.parcels(), "the arguments are taken back")
        scene.wait_until(lambda: not _transfer._watch.children and not _transfer._watch.arguments, "nothing is kept of the processes")
        self.wait_until_nothing_is_leased()

    def test_an_argument_of_a_process_that_was_killed_is_taken_back(self):
        for method in ("spawn", "forkserver"):
            with self.subTest(method=method):
                context, buffer = multiprocessing.get_context(method), self.message()
                processes = [context.Process(target=end_or_hold, args=(buffer, None)) for _ in range(2)]
                for process in processes:
                    process.start()
                    process.kill()
                scene.wait_until(lambda: not self.parcels(), "the arguments are taken back")  # no process was waited for yet
                for process in processes:
                    process.join(scene.WAIT_S)
                del buffer
                self.expect_nothing_left()

    def test_the_argument_of_a_process_that_lives_stays(self):
        process = multiprocessing.get_context("spawn").Process(target=end_or_hold, args=(self.message(), None))
        with mock.patch.object(_transfer, "_CHILD_PAUSE_S", PAUSE_S):
            process.start()
            os.kill(process.pid, signal.SIGSTOP)
            scene.wait_until(lambda: all(parcel["sent_ns"] > 10 * PAUSE_S * 1e9 for parcel in self.daemon.ask("parcels")["parcels"]),
                             "it was looked at, or had its argument before it stopped")
            os.kill(process.pid, signal.SIGCONT)
            process.join(scene.WAIT_S)
        self.assertEqual(process.exitcode, 0)
        self.expect_nothing_left()

    def test_a_process_that_is_killed_with_its_argument_leaves_nothing(self):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=end_or_hold, args=(self.message(), theirs))
        process.start()
        self.assertTrue(ours.poll(scene.WAIT_S))
        self.assertEqual(ours.recv_bytes(), b"sent")
        process.kill()
        process.join(scene.WAIT_S)
        self.expect_nothing_left()

    def test_the_argument_of_a_process_that_does_not_start_is_taken_back(self):
        process = multiprocessing.get_context("spawn").Process(target=end_or_hold, args=(self.message(), lambda: None))
        with self.assertRaises((AttributeError, pickle.PicklingError)):
            process.start()
        self.assertEqual(self.parcels(), 1)
        del process
        gc.collect()
        self.expect_nothing_left()


class Lifetimes(scene.Scene):
    """Messages, where the ten minutes are LIFETIME_S."""

    start = Processes.start

    def setUp(self):
        _transfer._forget()
        self.addCleanup(_transfer._forget)
        self.addCleanup(setattr, _transfer, "LIFETIME_S", _transfer.LIFETIME_S)
        _transfer.LIFETIME_S = LIFETIME_S

    def tearDown(self):
        self.wait_until_nothing_is_leased()

    def parcels(self):
        return self.daemon.ask("parcels")["parcels"]

    def wait_until_it_is_old(self):
        """It is on its way for many times the lifetime, or the test fails."""
        def is_old():
            parcels = self.parcels()
            self.assertEqual(len(parcels), 1, "the message has ended")
            return parcels[0]["sent_ns"] > 5 * LIFETIME_S * 1e9
        scene.wait_until(is_old, "the message has waited")

    def message(self):
        buffer = self.host.acquire(100)
        memoryview(buffer)[:4] = b"sent"
        return buffer

    def test_a_message_waits_while_both_sides_live(self):
        (ours, theirs), (go, is_told) = multiprocessing.Pipe(), multiprocessing.Pipe()
        end = self.start("fork", receive_late, theirs, is_told)  # it has no session yet
        ours.send(self.message())
        self.wait_until_it_is_old()
        go.send_bytes(b"go")
        self.assertTrue(ours.poll(scene.WAIT_S))
        self.assertEqual(ours.recv_bytes(), b"sent")
        end()

    def test_a_message_to_a_process_that_has_ended_is_taken_back(self):
        (ours, theirs), (_, is_told) = multiprocessing.Pipe(), multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=receive_late, args=(theirs, is_told), daemon=True)
        process.start()
        ours.send(self.message())
        self.wait_until_it_is_old()
        process.kill()
        scene.wait_until(lambda: not self.parcels(), "the message is taken back")
        process.join(scene.WAIT_S)

    def test_a_message_to_no_process_is_taken_back(self):
        message = pickle.dumps(self.message())
        scene.wait_until(lambda: not self.parcels(), "the message is taken back")
        with self.assertRaises(gpupool.NoTokenError):
            pickle.loads(message)

    def test_a_message_of_a_child_waits_for_its_parent(self):
        ours, theirs = multiprocessing.Pipe()
        end = self.start("fork", send_and_wait, theirs)
        scene.wait_until(self.parcels, "the message is on its way")
        self.wait_until_it_is_old()
        buffer = ours.recv()
        self.assertEqual(bytes(memoryview(buffer)[:4]), b"sent")
        buffer.close()
        ours.send_bytes(b"end")
        end()

    def test_a_message_outlives_its_sender_by_the_lifetime(self):
        ours, theirs = multiprocessing.Pipe()
        end = self.start("fork", send_and_wait, theirs)
        scene.wait_until(self.parcels, "the message is on its way")
        self.wait_until_it_is_old()
        ours.send_bytes(b"end")
        end()
        scene.wait_until(lambda: not self.parcels(), "its time is up")
        with self.assertRaises(gpupool.NoTokenError):
            ours.recv()

    def test_what_a_long_life_sends_is_known_up_to_a_number(self):
        watch, count = _transfer._Watch(), _transfer._MESSAGES_MAX
        watch.is_started = True
        with mock.patch.object(_transfer, "_family", lambda: {1}), mock.patch.object(_transfer, "_is_alive", lambda _: True):
            for number in range(3 * count):
                watch.note(self.client, number)
                if number % 100 == 0:
                    self.assertEqual(watch.look(), [])
            self.assertEqual((watch.look(), watch.look()), ([], []))
        newest, known = ([token for _, token in group.messages] for group in watch.groups)
        self.assertEqual((newest, known[-1], len(known)), ([], 3 * count - 1, count))
        with mock.patch.object(_transfer, "_is_alive", lambda _: False):
            self.assertEqual([len(group.messages) for group in watch.look()], [0, count])
        self.assertEqual(len(watch.groups), 1)


if __name__ == "__main__":
    unittest.main()
