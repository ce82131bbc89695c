# SPDX-License-Identifier: Apache-2.0
"""The daemon under a real systemd, with the units that are installed: it is ready, dies, is restarted and stopped."""
import contextlib
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import unittest

from gpupool_system import CTL, DAEMON, HOLDER, WAIT_S, Admin, wait_until
from machine import Machine, NotPossible

CONFIG = "[host]\nlimit = 256MiB\n"
# HELLO of a client without a GPU, as docs/wire.md has it, and the length of its reply.
HELLO = bytes.fromhex("0100000020000000" "0100000000000000" "4750504c" "0100" "0100" "02000000" "00000000")
HELLO_REPLY_BYTES = 64
UNIT = "gpupoold.service"
SOCKETS = ("gpupoold.socket", "gpupoold-admin.socket")
PROGRAMS = {"gpupoold": DAEMON, "holder": HOLDER, "gpupoolctl": CTL,
            "libgpupool-sim.so.0": os.environ["GPUPOOL_SIM_LIBRARY"], "libgpupool-client.so.0": os.environ["GPUPOOL_CLIENT_LIBRARY"]}
# More than systemd allows a unit in ten seconds, unless the unit says otherwise.
MANY = 8
# STORE_SLOTS names of four characters, each with a colon, in daemon/loop/store.h.
NAMES_BYTES, NAME_BYTES = 24000 * 5, 239


