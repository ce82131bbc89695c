# SPDX-License-Identifier: Apache-2.0
"""Channels: frames from one process to others."""
import asyncio
import copy
import gc
import multiprocessing
import os
import pathlib
import pickle
import re
import signal
import threading
import unittest
import weakref

import gpupool
import gpupool.channels
import scene
from gpupool import channels, names
from gpupool.channels import Consumer, Producer
from scene import numpy

SIZE = 64 << 10
knows_read_only = numpy is not None and int(numpy.__version__.split(".")[0]) >= 2  # memory that DLPack says is read-only
SPAWN = multiprocessing.get_context("spawn")


FUTEX_WAITV = "449"  # the number of the system call in which a call of a channel waits, since Linux 5.16
has_waitv = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) >= (5, 16)


def system_call_of(thread):
    """The number of the system call that a thread is in, as text."""
    return pathlib.Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0]


def send(producer, byte, size=SIZE, **options):
    """Sends a frame of bytes, with the byte as its metadata."""
    with producer.loan(timeout=scene.WAIT_S) as frame:
        with memoryview(frame) as memory:
            memory[:size] = bytes([byte]) * size
        frame.send(size, bytes([byte]), **options)


def byte_of(frame):
    """The byte that a frame was made of, all of which is looked at."""
    with memoryview(frame) as memory:
        if bytes(memory) != bytes([memory[0]]) * len(memory) or frame.metadata != bytes([memory[0]]):
            raise AssertionError(f"contents differ: {bytes(memory[:4])}, metadata {frame.metadata}")
        return memory[0]


# --- other processes ---


def produce(connection, name, first, count, dies):
    """Sends frames, and leaves or dies when it is told to."""
    with Producer(name, timeout=scene.WAIT_S) as producer:
        for byte in range(first, first + count):
            send(producer, byte)
        connection.send("sent")
        connection.recv()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


def produce_behind_a_gate(connection, name, count):
    """Sends frames whose work on the GPU is not done when it dies."""
    gate = scene.Gate(gpupool.default_client())
    producer = Producer(name, timeout=scene.WAIT_S)
    for _ in range(count):
        producer.loan(gate.stream).send(1)
    connection.send("sent")
    connection.recv()
    os.kill(os.getpid(), signal.SIGKILL)


def consume(connection, name, n_held, dies):
    """Receives frames, holds the first ones, and releases the others. Tells their bytes."""
    held = []
    with Consumer(name, timeout=scene.WAIT_S) as consumer:
        connection.send("joined")
        for frame in consumer:
            connection.send((frame.sequence, byte_of(frame), frame.again))
            if len(held) < n_held:
                held.append(frame)
            elif dies:
                os.kill(os.getpid(), signal.SIGKILL)
    connection.send("ended")


