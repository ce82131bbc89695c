# SPDX-License-Identifier: Apache-2.0
"""Streams by all their names, and the order of work on simulated GPUs."""
import unittest

import gpupool
import scene


class Protocol:
    """An object with __cuda_stream__, as NVIDIA's packages have it."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


class Torch:
    def __init__(self, handle):
        self.cuda_stream = handle


class Cupy:
    def __init__(self, handle):
        self.ptr = handle


class Streams(scene.Scene):
    def test_each_kind_of_memory_has_its_default(self):
        self.assertEqual(self.host.acquire(100).stream, gpupool.NO_STREAM)
        self.assertEqual(self.device.acquire(100).stream, 1)
        self.assertEqual(self.device.acquire(100, stream=None).stream, 1)

    def test_numbers_are_those_of_dlpack_or_handles(self):
        with gpupool.Stream(0, client=self.client) as stream:
            for given, found in ((0, 1), (1, 1), (2, gpupool.PER_THREAD), (-1, gpupool.NO_STREAM), (stream.handle, stream.handle)):
                with self.device.acquire(100, given) as buffer:
                    self.assertEqual(buffer.stream, found)

    def test_objects_of_other_packages_are_streams(self):
        with gpupool.Stream(0, client=self.client) as stream:
            self.assertEqual(stream.__cuda_stream__(), (0, stream.handle))
            for kind in (Protocol, Torch, Cupy):
                given = kind(stream.handle)
                with self.device.acquire(100, given) as buffer:
                    self.assertIs(buffer.stream, given)
                    buffer.record_stream(kind(1))
                self.assertEqual(buffer.stream, stream.handle)

    def test_other_things_are_not_streams(self):
        class Broken:
            @property
            def ptr(self):
                raise ZeroDivisionError

        buffer = self.host.acquire(10)
        for error, given in ((TypeError, "1"), (TypeError, 1.5), (TypeError, buffer), (TypeError, buffer.view()), (TypeError, object()),
                             (ValueError, -2), (OverflowError, 1 << 70), (TypeError, Cupy("x")), (TypeError, Protocol(None)),
                             (ZeroDivisionError, Broken())):
            with self.assertRaises(error, msg=repr(given)):
                self.device.acquire(100, given)
        with self.assertRaises(gpupool.InvalidError):
            buffer.record_stream(gpupool.NO_STREAM)

    def test_a_stream_lives_as_long_as_its_buffers(self):
        stream, other = gpupool.Stream(0, client=self.client), gpupool.Stream(device=0, client=self.client)
        self.assertEqual((stream.device, stream.closed), (0, False))
        buffer = self.device.acquire(1000, stream)
        buffer.record_stream(other)
        for used in (stream, other):
            with self.assertRaises(BufferError):
                used.close()
        del used
        buffer.close()
        stream.close()
        stream.close()
        other.close()
        self.assertTrue(stream.closed)
        for use in (lambda: stream.handle, stream.synchronize, lambda: self.device.acquire(1, stream), lambda: stream.wait(None)):
            with self.assertRaises(gpupool.StaleError):
                use()
        buffer = self.device.acquire(1000, gpupool.Stream(0, client=self.client))
        self.assertIsInstance(buffer.stream, gpupool.Stream)
        del buffer
        with self.assertRaises(gpupool.InvalidError):
            gpupool.Stream(7, client=self.client)

    def test_a_buffer_is_closed_on_the_stream_that_is_named(self):
        with gpupool.Stream(0, client=self.client) as first, gpupool.Stream(0, client=self.client) as second:
            buffer = self.device.acquire(1 << 20, first)
            buffer.close(second)
            second.wait(first)
            first.wait(None)
            buffer = self.device.acquire(1 << 20, second, zero=True)
            self.assertEqual(bytes(memoryview(buffer)[:8]), bytes(8))
            del buffer


if __name__ == "__main__":
    unittest.main()
