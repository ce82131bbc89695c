# SPDX-License-Identifier: Apache-2.0
"""gpupool.cuda_core: buffers of cuda.core over the pools, with a driver that does nothing and streams of simulated GPUs. On a real GPU:
tests/gpu/python_hooks.py."""
import gc
import os
import unittest

import gpupool
import scene

try:
    import gpupool.cuda_core
    from cuda.core import LEGACY_DEFAULT_STREAM, Buffer, Stream
    why_not = None
except ImportError as error:
    why_not = str(error)


@unittest.skipIf(why_not is not None, why_not)
class Resources(scene.Scene):
    def setUp(self):
        self.device_resource = gpupool.cuda_core.DeviceMemoryResource(gpupool.device_pool(0))
        self.pinned_resource = gpupool.cuda_core.PinnedMemoryResource()
        self.resources = self.device_resource, self.pinned_resource

    def tearDown(self):
        del self.device_resource, self.pinned_resource, self.resources
        gpupool.trim()
        self.wait_until_nothing_is_leased()

    def stream(self):
        """A stream of the simulated GPU, and the object of cuda.core for it."""
        stream = gpupool.Stream()
        return stream, Stream.from_handle(stream.handle)

    def test_a_buffer_lies_in_the_pool_and_says_what_it_is(self):
        stream, core = self.stream()
        buffer = self.device_resource.allocate(5000, stream=core)
        self.assertIsInstance(buffer, Buffer)
        self.assertEqual((buffer.size, buffer.device_id, buffer.is_device_accessible, buffer.is_host_accessible, buffer.is_managed),
                         (5000, 0, True, False, False))
        self.assertIs(buffer.memory_resource, self.device_resource)
        self.assertEqual(buffer.handle % 512, 0)
        self.assertGreaterEqual(gpupool.device_pool(0).info().leased_bytes, 5000)
        buffer.close()
        pinned = self.pinned_resource.allocate(5000, stream=core)
        self.assertEqual((pinned.size, pinned.device_id, pinned.is_device_accessible, pinned.is_host_accessible), (5000, -1, True, True))
        self.assertGreaterEqual(gpupool.host_pool().info().leased_bytes, 5000)
        del pinned
        self.assertEqual(gpupool.cuda_core.DeviceMemoryResource(gpupool.device_pool(1)).device_id, 1)
        self.assertEqual(gpupool.cuda_core.DeviceMemoryResource().pool, gpupool.device_pool())

    def test_memory_goes_back_when_a_buffer_is_closed_or_dropped(self):
        stream, core = self.stream()
        for resource in self.resources:
            for given in (core, LEGACY_DEFAULT_STREAM):
                for end in (lambda buffer: buffer.close(), lambda buffer: buffer.close(LEGACY_DEFAULT_STREAM), lambda buffer: None):
                    buffer = resource.allocate(1 << 20, stream=given)
                    end(buffer)
                    del buffer
                    gc.collect()
                    gpupool.trim()
                    self.wait_until_nothing_is_leased()
            self.assertEqual(resource.kept, [])

    def test_nothing_of_a_stream_is_kept_when_its_memory_went_back(self):
        """A stream is closed as soon as its buffers are, and the memory serves other streams."""
        for resource in self.resources:
            for _ in range(20):
                stream, core = self.stream()
                resource.allocate(1 << 20, stream=core).close()
                with scene.capture(stream) as operations:
                    gpupool.trim()  # would name the stream to the driver, if memory were kept for it
                self.assertEqual(operations.value, 0)
                self.assertEqual(gpupool.device_pool(0).info().leased_bytes + gpupool.host_pool().info().leased_bytes, 0)
                del core
                stream.close()

    def test_the_default_stream_has_its_memory_again(self):
        addresses = set()
        for _ in range(10):
            buffer = self.device_resource.allocate(5000, stream=LEGACY_DEFAULT_STREAM)
            addresses.add(buffer.handle)
            buffer.close()
        self.assertEqual(len(addresses), 1)

    def test_buffers_do_not_overlap(self):
        stream, core = self.stream()
        for resource in self.resources:
            buffers = [resource.allocate(size, stream=core) for size in (0, 1, 511, 512, 5000, 1 << 20) for _ in range(3)]
            spans = sorted((buffer.handle, buffer.size) for buffer in buffers)
            for (address, size), (following, _) in zip(spans, spans[1:], strict=False):
                self.assertLess(address + max(size, 1) - 1, following)
            del buffers

    def test_the_stream_of_the_close_comes_first_then_that_of_the_allocation(self):
        """Memory whose stream is captured is the graph's: that tells on which stream it would have gone back."""
        first, first_core = self.stream()
        second, second_core = self.stream()
        for resource in self.resources:
            closed = resource.allocate(5000, stream=first_core)
            dropped = resource.allocate(5000, stream=first_core)
            elsewhere = resource.allocate(5000, stream=first_core)
            graphs = [closed.handle, dropped.handle]
            with scene.capture(first) as operations:
                elsewhere.close(second_core)
                closed.close()
                del dropped
                gc.collect()
            self.assertEqual(operations.value, 0)
            self.assertEqual([buffer.ptr for buffer in resource.kept], graphs)
            taken = [resource.allocate(5000, stream=second_core) for _ in range(10)]
            self.assertTrue(set(graphs).isdisjoint(buffer.handle for buffer in taken))
            del taken
            resource.kept.clear()

    def test_what_cannot_be_served_says_why(self):
        stream, core = self.stream()
        with self.assertRaises(MemoryError):
            self.device_resource.allocate(1 << 50, stream=core)
        with self.assertRaises(AttributeError):
            self.device_resource.allocate(100, stream=None)
        with self.assertRaisesRegex(ValueError, "0x1000"):
            self.device_resource.deallocate(0x1000, 100, stream=core)
        with self.assertRaisesRegex(ValueError, "PinnedMemoryResource"):
            gpupool.cuda_core.DeviceMemoryResource(gpupool.host_pool())
        with self.assertRaisesRegex(ValueError, "DeviceMemoryResource"):
            gpupool.cuda_core.PinnedMemoryResource(gpupool.device_pool(0))


