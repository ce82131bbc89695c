# SPDX-License-Identifier: Apache-2.0
"""gpupoolctl run and the preload library, from outside: programs that know nothing of gpupool, a daemon on simulated GPUs,
and a CUDA runtime and a driver that are fakes."""
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

from run_scene import CONFIG, Conversation, PATIENT, WAIT_S, WithDaemon, ctl_run, environment, gpupool_system

PROGRAM, LOADER = os.environ["TEST_PROGRAM"], os.environ["PRELOAD_LOADER"]
CALLERS = {number: os.environ[f"PRELOAD_CALLER_{number}"] for number in (12, 13)}
LIBRARY, AUDIT = os.environ["PRELOAD_LIBRARY"], os.environ["AUDIT_LIBRARY"]
DRIVER_PROGRAM, DRIVER_CALLER = os.environ["DRIVER_PROGRAM"], os.environ["DRIVER_CALLER"]


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
        self.assertIn("from CUDA from now on", lines[0])


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

    def test_a_library_for_communication_has_the_real_driver(self):
        self.run_with(DRIVER_PROGRAM, "by_communication", os.environ["DRIVER_COMMUNICATION"])

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
        """The library defines no name of CUDA's, so that neither libgpupool-client's runtime nor the program's finds one."""
        def names(*options):
            done = subprocess.run(["nm", "-D", *options], check=True, capture_output=True, text=True)
            return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}

        shown = names("--defined-only", LIBRARY)
        self.assertTrue({"gpupool_driver_cuMemAlloc_v2", "gpupool_driver_cuMemFree_v2"} <= shown)
        own = {name for name in shown if not name.startswith(("gpupool_driver_cu", "gpupool_counted_cu"))}
        self.assertEqual(own, {"_exit", "_Exit", "gpupool_retried_cudaMalloc", "gpupool_retried_real"})
        self.assertFalse([name for name in names(os.environ["PRELOAD_CLIENT"]) if name.startswith("cuda")])
        self.assertEqual(names("--defined-only", AUDIT), {"la_version", "la_objopen", "la_symbind64"})


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
