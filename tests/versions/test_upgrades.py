# SPDX-License-Identifier: Apache-2.0
"""Upgrades and ways back between releases, object by object: what goes on, what is refused, and that no memory in use is lent.

GPUPOOL_RELEASES is the folder with the releases that are built, and GPUPOOLD_LATER a daemon with more in its estate (later.c).
"""
import os
import pathlib
import subprocess
import tempfile
import unittest

from gpupool_restart import CONFIG, MIB, Kept, Restarts
from gpupool_system import CTL, DAEMON, WAIT_S, ctl, wait_until

RELEASES = pathlib.Path(os.environ["GPUPOOL_RELEASES"]) if "GPUPOOL_RELEASES" in os.environ else None
LATER = os.environ["GPUPOOLD_LATER"]
KEEPING = os.environ["GPUPOOL_KEEPING"].split()  # releases whose estates are read
WAIT_MS = WAIT_S * 1000


def built(release, *parts):
    return str(RELEASES.joinpath(release, "build", *parts))


def daemon_of(release):
    return built(release, "daemon", "gpupoold")


class Replaced(Kept):
    """A daemon with a keeper, whose program is a link that leads to one after another."""

    def __init__(self, program, **keywords):
        self.programs = tempfile.TemporaryDirectory(prefix="gpupool-upgrades-")
        self.program = pathlib.Path(self.programs.name) / "gpupoold"
        self.lead_to(program)
        super().__init__(**keywords)

    def close(self):
        try:
            super().close()
        finally:
            self.programs.cleanup()

    def command(self):
        return [str(self.program) if word == DAEMON else word for word in super().command()]

    def lead_to(self, program):
        fresh = self.program.with_name("fresh")
        fresh.symlink_to(program)
        fresh.replace(self.program)

    def version(self):
        return self.ask("ping")["daemon"]["version"]


class Cases(Restarts):
    def start_program(self, program, **keywords):
        daemon = Replaced(program, **keywords)
        self.addCleanup(daemon.close)
        return daemon

    def worker_of(self, daemon, release=None):
        """With the library of a release; None: this build's."""
        return self.worker(daemon) if release is None else self.worker(daemon, LD_LIBRARY_PATH=built(release, "client"))

    def fill(self, worker, first=0, byte=31):
        """Takes a buffer of each kind."""
        for number, kind in enumerate(("device", "host")):
            worker.do("acquire", first + number, kind, 3 * MIB, WAIT_MS)
            worker.do("fill", first + number, byte + number)

    def expect_filled(self, worker, first=0, byte=31):
        for number in range(2):
            worker.do("check", first + number, byte + number)

    def take_all(self, daemon, byte=77):
        """Another process takes all that the pools lend, and writes it. Returns the process."""
        worker = self.worker_of(daemon)
        for number, kind in enumerate(("device", "host")):
            for part in range(4):
                worker.do("acquire", 2 * part + number, kind, 16 * MIB, WAIT_MS)
                worker.do("fill", 2 * part + number, byte)
        return worker