LARGE = 256 << 20  # more than a client keeps


@unittest.skipIf(why_not is not None, why_not)
class Restarts(unittest.TestCase):
    def test_a_resource_follows_unless_the_program_named_its_pool(self):
        daemon = scene.Daemon()
        self.addCleanup(daemon.close)
        os.environ.update({name: daemon.environment[name] for name in ("GPUPOOL_SOCKET", "GPUPOOL_ADMIN_SOCKET", "GPUPOOL_SIM_LATENCY")})
        follow = gpupool.cuda_core.DeviceMemoryResource(), gpupool.cuda_core.PinnedMemoryResource()
        named = gpupool.cuda_core.DeviceMemoryResource(gpupool.device_pool(0)), gpupool.cuda_core.PinnedMemoryResource(gpupool.host_pool())
        before = [resource.allocate(5000, stream=LEGACY_DEFAULT_STREAM) for resource in follow]
        daemon.kill()
        for resource in follow:
            with self.assertRaises(gpupool.ConnectError):
                resource.allocate(LARGE, stream=LEGACY_DEFAULT_STREAM)
        daemon.start()
        for resource in named:
            with self.assertRaises(gpupool.DisconnectedError):
                resource.allocate(LARGE, stream=LEGACY_DEFAULT_STREAM)
        for resource in follow:
            leased = daemon.leases()
            buffer = resource.allocate(LARGE, stream=LEGACY_DEFAULT_STREAM)
            self.assertGreaterEqual(daemon.leases() - leased, LARGE)
            buffer.close()
        for buffer in before:
            buffer.close()
        self.assertEqual([resource.kept for resource in follow], [[], []])


if __name__ == "__main__":
    unittest.main()