class Systemd(unittest.TestCase):
    def setUp(self):
        self.machine = Machine()
        self.addCleanup(self.machine.close)
        self.machine.add_gpupool(os.environ["GPUPOOL_UNITS"], PROGRAMS, CONFIG)
        self.socket = self.machine.path("/run/gpupool/gpupool.sock")
        self.admin_socket = self.machine.path("/run/gpupool-admin/admin.sock")

    def start(self):
        self.machine.systemctl("start", UNIT)

    def ask(self, command, **arguments):
        with Admin(self.admin_socket) as admin:
            return admin.ask(command, **arguments)

    def pid(self):
        """The daemon's, which answers."""
        return self.ask("ping")["daemon"]["pid"]

    def log_text(self):
        return self.machine.path("/run/gpupoold.log").read_text(errors="replace")

    def n_stored(self):
        return int(self.machine.show(UNIT, "NFileDescriptorStore"))

    def inodes(self):
        return [os.stat(path).st_ino for path in (self.socket, self.admin_socket)]

    def sessions(self):
        return self.ask("sessions")["sessions"]

    def environment(self, pid):
        text = self.machine.path(f"/proc/{pid}/environ").read_bytes()
        return dict(pair.decode().split("=", 1) for pair in text.split(b"\0") if pair)

    def holder(self):
        return self.machine.command("/opt/test/holder", GPUPOOL_SOCKET="/run/gpupool/gpupool.sock", GPUPOOL_SIM_LATENCY="0",
                                    LD_LIBRARY_PATH="/opt/test")

    @contextlib.contextmanager
    def holding(self):
        """A process that has buffers, until the end of its standard input."""
        with subprocess.Popen(self.holder(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            self.await_holding(holder)
            yield holder
            holder.stdin.close()
            self.assertEqual(holder.wait(WAIT_S), 0)

    def await_holding(self, holder):
        if not select.select([holder.stdout], [], [], WAIT_S)[0] or holder.stdout.readline() != b"holding\n":
            holder.kill()
            self.fail("the holder got no buffers:\n" + self.log_text())

    def kill(self):
        """Returns the number of the daemon that serves then."""
        before = self.pid()
        self.machine.end(before)
        after = self.pid()  # without a pause: no connection is refused
        self.assertNotEqual(after, before)
        return after


class Starts(Systemd):
    def test_the_unit_is_ready_and_knows_its_store(self):
        self.start()
        self.assertEqual(self.machine.show(UNIT, "ActiveState", "SubState", "NRestarts"), ["active", "running", "0"])
        self.assertEqual(self.machine.show(UNIT, "MainPID"), str(self.pid()))
        self.assertEqual(self.environment(self.pid())["FDSTORE"], self.machine.show(UNIT, "FileDescriptorStoreMax"))
        self.assertGreater(self.n_stored(), 0)
        self.assertNotIn("not stored", self.log_text())
        self.assertNotIn("service manager", self.log_text())

    def test_a_program_that_connects_has_the_daemon_started(self):
        self.machine.systemctl("start", *SOCKETS)
        self.assertEqual(self.machine.show(UNIT, "ActiveState"), "inactive")
        with self.holding():
            self.assertEqual(self.machine.show(UNIT, "ActiveState"), "active")

    def test_a_reload_reaches_the_daemon(self):
        self.start()
        (self.machine.etc / "gpupool/gpupoold.conf").write_text("[daemon]\nsessions_limit = 77\n" + CONFIG)
        self.machine.systemctl("reload", UNIT)
        wait_until(lambda: self.ask("stats")["daemon"]["sessions_limit"] == 77, "the limit changes")


class Deaths(Systemd):
    def test_a_killed_daemon_is_started_again_and_sessions_go_on(self):
        self.start()
        before = self.inodes()
        with self.holding():
            pools, stored = self.ask("pools")["pools"], self.n_stored()
            session = self.sessions()[0]["pid"]
            self.kill()
            self.assertEqual([entry["pid"] for entry in self.sessions()], [session])
            self.assertEqual([pool["leased_bytes"] for pool in self.ask("pools")["pools"]], [pool["leased_bytes"] for pool in pools])
            with self.holding():
                self.assertEqual(len(self.sessions()), 2)
            self.kill()
            wait_until(lambda: len(self.sessions()) == 1, "the one that said farewell is gone")
            wait_until(lambda: self.n_stored() == stored, "what was its is not stored any more")
        wait_until(lambda: self.sessions() == [], "so is the other one")
        self.assertEqual(self.inodes(), before)
        self.assertEqual(self.machine.show(UNIT, "NRestarts", "Result"), ["2", "success"])

    def test_clients_that_come_while_the_daemon_is_away_are_served(self):
        self.start()
        pid = self.pid()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client, contextlib.ExitStack() as stack:
            client.settimeout(WAIT_S)
            with self.machine.stopped():
                self.machine.end(pid)
                client.connect(str(self.socket))
                client.send(HELLO)
                holder = stack.enter_context(subprocess.Popen(self.holder(), stdin=subprocess.PIPE, stdout=subprocess.PIPE))
                self.assertEqual(select.select([client, holder.stdout], [], [], 0)[0], [])
            self.assertEqual(int.from_bytes(client.recv(2048)[:2], "little"), HELLO_REPLY_BYTES)
            self.await_holding(holder)

    def test_sockets_of_scopes_stay(self):
        self.start()
        self.machine.run("/opt/test/gpupoolctl", "scope", "add", "first", LD_LIBRARY_PATH="/opt/test")
        path = self.ask("scopes")["scopes"][0]["socket"]
        before = os.stat(self.machine.path(path)).st_ino
        for _ in range(2):
            self.kill()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.settimeout(WAIT_S)
                client.connect(str(self.machine.path(path)))
                client.send(HELLO)
                self.assertEqual(int.from_bytes(client.recv(2048)[:2], "little"), HELLO_REPLY_BYTES)
        self.assertEqual(os.stat(self.machine.path(path)).st_ino, before)

    def test_a_systemd_that_begins_anew_keeps_the_store(self):
        self.start()
        with self.holding():
            stored = self.n_stored()
            for command in ("daemon-reload", "daemon-reexec"):
                self.machine.systemctl(command)
                self.assertEqual(self.n_stored(), stored)
                self.kill()
                self.assertEqual(len(self.sessions()), 1)

    def test_many_deaths_in_a_row_meet_no_limit(self):
        self.start()
        with self.holding():
            for _ in range(MANY):
                self.kill()
            self.assertEqual(len(self.sessions()), 1)
        self.assertEqual(self.machine.show(UNIT, "ActiveState", "NRestarts", "Result"), ["active", str(MANY), "success"])
        self.assertIn(self.machine.show(UNIT, "RestartUSecNext"), ("", self.machine.show(UNIT, "RestartUSec")))  # "" before systemd 254

    def test_starts_that_fail_lose_nothing(self):
        self.start()
        before = self.inodes()
        with self.holding():
            self.machine.add_program("/bin/false", "gpupoold")  # not a script, which a shell would open again when it is replaced
            self.machine.end(self.pid())
            wait_until(lambda: int(self.machine.show(UNIT, "NRestarts")) > MANY, "systemd tries again and again")
            self.assertGreater(self.n_stored(), 0)
            self.machine.add_program(DAEMON, "gpupoold")
            self.assertEqual(len(self.sessions()), 1)
        self.assertEqual(self.inodes(), before)


class Ends(Systemd):
    def test_a_restart_keeps_sessions_and_sockets(self):
        self.start()
        before = self.inodes()
        with self.holding():
            for _ in range(2):
                pid = self.pid()
                self.machine.systemctl("restart", UNIT)
                self.assertNotEqual(self.pid(), pid)
                self.assertEqual(len(self.sessions()), 1)
        self.assertEqual(self.inodes(), before)
        self.assertEqual(self.machine.show(UNIT, "ActiveState", "NRestarts", "Result"), ["active", "0", "success"])

    def test_a_stop_ends_the_daemon_and_its_store(self):
        self.start()
        with self.holding():
            self.assertGreater(self.n_stored(), 1)
            if self.machine.version() >= 254:  # FileDescriptorStorePreserve= is known: a stop alone ends no session
                self.machine.systemctl("stop", UNIT)
                self.assertGreater(self.n_stored(), 1)
                self.assertEqual(len(self.sessions()), 1)  # of the next daemon, which the question starts
                self.machine.run("/opt/test/gpupoolctl", "estate", "--drop", "--yes", LD_LIBRARY_PATH="/opt/test")
            self.machine.systemctl("stop", UNIT)
            self.assertEqual(self.machine.show(UNIT, "ActiveState", "Result", "ExecMainStatus"), ["inactive", "success", "0"])
            self.assertEqual(self.n_stored(), 0)
            self.assertEqual([self.machine.show(name, "ActiveState") for name in SOCKETS], ["active", "active"])
            self.assertEqual(self.sessions(), [])  # of the next daemon, which the question starts
            self.assertEqual({pool["leased_bytes"] for pool in self.ask("pools")["pools"]}, {0})


# Begins anew with each start: stores descriptors, if it has none. Their names are long, so that few are as long as those of the
# daemon at most.
STORES = f"""#!/usr/bin/python3
import os, signal, socket
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.connect(os.environ["NOTIFY_SOCKET"])
names = [f"{{n:0{NAME_BYTES}}}" for n in range({NAMES_BYTES} // ({NAME_BYTES} + 1))]
if "LISTEN_FDS" not in os.environ:
    for name in names:
        fd = os.memfd_create("stored")
        socket.send_fds(manager, [f"FDSTORE=1\\nFDNAME={{name}}".encode()], [fd])
        os.close(fd)
else:
    assert sorted(os.environ["LISTEN_FDNAMES"].split(":")) == names
manager.send(b"READY=1")
signal.pause()
"""


class Store(unittest.TestCase):
    """systemd's, as the daemon expects it to be."""

    def test_as_many_bytes_of_names_as_the_daemon_has_at_most_reach_it(self):
        machine = Machine()
        self.addCleanup(machine.close)
        program = machine.programs / "stores"
        program.write_text(STORES)
        program.chmod(0o755)
        machine.add_unit("stores.service", "[Service]\nType=notify\nNotifyAccess=main\nExecStart=/opt/test/stores\nRestart=on-failure\n"
                         "FileDescriptorStoreMax=1000\nStandardOutput=null\nStandardError=append:/run/stores.log\n")
        machine.systemctl("start", "stores")
        self.assertEqual(int(machine.show("stores", "NFileDescriptorStore")), NAMES_BYTES // (NAME_BYTES + 1))
        machine.end(int(machine.show("stores", "MainPID")))
        wait_until(lambda: machine.show("stores", "ActiveState", "NRestarts") == ["active", "1"], "the next one has all of them")
        self.assertEqual(machine.path("/run/stores.log").read_text(), "")


class Teardown(unittest.TestCase):
    """The fixture itself."""

    def test_nothing_of_a_machine_stays(self):
        machine = Machine()
        machine.add_unit("stubborn.service", "[Service]\nExecStart=/bin/sh -c 'trap \"\" TERM; while :; do sleep 1; done'\n")
        machine.systemctl("start", "stubborn")
        pid = machine.outer_pid(int(machine.show("stubborn", "MainPID")))
        end = os.pidfd_open(pid)
        self.addCleanup(os.close, end)
        machine.close()
        self.assertTrue(select.select([end], [], [], 0)[0])
        self.assertFalse(machine.group.exists() or machine.folder.exists())
        self.assertNotIn(str(machine.folder), pathlib.Path("/proc/mounts").read_text())

    def test_a_killed_test_takes_its_machine_along(self):
        program = ("import sys\nfrom machine import Machine\nmachine = Machine()\n"
                   "print(machine.pid, machine.group, machine.folder, flush=True)\nsys.stdin.read()\n")
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              cwd=os.path.dirname(os.path.abspath(__file__))) as test:
            pid, group, folder = test.stdout.readline().split()
            end = os.pidfd_open(int(pid))
            self.addCleanup(os.close, end)
            test.send_signal(signal.SIGKILL)
        self.assertTrue(select.select([end], [], [], WAIT_S)[0])
        Machine().close()
        self.assertFalse(os.path.exists(group))
        subprocess.run(["rm", "-r", folder], check=True, timeout=WAIT_S)


if __name__ == "__main__":
    try:
        Machine().close()
    except NotPossible as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main()
