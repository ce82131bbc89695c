# SPDX-License-Identifier: Apache-2.0
"""gpupool.numba: Numba's own classes over the pools, with the context of a simulated GPU. On a real GPU: tests/gpu/python_hooks.py."""
import contextlib
import gc
import multiprocessing
import os
import pickle
import types
import unittest
import unittest.mock
import weakref

import gpupool
import scene

try:
    import gpupool.numba
    import numpy
    from numba.cuda.cudadrv import driver
    why_not = None
    if not hasattr(driver, "_logger"):
        driver._logger = driver.make_logger()  # Numba makes it when it finds a GPU
except ImportError as error:
    why_not = str(error)


class Device:
    def __init__(self, ordinal):
        self.id, self.primary_context = ordinal, None


class Context:
    """The part of Numba's context that the manager uses."""

    def __init__(self, ordinal):
        self.device = Device(ordinal)
        self.device.primary_context = self
        self.memory_manager = gpupool.numba._numba_memory_manager(context=self)
        self.memory_manager.initialize()


def fill_by_handle(connection):
    """In another process: opens the handles of arrays that come, adds 1 to each, and says what was there."""
    context = Context(0)
    while (handle := connection.recv()) is not None:
        memory = handle.open(context)
        view = (gpupool.numba.ctypes.c_ubyte * memory.size).from_address(int(memory.device_pointer_value))
        told = sum(view)
        for i in range(memory.size):
            view[i] += 1
        del view, memory
        handle.close()
        connection.send(told)


def bytes_at(memory):
    """The simulated GPU's memory is the host's."""
    return (gpupool.numba.ctypes.c_ubyte * memory.size).from_address(int(memory.device_pointer_value))


