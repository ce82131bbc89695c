# SPDX-License-Identifier: Apache-2.0
"""Buffer.sleep() and Buffer.wake(): memory goes, and is back at the same addresses."""
import gc
import threading
import unittest

import gpupool
import scene
from gpupool import names
from scene import torch

if hasattr(getattr(torch, "float32", None), "itemsize"):
    import gpupool.torch

SIZE = 4 << 20
LIMIT = 64 << 20
TOUCHING = """
import gpupool
buffer = gpupool.device_pool(0).acquire(4 << 20, can_sleep=True)
view = memoryview(buffer)
view[0] = 1
buffer.sleep()
print("sleeps", flush=True)
view[0] = 2
print("touched", flush=True)
"""


class Sleep(scene.Scene):
    config = "[device]\nexport = vmm\nlimit = 64MiB\n"

    def setUp(self):
        self.addCleanup(self.wait_until_nothing_is_leased)
        self.addCleanup(gc.collect)

    def acquire(self, **options):
        return self.device.acquire(SIZE, can_sleep=True, **options)

    def test_contents_and_addresses_are_kept(self):
        for keep in ("gpu", "host"):
            with self.subTest(keep=keep), self.acquire(zero=True) as buffer:
                with memoryview(buffer) as view:
                    view[0], view[-1] = 3, 4
                    before = buffer.ptr, buffer.nbytes, buffer.capacity
                    buffer.sleep(keep)
                    self.assertTrue(buffer.asleep)
                    self.assertEqual((buffer.ptr, buffer.nbytes, buffer.capacity), before)
                    buffer.sleep(keep)
                    buffer.wake()
                    buffer.wake()
                    self.assertFalse(buffer.asleep)
                    memoryview(buffer).release()  # waits for the stream
                    self.assertEqual((buffer.ptr, view[0], view[-1]), (before[0], 3, 4))

    def test_the_memory_serves_others_meanwhile_unless_it_is_kept_on_the_gpu(self):
        sizes = {"gpu": SIZE, "host": 0, "nothing": 0}
        for keep, leased in sizes.items():
            with self.subTest(keep=keep), self.acquire() as buffer:
                self.assertEqual(self.device.info().leased_bytes, SIZE)
                buffer.sleep(keep=keep)
                self.assertEqual(self.device.info().leased_bytes, leased)
                buffer.wake(timeout=1)
                self.assertEqual(self.device.info().leased_bytes, SIZE)

    def test_dropped_contents_are_zeroed_if_asked(self):
        with self.acquire() as buffer:
            with memoryview(buffer) as view:
                view[:] = b"x" * SIZE
            buffer.sleep("nothing")
            buffer.wake(zero=True)
            with memoryview(buffer) as view:
                self.assertEqual(bytes(view[:100]), bytes(100))

    def test_the_contents_come_in_the_order_of_a_stream(self):
        with gpupool.Stream(0, client=self.client) as stream, self.acquire(zero=True) as buffer:
            with memoryview(buffer) as view:
                view[5] = 5
            buffer.sleep("host", stream)
            buffer.wake(stream)
            stream.synchronize()
            with memoryview(buffer) as view:
                self.assertEqual(view[5], 5)

    def test_sleep_waits_for_the_stream(self):
        gate = scene.Gate(self.client)
        with self.acquire(stream=gate.stream) as buffer:
            timer = gate.open_late()
            buffer.sleep()
            self.assertTrue(gate.is_open)
            buffer.wake()
            timer.join()
        gate.word.close()

    def test_a_wake_without_room_leaves_the_buffer_asleep(self):
        with self.acquire(zero=True) as buffer:
            with memoryview(buffer) as view:
                view[7] = 7
            buffer.sleep("host")
            with self.device.acquire(LIMIT, can_sleep=True, timeout=scene.WAIT_S):
                with self.assertRaises(gpupool.ExhaustedError):
                    buffer.wake(timeout=0.05)
                self.assertTrue(buffer.asleep)
            buffer.wake()
            with memoryview(buffer) as view:
                self.assertEqual(view[7], 7)

    def test_nothing_is_made_over_a_sleeping_buffer(self):
        with self.acquire() as buffer:
            array = buffer.view(dtype="float32")
            buffer.sleep()
            for use in (memoryview, bytes, lambda it: it.__dlpack__(), lambda it: it.__cuda_array_interface__):
                for what in (buffer, array):
                    with self.assertRaisesRegex(gpupool.InvalidError, "sleeps"):
                        use(what)
            for call in (buffer.share, buffer.send, buffer.reuse, buffer.query, lambda: buffer.record_stream(1)):
                with self.assertRaises(gpupool.InvalidError):
                    call()
            with self.assertRaises(gpupool.Error):
                names.publish_buffers("asleep", [buffer])
            buffer.wake()
            memoryview(buffer).release()

    def test_a_sleeping_buffer_closes(self):
        for keep in ("gpu", "host", "nothing"):
            buffer = self.acquire()
            buffer.sleep(keep)
            buffer.close()
            with self.assertRaises(gpupool.StaleError):
                buffer.wake()
            with self.assertRaises(gpupool.StaleError):
                buffer.sleep()
            dropped = self.acquire()
            dropped.sleep(keep)
            del dropped
        self.wait_until_nothing_is_leased()

    def test_an_access_to_a_sleeping_buffer_faults(self):
        # of a simulated GPU: the process ends by SIGSEGV
        self.assertEqual(self.run_program(TOUCHING, status=-11)[0], "sleeps\n")

    def test_a_shared_buffer_keeps_its_contents_on_the_gpu(self):
        with self.acquire(zero=True) as buffer:
            with memoryview(buffer) as view:
                view[0] = 9
            token = buffer.share()
            with self.assertRaises(gpupool.SharedError):
                buffer.sleep("host")
            self.assertFalse(buffer.asleep)
            memoryview(buffer).release()
            with gpupool.Client() as other, gpupool.attach(token, client=other, can_sleep=True, read_only=True) as attached:
                with self.assertRaises(gpupool.SharedError):
                    attached.sleep("nothing")
                attached.sleep()
                attached.wake()
                with memoryview(attached) as view:
                    self.assertEqual(view[0], 9)

    def test_other_memory_does_not_sleep(self):
        with self.device.acquire(SIZE) as buffer:
            with self.assertRaisesRegex(gpupool.InvalidError, "addresses of its own"):
                buffer.sleep()
            self.assertFalse(buffer.asleep)
            memoryview(buffer).release()
        with self.host.acquire(SIZE) as buffer, self.assertRaises(gpupool.InvalidError):
            buffer.sleep()
        with self.assertRaises(gpupool.InvalidError):
            self.host.acquire(SIZE, can_sleep=True)

    def test_arguments(self):
        with self.acquire() as buffer:
            for keep in ("disk", 1, None):
                with self.assertRaisesRegex(ValueError, "keep must be"):
                    buffer.sleep(keep)
            with self.assertRaises(TypeError):
                buffer.wake(None, 1, True)
            with self.assertRaises(ValueError):
                buffer.wake(timeout=-1)

    def test_threads_wake_one_buffer(self):
        with self.acquire(zero=True) as buffer:
            for _ in range(20):
                buffer.sleep("host")
                threads = [threading.Thread(target=buffer.wake) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(scene.WAIT_S)
                self.assertFalse(buffer.asleep)
                memoryview(buffer).release()


@scene.needs_torch_2
class Tensors(scene.Scene):
    config = Sleep.config

    def test_tensors_sleep_by_their_buffers(self):
        pool = gpupool.device_pool(0)
        tensors = {}
        for name in ("one", "two"):
            whole = gpupool.torch.from_buffer(pool.acquire(SIZE, can_sleep=True), dtype=torch.float32)
            tensors[name], tensors[name + " end"] = whole[:100].fill_(1), whole[-100:].fill_(2)
        del whole
        pointers = [tensor.data_ptr() for tensor in tensors.values()]
        for keep in ("gpu", "host"):
            gpupool.torch.sleep(tensors, keep)
            self.assertEqual(pool.info().leased_bytes, 2 * SIZE if keep == "gpu" else 0)
            gpupool.torch.wake(tensors.values(), timeout=scene.WAIT_S)
            self.assertEqual([tensor.data_ptr() for tensor in tensors.values()], pointers)
            self.assertEqual([tensor.unique().tolist() for tensor in tensors.values()], [[1], [2], [1], [2]])
        gpupool.torch.sleep(tensors["one"])
        gpupool.torch.wake([tensors["one end"]])
        self.assertEqual(tensors["one"].unique().tolist(), [1])
        with self.assertRaisesRegex(ValueError, "not in memory of gpupool"):
            gpupool.torch.sleep(torch.ones(3))


if __name__ == "__main__":
    unittest.main()
