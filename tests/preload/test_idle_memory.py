# SPDX-License-Identifier: Apache-2.0
"""Memory that frameworks of Python keep cached, under gpupoolctl run: it goes back when other programs need it."""
import os
import textwrap
import unittest

from run_scene import Conversation, PATIENT, WithDaemon, ctl_run

PROGRAM = os.environ["TEST_PROGRAM"]
CALLERS = {number: os.environ[f"PRELOAD_CALLER_{number}"] for number in (12, 13)}
ALLOCATOR = os.environ["PRELOAD_ALLOCATOR"]  # has the name of PyTorch's allocator

# A PyTorch, as far as the preload library knows it: what it frees is cached until empty_cache().
TORCH = """
    import ctypes, os, queue, sys, threading, time, types
    caller = ctypes.CDLL(sys.argv[1])
    cached = []
    torch = sys.modules["torch"] = types.ModuleType("torch")
    torch.cuda, torch._C = types.ModuleType("torch.cuda"), types.ModuleType("torch._C")
    torch.cuda.is_initialized = lambda: True
    def allocate(size):
        memory = ctypes.c_void_p()
        code = caller.caller_malloc(ctypes.byref(memory), ctypes.c_size_t(size))
        assert code == 0, code
        return memory
    def empty_cache():
        while cached:
            assert caller.caller_free(cached.pop()) == 0
    torch.cuda.empty_cache = empty_cache
    class Counts(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint) for name in "allocations frees waits resets invalidated".split()]
    def invalidated():
        counts = (ctypes.c_char * 256)()
        caller.caller_counts(ctypes.byref(counts))
        return Counts.from_buffer(counts).invalidated
    def line():  # from the test, without Python's buffer
        return os.read(0, 1)
    def begin(function, *arguments):
        thread = threading.Thread(target=function, args=arguments)
        thread.start()
        return thread
    def wait_until(condition):
        deadline = time.monotonic() + 50
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)
    cached += [allocate(10 << 20) for _ in range(int(sys.argv[2]))]  # of 64 MiB
"""


class Memory(WithDaemon):
    """Programs in Python whose memory others need."""

    def python(self, text, caller=CALLERS[13], blocks=5, **variables):
        script = textwrap.dedent(TORCH) + textwrap.dedent(text)
        program = Conversation(*self.command("/usr/bin/python3", "-c", script, caller, blocks), variables=variables)
        self.addCleanup(program.end)
        return program

    def ends_well(self, program):
        code, _, error = program.finish()
        self.assertEqual((code, error.count("Traceback")), (0, 0), error)

    def goes_to_another(self):
        self.run_with(PROGRAM, "wants", variables=PATIENT)

    def stays(self):
        done = ctl_run("--socket", self.daemon.socket, PROGRAM, "wants", variables={"GPUPOOL_ALLOC_TIMEOUT": "300ms"})
        self.assertNotEqual(done.returncode, 0)