@unittest.skipIf(why_not is not None, why_not)
class Manager(scene.Scene):
    def setUp(self):
        self.context = Context(0)
        self.manager = self.context.memory_manager

    def tearDown(self):
        self.manager.reset()
        del self.context, self.manager
        gc.collect()
        gpupool.trim()
        self.wait_until_nothing_is_leased()

    def used(self):
        """Bytes that are not idle: those of the cache are given back before."""
        gpupool.trim()
        return self.daemon.leases()

    def test_numba_takes_it_for_a_memory_manager(self):
        self.addCleanup(setattr, driver, "_memory_manager", driver._memory_manager)
        self.addCleanup(setattr, driver.config, "CUDA_MEMORY_MANAGER", driver.config.CUDA_MEMORY_MANAGER)
        driver._memory_manager, driver.config.CUDA_MEMORY_MANAGER = None, "gpupool.numba"
        driver._ensure_memory_manager()
        self.assertIs(driver._memory_manager, gpupool.numba.MemoryManager)

    def test_device_memory_is_the_pools(self):
        memory = self.manager.memalloc(5000)
        self.assertIsInstance(memory, driver.MemoryPointer)
        self.assertEqual((memory.size, int(memory.device_pointer_value) % 512), (5000, 0))
        self.assertGreaterEqual(gpupool.device_pool(0).info().leased_bytes, 5000)
        other = Context(1)
        more = other.memory_manager.memalloc(1 << 20)
        self.assertGreaterEqual(gpupool.device_pool(1).info().leased_bytes, 1 << 20)
        del more
        other.memory_manager.deallocations.clear()

    def test_memory_lives_as_long_as_it_or_a_view_of_it_is_used(self):
        memory = self.manager.memalloc(5000)
        part = memory.view(1000, 2000)  # of a slice of an array
        self.assertEqual(int(part.device_pointer_value) - int(memory.device_pointer_value), 1000)
        del memory
        gc.collect()
        self.manager.deallocations.clear()
        self.assertGreater(self.used(), 0)
        del part
        gc.collect()
        self.assertEqual(len(self.manager.deallocations), 1)
        self.assertGreater(self.used(), 0)  # pending, as with Numba's own manager
        self.manager.deallocations.clear()
        self.assertEqual(self.used(), 0)

    def test_memory_goes_back_in_batches_and_not_while_that_is_deferred(self):
        for _ in range(driver.config.CUDA_DEALLOCS_COUNT + 1):
            self.manager.memalloc(5000)
        self.assertEqual((len(self.manager.deallocations), self.used()), (0, 0))
        with self.manager.defer_cleanup():
            for _ in range(driver.config.CUDA_DEALLOCS_COUNT + 5):
                self.manager.memalloc(5000)
            self.assertEqual(len(self.manager.deallocations), driver.config.CUDA_DEALLOCS_COUNT + 5)
            self.assertGreater(self.used(), 0)
        self.manager.deallocations.clear()
        self.assertEqual(self.used(), 0)

    def test_memory_goes_back_behind_all_work_of_the_device(self):
        """A stream that is captured cannot be waited for. So the memory stays, and goes back with the next one."""
        for allocate in self.manager.memalloc, self.manager.memhostalloc:
            driver.driver.devices[0] = self.context.device
            self.addCleanup(driver.driver.devices.pop, 0, None)
            addresses = {self.address(allocate(5000)) for _ in range(3)}
            with gpupool.Stream() as stream:
                with scene.capture(stream):
                    self.manager.deallocations.clear()
                    self.assertEqual(len(self.manager.deallocations), 0)
                    self.assertGreater(self.used(), 0)
                    later = [allocate(5000) for _ in range(5)]
                    self.assertTrue(addresses.isdisjoint(map(self.address, later)))
                stream.synchronize()
            del later
            self.manager.deallocations.clear()
            self.assertEqual(self.used(), 0)
            driver.driver.devices.pop(0, None)

    @staticmethod
    def address(memory):
        return int(getattr(memory.handle, "value", memory.handle))

    def test_pending_memory_serves_when_the_pool_has_no_room(self):
        half = gpupool.device_pool(0).limit_bytes // 8 * 5
        with self.manager.defer_cleanup():
            self.manager.memalloc(half)
            self.assertEqual(len(self.manager.deallocations), 1)
        self.assertGreaterEqual(self.daemon.leases(), half)
        memory = self.manager.memalloc(half)
        self.assertEqual(len(self.manager.deallocations), 0)
        del memory

    def test_more_than_there_is_raises_a_memory_error_with_the_reason(self):
        with self.assertRaisesRegex(MemoryError, "limit"):
            self.manager.memalloc(1 << 50)

    def test_pinned_memory_is_the_host_pools(self):
        memory = self.manager.memhostalloc(5000)
        self.assertIsInstance(memory, driver.PinnedMemory)
        array = numpy.ndarray(1250, numpy.int32, buffer=memory)
        array[:] = 7
        self.assertEqual(array.ctypes.data % 512, 0)
        self.assertGreaterEqual(gpupool.host_pool().info().leased_bytes, 5000)
        del memory
        part = array[1:]
        del array
        self.manager.deallocations.clear()
        self.assertGreater(self.used(), 0)
        self.assertEqual(int(part.sum()), 7 * 1249)
        del part
        self.manager.deallocations.clear()
        self.assertEqual(self.used(), 0)

    @contextlib.contextmanager
    def device_addresses(self, offset):
        """The driver's answer for the address of host memory on the GPU."""
        asked, driver.get_devptr_for_active_ctx = driver.get_devptr_for_active_ctx, lambda address: address + offset
        try:
            yield
        finally:
            driver.get_devptr_for_active_ctx = asked

    def test_mapped_memory_is_the_host_pools_too(self):
        with self.device_addresses(4096):
            memory = self.manager.memhostalloc(5000, mapped=True)
        array = numpy.ndarray(1250, numpy.int32, buffer=memory)
        array[:] = 7
        self.assertEqual(int(memory.device_pointer_value) - array.ctypes.data, 4096)
        self.assertGreaterEqual(gpupool.host_pool().info().leased_bytes, 5000)
        del memory
        self.manager.deallocations.clear()
        self.assertGreater(self.used(), 0)
        self.assertEqual(int(array.sum()), 7 * 1250)
        del array
        gc.collect()
        self.manager.deallocations.clear()
        self.assertEqual((self.used(), len(self.manager.allocations)), (0, 0))

    def test_mapped_memory_that_the_gpu_cannot_reach_goes_back(self):
        with unittest.mock.patch.object(driver, "get_devptr_for_active_ctx", side_effect=RuntimeError("no context")):
            with self.assertRaisesRegex(RuntimeError, "no context"):
                self.manager.memhostalloc(5000, mapped=True)
        gc.collect()
        self.manager.deallocations.clear()
        self.assertEqual((self.used(), len(self.manager._live)), (0, 0))

    def test_reset_gives_all_memory_back_once(self):
        kept = [self.manager.memalloc(5000), self.manager.memhostalloc(5000)]
        with self.device_addresses(0):
            kept.append(self.manager.memhostalloc(5000, mapped=True))
        self.manager.reset()
        self.assertEqual(self.used(), 0)
        again = self.manager.memalloc(5000)
        del kept
        gc.collect()
        self.manager.deallocations.clear()
        self.assertGreater(self.used(), 0)
        bytes_at(again)[0] = 1
        del again

    def test_the_memory_info_is_the_pools(self):
        before = self.manager.get_memory_info()
        memory = self.manager.memalloc(1 << 26)
        after = self.manager.get_memory_info()
        self.assertEqual(before.total, gpupool.device_pool(0).limit_bytes)
        self.assertGreaterEqual(before.free - after.free, 1 << 26)
        del memory

    def test_an_array_goes_to_another_process_by_token(self):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=fill_by_handle, args=(theirs,), daemon=True)
        process.start()
        memory = self.manager.memalloc(100)
        view = bytes_at(memory)
        view[:] = [3] * 100
        for part, total in ((memory, 300), (memory.view(10, 20), 40), (memory.view(10, 20), 50)):
            handle = self.manager.get_ipc_handle(part)
            with self.assertRaisesRegex(ValueError, "not opened"):
                handle.close()
            ours.send(handle)
            self.assertTrue(ours.poll(scene.WAIT_S))
            self.assertEqual(ours.recv(), total)
        self.assertEqual(sum(view[:10]) + sum(view[20:]), 4 * 90)
        self.assertEqual(list(view[10:20]), [6] * 10)
        ours.send(None)
        process.join(scene.WAIT_S)
        self.assertEqual(process.exitcode, 0)
        del part, handle, view

    def test_a_handle_keeps_its_memory_and_opens_once(self):
        memory = self.manager.memalloc(100)
        bytes_at(memory)[0] = 9
        handle = self.manager.get_ipc_handle(memory)
        del memory
        gc.collect()
        self.manager.deallocations.clear()
        other = pickle.loads(pickle.dumps(handle))
        opened = other.open(self.context)
        self.assertEqual(bytes_at(opened)[0], 9)
        with self.assertRaisesRegex(ValueError, "already"):
            other.open(self.context)
        other.close()
        del opened
        with self.assertRaisesRegex(ValueError, r"cuda.gpus\[0\]"):
            pickle.loads(pickle.dumps(handle)).open(Context(1))
        late = pickle.dumps(handle)
        del handle, other
        gc.collect()
        self.manager.deallocations.clear()
        gpupool.trim()
        with self.assertRaises(gpupool.NoTokenError):
            pickle.loads(late).open(self.context)

    def test_memory_of_a_buffer_that_the_program_made_goes_by_token_too(self):
        buffer = gpupool.device_pool(0).acquire(100)
        for owner in buffer, buffer.view(25, "float32"):
            memory = driver.MemoryPointer(weakref.proxy(self.context), gpupool.numba._device_pointer(buffer.ptr), 100, owner=owner)
            self.assertIsInstance(self.manager.get_ipc_handle(memory), gpupool.numba.IpcHandle)
        del memory, owner
        buffer.close()

    def test_a_program_that_ends_with_arrays_ends_well(self):
        text = "import test_numba, os\ncontext = test_numba.Context(0)\n" \
               "kept = [context.memory_manager.memalloc(5000), context.memory_manager.memhostalloc(5000)]\n" \
               "for _ in range(3):\n    context.memory_manager.memalloc(5000)\n"
        old = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), old])
        self.addCleanup(os.environ.__setitem__, "PYTHONPATH", old)
        self.assertEqual(self.run_program(text), ("", ""))


