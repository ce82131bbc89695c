# SPDX-License-Identifier: Apache-2.0
"""The common part of the tests of gpupoolctl run: programs that know nothing of gpupool, with a daemon on simulated GPUs."""
import os
import pathlib
import subprocess
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "system"))
import gpupool_system  # noqa: E402

WAIT_S = 60
# A busy machine may take longer than a program waits for room by default.
PATIENT = {"GPUPOOL_ALLOC_TIMEOUT": "60s"}
CONFIG = "[device]\nlimit = 64MiB\nstep = 2MiB\n[host]\nlimit = 64MiB\nstep = 2MiB\n"


def environment(**variables):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("GPUPOOL_") and name not in ("LD_AUDIT", "LD_PRELOAD", "LD_LIBRARY_PATH")}
    return {**kept, "GPUPOOL_SIM_LATENCY": "0", "LC_ALL": "C.UTF-8", **variables}


def ctl_run(*arguments, variables=None, **keywords):
    settings = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace",
                "timeout": WAIT_S, **keywords}
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
