# SPDX-License-Identifier: Apache-2.0
"""gpupool.triton: the allocator, called as Triton calls it. Triton itself runs on GPUs only: tests/gpu/python_hooks.py."""
import gc
import os
import unittest

import gpupool
import gpupool.triton
import scene


class Launches(scene.Scene):
    def tearDown(self):
        gpupool.trim()
        self.wait_until_nothing_is_leased()

    def test_memory_of_a_launch_is_the_pools_and_goes_back_behind_it(self):
        with gpupool.Stream() as stream:
            scratch = gpupool.triton.allocator(5000, 128, stream.handle)
            address = scratch.data_ptr()
            self.assertEqual(address % 128, 0)
            self.assertGreaterEqual(self.daemon.leases(), 5000)
            other = gpupool.triton.allocator(5000, 128, stream.handle)
            self.assertGreaterEqual(abs(other.data_ptr() - address), 5000)
            del scratch  # while the kernel runs
            again = gpupool.triton.allocator(5000, 128, stream.handle)
            self.assertEqual(again.data_ptr(), address)  # in the order of the stream
            del other, again
            self.assertEqual(gpupool.triton.allocator.captured, [])

    def test_the_stream_is_the_launchs(self):
        with gpupool.Stream() as stream:
            for given, found in ((stream.handle, stream.handle), (0, 1), (None, 1)):
                self.assertEqual(gpupool.triton.allocator(100, 16, given)._buffer.stream, found)

    def test_any_alignment_is_honoured(self):
        allocator = gpupool.triton.Allocator(gpupool.device_pool(1))
        taken = []
        for alignment in (1, 16, 512, 513, 1024, 1 << 16, 1 << 20):
            for size in (1, 777, 1 << 20):
                scratch = allocator(size, alignment, None)
                self.assertEqual(scratch.data_ptr() % alignment, 0)
                self.assertLessEqual(scratch.data_ptr() + size, scratch._buffer.ptr + scratch._buffer.nbytes)
                self.assertEqual(scratch._buffer.device, 1)
                taken.append(scratch)
        spans = sorted((scratch._buffer.ptr, scratch._buffer.nbytes) for scratch in taken)
        for (address, nbytes), (following, _) in zip(spans, spans[1:], strict=False):
            self.assertLessEqual(address + nbytes, following)
        allocator(0, 16, None).data_ptr()  # of a grid without blocks

    def test_what_cannot_be_served_says_why(self):
        with self.assertRaisesRegex(ValueError, "alignment"):
            gpupool.triton.allocator(100, 0, None)
        with self.assertRaisesRegex(ValueError, "device_pool"):
            gpupool.triton.Allocator(gpupool.host_pool())
        with self.assertRaises(MemoryError):
            gpupool.triton.allocator(1 << 50, 16, None)

    def test_memory_of_captured_launches_is_the_graphs(self):
        allocator = gpupool.triton.Allocator()
        with gpupool.Stream() as stream, gpupool.Stream() as other:
            with scene.capture(stream) as operations:
                first = allocator(5000, 128, stream.handle)
                address = first.data_ptr()
                del first
                second = allocator(5000, 128, stream.handle)
                self.assertNotEqual(second.data_ptr(), address)
                del second
                allocator(5000, 128, other.handle)
            self.assertEqual(operations.value, 0)
            self.assertEqual([buffer.ptr for buffer in allocator.captured][0], address)
            self.assertEqual(len(allocator.captured), 2)
            gc.collect()
            gpupool.trim()
            taken = [allocator(5000, 128, handle) for handle in (stream.handle, other.handle) for _ in range(10)]
            self.assertNotIn(address, [scratch.data_ptr() for scratch in taken])
            self.assertEqual(len(allocator.captured), 2)
            del taken
            allocator.captured.clear()


class Restarts(unittest.TestCase):
    def test_an_allocator_follows_unless_the_program_named_its_pool(self):
        daemon = scene.Daemon()
        self.addCleanup(daemon.close)
        os.environ.update({name: daemon.environment[name] for name in ("GPUPOOL_SOCKET", "GPUPOOL_ADMIN_SOCKET", "GPUPOOL_SIM_LATENCY")})
        large = 256 << 20  # more than a client keeps
        follows, named = gpupool.triton.Allocator(), gpupool.triton.Allocator(gpupool.device_pool(0))
        follows(100, 128, 0)
        daemon.kill()
        daemon.start()
        with self.assertRaises(gpupool.DisconnectedError):
            named(large, 128, 0)
        scratch = follows(large, 128, 0)
        self.assertGreaterEqual(daemon.leases(), large)
        del scratch


if __name__ == "__main__":
    unittest.main()