class Python(Memory):
    """Memory that a framework keeps cached goes back when others need it, whatever the main thread does."""

    def test_a_cache_is_emptied_beside_a_program_that_runs(self):
        program = self.python("""
            names = set(globals())
            print("holds", flush=True)
            deadline = time.monotonic() + 50
            while cached and time.monotonic() < deadline:
                pass  # any program: nothing in it calls us
            assert not cached and set(globals()) == names | {"names", "deadline"}
            print("emptied", flush=True)
            line()
        """)
        program.expect("holds")
        self.goes_to_another()
        program.expect("emptied")
        program.answer()
        self.ends_well(program)

    def test_a_cache_is_emptied_while_the_main_thread_is_inside_a_call(self):
        """Each call gives the interpreter's lock up, and returns when the test says so."""
        calls = {
            "a read": "line()",
            "a sleep": """
                begin(lambda: (line(), os._exit(len(cached))))
                time.sleep(1000)""",
            "a lock": """
                lock = threading.Lock()
                lock.acquire()
                begin(lambda: (line(), lock.release()))
                lock.acquire()""",
            "a queue": """
                waiting = queue.Queue()
                begin(lambda: waiting.put(line()))
                waiting.get()""",
            "a call in C": """
                character = ctypes.create_string_buffer(1)
                ctypes.CDLL(None).read(0, character, 1)""",
            "a join": "begin(line).join()",
        }
        for name, call in calls.items():
            with self.subTest(name):
                program = self.python('print("holds", flush=True)\n' + textwrap.dedent(call) + "\nassert not cached\n")
                program.expect("holds")
                self.goes_to_another()
                program.answer()
                self.ends_well(program)

    def test_an_extension_that_holds_the_lock_is_waited_for(self):
        program = self.python("""
            character = ctypes.create_string_buffer(1)
            print("holds", flush=True)
            ctypes.PyDLL(None).read(0, character, 1)
            wait_until(lambda: not cached)
        """)
        program.expect("holds")
        self.stays()
        other = Conversation(*self.command(PROGRAM, "wants"), variables=PATIENT)
        program.answer()
        self.assertEqual(other.finish()[0], 0)
        self.ends_well(program)

    def test_it_is_emptied_again_and_again(self):
        program = self.python("""
            for _ in range(5):
                print("holds", flush=True)
                line()
                assert not cached
                cached += [allocate(10 << 20) for _ in range(5)]
        """, **PATIENT)
        for _ in range(5):
            program.expect("holds")
            self.goes_to_another()
            program.answer()
        self.ends_well(program)

    def test_a_request_that_comes_while_a_cache_is_emptied_is_served(self):
        program = self.python("""
            more, may_end, calls = allocate(10 << 20), threading.Event(), []
            def empty_slowly():
                calls.append(1)
                empty_cache()
                if len(calls) == 1:
                    print("begun", flush=True)
                    line()
                    cached.append(more)  # behind the work
            torch.cuda.empty_cache = empty_slowly
            print("holds", flush=True)
            wait_until(lambda: len(calls) > 1 and not cached)
        """)
        program.expect("holds")
        first = Conversation(*self.command(PROGRAM, "wants_all"), variables=PATIENT)
        program.expect("begun")
        program.answer()
        self.assertEqual(first.finish()[0], 0)
        self.ends_well(program)

    def test_not_while_a_stream_is_captured_in_any_thread(self):
        captures = {
            "a stream": ("caller.caller_begin_capture(5)", "caller.caller_end_capture(5)"),
            "into a graph": ("caller.caller_begin_capture_to_graph(5)", "caller.caller_end_capture(5)"),
            "the thread's own": ("caller.caller_begin_capture_per_thread()", "caller.caller_end_capture_per_thread()"),
            "a stream that is destroyed": ("caller.caller_begin_capture(5)", "caller.caller_destroy(5)"),
        }
        for name, (begin, end) in captures.items():
            with self.subTest(name):
                self.wait_until_all_is_back()  # else this program is asked for memory before its capture
                program = self.python(f"""
                    def capture():
                        assert {begin} == 0
                        print("captures", flush=True)
                        line()
                        assert len(cached) == 5 and {end} == 0
                    begin(capture)
                    wait_until(lambda: not cached)
                    assert invalidated() == 0
                """)
                program.expect("captures")
                self.stays()
                other = Conversation(*self.command(PROGRAM, "wants"), variables=PATIENT)
                program.answer()
                self.assertEqual(other.finish()[0], 0)
                self.ends_well(program)

    def test_two_captures_are_two(self):
        """One ends, and one that another thread should end does not."""
        program = self.python("""
            assert caller.caller_begin_capture(5) == 0
            thread = begin(lambda: print("captures", flush=True) if caller.caller_begin_capture(6) == 0 else None)
            thread.join()
            assert caller.caller_end_capture(6) == 908 and caller.caller_end_capture(7) != 0
            assert caller.caller_end_capture(5) == 0
            line()
            assert len(cached) == 5 and invalidated() == 0
        """)
        program.expect("captures")
        self.stays()
        program.answer()
        self.ends_well(program)

    def test_a_capture_that_begins_while_a_cache_is_emptied_is_left_alone(self):
        """Memory that PyTorch has freed by then waits for its end."""
        program = self.python("""
            def empty_beside_a_capture():
                if cached:
                    begin(capture).join()
                    empty_cache()
                    print("freed", flush=True)
            def capture():
                assert caller.caller_begin_capture(5) == 0
            torch.cuda.empty_cache = empty_beside_a_capture
            print("holds", flush=True)
            line()
            assert not cached and invalidated() == 0
            caller.caller_destroy(5)
            line()
            assert invalidated() == 0
        """)
        program.expect("holds")
        other = Conversation(*self.command(PROGRAM, "wants"), variables=PATIENT)
        program.expect("freed")
        program.answer()
        self.assertEqual(other.finish()[0], 0)
        program.answer()
        self.ends_well(program)

    def test_a_fork_does_not_disturb_it(self):
        """Before, while and after a cache is emptied; the child ends as a program does."""
        program = self.python("""
            def child():
                number = os.fork()
                if number == 0:
                    sys.exit(0)
                assert os.waitpid(number, 0)[1] == 0
            def empty_beside_a_fork():
                begin(child).join()
                empty_cache()
            torch.cuda.empty_cache = empty_beside_a_fork
            for _ in range(3):
                child()
                print("holds", flush=True)
                line()
                assert not cached
                cached += [allocate(10 << 20) for _ in range(5)]
        """, **PATIENT)
        for _ in range(3):
            program.expect("holds")
            self.goes_to_another()
            program.answer()
        self.ends_well(program)

    def test_a_program_that_ends_waits_for_the_work(self):
        """Else the work would go on in libraries that are being unloaded."""
        program = self.python("""
            import atexit
            def empty_slowly():
                if not cached:  # asked once more
                    return
                print("begun", flush=True)
                ctypes.CDLL(None).usleep(200000)
                empty_cache()
                finished.append(1)
            finished = []
            torch.cuda.empty_cache = empty_slowly
            atexit.register(lambda: print("finished" if finished else "cut", flush=True))
            print("holds", flush=True)
            line()
        """)
        program.expect("holds")
        other = Conversation(*self.command(PROGRAM, "wants"), variables=PATIENT)
        program.expect("begun")
        program.answer()
        program.expect("finished")
        self.ends_well(program)
        self.assertEqual(other.finish()[0], 0)

    def test_an_interrupt_reaches_the_program(self):
        """Also one that comes while the main thread empties the cache."""
        program = self.python("""
            def empty_and_interrupt():
                if cached:
                    empty_cache()
                    emptied_by.append(threading.current_thread())
                    if emptied_by[0] is threading.main_thread():
                        raise KeyboardInterrupt
            emptied_by = []
            torch.cuda.empty_cache = empty_and_interrupt
            print("holds", flush=True)
            def run():
                while not emptied_by or emptied_by[0] is threading.main_thread():
                    pass
            try:
                run()
            except KeyboardInterrupt:
                pass
            print("interrupted", flush=True)
            line()
        """)
        program.expect("holds")
        self.goes_to_another()
        program.expect("interrupted")
        program.answer()
        self.ends_well(program)

    def test_the_first_attempt_of_pytorch_waits_for_idle_memory_and_the_next_one_for_any(self):
        """PyTorch frees its cache between them."""
        holder = Conversation(*self.command(PROGRAM, "holds_more"), variables=PATIENT)
        self.addCleanup(holder.end)
        holder.expect("holds")
        program = self.python("""
            memory = ctypes.c_void_p()
            def attempt(mebibytes):
                return caller.caller_malloc(ctypes.byref(memory), ctypes.c_size_t(mebibytes << 20))
            assert attempt(30) == 2
            print("refused", flush=True)
            assert attempt(30) == 0
            print("served", flush=True)
            line()
        """, ALLOCATOR, 0, GPUPOOL_ALLOC_TIMEOUT="10min")
        program.expect("refused")
        holder.answer()
        holder.expect("freed")
        program.expect("served")
        program.answer()
        self.ends_well(program)

    def test_two_programs_that_wait_for_each_others_caches_are_served(self):
        """Each allocates under its allocator's lock, and empties its cache when it is refused."""
        text = """
            lock = threading.RLock()
            def empty():
                with lock:
                    empty_cache()
            torch.cuda.empty_cache = empty
            def work():
                memory = ctypes.c_void_p()
                with lock:
                    code = caller.caller_malloc(ctypes.byref(memory), ctypes.c_size_t(31 << 20))
                    if code != 0:
                        empty_cache()
                        code = caller.caller_malloc(ctypes.byref(memory), ctypes.c_size_t(31 << 20))
                    assert code == 0
            print("cached", flush=True)
            line()
            begin(work).join()
            print("served", flush=True)
            line()
        """
        programs = []
        for _ in range(2):
            programs.append(self.python(text, ALLOCATOR, 3, GPUPOOL_ALLOC_TIMEOUT="10min"))
            programs[-1].expect("cached")
        for program in programs:
            program.answer()
        for program in programs:
            program.expect("served")
        for program in programs:
            program.answer()
            self.ends_well(program)

    def test_a_program_without_the_framework_is_left_alone(self):
        program = self.python("""
            del sys.modules["torch"]
            print("holds", flush=True)
            line()
            assert len(cached) == 5
        """)
        program.expect("holds")
        self.stays()
        program.answer()
        self.ends_well(program)


