# SPDX-License-Identifier: Apache-2.0
"""The common part of the tests in which a daemon dies and another one goes on: a daemon with a keeper, and workers."""
import contextlib
import os
import select
import signal
import subprocess
import tempfile
import unittest

from gpupool_system import Daemon, WAIT_S, wait_until

WORKER = os.environ["GPUPOOL_WORKER"]
MIB = 1 << 20
# Everything of a segment's descriptor survives; device pools with export = ipc have none.
CONFIG = "[host]\nlimit = 64MiB\nstep = 16MiB\n[device]\nlimit = 64MiB\nstep = 16MiB\nexport = vmm\n"
NO_CACHE = {"GPUPOOL_WORKER_FLAGS": "2"}


class Kept(Daemon):
    """A daemon with a keeper, which starts another one where it dies."""

    def __init__(self, config=CONFIG, **keywords):
        self.folder = tempfile.TemporaryDirectory(prefix="gpupool-restart-")
        super().__init__(config, arguments=["--keeper"], environment={"XDG_RUNTIME_DIR": self.folder.name}, **keywords)

    def close(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
        try:
            super().close()
        finally:
            self.folder.cleanup()

    def pid(self):
        return self.ask("ping")["daemon"]["pid"]

    def go(self, pid):
        end = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            if not select.select([end], [], [], WAIT_S)[0]:
                raise AssertionError("the daemon does not end:\n" + self.log_text())
        finally:
            os.close(end)

    def restart(self):
        """Kills the daemon, and waits until another one answers."""
        before = self.pid()
        self.go(before)
        wait_until(lambda: self.pid() != before, "another daemon serves")

    @contextlib.contextmanager
    def away(self):
        """No daemon is there meanwhile."""
        before = self.pid()
        self.process.send_signal(signal.SIGSTOP)
        self.go(before)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)
        wait_until(lambda: self.pid() != before, "another daemon serves")


class Worker:
    """See worker.c."""

    def __init__(self, daemon, **variables):
        variables = {**os.environ, "GPUPOOL_SOCKET": str(daemon.socket), "GPUPOOL_SIM_LATENCY": "0", **variables}
        self.process = subprocess.Popen([WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, text=True)
        self.answer()

    def answer(self):
        if not select.select([self.process.stdout], [], [], WAIT_S)[0]:
            raise AssertionError("the worker does not answer")
        line = self.process.stdout.readline().rstrip("\n")
        if not line.startswith("ok"):
            raise AssertionError(line or "the worker is gone")
        return line[3:]

    def say(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()

    def do(self, *words):
        self.say(*words)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(WAIT_S)
        self.process.stdout.close()
        if code != 0:
            raise AssertionError(f"the worker ended with {code}")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Restarts(unittest.TestCase):
    def start(self, config=CONFIG, **keywords):
        daemon = Kept(config, **keywords)
        self.addCleanup(daemon.close)
        return daemon

    def worker(self, daemon, **variables):
        worker = Worker(daemon, **variables)
        self.addCleanup(lambda: worker.process.poll() is None and worker.kill())
        return worker

    def pools(self, daemon):
        """The pools of the node and of the first device."""
        return {pool["kind"]: pool for pool in reversed(daemon.ask("pools")["pools"])}

    def nothing_is_left(self, daemon):
        """No session has anything, and what is reserved can be lent."""
        wait_until(lambda: not daemon.ask("sessions")["sessions"], "the sessions are gone")
        for pool in self.pools(daemon).values():
            for item in ("leased_bytes", "quarantined_bytes", "fenced_bytes"):
                self.assertEqual(pool[item], 0, (item, pool))
        # A segment on its way back to the driver is reserved still, and not free any more.
        wait_until(lambda: all(pool["free_bytes"] == pool["reserved_bytes"] for pool in self.pools(daemon).values()),
                   "all that is reserved can be lent")
