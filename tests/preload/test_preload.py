# SPDX-License-Identifier: Apache-2.0
"""gpupoolctl run and the preload library, from outside: programs that know nothing of gpupool, a daemon on simulated GPUs,
and a CUDA runtime that is a fake."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "system"))
import gpupool_system  # noqa: E402

PROGRAM, LOADER = os.environ["TEST_PROGRAM"], os.environ["PRELOAD_LOADER"]
CALLERS = {number: os.environ[f"PRELOAD_CALLER_{number}"] for number in (12, 13)}
ALLOCATOR = os.environ["PRELOAD_ALLOCATOR"]  # has the name of PyTorch's allocator
LIBRARY, AUDIT = os.environ["PRELOAD_LIBRARY"], os.environ["AUDIT_LIBRARY"]
DRIVER_PROGRAM, DRIVER_CALLER = os.environ["DRIVER_PROGRAM"], os.environ["DRIVER_CALLER"]
WAIT_S = 60
# A busy machine may take longer than a program waits for room by default.
PATIENT = {"GPUPOOL_ALLOC_TIMEOUT": "60s"}
CONFIG = "[device]\nlimit = 64MiB\nstep = 2MiB\n[host]\nlimit = 64MiB\nstep = 2MiB\n"


def environment(**variables):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("GPUPOOL_") and name not in ("LD_AUDIT", "LD_PRELOAD", "LD_LIBRARY_PATH")}
    return {**kept, "GPUPOOL_SIM_LATENCY": "0", "LC_ALL": "C.UTF-8", **variables}


def ctl_run(*arguments, variables=None, **keywords):
    settings = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": WAIT_S, **keywords}
    return subprocess.run([gpupool_system.CTL, "run", *map(str, arguments)], check=False,
                          env=environment(**(variables or {})), **settings)


class Conversation:
    """A program that says a line and waits for one. It is killed when that takes too long."""

    def __init__(self, *command, variables=None):
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=environment(**(variables or {})))
        self.bound = threading.Timer(WAIT_S, self.process.kill)
        self.bound.daemon = True
        self.bound.start()

    def expect(self, line):
        said = self.process.stdout.readline()
        if said != line + "\n":
            self.process.kill()
            raise AssertionError(f"{said!r} instead of {line!r}: {self.process.communicate()[1]}")

    def answer(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        self.bound.cancel()
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()

    def finish(self):
        out, error = self.process.communicate(timeout=WAIT_S)
        self.bound.cancel()
        return self.process.returncode, out, error


class WithDaemon(unittest.TestCase):
    def setUp(self):
        self.daemon = gpupool_system.Daemon(CONFIG)
        self.addCleanup(self.close_daemon)

    def close_daemon(self):
        if self.daemon is not None:
            self.daemon.close()

    def command(self, *arguments):
        return [gpupool_system.CTL, "run", "--socket", self.daemon.socket, "--", *arguments]

    def run_with(self, *arguments, variables=None, **keywords):
        """Runs a program to its end, which is a good one. Returns what it wrote. Memory that the daemon makes is waited for, as
        long as a busy machine takes."""
        done = ctl_run("--socket", self.daemon.socket, "--", *arguments, **keywords,
                       variables={"GPUPOOL_ALLOC_TIMEOUT": "30s", **(variables or {})})
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stdout}{done.stderr}")
        return done.stdout

    def pool(self, place, member):
        """Of the device's or the host's pools."""
        return sum(pool[member] for pool in self.daemon.ask("pools")["pools"] if pool["kind"] == place)

    def besides(self, program):
        """The memory that a program has beside the pools."""
        return next(entry["own_bytes"] for entry in self.daemon.ask("sessions")["sessions"] if entry["pid"] == program.process.pid)

    def wait_until(self, condition, what):
        deadline = time.monotonic() + WAIT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.01)

    def wait_until_all_is_back(self):
        """The memory of processes that have ended."""
        self.wait_until(lambda: self.pool("device", "leased_bytes") + self.pool("device", "quarantined_bytes") == 0, "all is back")


class Programs(WithDaemon):
    """The parts of program.c: each checks what it sees itself."""

    def test_memory_is_lent_and_comes_back(self):
        self.run_with(PROGRAM, "memory")
        self.assertGreaterEqual(self.pool("device", "acquires"), 1)
        self.assertGreaterEqual(self.pool("host", "acquires"), 1)

    def test_without_the_library_the_checks_fail(self):
        done = subprocess.run([PROGRAM, "memory"], capture_output=True, text=True, timeout=WAIT_S, check=False,
                              env=environment())
        self.assertEqual(done.returncode, -signal.SIGABRT)
        self.assertIn("is_lent", done.stderr)

    def test_what_is_not_for_the_pools_is_the_runtimes(self):
        self.run_with(PROGRAM, "others")

    def test_what_the_pool_cannot_lend_is_an_allocation_error(self):
        self.run_with(PROGRAM, "exhaust", variables={"GPUPOOL_ALLOC_TIMEOUT": "1s"})

    def test_the_wait_for_room_can_be_set(self):
        self.run_with(PROGRAM, "exhaust", variables={"GPUPOOL_ALLOC_TIMEOUT": "500ms"})

    def test_a_wrong_pointer_is_an_error(self):
        self.run_with(PROGRAM, "twice")

    def test_freeing_in_stream_order_does_not_wait(self):
        self.run_with(PROGRAM, "async")

    def test_the_memory_that_is_told_is_the_pools(self):
        self.run_with(PROGRAM, "info")

    def test_a_capture_is_left_alone(self):
        self.run_with(PROGRAM, "capture")

    def test_an_error_that_stays_is_passed_on(self):
        self.run_with(PROGRAM, "sticky")

    def test_memory_is_waited_for_on_its_device(self):
        self.run_with(PROGRAM, "devices")

    def test_a_reset_takes_nothing_away(self):
        self.run_with(PROGRAM, "reset")

    def test_a_forked_child_has_no_runtime(self):
        self.run_with(PROGRAM, "forks")

    def test_a_child_forked_before_the_first_use_has_memory_of_its_own(self):
        self.run_with(PROGRAM, "forks_early")

    def test_a_process_ends_well_however_late_it_frees(self):
        for _ in range(10):
            self.run_with(PROGRAM, "ends")

    def test_two_processes_share_memory_by_a_handle(self):
        self.run_with(PROGRAM, "shares")

    def test_threads_do_not_get_each_others_memory(self):
        self.run_with(PROGRAM, "threads")

    def test_memory_of_a_process_that_ended_is_lent_again(self):
        for _ in range(5):
            self.run_with(PROGRAM, "wants", variables=PATIENT)  # 40 of 64 MiB

    def test_the_stats_show_what_a_program_has(self):
        program = Conversation(*self.command(PROGRAM, "holds"), variables=PATIENT)
        program.expect("holds")
        session = [entry for entry in self.daemon.ask("sessions")["sessions"] if entry["pid"] == program.process.pid]
        self.assertEqual(len(session), 1)
        self.assertGreaterEqual(session[0]["leased_bytes"], 30 << 20)
        self.wait_until(lambda: self.besides(program) == 518 << 20, "the driver lists the context of the process")
        program.answer()
        program.expect("freed")
        self.run_with(PROGRAM, "wants", variables=PATIENT)  # has what the other one keeps idle
        program.answer()
        self.assertEqual(program.finish()[0], 0)

    def test_a_list_that_fails_once_is_asked_again(self):
        """Else the memory beside the pools would be unknown for ever."""
        self.daemon.close()
        self.daemon = gpupool_system.Daemon(CONFIG, environment={"GPUPOOL_SIM_FAIL": "processes:1:801"})
        program = Conversation(*self.command(PROGRAM, "holds"), variables=PATIENT)
        self.addCleanup(program.end)
        program.expect("holds")
        self.wait_until(lambda: self.besides(program) == 518 << 20, "the driver lists the context of the process")

    def test_a_program_goes_on_without_its_daemon(self):
        program = Conversation(*self.command(PROGRAM, "lost"))
        program.expect("lent")
        self.daemon.stop()
        program.answer()
        code, _, error = program.finish()
        self.assertEqual(code, 0, error)
        lines = [line for line in error.splitlines() if "simulates" not in line]
        self.assertEqual(len(lines), 1, error)
        self.assertIn("from the CUDA runtime from now on", lines[0])


class Driver(WithDaemon):
    """The parts of driver_program.c, which has no runtime and calls the driver."""

    def test_the_calls_are_served(self):
        for part in ("memory", "others", "twice", "async", "ordered", "destroys", "contexts", "broken", "reset", "shares", "forks_early", "threads"):
            with self.subTest(part):
                self.run_with(DRIVER_PROGRAM, part)
        self.assertGreaterEqual(self.pool("device", "acquires"), 1)
        self.assertGreaterEqual(self.pool("host", "acquires"), 1)

    def test_answers_about_memory_tell_the_allocation(self):
        self.run_with(DRIVER_PROGRAM, "answers")

    def test_the_gpus_memory_is_told_where_it_is_asked_for(self):
        done = ctl_run("--socket", self.daemon.socket, "--memory-info=gpu", "--", DRIVER_PROGRAM, "gpu_info")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_each_way_to_a_function_leads_to_the_pool(self):
        self.run_with(DRIVER_PROGRAM, "by_dlsym")
        self.run_with(DRIVER_PROGRAM, "by_library", DRIVER_CALLER)
        self.run_with(DRIVER_PROGRAM, "by_address")

    def test_a_shared_runtime_has_the_real_driver(self):
        """Else its calls would be served twice."""
        self.run_with(DRIVER_PROGRAM, "by_runtime", os.environ["DRIVER_RUNTIME"])

    def test_a_capture_is_left_alone(self):
        self.run_with(DRIVER_PROGRAM, "capture", CALLERS[13])

    def test_without_run_the_memory_is_the_drivers(self):
        """Also with one of the two libraries alone."""
        for variables in ({}, {"LD_PRELOAD": LIBRARY}, {"LD_AUDIT": AUDIT}):
            with self.subTest(str(variables)):
                done = subprocess.run([DRIVER_PROGRAM, "memory"], capture_output=True, text=True, timeout=WAIT_S, check=False,
                                      env=environment(GPUPOOL_SOCKET=str(self.daemon.socket), **variables))
                self.assertEqual(done.returncode, -signal.SIGABRT)
                self.assertIn("lent(p)", done.stderr)
        self.assertEqual(self.daemon.ask("sessions")["sessions"], [])

    def test_what_the_pool_cannot_lend_is_the_drivers_error(self):
        self.run_with(DRIVER_PROGRAM, "exhaust", variables={"GPUPOOL_ALLOC_TIMEOUT": "1s"})

    def test_a_program_with_a_context_of_its_own_gets_the_drivers_memory(self):
        self.run_with(DRIVER_PROGRAM, "own_context")
        self.assertEqual(self.pool("device", "acquires"), 0)

    def test_the_stats_show_what_a_program_has(self):
        program = Conversation(*self.command(DRIVER_PROGRAM, "holds"), variables=PATIENT)
        self.addCleanup(program.end)
        program.expect("holds")
        session = [entry for entry in self.daemon.ask("sessions")["sessions"] if entry["pid"] == program.process.pid]
        self.assertEqual(len(session), 1)
        self.assertGreaterEqual(session[0]["leased_bytes"], 30 << 20)
        program.answer()
        self.assertEqual(program.finish()[0], 0)
        self.run_with(PROGRAM, "wants", variables=PATIENT)  # 40 of 64 MiB

    def test_a_program_goes_on_without_its_daemon(self):
        program = Conversation(*self.command(DRIVER_PROGRAM, "lost"))
        self.addCleanup(program.end)
        program.expect("lent")
        self.daemon.stop()
        program.answer()
        code, _, error = program.finish()
        self.assertEqual(code, 0, error)
        self.assertIn("from now on", error)


class Ways(WithDaemon):
    """The parts of ways.c: traps of programs that hook dlsym(), and bad moments."""

    def ways(self, *arguments, **keywords):
        return self.run_with(os.environ["DRIVER_WAYS"], *arguments, **keywords)

    def test_a_plugin_with_deep_binding_is_served(self):
        self.ways("plugin", DRIVER_CALLER)

    def test_each_handle_of_the_driver_is_served(self):
        self.ways("handles")

    def test_each_version_of_cuda_is_served(self):
        self.ways("versions")

    def test_memory_of_a_child_that_was_forked_early_and_killed_is_lent_again(self):
        self.ways("children", variables=PATIENT)

    def test_a_program_that_is_killed_in_the_middle_leaves_nothing(self):
        for number in range(5):
            program = Conversation(*self.command(os.environ["DRIVER_WAYS"], "endless"), variables=PATIENT)
            self.addCleanup(program.end)
            program.expect("works")
            self.assertGreaterEqual(self.pool("device", "leased_bytes"), 20 << 20, number)
            program.process.kill()
            self.assertEqual(program.finish()[0], -signal.SIGKILL)
            self.wait_until_all_is_back()
        self.run_with(PROGRAM, "wants", variables=PATIENT)  # 40 of 64 MiB


class Runtimes(WithDaemon):
    def test_a_runtime_that_was_loaded_for_one_library_alone_is_found(self):
        for number, library in CALLERS.items():
            self.assertEqual(self.run_with(LOADER, library), f"{number}\n")

    def test_each_caller_has_its_own_runtime(self):
        self.assertEqual(self.run_with(LOADER, CALLERS[12], CALLERS[13]), "12\n13\n")
        self.assertEqual(self.run_with(LOADER, CALLERS[13], CALLERS[12]), "13\n12\n")

    def test_the_libraries_cannot_see_each_others_names(self):
        """The library defines the runtime's functions; libgpupool-client's own runtime must not find them."""
        def names(*options):
            done = subprocess.run(["nm", "-D", *options], check=True, capture_output=True, text=True)
            return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}

        shown = names("--defined-only", LIBRARY)
        self.assertTrue({"cudaMalloc", "cudaFree", "cudaMallocHost", "cudaHostAlloc", "cudaFreeHost"} <= shown)
        own = {name for name in shown if not name.startswith(("cuda", "gpupool_driver_cu", "gpupool_counted_cu"))}
        self.assertEqual(own, {"_exit", "_Exit"})
        self.assertFalse([name for name in names(os.environ["PRELOAD_CLIENT"]) if name.startswith("cuda")])
        self.assertEqual(names("--defined-only", AUDIT), {"la_version", "la_objopen", "la_symbind64"})


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


class Tool(unittest.TestCase):
    """gpupoolctl run, before and beside the program."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = gpupool_system.Daemon(CONFIG)
        cls.directory = tempfile.TemporaryDirectory(prefix="gpupool-preload-")
        cls.work = pathlib.Path(cls.directory.name)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()
        cls.daemon.close()

    def refused(self, code, text, *arguments, **keywords):
        done = ctl_run(*arguments, **keywords)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(done.stdout, "")

    def script(self, name, text):
        path = self.work / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def test_the_programs_arguments_output_and_status_are_its_own(self):
        done = ctl_run("--socket", self.daemon.socket, "--", "sh", "-c", 'echo "$0 $1"; exit 42', "--json", "-h")
        self.assertEqual((done.returncode, done.stdout), (42, "--json -h\n"))
        done = ctl_run("--socket", self.daemon.socket, "echo", "--socket", "x")
        self.assertEqual((done.returncode, done.stdout), (0, "--socket x\n"))

    def test_jax_takes_memory_that_is_served(self):
        """Unless it is told otherwise."""
        show = 'echo "$XLA_PYTHON_CLIENT_ALLOCATOR $XLA_PYTHON_CLIENT_PREALLOCATE"'
        for given, seen in (({}, "cuda_async false"), ({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, "cuda_async true"),
                            ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, "platform ")):
            with self.subTest(str(given)):
                done = ctl_run("--socket", self.daemon.socket, "sh", "-c", show, variables=given)
                self.assertEqual(done.stdout, seen + "\n", done.stderr)

    def test_the_environment_has_the_audit_library(self):
        audit = str(pathlib.Path(AUDIT).resolve())
        show = 'echo "$LD_AUDIT"'
        self.assertEqual(ctl_run("--socket", self.daemon.socket, "sh", "-c", show).stdout, f"{audit}\n")
        done = ctl_run("--socket", self.daemon.socket, "sh", "-c", show, variables={"LD_AUDIT": audit})
        self.assertEqual(done.stdout, f"{audit}:{audit}\n")

    def test_the_environment_has_the_library_and_the_socket(self):
        show = 'echo "$LD_PRELOAD $GPUPOOL_SOCKET"'
        socket = self.daemon.socket
        library = str(pathlib.Path(LIBRARY).resolve())
        self.assertEqual(ctl_run("--socket", socket, "sh", "-c", show).stdout, f"{library} {socket}\n")
        done = ctl_run("sh", "-c", show, variables={"LD_PRELOAD": "libm.so.6", "GPUPOOL_SOCKET": str(socket)})
        self.assertEqual(done.stdout, f"{library}:libm.so.6 {socket}\n")
        done = ctl_run("--socket", socket.name, "sh", "-c", show, cwd=socket.parent)
        self.assertEqual(done.stdout, f"{library} {socket}\n")

    def test_no_daemon_is_an_error_and_the_program_does_not_run(self):
        missing = self.work / "no.sock"
        self.refused(125, f"no gpupoold answers at {missing}", "--socket", missing, "echo", "ran")
        self.refused(125, "is not the socket", "--socket", self.daemon.admin_socket, "echo", "ran")
        self.refused(125, "private", "--socket", "private", "echo", "ran")
        if not os.path.exists("/run/gpupool/gpupool.sock"):
            self.refused(125, "/run/gpupool/gpupool.sock", "true", variables={"GPUPOOL_SOCKET": ""})

    def test_a_daemon_without_a_gpu_has_nothing_to_lend(self):
        with gpupool_system.Daemon(CONFIG, arguments=["--gpu", "none"]) as daemon:
            self.refused(125, "serves no GPU", "--socket", daemon.socket, "echo", "ran")

    def test_a_private_daemon_that_was_handed_on_lends(self):
        variables = {"GPUPOOL_SOCKET": "private", "GPUPOOL_PRIVATE_SOCKET": str(self.daemon.socket)}
        done = ctl_run("sh", "-c", "echo $GPUPOOL_SOCKET", variables=variables)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, os.path.realpath(self.daemon.socket)), done.stderr)

    def test_a_simulation_is_told(self):
        self.assertIn("simulates its GPU", ctl_run("--socket", self.daemon.socket, "true").stderr)

    def test_no_library_is_an_error(self):
        self.refused(125, "No such file", "--socket", self.daemon.socket, "--library", self.work / "none.so", "echo")
        alone = self.work / "bin" / "gpupoolctl"
        alone.parent.mkdir()
        alone.write_bytes(pathlib.Path(gpupool_system.CTL).read_bytes())
        alone.chmod(0o755)
        done = subprocess.run([alone, "run", "--socket", self.daemon.socket, "echo"], capture_output=True, text=True,
                              check=False, env=environment(), timeout=WAIT_S)
        if done.returncode != 0:  # else there is an installed one
            self.assertEqual(done.returncode, 125)
            self.assertIn("libgpupool-preload.so is not in", done.stderr)
        lonely = self.work / "preload.so"
        lonely.write_bytes(b"")
        self.refused(125, "libgpupool-audit.so", "--socket", self.daemon.socket, "--library", lonely, "echo")
        blank = self.work / "with blank"
        blank.mkdir()
        (blank / "library.so").write_bytes(b"")
        self.refused(125, "blank", "--socket", self.daemon.socket, "--library", blank / "library.so", "echo")

    def test_no_program_has_the_status_that_env_gives(self):
        self.refused(125, "no program given")
        self.refused(127, "there is no such program", "--socket", self.daemon.socket, "no-such-program")
        self.refused(127, "there is no such program", "--socket", self.daemon.socket, self.work / "no" / "program")
        self.refused(126, "cannot be executed", "--socket", self.daemon.socket, self.work)
        self.refused(125, "unrecognized option", "--no-such-option", "echo")
        done = gpupool_system.ctl("--json", "run", "true")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'run' comes first", done.stderr)

    @unittest.skipUnless("PRELOAD_CUDART_STATIC" in os.environ, "there is no CUDA toolkit")
    def test_a_program_runs_with_its_static_runtime_and_with_the_shared_one(self):
        for kind in ("STATIC", "SHARED"):
            done = ctl_run("--socket", self.daemon.socket, os.environ[f"PRELOAD_CUDART_{kind}"])
            self.assertNotIn(done.returncode, (125, 126, 127), done.stderr)  # it ran, and found no GPU

    def test_what_nothing_can_be_preloaded_into_is_refused(self):
        static = self.work / "static"
        source = self.work / "static.c"
        source.write_text("int main(void) { return 7; }\n")
        if subprocess.run(["cc", "-static", source, "-o", static], check=False, capture_output=True).returncode != 0:
            self.skipTest("no static C library")
        self.refused(125, "linked statically", "--socket", self.daemon.socket, static)
        self.assertEqual(ctl_run("--socket", self.daemon.socket, "--force", static).returncode, 7)

    def test_what_is_no_whole_program_is_left_to_the_kernel(self):
        """Files that are cut or damaged: nothing is read beyond their ends."""
        whole = pathlib.Path(PROGRAM).read_bytes()
        for name, content in {"empty": b"", "magic": whole[:4], "header": whole[:64], "half": whole[:600],
                              "offsets": whole[:32] + b"\xff" * 8 + whole[40:], "hash": b"#!", "none": b"#! \n",
                              "names": b"#!" + b"x" * 1000}.items():
            path = self.work / f"cut-{name}"
            path.write_bytes(content)
            path.chmod(0o755)
            with self.subTest(name):
                done = ctl_run("--socket", self.daemon.socket, path)
                # The kernel's refusal, or that of an ELF file without a linker's name. A file that the kernel does
                # execute may crash then: that is the file's fault.
                if name != "half":
                    self.assertIn(done.returncode, (0, 125, 126, 127), done.stderr)
        loop = self.work / "loop"
        self.script("loop", f"#!{loop}\n")
        self.assertIn(ctl_run("--socket", self.daemon.socket, loop).returncode, (125, 126))


if __name__ == "__main__":
    unittest.main()