# CuPy and Numba, as far as the preload library knows them, in the place of PyTorch.
CUPY = """
    del sys.modules["torch"]
    class Pool:
        def __init__(self, blocks):
            self.blocks = blocks
        def malloc(self, size):
            return allocate(size)
        def free_all_blocks(self):
            while self.blocks:
                assert caller.caller_free(self.blocks.pop()) == 0
        def free_bytes(self):
            return 0
    class Device:
        entered = []
        def __init__(self, number):
            self.number = number
        def __enter__(self):
            self.entered.append(self.number)
        def __exit__(self, *error):
            pass
    cupy = sys.modules["cupy"] = types.ModuleType("cupy")
    cupy.cuda = types.ModuleType("cupy.cuda")
    mine = Pool(cached[3:])
    default, pinned = Pool(cached[:3]), Pool([])
    cupy.get_default_memory_pool, cupy.get_default_pinned_memory_pool = lambda: default, lambda: pinned
    cupy.cuda.get_allocator, cupy.cuda.Device = lambda: mine.malloc, Device
    def is_empty():
        return not default.blocks and not mine.blocks and set(Device.entered) == {0}  # and no other device
"""
NUMBA = """
    del sys.modules["torch"]
    class Deallocations:
        def clear(self):
            empty_cache()
    class Named:
        def __init__(self, **names):
            self.__dict__.update(names)
    context = Named(memory_manager=Named(deallocations=Deallocations()))
    devices = {0: Named(primary_context=context), 1: Named(primary_context=None)}
    driver = sys.modules["numba.cuda.cudadrv.driver"] = types.ModuleType("driver")
    driver.driver = Named(devices=devices)
    def is_empty():
        return not cached
"""