class Upgrades(Cases):
    def upgrade(self, daemon, program, tool):
        before = daemon.pid()
        daemon.lead_to(program)
        done = subprocess.run([tool, "--admin-socket", str(daemon.admin_socket), "upgrade", f"--timeout={WAIT_S}s"],
                              capture_output=True, text=True, timeout=2 * WAIT_S, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("goes on with 3 sessions", done.stdout)
        self.assertNotEqual(daemon.pid(), before)
        self.assertTrue(os.path.samefile(f"/proc/{daemon.pid()}/exe", program))

    def waiters(self, daemon):
        return self.pools(daemon)["device"]["waiters"]

    def go_over(self, daemon, workers, upgrade):
        """Each worker has buffers, shares one and sends one; the first one waits. Then comes the upgrade."""
        shared, sent = [], []
        for i, worker in enumerate(workers):
            self.fill(worker, byte=10 * i + 31)
            shared.append(worker.do("share", 0))
            sent.append(worker.do("send", 1))
        for i, worker in enumerate(workers):
            worker.do("attach", 2, shared[i - 1])
        workers[0].do("begin", 3, "device", 56 * MIB, WAIT_MS)
        wait_until(lambda: self.waiters(daemon) == 1, "the request waits")
        upgrade()
        for i, worker in enumerate(workers):
            self.expect_filled(worker, byte=10 * i + 31)
            worker.do("attach", 4, sent[i - 1])
            worker.do("attach", 5, shared[i - 2])
        for i, worker in enumerate(workers):
            before, first = (i - 1) % len(workers), (i - 2) % len(workers)
            for number, byte in ((2, 10 * before + 31), (4, 10 * before + 32), (5, 10 * first + 31)):
                worker.do("check", number, byte)
        self.assertEqual(self.waiters(daemon), 1)
        for worker in workers:
            for number in (0, 1, 2, 4, 5):
                worker.do("release", number)
        workers[0].do("end", 3)
        workers[0].do("fill", 3, 99)
        workers[0].do("check", 3, 99)
        workers[0].do("release", 3)

    def test_an_upgrade_and_the_way_back_keep_all(self):
        for release in KEEPING:
            daemon = self.start_program(daemon_of(release))
            workers = [self.worker_of(daemon), self.worker_of(daemon, release), self.worker_of(daemon, "v0.1.0")]
            tool = built(release, "client", "ctl", "gpupoolctl")
            self.go_over(daemon, workers, lambda: self.upgrade(daemon, DAEMON, CTL))
            self.go_over(daemon, workers, lambda: self.upgrade(daemon, daemon_of(release), tool))
            self.assertEqual(workers[0].do("state"), "there")
            for worker in workers:
                worker.end()
            self.nothing_is_left(daemon)
            self.assertNotIn("let go", daemon.log_text())
            daemon.close()


class OtherEstates(Cases):
    """A daemon does not go on with an estate of which it does not know all that may hold memory."""

    def start_later(self, what):
        daemon = self.start_program(LATER, prefix=["env", f"GPUPOOL_LATER={what}"])
        worker = self.worker_of(daemon)
        self.fill(worker)
        return daemon, worker

    def programs(self):
        return [DAEMON, *map(daemon_of, KEEPING)]

    def expect_nothing_lent(self, daemon, worker):
        """The session is over, and its memory is the worker's."""
        self.assertEqual(daemon.ask("sessions")["sessions"], [])
        other = self.take_all(daemon)
        self.expect_filled(worker)
        self.assertEqual(worker.do("state"), "lost")
        worker.do("open")
        other.end()
        worker.do("acquire", 4, "device", 30 * MIB, WAIT_MS)
        worker.do("fill", 4, 8)
        self.expect_filled(worker)
        worker.end()
        self.nothing_is_left(daemon)

    def refuse(self, what, told):
        for program in self.programs():
            daemon, worker = self.start_later(what)
            before = daemon.pid()
            daemon.lead_to(program)
            done = ctl("upgrade", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 1, done)
            self.assertRegex(done.stderr, told)
            self.assertIn("gpupoold cannot go on with what this daemon has: a restart ends 1 session.", done.stderr)
            self.assertEqual(daemon.pid(), before)
            worker.do("acquire", 2, "host", 20 * MIB, WAIT_MS)
            worker.do("release", 2)
            done = ctl("upgrade", "--yes", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 0, done)
            self.assertIn("begins anew, with 0 sessions", done.stdout)
            self.assertIn("let go (a newer daemon kept what this one does not know)", daemon.log_text())
            self.expect_nothing_lent(daemon, worker)
            daemon.close()

    def test_a_further_kind_that_may_hold_memory(self):
        self.refuse("holding", "this program does not know records of kind 25 with 16 bytes")

    def test_a_longer_record_of_a_kind(self):
        self.refuse("longer", "this program does not know records of kind 2 with 248 bytes")

    def test_a_further_kind_that_holds_nothing(self):
        for program in self.programs():
            daemon, worker = self.start_later("ignorable")
            for there in (program, LATER, program):
                daemon.lead_to(there)
                done = ctl("upgrade", socket_path=daemon.admin_socket)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn("goes on with 1 session", done.stdout)
                self.expect_filled(worker)
            worker.end()
            self.nothing_is_left(daemon)
            daemon.close()

    def test_another_layout(self):
        daemon = self.start_program(DAEMON)
        worker = self.worker_of(daemon)
        self.fill(worker)
        path = next(entry for entry in pathlib.Path(f"/proc/{daemon.pid()}/fd").iterdir() if "gpupool-estate" in os.readlink(entry))
        with open(path, "r+b", buffering=0) as memory:
            with daemon.away():
                magic = b"pgestape"
                at = memory.read().index(magic) + len(magic)
                memory.seek(at)
                memory.write(b"\2")
        self.assertIn("let go, because it is of another version", daemon.log_text())
        self.expect_nothing_lent(daemon, worker)


class WithoutEstate(Cases):
    """The way back to v0.1.0, which keeps nothing over a restart: its daemon has no memory that others have."""

    def drop(self):
        daemon = self.start_program(DAEMON)
        worker = self.worker_of(daemon)
        self.fill(worker)
        worker.do("begin", 3, "device", 64 * MIB, WAIT_MS)
        wait_until(lambda: self.pools(daemon)["device"]["waiters"] == 1, "the request waits")
        done = ctl("estate", "--drop", "--yes", socket_path=daemon.admin_socket)
        self.assertEqual(done.returncode, 0, done)
        daemon.lead_to(daemon_of("v0.1.0"))
        return daemon, worker

    def expect_lost(self, daemon, worker):
        """The worker is told once, and does not come again by itself."""
        self.assertEqual(daemon.version(), "0.1.0")
        for words in (("end", 3), ("acquire", 4, "host", 30 * MIB, WAIT_MS)):
            with self.assertRaisesRegex(AssertionError, "the daemon has closed the connection"):
                worker.do(*words)
        self.assertEqual(worker.do("state"), "lost")
        self.assertEqual(daemon.ask("sessions")["sessions"], [])
        other = self.take_all(daemon)
        self.expect_filled(worker)
        other.end()
        wait_until(lambda: not daemon.ask("sessions")["sessions"], "the other process has ended")

    def expect_anew(self, daemon, worker, number):
        """The worker connects again, as the session of that number, and has its former buffers beside others."""
        worker.do("open")
        self.assertEqual([session["id"] for session in daemon.ask("sessions")["sessions"]], [number])
        worker.do("acquire", 4, "device", 40 * MIB, WAIT_MS)
        worker.do("fill", 4, 55)
        worker.do("acquire", 5, "host", 40 * MIB, WAIT_MS)
        worker.do("fill", 5, 56)
        self.expect_filled(worker)
        self.expect_filled(worker, 4, 55)
        self.assertEqual(worker.do("state"), "there")
        self.assertRegex(worker.do("changes"), "^(away )?lost$")

    def test_the_way_back_and_up_again(self):
        daemon, worker = self.drop()
        self.assertEqual(daemon.stop(), 0)  # the keeper ends with its daemon: v0.1.0 knows none
        daemon.arguments.remove("--keeper")
        daemon.start()
        self.expect_lost(daemon, worker)
        self.expect_anew(daemon, worker, 2)
        self.assertEqual(daemon.stop(), 0)
        daemon.lead_to(DAEMON)
        daemon.arguments.append("--keeper")
        daemon.start()
        self.assertTrue(daemon.ask("estate")["estate"]["kept"])
        other = self.take_all(daemon)
        self.expect_filled(worker)
        self.expect_filled(worker, 4, 55)
        other.end()
        worker.end()
        self.nothing_is_left(daemon)


if __name__ == "__main__":
    unittest.main()
