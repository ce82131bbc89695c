# SPDX-License-Identifier: Apache-2.0
"""Names: Buffers that other processes find by a text."""
import gc
import multiprocessing
import os
import signal
import threading
import time
import unittest

import gpupool
import scene
from gpupool import names

SIZE = 1 << 20


def publish(name, byte, pool=None, **options):
    """Publishes a buffer of bytes, and gives it back."""
    with (pool or gpupool.host_pool()).acquire(SIZE) as buffer:
        with memoryview(buffer) as memory:
            memory[:] = bytes([byte]) * SIZE
        return names.publish_buffers(name, [buffer], **options)


def byte_of(opened):
    with memoryview(opened.buffers[0]) as memory:
        first, last = memory[0], memory[SIZE - 1]
    if first != last:
        raise AssertionError(f"{first} and {last}")
    return first


def read_and_report(connection, name):
    """In another process: opens the name, and again once it is replaced, and tells the bytes."""
    with names.open_buffers(name, timeout=scene.WAIT_S) as opened:
        connection.send((byte_of(opened), opened.directory))
        with names.open_buffers(name, generation=opened.generation + 1, timeout=scene.WAIT_S) as newer:
            connection.send((byte_of(newer), byte_of(opened)))


def publish_and_die(connection):
    publish("left", 5, keep=True)
    publish("gone", 6)
    connection.send("done")
    os.kill(os.getpid(), signal.SIGKILL)


def receive_and_report(connection, buffer):
    with memoryview(buffer) as memory:
        connection.send(memory[0])


def build(connection, name, byte, seconds):
    """In another process: builds a name, unless another one did."""
    opened = names.open_or_build(name, timeout=scene.WAIT_S)
    if opened is None:
        time.sleep(seconds)
        publish(name, byte, keep=True)
        connection.send(("built", byte))
    else:
        connection.send(("opened", byte_of(opened)))


