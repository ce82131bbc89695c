# SPDX-License-Identifier: Apache-2.0
"""A keeper dies, its daemon lives on, and another keeper takes the daemon on. And a keeper with little room."""
import contextlib
import os
import signal
import socket
import subprocess
import sys
import unittest

from gpupool_restart import MIB, NO_CACHE, Restarts
from gpupool_system import WAIT_S, ctl, holding, wait_until

# Those that the keeper leaves to itself.
OWN_DESCRIPTORS = 300

# Gives descriptors the numbers from 3 on, and executes a daemon.
LAUNCH = """
import fcntl, os, sys
fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 500) for fd in sys.argv[1].split(",") if fd]
for number, fd in enumerate(fds):
    os.dup2(fd, 3 + number)
if fds:
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=sys.argv[2])
os.execv(sys.argv[3], sys.argv[3:])
"""


class Adoption(Restarts):
    def lose_keeper(self, daemon):
        """Kills the keeper. The daemon notices."""
        count, pid = daemon.log_text().count("has ended: sessions and memory"), daemon.pid()
        daemon.kill()
        wait_until(lambda: daemon.log_text().count("has ended: sessions and memory") > count, "the daemon notices")
        self.assertEqual(daemon.pid(), pid)
        self.addCleanup(self.end_left, daemon, os.pidfd_open(pid))
        return pid

    def end_left(self, daemon, end):
        """A test that fails may leave a daemon that no keeper ends."""
        if daemon.process is None or daemon.process.poll() is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(end, signal.SIGKILL)
        os.close(end)

    def run_keeper(self, daemon, *prefix):
        """A keeper that is expected to end at once."""
        return subprocess.run([*prefix, *daemon.command()], check=False, capture_output=True, text=True, timeout=WAIT_S, env=daemon.variables())

    def estate(self, daemon):
        return daemon.ask("estate")["estate"]

    def worker_with(self, daemon, mark, **variables):
        worker = self.worker(daemon, **variables)
        for number, kind in enumerate(("host", "device")):
            worker.do("acquire", number, kind, 3 * MIB, WAIT_S * 1000)
            worker.do("fill", number, mark + number)
        return worker

    def has_all(self, worker, mark):
        for number in range(2):
            worker.do("check", number, mark + number)

    def test_another_keeper_holds_all_that_the_daemon_has(self):
        daemon = self.start()
        early = self.worker_with(daemon, 10)
        self.assertEqual(ctl("scope", "add", "one", socket_path=daemon.admin_socket).returncode, 0)
        before = self.estate(daemon)
        pid = self.lose_keeper(daemon)
        late = self.worker_with(daemon, 20, **NO_CACHE)  # comes while nothing is stored
        gone = self.worker_with(daemon, 30)
        gone.end()
        daemon.start()  # ready once all is there
        self.assertEqual(daemon.pid(), pid)
        after = self.estate(daemon)
        self.assertEqual((after["kept"], after["manager"], after["sessions"]), (True, "keeper", {"kept": 2, "lost": 0}))
        self.assertGreater(after["descriptors"]["stored"], before["descriptors"]["stored"])
        wait_until(lambda: len(os.listdir(daemon.folder.name)) == 1, "the first keeper's socket is gone")
        for _ in range(3):
            daemon.restart()
            self.has_all(early, 10)
            self.has_all(late, 20)
        with holding(daemon):
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 3)
        self.assertEqual([scope["scope"] for scope in daemon.ask("scopes")["scopes"]], ["one"])
        for worker in (early, late):
            worker.end()
        self.assertEqual(ctl("scope", "drop", "one", socket_path=daemon.admin_socket).returncode, 0)
        self.nothing_is_left(daemon)
        self.assertNotIn("which this daemon does not know", daemon.log_text())

    def test_a_daemon_without_a_keeper_says_that_nothing_is_kept(self):
        daemon = self.start()
        with holding(daemon):
            self.lose_keeper(daemon)
            estate = self.estate(daemon)
            self.assertEqual((estate["kept"], estate["manager"], estate["sessions"]), (False, None, {"kept": 0, "lost": 1}))
            self.assertIn("keeper has ended", estate["why"])
            self.assertFalse(daemon.ask("sessions")["sessions"][0]["outlives_daemon"])
            done = ctl("upgrade", "--yes", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn("keeper has ended", done.stderr)
            daemon.start()
            done = ctl("upgrade", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 0, (done, daemon.log_text()))
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)

    def test_keepers_come_and_go(self):
        daemon = self.start()
        worker = self.worker_with(daemon, 40)
        pid = daemon.pid()
        for _ in range(3):
            self.assertEqual(self.lose_keeper(daemon), pid)
            daemon.start()
        daemon.restart()
        self.has_all(worker, 40)
        self.lose_keeper(daemon)
        daemon.start()
        daemon.restart()
        self.has_all(worker, 40)
        worker.end()
        self.nothing_is_left(daemon)

    def test_a_second_keeper_finds_no_daemon_to_take_on(self):
        daemon = self.start()
        for _ in range(2):
            pid = daemon.pid()
            second = self.run_keeper(daemon)
            self.assertEqual((second.returncode, daemon.pid()), (1, pid), second.stderr)
            self.assertIn("another daemon serves", second.stderr)
            self.assertTrue(self.estate(daemon)["kept"])
            self.lose_keeper(daemon)
            daemon.start()

    def test_a_stop_ends_both(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                daemon = self.start()
                end = os.pidfd_open(self.lose_keeper(daemon))
                self.addCleanup(os.close, end)
                daemon.start()
                daemon.process.send_signal(number)
                self.assertEqual(daemon.process.wait(WAIT_S), 0, daemon.log_text())
                daemon.process = None
                self.assertFalse(daemon.socket.exists() or daemon.admin_socket.exists())
                self.assertEqual(os.listdir(daemon.folder.name), [])

    def test_a_daemon_that_was_told_to_stop_ends_its_second_keeper(self):
        daemon = self.start()
        pid = self.lose_keeper(daemon)
        daemon.start()
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(daemon.process.wait(WAIT_S), 0, daemon.log_text())
        daemon.process = None
        self.assertFalse(daemon.socket.exists())

    def test_signals_reach_the_daemon_and_the_keeper_executes_itself(self):
        daemon = self.start()
        worker = self.worker_with(daemon, 50)
        pid = self.lose_keeper(daemon)
        daemon.start()
        daemon.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: f"keeps process {pid} " in daemon.log_text(), "the keeper executes itself")
        daemon.config.write_text("[daemon]\nsessions_limit = 77\n" + daemon.config.read_text())
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: daemon.ask("stats")["daemon"]["sessions_limit"] == 77, "the limit changes")
        daemon.restart()
        self.has_all(worker, 50)
        worker.end()

    def receive(self, keeper, count):
        """The next descriptors that the daemon stores, by name, in order."""
        found = []
        for _ in range(count):
            text, fds, _, _ = socket.recv_fds(keeper, 4096, 1)
            found.append((text.decode().rsplit("FDNAME=")[-1], fds[0]))
            self.assertTrue(text.startswith(b"FDSTORE=1\n"), text)
        return found

    def discard(self, keeper):
        """Closes what was sent beyond that. The next daemon's messages reach no keeper."""
        keeper.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.close(socket.recv_fds(keeper, 4096, 1)[1][0])
        keeper.close()

    def successor(self, daemon, notify, found):
        """Starts a daemon with these descriptors, as a keeper would."""
        fds = [fd for _, fd in found]
        launch = [sys.executable, "-c", LAUNCH, ",".join(map(str, fds)), ":".join(name for name, _ in found)]
        alone = [word for word in daemon.command() if word != "--keeper"]
        variables = {**daemon.variables(), "NOTIFY_SOCKET": notify, "FDSTORE": "1000", "GPUPOOL_DEATHS_BEFORE_READY": "0"}
        with open(daemon.log, "ab") as log:
            daemon.process = subprocess.Popen([*launch, *alone], pass_fds=fds, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables)
        for fd in fds:
            os.close(fd)

    def test_a_daemon_that_dies_before_all_is_there_has_a_successor_without_sessions(self):
        """The estate comes last. Without it the next daemon throws the rest away, and lends nothing of it."""
        for count in (0, 1, 5, None):  # None: all but the estate
            with self.subTest(count):
                daemon = self.start()
                workers = [self.worker_with(daemon, 60 + 2 * number) for number in range(2)]
                stored = self.estate(daemon)["descriptors"]["stored"]
                pid = self.lose_keeper(daemon)
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as keeper:
                    notify = f"{daemon.folder.name}/notify"
                    keeper.bind(notify)
                    keeper.settimeout(WAIT_S)
                    self.assertEqual(daemon.ask("adopt", notify=notify, keeper=os.getpid(), limit=1000), {"pid": pid})
                    found = self.receive(keeper, stored - 1 if count is None else count)
                    self.assertFalse(any(name.startswith("E") for name, _ in found))
                    daemon.go(pid)
                    self.discard(keeper)
                    self.successor(daemon, notify, found)
                    wait_until(lambda: self.serves(daemon, pid), "another daemon serves")
                    self.assertEqual(daemon.ask("sessions")["sessions"], [])
                    for worker in workers:
                        worker.kill()
                    self.nothing_is_left(daemon)
                    with holding(daemon):
                        self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)
                    self.assertEqual(daemon.stop(), 0)

    def serves(self, daemon, before):
        try:
            return daemon.pid() != before
        except OSError:
            return False

    def test_a_keeper_without_room_is_refused(self):
        daemon = self.start()
        worker = self.worker_with(daemon, 70)
        pid = self.lose_keeper(daemon)
        limit = OWN_DESCRIPTORS + 3
        second = self.run_keeper(daemon, "prlimit", f"--nofile={limit}:{limit}")
        self.assertEqual((second.returncode, daemon.pid()), (1, pid), second.stderr)
        self.assertIn("the keeper can hold 3 descriptors", second.stderr)
        daemon.start()
        daemon.restart()
        self.has_all(worker, 70)
        worker.end()

    def test_segments_leave_sessions_room_in_a_small_store(self):
        limit = OWN_DESCRIPTORS + 40
        daemon = self.start("[host]\nlimit = 256MiB\nstep = 2MiB\nlow_water = 0\n", prefix=["prlimit", f"--nofile={limit}:{limit}"])
        workers = [self.worker(daemon) for _ in range(2)]
        for worker in workers:
            for number in range(8):  # more segments than are stored
                worker.do("acquire", number, "host", 8 * MIB, WAIT_S * 1000)
                worker.do("fill", number, 10 + number)
        stored = self.estate(daemon)["descriptors"]
        self.assertEqual((stored["limit"], stored["segments"], stored["refused"]), (40, stored["segments_limit"], True))
        self.assertEqual(daemon.log_text().count("a segment is not stored"), 1)
        late = self.worker(daemon)
        late.do("acquire", 0, "host", MIB, WAIT_S * 1000)
        late.do("fill", 0, 77)
        estate = self.estate(daemon)
        self.assertEqual(estate["sessions"], {"kept": 3, "lost": 0})
        self.assertGreater(sum(pool["lost_segments"] for pool in estate["pools"]), 0)
        self.assertIn("some descriptors could not be stored", ctl("estate", socket_path=daemon.admin_socket).stdout)
        stats = daemon.ask("stats")["daemon"]
        self.assertEqual((stats["stored_descriptors"], stats["stored_descriptors_limit"]), (estate["descriptors"]["stored"], 40))
        daemon.restart()
        for worker in workers:
            for number in range(8):
                worker.do("check", number, 10 + number)
            worker.end()
        late.do("check", 0, 77)
        late.end()
        wait_until(lambda: not daemon.ask("sessions")["sessions"], "the sessions are gone")

    def test_the_loop_does_not_wait_for_a_keeper_that_does_not_read(self):
        daemon = self.start()
        workers = [self.worker_with(daemon, 80 + 2 * number) for number in range(6)]
        pid = self.lose_keeper(daemon)
        with open(daemon.log, "ab") as log:
            daemon.process = subprocess.Popen(daemon.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=daemon.variables())
        wait_until(lambda: "this one takes it on" in daemon.log_text(), "the daemon is asked")
        daemon.process.send_signal(signal.SIGSTOP)
        late = self.worker_with(daemon, 100)  # is served
        workers.pop().end()
        daemon.process.send_signal(signal.SIGCONT)
        wait_until(lambda: self.estate(daemon)["kept"], "all is there")
        self.assertEqual(daemon.pid(), pid)
        daemon.restart()
        for number, worker in enumerate(workers):
            self.has_all(worker, 80 + 2 * number)
            worker.end()
        self.has_all(late, 100)
        late.end()
        self.nothing_is_left(daemon)

    def test_a_keeper_that_dies_while_it_takes_a_daemon_on_leaves_it_to_the_next(self):
        daemon = self.start()
        worker = self.worker_with(daemon, 110)
        pid = self.lose_keeper(daemon)
        with open(daemon.log, "ab") as log:
            daemon.process = subprocess.Popen(daemon.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=daemon.variables())
        wait_until(lambda: "this one takes it on" in daemon.log_text(), "the daemon is asked")
        daemon.process.send_signal(signal.SIGSTOP)
        self.assertEqual(self.lose_keeper(daemon), pid)
        daemon.start()
        daemon.restart()
        self.has_all(worker, 110)
        worker.end()
        wait_until(lambda: len(os.listdir(daemon.folder.name)) == 1, "no other keeper's socket is there")

    def test_only_the_daemons_own_user_and_root_may_name_a_keeper(self):
        daemon = self.start()
        with daemon.admin() as admin:
            reply = admin.ask("adopt", notify="/nowhere", keeper=1, limit=100)
            self.assertEqual(reply["error"]["code"], "exists")
        self.lose_keeper(daemon)
        for notify, keeper in (("/nowhere", os.getpid()), ("x" * 200, 1), ("/nowhere", 2147483647)):
            reply = daemon.ask("adopt", notify=notify, keeper=keeper, limit=100)
            self.assertEqual(reply["error"]["code"], "invalid-request")
        self.assertFalse(self.estate(daemon)["kept"])
        daemon.start()
        self.assertTrue(self.estate(daemon)["kept"])


if __name__ == "__main__":
    unittest.main()