class Frameworks(Memory):
    """As of PyTorch, of others."""

    def of(self, framework, text, **variables):
        return self.python(textwrap.dedent(framework) + textwrap.dedent(text), **variables)

    def test_caches_go_to_another(self):
        for name, framework in ("cupy", CUPY), ("numba", NUMBA):
            for place, text in ("in a read", "line()\n"), ("in a loop", "wait_until(is_empty)\nline()\n"):
                with self.subTest(f"{name} {place}"):
                    program = self.of(framework, 'print("holds", flush=True)\n' + text + "assert is_empty()\n")
                    program.expect("holds")
                    self.goes_to_another()
                    program.answer()
                    self.ends_well(program)

    def test_a_cache_stays_while_a_stream_is_captured(self):
        program = self.of(CUPY, """
            graph = ctypes.c_void_p()
            assert caller.caller_begin_capture(ctypes.c_size_t(5)) == 0
            print("holds", flush=True)
            line()
            assert not is_empty() and invalidated() == 0
            assert caller.caller_end_capture(ctypes.c_size_t(5)) == 0
            print("ended", flush=True)
            line()
            assert is_empty()
        """)
        program.expect("holds")
        self.stays()
        program.answer()
        program.expect("ended")
        self.goes_to_another()
        program.answer()
        self.ends_well(program)

    def test_a_cache_that_fails_hinders_no_other_one(self):
        program = self.of(CUPY, """
            def fail():
                raise RuntimeError("broken")
            broken = sys.modules["torch"] = types.ModuleType("torch")
            broken.cuda = types.ModuleType("torch.cuda")
            broken.cuda.is_initialized = fail
            print("holds", flush=True)
            line()
            assert is_empty()
        """)
        program.expect("holds")
        self.goes_to_another()
        program.answer()
        self.ends_well(program)


if __name__ == "__main__":
    unittest.main()
