# SPDX-License-Identifier: Apache-2.0
"""Objects that die in any order, in any thread, and with the interpreter; and that nothing is left over."""
import concurrent.futures
import gc
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import unittest
import weakref
from unittest import mock

import gpupool
import scene
from gpupool import _gpupool, _transfer
from scene import needs_numpy, numpy

THREADS, ROUNDS = 4, 300


class Lifetime(scene.Scene):
    def tearDown(self):
        gc.collect()
        self.wait_until_nothing_is_leased()

    def test_a_buffer_goes_back_when_it_dies(self):
        buffer = self.host.acquire(1 << 20)
        address, died = buffer.ptr, weakref.ref(buffer)
        del buffer
        self.assertIsNone(died())
        self.assertEqual(self.host.acquire(1 << 20).ptr, address)

    def test_objects_die_in_any_order(self):
        for order in ("client pool buffer view memory", "memory view buffer pool client", "view client memory buffer pool",
                      "buffer memory pool client view"):
            things = {"client": gpupool.Client()}
            things["pool"] = things["client"].host_pool()
            things["buffer"] = things["pool"].acquire(100)
            things["view"] = things["buffer"].view(dtype="int32")
            things["memory"] = memoryview(things["view"])
            for name in order.split():
                if "memory" in things:
                    things["memory"][0] = 1
                del things[name]

    def test_the_owner_of_an_export_ends_before_it(self):
        class Owner:
            def __init__(self, buffer):
                self.buffer = buffer

            def __del__(self):
                found.append((self.buffer.closed, self.buffer.nbytes))

        for pool in self.host, self.device:
            for version in None, (1, 0):
                found, owner = [], Owner(pool.acquire(10))
                capsule = owner.buffer.__dlpack__(max_version=version)
                self.assertIs(_gpupool._set_owner(capsule, owner), capsule)
                for wrong in (capsule, owner), (capsule,), (owner, owner), (capsule, owner, owner):
                    with self.assertRaisesRegex(TypeError, "_set_owner"):
                        _gpupool._set_owner(*wrong)
                with self.assertRaises(BufferError):
                    owner.buffer.close()
                del owner, wrong
                self.assertEqual(found, [])
                del capsule
                self.assertEqual(found, [(False, 10)])

    def test_a_buffer_in_a_cycle_goes_back(self):
        class Stream:
            def __cuda_stream__(self):
                return 0, 1
        around = [self.host.acquire(100)]
        around.append(around)
        stream = Stream()
        stream.buffer = self.device.acquire(100, stream=stream)
        other = Stream()
        other.buffer = self.device.acquire(100)
        other.buffer.record_stream(other)
        other.view = other.buffer.view()
        dead = [weakref.ref(around[0]), weakref.ref(stream), weakref.ref(stream.buffer), weakref.ref(other.buffer)]
        del around, stream, other
        gc.collect()
        self.assertEqual([reference() for reference in dead], [None] * 4)

    def test_an_exception_is_not_lost_while_a_buffer_dies(self):
        with self.assertRaises(ZeroDivisionError):
            buffers = [self.host.acquire(size) for size in (100, 1 << 20)]
            del buffers[0]
            1 / 0

    def test_no_references_are_leaked(self):
        self.enterContext(mock.patch.object(_transfer, "_MESSAGES_MAX", 4))  # so many tokens are kept of what is pickled
        _transfer._forget()
        self.addCleanup(_transfer._forget)
        host, device = self.host, self.device
        stream = gpupool.Stream(0, client=self.client)

        def failing(function, *arguments, **keywords):
            try:
                function(*arguments, **keywords)
            except Exception:
                pass

        def all_calls():
            with host.acquire(1000, timeout=1.0, zero=True) as buffer:
                view = buffer.view((10, -1), "int8")
                memoryview(view).release()
                memoryview(buffer).release()
                view.__dlpack__(max_version=(1, 0))
                view.__dlpack__(copy=True)
                repr(view), repr(buffer), view.shape, view.dtype, view.device, buffer.stream, buffer.pool, buffer.kind
                failing(buffer.close, 1, 2)
                failing(buffer.view, 3, "no")
                failing(buffer.view, (1, "x"))
                failing(view.__dlpack__, stream=1)
                failing(view.__dlpack__, dl_device=(2, 0))
                failing(view.__dlpack__, max_version="x")
            failing(memoryview, buffer)
            failing(host.acquire, 1 << 60)
            failing(host.acquire, 1, stream=buffer)
            failing(host.acquire, 1, "x")
            failing(gpupool.attach, bytes(64), client=self.client)
            failing(gpupool.Client, "/nowhere")
            failing(gpupool.Client, "private", daemon_arguments=[1])
            with device.acquire(1000, stream=stream) as buffer:
                buffer.record_stream(stream)
                attached = gpupool.attach(buffer.share(), stream, client=self.client)
                attached.query()
                attached.close()
                buffer.reuse()
                pickle.loads(pickle.dumps(buffer)).close()
                pickle.loads(pickle.dumps(buffer.view()))
                gpupool.revoke(buffer.send(), client=self.client)
                failing(buffer.send, takers=0)
                failing(gpupool.revoke, bytes(64))
            host.info(), self.client.pools(), self.client.host_pool() == host, hash(host), repr(host), gpupool.stats()
            if numpy is not None:
                host.empty((2, 3), "float32")
                failing(host.empty, 2, object)
                failing(host.empty, -1)

        def blocks_after_rounds():
            for _ in range(50):
                all_calls()
            gc.collect()
            return sys.getallocatedblocks()

        watched = [host, device, stream, self.client, gpupool.Buffer, gpupool.Array, gpupool.Pool, None]
        blocks = blocks_after_rounds()  # Python and NumPy have filled caches of their own by then
        counts = [sys.getrefcount(thing) for thing in watched[:-1]]
        growth = []
        while len(growth) < 20 and (not growth or growth[-1] >= 50):
            before, blocks = blocks, blocks_after_rounds()
            growth.append(blocks - before)
        self.assertLess(growth[-1], 50, "each round leaks something")
        self.assertEqual([sys.getrefcount(thing) for thing in watched[:-1]], counts)
        stream.close()

    def test_threads_take_and_give_buffers_to_each_other(self):
        places, failures = [None] * 16, []

        def work(number):
            try:
                for i in range(ROUNDS):
                    size = 512 << (i * 7 + number) % 12
                    pool = (self.host, self.device)[i % 2]
                    buffer = pool.acquire(size)
                    memoryview(buffer)[:4] = bytes([number] * 4)
                    if bytes(memoryview(buffer)[:4]) != bytes([number] * 4):
                        raise AssertionError("another thread has the same memory")
                    places[(i + number) % len(places)] = buffer
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(scene.WAIT_S)
        self.assertEqual((failures, [thread.is_alive() for thread in threads]), ([], [False] * THREADS))
        places.clear()

    def test_a_thread_that_waits_for_room_lets_others_run(self):
        held = self.device.acquire(self.device.limit_bytes * 3 // 4)
        found = []
        thread = threading.Thread(target=lambda: found.append(self.device.acquire(self.device.limit_bytes // 2, timeout=scene.WAIT_S)),
                                  daemon=True)
        thread.start()
        scene.wait_until(lambda: any(session["waiting"] for session in self.daemon.ask("sessions")["sessions"]), "the thread waits")
        with self.assertRaisesRegex(RuntimeError, "under way"):
            self.client.close()
        held.close()
        self.client.trim()
        thread.join(scene.WAIT_S)
        self.assertEqual(len(found), 1)

    def test_two_threads_close_one_buffer(self):
        for _ in range(50):
            buffer, start = self.device.acquire(1 << 20), threading.Barrier(2)

            def close():
                start.wait(scene.WAIT_S)
                buffer.close()

            threads = [threading.Thread(target=close, daemon=True) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(scene.WAIT_S)
            self.assertTrue(buffer.closed)


def use_and_end(place, has_gpu):
    """In a process of multiprocessing: has memory for a while."""
    place.append(gpupool.host_pool().acquire(100))
    if has_gpu:
        gpupool.device_pool(0).acquire(1 << 20)
    place.pop()


class Farewell(scene.Scene):
    """Memory of a process that ends without open buffers is never in quarantine."""

    def peak(self):
        return sum(pool["quarantined_peak_bytes"] for pool in self.daemon.ask("pools")["pools"])

    def test_programs(self):
        self.run_program("import gpupool\ngpupool.host_pool().acquire(100)")
        self.run_program("import gpupool, atexit\nbuffer = gpupool.device_pool(0).acquire(1 << 20)\n"
                         "atexit.register(lambda: buffer.close())\nstream = gpupool.Stream(0)")
        self.run_program("import gpupool\npool = gpupool.host_pool()\nmemory = memoryview(pool.acquire(10))\nmemory.release()\n"
                         "import threading\nthreading.Thread(target=lambda: pool.acquire(100)).start()")
        self.run_program("import atexit\ndef last():\n    import gpupool\n    gpupool.host_pool().acquire(5).close()\n"
                         "atexit.register(last)\nimport gpupool\ngpupool.host_pool().acquire(5)")
        self.assertEqual(self.peak(), 0)

    def test_processes_of_multiprocessing(self):
        for method in ("spawn", "forkserver", "fork"):
            process = multiprocessing.get_context(method).Process(target=use_and_end, args=([], method != "fork"), daemon=True)  # forked after the GPU was used
            process.start()
            process.join(scene.WAIT_S)
            self.assertEqual((process.exitcode, self.peak()), (0, 0), method)

    def test_without_it_the_memory_is_in_quarantine(self):
        daemon = scene.Daemon()
        self.addCleanup(daemon.close)
        self.run_program("import gpupool, os, sys\nclient = gpupool.Client(sys.argv[1])\nclient.host_pool().acquire(100)\nos._exit(0)",
                         daemon.socket)
        scene.wait_until(lambda: any(pool["quarantined_peak_bytes"] > 0 for pool in daemon.ask("pools")["pools"]), "the session ended")


HELD = """
import atexit, sys
def last():  # registered before the module is imported, so it is called last
    print("at exit", bytes(kept)[:4], client.connected)
    gpupool.host_pool().acquire(100)
atexit.register(last)
import gpupool
client, pool, device = gpupool.default_client(), gpupool.host_pool(), gpupool.device_pool(0)
kept = memoryview(pool.acquire(1 << 20))
kept[:4] = b"kept"
on_device = device.acquire(1 << 24)
"""

OTHER_ENDS = {
    "views": ("view = on_device.view(); capsule = pool.acquire(5).__dlpack__(); stream = gpupool.Stream(0)", 0),
    "cycles": ("class Around: pass\naround = Around(); around.around = around; around.buffer = device.acquire(100)", 0),
    "another module": ("import builtins; builtins.kept = pool.acquire(100); builtins.module = gpupool", 0),
    "clients": ("other = gpupool.Client(); held = other.host_pool().acquire(10); third = gpupool.Client(); del third", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("def fail(): held = device.acquire(10); raise SystemExit('over')\nfail()", 1),
    "an error": ("1 / 0", 1),
    "an attached buffer": ("attached = gpupool.attach(on_device.share(), 1)", 0),
    "a sent buffer": ("token = on_device.send(); atexit.register(gpupool.revoke, token)", 0),
    "work on the GPU": ("for _ in range(50): held = device.acquire(1 << 26, zero=True)", 0),
    "a thread that writes": ("import threading\nstarted = threading.Event()\n"
                             "def write():\n    while True:\n        kept[4:] = b'x' * (len(kept) - 4)\n        started.set()\n"
                             "threading.Thread(target=write, daemon=True).start(); started.wait(60)", 0),
    "a thread in C": ("import hashlib, threading\nstarted = threading.Event()\n"
                      "def read():\n    while True:\n        hashlib.sha256(kept).digest()\n        started.set()\n"
                      "threading.Thread(target=read, daemon=True).start(); started.wait(60)", 0),
    "a thread that takes and gives": ("import threading\nstarted = threading.Event()\n"
                                      "def work():\n    while True:\n        held = [device.acquire(1 << 20) for _ in range(9)]\n"
                                      "        started.set()\n"
                                      "threading.Thread(target=work, daemon=True).start(); started.wait(60)", 0),
    "a thread that waits for room": (
        "import threading\nheld = []\n"
        "def take():  # what other programs give back too\n    while True: held.append(device.acquire(1 << 26, timeout=600.0))\n"
        "threading.Thread(target=take, daemon=True).start()\n"
        "other = gpupool.Client(cache=False)\n"
        "while not any(session['waiting'] for session in gpupool.stats()['sessions']): pass", 0),
    "a forked child": ("import os, warnings\nwarnings.simplefilter('ignore')\nchild = os.fork()\nif child == 0:\n    atexit.unregister(last)\n"
                       "    try: own = gpupool.host_pool().acquire(100)\n"
                       "    except gpupool.NoGpuError: pass  # the pool is not for a forked process\n    sys.exit(0)\n"
                       "assert os.waitpid(child, 0)[1] == 0 and client.connected and bytes(kept[:4]) == b'kept'\n"
                       "device.acquire(1 << 20)", 0),
    "the module is imported again": ("import gc\nfor name in [name for name in sys.modules if name.startswith('gpupool')]: del sys.modules[name]\n"
                                     "import gpupool; held = gpupool.host_pool().acquire(10)", 0),
}


def hold_and_end(method, what, results, environment):
    """In a process of multiprocessing: ends with buffers."""
    os.environ.update(environment)  # a fork server has that of its start
    pool = gpupool.host_pool() if method == "fork" else gpupool.device_pool(0)  # forked after the GPU was used
    globals()["_kept"] = kept = [pool.acquire(1 << 20), memoryview(gpupool.host_pool().acquire(100))]
    if what == "an error":
        sys.stderr = open(os.devnull, "w")
        raise ValueError("over")
    if what == "sys.exit":
        sys.exit(1)
    if what == "a queue":
        results.put(gpupool.host_pool().acquire(64).view(dtype="int8"))
    if what == "threads":
        shared = results.get(timeout=scene.WAIT_S)
        concurrent.futures.ThreadPoolExecutor(2).submit(int).result(scene.WAIT_S)  # whose thread waits for the end

        def write_late():
            threading.main_thread().join(scene.WAIT_S)  # until the process waits for its threads
            memoryview(shared)[:4] = memoryview(kept[1])[:4] = b"late"
            memoryview(shared)[4:8] = bytes(kept[1][:4])
        threading.Thread(target=write_late).start()
    if what == "a daemon thread":
        threading.Thread(target=lambda: [memoryview(kept[1])[:] for _ in iter(int, 1)], daemon=True).start()


class FarewellWithBuffers(scene.Scene):
    """A process that ends has no quarantine, and the daemon has nothing to say, also where its buffers are open."""

    methods = ("spawn", "forkserver", "fork")

    def setUp(self):
        self.own = scene.Daemon(self.config)
        self.addCleanup(self.own.close)
        self.first_log = self.own.log.read_text()  # that the GPUs are simulated

    def run_held(self, program, status=0):
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", HELD + program], check=False, capture_output=True, text=True,
                              timeout=scene.WAIT_S, env={**os.environ, **self.own.environment})
        self.assertEqual(done.returncode, status, f"{program}\n{done.stdout}{done.stderr}")
        return done

    def check_farewell(self):
        pools = self.own.ask("pools")["pools"]
        self.assertEqual([pool["quarantined_peak_bytes"] for pool in pools], [0] * len(pools))
        self.assertEqual((self.own.ask("sessions")["sessions"], self.own.leases()), ([], 0))
        self.assertEqual(self.own.log.read_text(), self.first_log)

    def test_programs(self):
        for what, (program, status) in OTHER_ENDS.items():
            with self.subTest(what=what):
                done = self.run_held(program, status)
                self.assertEqual(done.stdout, "at exit b'kept' True\n")  # until then the client serves
                if status == 0:
                    self.assertEqual(done.stderr, "")
                self.check_farewell()

    @needs_numpy
    def test_arrays_of_numpy(self):
        self.run_held("import numpy, builtins\narray = builtins.array = pool.empty(1000)\nother = numpy.asarray(pool.acquire(8).view())")
        self.check_farewell()

    @scene.needs_torch_2
    def test_tensors_and_loaders(self):
        self.run_held("import gpupool.torch, torch, torch.utils.data, builtins\ntorch.set_num_threads(1)\n"
                      "tensor = builtins.tensor = gpupool.torch.zeros(1000)\nother = torch.from_dlpack(pool.acquire(64))\n"
                      "loader = torch.utils.data.DataLoader(torch.ones(64, 9000), batch_size=4, num_workers=2, collate_fn=gpupool.torch.collate)\n"
                      "for batch in loader: pass")
        self.check_farewell()

    def test_memory_of_the_allocators(self):
        self.run_held("import ctypes\nfrom gpupool import _gpupool\n_gpupool._keep_for_allocators()\n"
                      "functions = ctypes.CDLL(_gpupool.__file__)\nmalloc = functions.gpupool_torch_pool_malloc\n"
                      "malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]\n"
                      "assert malloc(4096, 0, None)")
        self.check_farewell()

    def test_processes_of_multiprocessing(self):
        ends = {"the end": 0, "an error": 1, "sys.exit": 1, "a queue": 0, "threads": 0, "a daemon thread": 0}
        for method in self.methods:
            for what, status in ends.items():
                with self.subTest(method=method, what=what):
                    self.check_process(multiprocessing.get_context(method), method, what, status)

    def check_process(self, context, method, what, status):
        client = gpupool.Client(self.own.socket)
        results, shared = context.Queue(), client.host_pool().acquire(8)
        process = context.Process(target=hold_and_end, args=(method, what, results, self.own.environment))
        process.start()
        if what == "threads":
            results.put(shared)
        if what == "a queue":
            results.get(timeout=scene.WAIT_S)
        process.join(scene.WAIT_S)
        self.assertEqual(process.exitcode, status)
        if what == "threads":
            self.assertEqual(bytes(memoryview(shared)), b"latelate")  # its buffers were its own until its threads had ended
        shared.close()
        client.close()
        gc.collect()
        pools = self.own.ask("pools")["pools"]
        self.assertEqual([pool["quarantined_peak_bytes"] for pool in pools], [0] * len(pools))
        self.assertEqual(self.own.log.read_text(), self.first_log)

    def test_another_process_uses_what_was_attached_at_once(self):
        shared = self.device.acquire(1 << 20)
        self.run_program("import gpupool, sys\nattached = gpupool.attach(bytes.fromhex(sys.argv[1]), 1)", bytes(shared.share()).hex())
        shared.reuse()  # raises SharedError where the process is thought to have it

    def test_real_deaths(self):
        for end in ("import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
                    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"):
            with self.subTest(end=end):
                before = len(self.quarantined())
                subprocess.run([sys.executable, "-c", HELD + end], check=False, env={**os.environ, **self.own.environment},
                               stdout=subprocess.DEVNULL, timeout=scene.WAIT_S)
                scene.wait_until(lambda: len(self.quarantined()) >= max(before, 1), "the memory was in quarantine")

    def quarantined(self):
        return [pool for pool in self.own.ask("pools")["pools"] if pool["quarantined_peak_bytes"] > 0]


class FarewellWithDescriptors(FarewellWithBuffers):
    """Farewells with segments that are descriptors."""

    config = "[device]\nexport = vmm\n[host]\nexport = vmm\n"
    methods = ("spawn", "forkserver")  # a forked process has no GPU, and these pools are not for it
    test_tensors_and_loaders = None  # nor are they for the workers of a loader


class Exit(scene.Scene):
    """Programs that end with objects alive: they end well, and their memory goes back."""

    def check(self, program, status=0):
        output, errors = self.run_program("import gpupool\npool = gpupool.host_pool()\ndevice = gpupool.device_pool(0)\n" + program,
                                          status=status)
        self.assertEqual(errors, "")
        scene.wait_until(lambda: self.daemon.leases() == 0, "all memory went back")
        return output

    def test_globals(self):
        self.check("buffer = pool.acquire(100); other = device.acquire(1 << 24); view = other.view()")

    def test_exports(self):
        self.check("memory = memoryview(pool.acquire(100)); memory[0] = 1; capsule = pool.acquire(5).__dlpack__()")

    def test_a_cycle_and_a_stream(self):
        self.check("stream = gpupool.Stream(0)\nclass Around: pass\naround = Around()\naround.around = around\n"
                   "around.buffer = device.acquire(100, stream=stream)\naround.stream = stream")

    def test_a_client_of_its_own(self):
        self.check("client = gpupool.Client(); buffer = client.host_pool().acquire(1000); memory = memoryview(buffer)")

    def test_a_buffer_that_another_module_has(self):
        self.check("import builtins, sys, atexit\nbuiltins.kept = pool.acquire(100)\nsys.modules['kept'] = pool.acquire(1 << 20)\n"
                   "atexit.register(lambda: pool.acquire(100).close())\n"
                   "class Late:\n    def __del__(self, pool=pool): pool.acquire(100)\nlate = Late()\nbuiltins.late = Late()")

    def test_a_thread_that_has_buffers(self):
        self.check("import threading\nstarted = threading.Event()\n"
                   "def work():\n    while True:\n        kept = [pool.acquire(1000) for _ in range(10)]\n        started.set()\n"
                   "threading.Thread(target=work, daemon=True).start()\nstarted.wait(60)")

    @needs_numpy
    def test_arrays_of_numpy(self):
        self.check("import numpy, builtins\narray = pool.empty(100); builtins.kept = numpy.frombuffer(pool.acquire(8), 'f4')")

    @scene.needs_torch
    def test_tensors(self):
        self.check("import torch, builtins\ntensor = builtins.kept = torch.from_dlpack(pool.acquire(64))")

    def test_an_exit_without_an_end(self):
        self.check("import os\nkept = pool.acquire(100)\nos._exit(3)", status=3)

    def test_the_module_is_imported_again(self):
        self.check("import sys, gc\nbuffer = pool.acquire(100)\n"
                   "for name in [name for name in sys.modules if name.startswith('gpupool')]: del sys.modules[name]\n"
                   "del gpupool, pool, device; gc.collect()\n"
                   "import gpupool\nother = gpupool.host_pool().acquire(100)\nassert other.ptr != buffer.ptr\n"
                   "assert type(other) is not type(buffer)\nbuffer.close()")


if __name__ == "__main__":
    unittest.main()