def scale(connection, name):
    """Doubles arrays of one channel into another one."""
    with Consumer(name, timeout=scene.WAIT_S) as consumer, Producer(name + "/doubled", timeout=scene.WAIT_S) as producer:
        for frame in consumer:
            with producer.loan() as doubled:
                numpy.multiply(frame.array(dtype="float32"), 2, out=doubled.array(dtype="float32")[:frame.nbytes // 4])
                doubled.send(frame.nbytes)
    connection.send("done")


class Started:
    """Another process, and what it tells."""

    def __init__(self, test, function, *arguments):
        self.test, (self.connection, theirs) = test, SPAWN.Pipe()
        self.process = SPAWN.Process(target=function, args=(theirs, *arguments))
        self.process.start()
        theirs.close()
        test.addCleanup(self.process.kill)

    def tells(self):
        if not self.connection.poll(scene.WAIT_S):
            raise AssertionError("the other process tells nothing")
        return self.connection.recv()

    def ends(self, code=0):
        self.process.join(scene.WAIT_S)
        self.test.assertEqual(self.process.exitcode, code)


class Place(scene.Scene):
    """Channels of the default client, which has the names of no other test."""

    numbers = iter(range(1 << 30))

    def make(self, size=SIZE, **options):
        """Returns the name of a new channel."""
        name = f"{type(self).__name__}/{next(self.numbers)}"
        channels.make(name, size, metadata_bytes=64, **options)
        return name

    def pair(self, **options):
        """A Producer and a Consumer of a new channel."""
        name = self.make(**options)
        producer, consumer = Producer(name, timeout=scene.WAIT_S), Consumer(name, timeout=scene.WAIT_S)
        self.addCleanup(producer.close)
        self.addCleanup(consumer.close)
        return producer, consumer


class Processes(Place):
    def test_frames_reach_another_process_in_order(self):
        name = self.make(slots=3)
        other = Started(self, consume, name, 0, False)
        self.assertEqual(other.tells(), "joined")
        with Producer(name) as producer:
            for byte in range(20):
                send(producer, byte)
        self.assertEqual([other.tells() for _ in range(20)], [(byte + 1, byte, False) for byte in range(20)])
        self.assertEqual(other.tells(), "ended")
        other.ends()

    @scene.needs_numpy
    def test_arrays_go_to_another_process_and_back(self):
        name = self.make()
        channels.make(name + "/doubled", SIZE)
        other = Started(self, scale, name)
        with Producer(name) as producer, Consumer(name + "/doubled") as consumer:
            for number in range(1, 20):
                with producer.loan() as frame:
                    frame.array((number, 3), "float32")[:] = number
                    frame.send(number * 12)
                with consumer.receive(timeout=scene.WAIT_S) as frame:
                    array = frame.array((-1, 3), numpy.float32)
                    self.assertEqual((array.shape, array.min(), array.max()), ((number, 3), 2 * number, 2 * number))
                    del array
        self.assertEqual(other.tells(), "done")
        other.ends()

    def test_frames_of_a_killed_consumer_come_again(self):
        name = self.make()
        with Producer(name) as producer:
            other = Started(self, consume, name, 2, True)
            self.assertEqual(other.tells(), "joined")
            for byte in range(5):
                send(producer, byte)
            self.assertEqual([other.tells()[1] for _ in range(3)], [0, 1, 2])
            other.ends(-signal.SIGKILL)
            successor = Started(self, consume, name, 0, False)
            self.assertEqual(successor.tells(), "joined")
            self.assertEqual([successor.tells() for _ in range(5)], [(byte + 1, byte, byte < 3) for byte in range(5)])
        self.assertEqual(successor.tells(), "ended")
        successor.ends()

    def test_a_killed_producer_is_told_of_and_has_a_successor(self):
        name = self.make()
        with Consumer(name) as consumer:
            first = Started(self, produce, name, 0, 3, True)
            self.assertEqual(first.tells(), "sent")
            first.connection.send("die")
            first.ends(-signal.SIGKILL)
            self.assertEqual([byte_of(consumer.receive(timeout=scene.WAIT_S)) for _ in range(3)], [0, 1, 2])
            with self.assertRaisesRegex(gpupool.VacantError, "the producer has died"):
                consumer.receive(timeout=scene.WAIT_S)
            with self.assertRaises(gpupool.VacantError):
                next(consumer)
            scene.wait_until(lambda: consumer.look().places[0].state == "vacant", "the place is vacant")
            second = Started(self, produce, name, 3, 2, False)
            self.assertEqual(second.tells(), "sent")
            second.connection.send("leave")
            self.assertEqual([(frame.sequence, byte_of(frame)) for frame in consumer], [(4, 3), (5, 4)])
            with self.assertRaisesRegex(gpupool.EndedError, "the producer has left"):
                consumer.receive()
            second.ends()

    def test_a_consumer_waits_for_the_next_producer(self):
        name = self.make()
        found = []
        with Consumer(name, wait_for_producer=True) as consumer:
            first = Started(self, produce, name, 0, 2, True)
            self.assertEqual(first.tells(), "sent")
            first.connection.send("die")
            first.ends(-signal.SIGKILL)
            receiver = threading.Thread(target=lambda: found.extend(byte_of(frame) for frame in consumer))
            receiver.start()
            scene.wait_until(lambda: found == [0, 1], "all is received")
            with Producer(name, timeout=scene.WAIT_S) as producer:
                send(producer, 9)
                scene.wait_until(lambda: found == [0, 1, 9], "the next producer's frame is received")
            receiver.join(scene.WAIT_S)
            self.assertFalse(receiver.is_alive())

    def test_each_consumer_has_all_frames(self):
        name = self.make(consumers=3)
        others = [Started(self, consume, name, 0, False) for _ in range(3)]
        for other in others:
            self.assertEqual(other.tells(), "joined")
        with Producer(name) as producer:
            for byte in range(10):
                send(producer, byte)
            self.assertEqual({place.state for place in producer.look().places}, {"taken"})
            self.assertEqual(producer.look()[2:], (0, range(0)))
        for other in others:
            self.assertEqual([other.tells()[1] for _ in range(10)], list(range(10)))
            self.assertEqual(other.tells(), "ended")
            other.ends()


class Frames(Place):
    """One process has both places."""

    def test_a_frame_tells_what_it_is(self):
        producer, consumer = self.pair(slots=4)
        self.assertEqual((producer.slot_bytes, producer.slots, producer.consumers, producer.metadata_bytes, producer.policy),
                         (SIZE, 4, 1, 64, "wait"))
        self.assertEqual((producer.place, consumer.place, producer.pool, producer.name), (0, 1, gpupool.host_pool(), consumer.name))
        frame = producer.loan()
        self.assertEqual((frame.nbytes, frame.capacity, frame.kind, frame.device, frame.stream, frame.closed, frame.read_only),
                         (SIZE, SIZE, "host", None, gpupool.NO_STREAM, False, False))
        self.assertIs(frame.channel, producer)
        frame.send(0)
        self.assertTrue(frame.closed)
        with self.assertRaisesRegex(gpupool.StaleError, "was sent"):
            memoryview(frame)
        send(producer, 5, 100)
        with consumer.receive(timeout=0) as empty:
            self.assertEqual((empty.nbytes, empty.metadata, bytes(empty), empty.sequence), (0, b"", b"", 1))
        with consumer.receive(timeout=0) as frame:
            self.assertEqual((frame.nbytes, frame.read_only, frame.missed, frame.again, frame.sequence), (100, True, 0, False, 2))
            self.assertEqual(byte_of(frame), 5)
            with self.assertRaises(TypeError):
                memoryview(frame)[0] = 1
            with self.assertRaises(TypeError):
                frame.send()
        self.assertEqual(frame.metadata, b"\5")  # it was asked for
        frame.release()
        with self.assertRaisesRegex(gpupool.StaleError, "was released"):
            frame.view()
        for timeout in 0, 0.3:
            with self.assertRaisesRegex(gpupool.TimedOutError, f"{consumer.name}.*no frame came in the time"):
                consumer.receive(timeout=timeout)

    def test_the_policies(self):
        producer, consumer = self.pair(slots=2, policy="fail")
        send(producer, 1)
        send(producer, 2)
        with self.assertRaisesRegex(gpupool.ExhaustedError, "has not released the oldest frame"):
            producer.loan()
        producer, consumer = self.pair(slots=2, policy="drop_oldest")
        for byte in range(1, 6):
            send(producer, byte)
        frame = consumer.receive()
        self.assertEqual((byte_of(frame), frame.missed), (4, 3))
        producer, consumer = self.pair(slots=2)
        send(producer, 1)
        send(producer, 2)
        for timeout in 0, 0.3:
            with self.assertRaises(gpupool.ExhaustedError):
                producer.loan(timeout=timeout)
        frame = consumer.receive()
        releaser = threading.Timer(0.1, frame.release)
        releaser.start()
        send(producer, 3)
        releaser.join()
        self.assertEqual([byte_of(consumer.receive()) for _ in range(2)], [2, 3])

    def test_exports_keep_a_frame(self):
        producer, consumer = self.pair(slots=2)
        frame = producer.loan()
        view = memoryview(frame)
        for refuse in frame.send, frame.release, producer.close:
            with self.assertRaisesRegex(BufferError, "1 export"):
                refuse()
        view[:4] = b"good"
        view.release()
        frame.send(4)
        frame = consumer.receive()
        view = memoryview(frame)
        for refuse in frame.release, consumer.close:
            with self.assertRaises(BufferError):
                refuse()
        del frame  # the view keeps it
        send(producer, 1)
        with self.assertRaises(gpupool.ExhaustedError):
            producer.loan(timeout=0)
        self.assertEqual(view, b"good")
        view.release()
        send(producer, 2)

    def test_a_frame_whose_with_statement_has_ended_is_held_by_its_exports(self):
        producer, consumer = self.pair(slots=2)
        with producer.loan() as frame:
            view = memoryview(frame)
        self.assertTrue(frame.closed)
        with self.assertRaises(gpupool.StaleError):
            frame.view()
        with self.assertRaises(gpupool.StaleError):
            frame.send()
        send(producer, 1)
        with self.assertRaises(gpupool.ExhaustedError):
            producer.loan(timeout=0)
        view.release()
        send(producer, 2)
        with consumer.receive() as frame:
            view = memoryview(frame)[2:4]
        consumer.receive().release()
        send(producer, 3)
        with self.assertRaises(gpupool.ExhaustedError):
            producer.loan(timeout=0)
        with self.assertRaises(BufferError):
            consumer.close()
        self.assertEqual(view, b"\1\1")
        del view
        send(producer, 4)

    @scene.needs_numpy
    def test_arrays_of_numpy(self):
        producer, consumer = self.pair(slots=2)
        frame = producer.loan()
        array = frame.array((2, -1), "float64")
        self.assertEqual((array.shape, array.dtype, array.flags.writeable), ((2, SIZE // 16), numpy.float64, True))
        self.assertEqual(array.ctypes.data, frame.ptr)
        array[:] = 7
        with self.assertRaises(BufferError):
            frame.send()
        del array
        self.assertEqual((frame.array().dtype, frame.array(3).shape, frame.array((), "uint16").shape), (numpy.uint8, (3,), ()))
        record = numpy.dtype([("a", "<i4"), ("b", "<f8")])
        self.assertEqual(frame.array(5, record)["b"].shape, (5,))
        for error, shape, dtype in ((ValueError, SIZE + 1, "uint8"), (ValueError, -2, None), (ValueError, (-1, -1), None),
                                    (TypeError, None, object), (TypeError, "x", None), (ValueError, (SIZE,), "float32")):
            with self.assertRaises(error):
                frame.array(shape, dtype)
        frame.send()
        array = consumer.receive().array((2, -1), "float64")
        self.assertFalse(array.flags.writeable)
        send(producer, 1)
        with self.assertRaises(gpupool.ExhaustedError):
            producer.loan(timeout=0)
        part = array[1, ::7]
        del array
        self.assertEqual(set(part.tolist()), {7.0})
        del part
        with consumer.receive() as frame:
            self.assertEqual(numpy.asarray(frame.view(5, "int8", 2)).tolist(), [1] * 5)
            self.assertEqual(numpy.asarray(frame)[9], 1)
            self.assertEqual(numpy.frombuffer(frame, "uint16")[0], 0x101)

    def test_a_frame_that_dies_goes_back(self):
        producer, consumer = self.pair(slots=2)
        for _ in range(10):
            producer.loan()
        send(producer, 3)
        send(producer, 4)
        for byte in 3, 4:
            self.assertEqual(byte_of(consumer.receive(timeout=0)), byte)
        send(producer, 5)
        for frame in consumer:
            self.assertEqual(byte_of(frame), 5)
            producer.close()

    def test_a_cycle_of_frames_and_places_is_collected(self):
        name = self.make()
        producer, consumer = Producer(name), Consumer(name)
        send(producer, 1)
        consumer.last = consumer.receive()
        producer.own = producer.loan(), [producer]
        ends = weakref.ref(producer), weakref.ref(consumer)
        del producer, consumer
        gc.collect()
        self.assertEqual([end() for end in ends], [None, None])
        with Producer(name, timeout=0):
            pass

    def test_places_are_left(self):
        name = self.make(keep=True)
        with Producer(name) as producer:
            with self.assertRaisesRegex(gpupool.NoNameError, name):
                Producer(name, timeout=0)
            held = producer.loan()
        self.assertTrue(producer.closed and held.closed)
        producer.close()
        for use in producer.loan, producer.look, producer.fileno, producer.__enter__, held.send:
            with self.assertRaises(gpupool.StaleError):
                use()
        Producer(name, timeout=0).close()
        consumer = Consumer(name, 1)
        with self.assertRaises(gpupool.EndedError):
            consumer.receive()
        self.assertEqual(list(consumer), [])
        consumer.close()
        with self.assertRaisesRegex(gpupool.InvalidError, "no place 2"):
            Consumer(name, 2)
        names.unpublish(name)
        with self.assertRaises(gpupool.NoNameError):
            Producer(name, timeout=0)

    def test_an_error_leaves_places_and_frames_whatever_its_traceback_keeps(self):
        name = self.make(slots=2)
        with self.assertRaises(ZeroDivisionError):
            with Producer(name) as producer, producer.loan() as frame:
                view = memoryview(frame)
                view[0] = 1 // 0
        self.assertTrue(frame.closed)
        self.assertFalse(producer.closed)
        view.release()
        producer.close()

    def test_a_client_that_closes_takes_its_places_along(self):
        name = self.make()
        client = gpupool.Client()
        producer, consumer = Producer(name, client=client), Consumer(name)
        send(producer, 1)
        frame = producer.loan()
        view = memoryview(frame)
        with self.assertRaises(BufferError):
            client.close()
        view.release()
        client.close()
        self.assertTrue(producer.closed and frame.closed)
        for use in producer.loan, frame.send, lambda: memoryview(frame), producer.look:
            with self.assertRaises(gpupool.StaleError):
                use()
        del frame
        producer.close()
        with consumer:
            self.assertEqual(byte_of(consumer.receive()), 1)

    def test_wrong_arguments_are_refused(self):
        pool = gpupool.host_pool()
        for error, arguments, options in (
                (gpupool.InvalidError, ("bad", 0), {}), (ValueError, ("bad", -1), {}), (gpupool.InvalidError, ("bad", 1), {"slots": 1}),
                (ValueError, ("bad", 1), {"slots": -1}), (gpupool.InvalidError, ("bad", 1), {"consumers": 17}),
                (gpupool.InvalidError, ("bad", 1), {"metadata_bytes": 1025}), (ValueError, ("bad", 1), {"policy": "drop"}),
                (TypeError, ("bad", "1"), {}), (TypeError, (1, 1), {}), (TypeError, ("bad", 1), {"pool": 1}),
                (gpupool.InvalidError, ("", 1), {}), (MemoryError, ("bad", 1 << 40), {}),
                (ValueError, ("bad", 1), {"pool": pool, "client": self.client})):
            with self.assertRaises(error, msg=f"{arguments} {options}"):
                channels.make(*arguments, **options)
        with self.assertRaises(gpupool.NoNameError):
            Producer("bad", timeout=0)
        for error, arguments, options in ((ValueError, ("bad", 0), {}), (TypeError, ("bad", "1"), {}), (TypeError, (), {}), (TypeError, (1,), {}),
                                          (ValueError, ("bad",), {"timeout": -1}), (TypeError, ("bad",), {"client": 1})):
            with self.assertRaises(error, msg=f"{arguments} {options}"):
                Consumer(*arguments, **options)
        name = self.make()
        with self.assertRaises(gpupool.InvalidError):
            channels.make(name, SIZE)
        with Producer(name) as producer:
            for error, options in ((gpupool.InvalidError, {"size": SIZE + 1}), (gpupool.InvalidError, {"metadata": bytes(65)}),
                                   (ValueError, {"size": -1}), (TypeError, {"metadata": "text"}), (TypeError, {"stream": "s"})):
                with producer.loan() as frame, self.assertRaises(error, msg=str(options)):
                    frame.send(**options)
            frame = producer.loan()
            for error, use in ((TypeError, lambda: producer.loan(frame)), (ValueError, lambda: producer.loan(timeout=-1)),
                               (TypeError, lambda: pickle.dumps(frame)), (TypeError, lambda: pickle.dumps(producer)),
                               (TypeError, lambda: copy.copy(frame)), (TypeError, lambda: copy.deepcopy(frame)),
                               (TypeError, lambda: pickle.dumps(frame.view())), (TypeError, type(frame)),
                               (gpupool.StaleError, lambda: frame.metadata)):
                with self.assertRaises(error):
                    use()

    def test_a_forked_child_is_told(self):
        producer, consumer = self.pair()
        send(producer, 7)
        frame = consumer.receive()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for use in producer.loan, consumer.receive, frame.view, frame.release, producer.close, lambda: next(consumer):
                    try:
                        use()
                    except gpupool.ForkedError:
                        continue
                    break
                else:
                    del frame, producer, consumer
                    status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual(byte_of(frame), 7)
        frame.release()
        send(producer, 8)
        self.assertEqual(byte_of(consumer.receive()), 8)


class Devices(Place):
    def test_frames_of_device_memory(self):
        producer, consumer = self.pair(pool=gpupool.device_pool(0))
        stream = gpupool.Stream(0)
        with producer.loan() as frame:
            self.assertEqual((frame.kind, frame.device, frame.stream), ("device", 0, 1))
        with producer.loan(stream) as frame:
            self.assertIs(frame.stream, stream)
            memoryview(frame)[:] = bytes([4]) * SIZE
            with self.assertRaises(BufferError):
                stream.close()
            frame.send(SIZE, b"\4")
        with consumer.receive(stream) as frame:
            self.assertEqual(byte_of(frame), 4)
            if knows_read_only:
                self.assertEqual(numpy.from_dlpack(frame.view((2, 3), "int16"))[1, 2], 0x404)
            with self.assertRaises(AttributeError):
                frame.__cuda_array_interface__
        stream.close()

    def test_a_frame_is_received_when_its_streams_work_is_done(self):
        for pool in gpupool.device_pool(0), gpupool.host_pool():
            producer, consumer = self.pair(pool=pool)
            gate, found = scene.Gate(gpupool.default_client()), []
            producer.loan(gate.stream).send(1)

            def receive():
                with consumer.receive(gpupool.NO_STREAM) as frame:
                    found.append((gate.is_open, frame.sequence))

            receiver = threading.Thread(target=receive)
            receiver.start()
            scene.wait_until(lambda: consumer.look().places[1].received == 1, "the frame is received")
            gate.open()
            receiver.join(scene.WAIT_S)
            self.assertEqual(found, [(True, 1)])

    def test_frames_are_lost_with_the_work_of_a_dead_producer(self):
        for pool in gpupool.device_pool(0), gpupool.host_pool():
            name, stream = self.make(pool=pool), gpupool.Stream(0)
            with Consumer(name) as consumer:
                other = Started(self, produce_behind_a_gate, name, 3)
                self.assertEqual(other.tells(), "sent")
                with consumer.receive(stream, timeout=scene.WAIT_S) as frame:
                    self.assertEqual(frame.sequence, 1)
                self.assertEqual((consumer.look().lost, consumer.look().last_lost), (0, range(0)))
                other.connection.send("die")
                other.ends(-signal.SIGKILL)
                scene.wait_until(lambda: consumer.look().lost == 1, "the frame that was received is lost")
                for n_lost in 1, 2, 3:
                    with self.assertRaisesRegex(gpupool.LostError, f"frames 1 to {n_lost} was done"):
                        consumer.receive(stream, timeout=scene.WAIT_S)
                    self.assertEqual((consumer.look().lost, consumer.look().last_lost), (n_lost, range(1, n_lost + 1)))
                with self.assertRaises(gpupool.VacantError):
                    consumer.receive(stream)
                with Producer(name, timeout=scene.WAIT_S) as producer:
                    producer.loan().send(1)
                    self.assertEqual(consumer.receive(stream).sequence, 4)

    def test_a_frame_whose_work_does_not_end_in_time_is_received_later(self):
        with gpupool.Client(alloc_timeout=0.1) as client:
            name = self.make()
            gate = scene.Gate(gpupool.default_client())
            with Producer(name) as producer, Consumer(name, client=client) as consumer:
                producer.loan(gate.stream).send(1)
                for timeout in None, 0, 1:
                    with self.assertRaisesRegex(gpupool.TimedOutError, "frame 1 is received by the next call"):
                        consumer.receive(timeout=timeout)
                producer.loan().send(2)
                gate.open()
                self.assertEqual([consumer.receive().sequence for _ in range(2)], [1, 2])

    def test_a_channel_without_a_name_goes_on(self):
        producer, consumer = self.pair()
        names.unpublish(producer.name)
        send(producer, 1)
        self.assertEqual(byte_of(consumer.receive()), 1)
        with self.assertRaises(gpupool.NoNameError):
            Consumer(producer.name, timeout=0)

    def test_a_slot_is_loaned_behind_all_streams_of_its_consumer(self):
        for pool in gpupool.device_pool(0), gpupool.host_pool():
            for has_stream in False, True:
                producer, consumer = self.pair(pool=pool, slots=2)
                gates, stream = [scene.Gate(gpupool.default_client()) for _ in range(2)], gpupool.Stream(0)
                producer.loan(gpupool.NO_STREAM).send(1)
                held = producer.loan(gpupool.NO_STREAM)
                frame = consumer.receive(stream if has_stream else gpupool.NO_STREAM)
                for gate in gates:
                    frame.record_stream(gate.stream)
                    frame.record_stream(gate.stream)
                del frame
                gates[0].open()
                timer = gates[1].open_late()
                producer.loan(gpupool.NO_STREAM, timeout=scene.WAIT_S).release()
                self.assertTrue(gates[1].is_open)
                timer.join()
                held.release()

    def test_a_captured_stream_sends_nothing(self):
        producer, consumer = self.pair(pool=gpupool.device_pool(0))
        stream = gpupool.Stream(0)
        frame = producer.loan(stream)
        with scene.capture(stream), self.assertRaises(gpupool.CapturingError):
            frame.send(1)
        self.assertFalse(frame.closed)
        frame.send(1)
        self.assertEqual(consumer.receive().nbytes, 1)


class Waits(Place):
    def test_a_signal_ends_each_wait(self):
        def interrupt(number, frame):
            raise InterruptedError

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, interrupt))
        producer, consumer = self.pair(slots=2)
        send(producer, 1)
        held = [consumer.receive(), producer.loan()]
        for wait in (lambda: Producer("never"), lambda: Consumer(consumer.name), producer.loan, consumer.receive, lambda: next(consumer)):
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
            with self.assertRaises(InterruptedError):
                wait()
        held.clear()
        send(producer, 2)
        self.assertEqual(byte_of(consumer.receive()), 2)

    def test_a_signal_whose_handler_raises_nothing_lets_a_wait_go_on(self):
        handled = []
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, lambda *_: handled.append(1)))
        producer, consumer = self.pair()
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        sender = threading.Thread(target=lambda: (scene.wait_until(lambda: handled, "the handler runs"), send(producer, 1)))
        sender.start()
        self.assertEqual(byte_of(consumer.receive()), 1)
        sender.join(scene.WAIT_S)

    @unittest.skipUnless(has_waitv, "the kernel has no futex_waitv")
    def test_a_place_is_not_closed_during_a_call(self):
        producer, consumer = self.pair()
        found = []
        receiver = threading.Thread(target=lambda: found.append(byte_of(consumer.receive())))
        receiver.start()
        scene.wait_until(lambda: system_call_of(receiver) == FUTEX_WAITV, "the thread waits for a frame")
        with self.assertRaisesRegex(BufferError, "under way"):
            consumer.close()
        send(producer, 3)
        receiver.join(scene.WAIT_S)
        self.assertEqual(found, [3])

    def test_threads_share_a_place(self):
        producer, consumer = self.pair(slots=4)
        found, failed, lock = [], [], threading.Lock()

        def work(do):
            try:
                do()
            except BaseException as error:
                failed.append(error)

        def receive():
            for frame in consumer:
                with lock:
                    found.append((frame.sequence, byte_of(frame)))

        def produce(first):
            for byte in range(first, first + 50):
                send(producer, byte)

        receivers = [threading.Thread(target=work, args=(receive,)) for _ in range(3)]
        producers = [threading.Thread(target=work, args=(lambda first=first: produce(first),)) for first in (0, 50, 100)]
        for thread in receivers + producers:
            thread.start()
        for thread in producers:
            thread.join(scene.WAIT_S)
        producer.close()
        for thread in receivers:
            thread.join(scene.WAIT_S)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failed, [])
        self.assertEqual(sorted(byte for _, byte in found), list(range(150)))
        self.assertEqual(sorted(sequence for sequence, _ in found), list(range(1, 151)))