@unittest.skipIf(why_not is not None, why_not)
class Restarts(unittest.TestCase):
    """Each test has a daemon of its own, which is started anew."""

    def setUp(self):
        self.daemon = scene.Daemon()
        self.addCleanup(self.daemon.close)
        os.environ.update({name: self.daemon.environment[name]
                           for name in ("GPUPOOL_SOCKET", "GPUPOOL_ADMIN_SOCKET", "GPUPOOL_SIM_LATENCY")})
        self.context = Context(0)
        self.manager = self.context.memory_manager
        self.addCleanup(self.manager.reset)

    def test_the_next_array_is_of_the_new_daemon(self):
        before = self.manager.memalloc(5000)
        self.daemon.kill()
        with self.assertRaises(gpupool.ConnectError):
            self.manager.memalloc(256 << 20)  # more than a client keeps
        self.daemon.start()
        after = self.manager.memalloc(256 << 20)
        self.assertGreaterEqual(self.daemon.leases(), 256 << 20)
        bytes_at(before)[0] = bytes_at(after)[0] = 1
        self.daemon.kill()
        self.daemon.start()
        info = self.manager.get_memory_info()
        self.assertEqual(info.free, info.total)

    def test_shared_memory_of_a_daemon_that_is_gone_is_let_go(self):
        memory = self.manager.memalloc(5000)
        handle = self.manager.get_ipc_handle(memory)
        self.daemon.kill()
        del memory, handle
        gc.collect()
        self.manager.deallocations.clear()
        self.assertEqual(len(gpupool.numba._outlet._refused), 0)
        self.daemon.start()