class Names(scene.Scene):
    def test_another_process_opens_what_is_published(self):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=read_and_report, args=(theirs, "pair"))
        process.start()
        self.addCleanup(process.kill)
        first = publish("pair", 3, directory=b"where it lies")
        self.assertTrue(ours.poll(scene.WAIT_S))
        self.assertEqual(ours.recv(), (3, b"where it lies"))
        self.assertGreater(publish("pair", 4), first)
        self.assertTrue(ours.poll(scene.WAIT_S))
        self.assertEqual(ours.recv(), (4, 3))
        process.join(scene.WAIT_S)
        self.assertEqual(process.exitcode, 0)
        names.unpublish("pair")

    def test_what_is_kept_outlives_its_publisher(self):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=publish_and_die, args=(theirs,))
        process.start()
        process.join(scene.WAIT_S)
        self.assertEqual(process.exitcode, -signal.SIGKILL)
        scene.wait_until(lambda: {one.name for one in names.names()} == {"left"}, "the other name is gone")
        with names.open_buffers("left") as opened:
            self.assertEqual((byte_of(opened), opened.keep, opened.live), (5, True, False))
            names.unpublish("left", generation=opened.generation)
            self.assertEqual(byte_of(opened), 5)
        self.assertEqual(names.names(), [])

    def test_one_process_builds_and_the_others_open(self):
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(4)]
        processes = [context.Process(target=build, args=(theirs, "built", 10 + number, 0.2)) for number, (_, theirs) in enumerate(pipes)]
        for process in processes:
            process.start()
            self.addCleanup(process.kill)
        answers = []
        for ours, _ in pipes:
            self.assertTrue(ours.poll(scene.WAIT_S))
            answers.append(ours.recv())
        built = [byte for verb, byte in answers if verb == "built"]
        self.assertEqual(len(built), 1)
        self.assertEqual({byte for _, byte in answers}, set(built))
        for process in processes:
            process.join(scene.WAIT_S)
        names.unpublish("built")

    def test_device_memory_and_several_buffers(self):
        pool, stream = gpupool.device_pool(0), gpupool.Stream(0)
        buffers = [pool.acquire(SIZE, stream=stream), gpupool.host_pool().acquire(SIZE), pool.acquire(3 * SIZE, stream=stream)]
        names.publish_buffers("several", tuple(buffers), stream=stream)
        with names.open_buffers("several", stream=stream) as opened:
            self.assertEqual([buffer.nbytes for buffer in opened.buffers], [SIZE, SIZE, 3 * SIZE])
            self.assertEqual([buffer.pool.kind for buffer in opened.buffers], ["device", "host", "device"])
        del buffers
        names.unpublish("several")

    def test_an_opened_buffer_is_sent_to_a_process(self):
        context = multiprocessing.get_context("spawn")
        publish("sent", 7)
        publish("sent on", 8, gpupool.device_pool(0))
        for name, byte in (("sent", 7), ("sent on", 8)):
            ours, theirs = context.Pipe()
            with names.open_buffers(name) as opened:
                process = context.Process(target=receive_and_report, args=(theirs, opened.buffers[0]))
                process.start()
                self.addCleanup(process.kill)
                self.assertTrue(ours.poll(scene.WAIT_S))
                self.assertEqual(ours.recv(), byte)
                process.join(scene.WAIT_S)
            names.unpublish(name)

    def test_live_contents_are_seen(self):
        with gpupool.host_pool().acquire(SIZE) as buffer:
            memoryview(buffer)[0] = 1
            names.publish_buffers("live", [buffer], live=True)
            with names.open_buffers("live", write=True) as opened, names.open_buffers("live") as other:
                memoryview(opened.buffers[0])[0] = 9
                self.assertEqual(memoryview(other.buffers[0])[0], 9)
                with self.assertRaises(TypeError):
                    memoryview(other.buffers[0])[0] = 8
                gc.collect()
        names.unpublish("live")

    def test_a_name_is_watched(self):
        found = []
        watcher = threading.Thread(target=lambda: found.append(names.watch("watched", timeout=scene.WAIT_S)))
        watcher.start()
        generation = publish("watched", 1)
        watcher.join(scene.WAIT_S)
        self.assertEqual(found, [generation])
        with self.assertRaises(gpupool.NoNameError):
            names.watch("watched", generation, timeout=0)
        names.unpublish("watched")
        self.assertEqual(names.watch("watched", generation, timeout=0), 0)

    def test_a_wait_is_broken_off_by_a_signal(self):
        def interrupt(number, frame):
            raise InterruptedError

        before = signal.signal(signal.SIGUSR1, interrupt)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        for wait in (lambda: names.open_buffers("never", timeout=None), lambda: names.watch("never")):
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
            with self.assertRaises(InterruptedError):
                wait()
            self.assertEqual(names.names(), [])

    def test_wrong_arguments_are_refused(self):
        pool = gpupool.host_pool()
        with pool.acquire(SIZE) as buffer:
            for bad in ([], [buffer] * 2, [pool.acquire(8) for _ in range(65)]):
                with self.assertRaises(ValueError):
                    names.publish_buffers("bad", bad)
            for bad in ([1], 1, [buffer, None]):
                with self.assertRaises(TypeError):
                    names.publish_buffers("bad", bad)
            with self.assertRaises(gpupool.InvalidError):
                names.publish_buffers("", [buffer])
            with self.assertRaises(gpupool.InvalidError):
                names.publish_buffers("a\nb", [buffer])
            with self.assertRaises(gpupool.InvalidError):
                names.publish_buffers("bad", [buffer], directory=bytes(65537))
            with self.assertRaises(gpupool.InvalidError):
                names.publish_buffers("bad", [buffer], same_layout=True)
            with self.assertRaises(TypeError):
                names.publish_buffers("bad", [buffer], directory="text")
        with self.assertRaises(gpupool.StaleError):
            names.publish_buffers("bad", [buffer])
        with self.assertRaises(gpupool.NoNameError):
            names.open_buffers("bad")
        with self.assertRaises(LookupError):
            names.unpublish("bad")
        with self.assertRaises(gpupool.NoNameError):
            names.abandon("bad")

    def test_buffers_in_common_are_published_by_several_threads(self):
        buffers = [gpupool.host_pool().acquire(4096) for _ in range(8)]
        failed = []

        def work(order):
            try:
                for _ in range(50):
                    names.publish_buffers("common", order)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(buffers[::step],)) for step in (1, -1, 1, -1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(scene.WAIT_S)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failed, [])
        names.unpublish("common")


if __name__ == "__main__":
    unittest.main()