class Asyncio(Place):
    def run_tasks(self, main):
        asyncio.run(asyncio.wait_for(main, scene.WAIT_S))

    def test_frames_are_awaited(self):
        producer, consumer = self.pair(slots=2)
        found = []

        async def produce():
            for byte in range(50):
                with await producer.get() as frame:
                    memoryview(frame)[:] = bytes([byte]) * SIZE
                    frame.send(metadata=bytes([byte]))
                if byte % 10 == 0:
                    await asyncio.sleep(0.01)
            producer.close()

        async def consume():
            async for frame in consumer:
                found.append(byte_of(frame))

        async def main():
            await asyncio.gather(produce(), consume())

        self.run_tasks(main())
        self.assertEqual(found, list(range(50)))

    def test_several_tasks_wait_and_one_is_cancelled(self):
        producer, consumer = self.pair()

        async def main():
            tasks = [asyncio.create_task(consumer.get()) for _ in range(3)]
            await asyncio.sleep(0.05)
            with self.assertRaisesRegex(BufferError, "a task waits"):
                consumer.close()
            tasks[0].cancel()
            send(producer, 1)
            send(producer, 2)
            frames = await asyncio.gather(*tasks[1:])
            self.assertEqual([byte_of(frame) for frame in frames], [1, 2])
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.get(), 0.05)
            send(producer, 3)
            self.assertEqual(byte_of(await consumer.get()), 3)

        self.run_tasks(main())

    def test_the_end_of_a_producer_wakes_tasks(self):
        for dies in False, True:
            name = self.make()
            other = Started(self, produce, name, 0, 2, dies)
            self.assertEqual(other.tells(), "sent")

            async def main():
                with Consumer(name) as consumer:
                    found = []
                    with self.assertRaises(gpupool.VacantError if dies else gpupool.EndedError):
                        while True:
                            found.append(byte_of(await consumer.get()))
                            if len(found) == 2:
                                asyncio.get_running_loop().call_later(0.05, other.connection.send, "end")
                    self.assertEqual(found, [0, 1])

            self.run_tasks(main())
            other.ends(-signal.SIGKILL if dies else 0)

    def test_tasks_wait_for_the_next_producer(self):
        name = self.make()

        async def main():
            with Consumer(name, wait_for_producer=True) as consumer:
                found = []
                for dies in True, False:
                    other = Started(self, produce, name, 2 * dies, 2, dies)
                    self.assertEqual(other.tells(), "sent")
                    other.connection.send("end")
                    for _ in range(2):
                        found.append(byte_of(await consumer.get()))
                    other.ends(-signal.SIGKILL if dies else 0)
                with self.assertRaises(gpupool.EndedError):
                    await consumer.get()
                self.assertEqual(found, [2, 3, 0, 1])

        self.run_tasks(main())


if __name__ == "__main__":
    unittest.main()