class FakeBuffer:
    """A buffer whose close() raises what is in errors, one after the other."""

    def __init__(self, *errors, device=0):
        self.kind, self.device, self.pool = "device", device, types.SimpleNamespace(client=None)
        self.errors, self.closed = list(errors), False

    def close(self, stream):
        assert stream == gpupool.NO_STREAM
        if self.errors:
            raise self.errors.pop(0)
        self.closed = True


@unittest.skipIf(why_not is not None, why_not)
class Outlet(unittest.TestCase):
    """Buffers that cannot be closed."""

    def setUp(self):
        self.outlet, self.waits = gpupool.numba._Outlet(), []
        patch = unittest.mock.patch.object(gpupool.numba, "_wait_for_device", lambda client, device: self.waits.append(device))
        patch.start()
        self.addCleanup(patch.stop)

    def kept(self):
        return list(self.outlet._refused)

    def test_a_buffer_stays_where_waiting_may_help(self):
        for error in gpupool.CapturingError, gpupool.DriverError, BufferError:
            first, second = FakeBuffer(error("not now"), error("not now")), FakeBuffer()
            self.outlet.give_back(first)
            self.assertEqual(self.kept(), [first])
            self.outlet.give_back(second)
            self.assertTrue(second.closed)
            self.assertEqual(self.kept(), [first])
            self.outlet.give_back(FakeBuffer())
            self.assertTrue(first.closed)
            self.assertEqual(self.kept(), [])

    def test_a_buffer_is_let_go_where_waiting_cannot_help(self):
        for error in (gpupool.DisconnectedError, gpupool.ConnectError, gpupool.ShutdownError, gpupool.StaleError, gpupool.ForkedError):
            self.outlet.give_back(FakeBuffer(error("gone")))
            self.assertEqual(self.kept(), [])

    def test_each_device_is_waited_for_once(self):
        refused = [FakeBuffer(gpupool.CapturingError("not now"), device=device) for device in (0, 1, 0)]
        self.outlet._refused.extend(refused)
        self.outlet.give_back(FakeBuffer(device=1))
        self.assertEqual(sorted(self.waits), [0, 1])
        self.assertEqual(self.kept(), refused)

    def test_an_interrupt_loses_no_buffer(self):
        refused = [FakeBuffer(), FakeBuffer(KeyboardInterrupt()), FakeBuffer()]
        self.outlet._refused.extend(refused)
        last = FakeBuffer()
        with self.assertRaises(KeyboardInterrupt):
            self.outlet.give_back(last)
        self.assertTrue(refused[0].closed)
        self.assertEqual(self.kept(), [*refused[1:], last])
        self.outlet.give_back(FakeBuffer())
        self.assertTrue(all(buffer.closed for buffer in [*refused, last]))
        self.assertEqual(self.kept(), [])


if __name__ == "__main__":
    unittest.main()
