# SPDX-License-Identifier: Apache-2.0
"""gpupoold --keeper: its daemon dies, is stopped, reloads and is upgraded, and the descriptors that it holds stay."""
import contextlib
import os
import pathlib
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from gpupool_system import DAEMON, HOLDER, SOURCE, WAIT_S, Daemon, ctl, holding, wait_until

CONFIG = "[host]\nlimit = 256MiB\n"
# HELLO of a client without a GPU, as docs/wire.md has it, and the operation of its reply.
HELLO = bytes.fromhex("0100000020000000" "0100000000000000" "4750504c" "0100" "0100" "02000000" "00000000")
# Deaths in a row after which the keeper says that no start succeeds.
MANY = 10
# Those that the keeper leaves to itself.
OWN_DESCRIPTORS = 300

# Begins a program that says something to the keeper in the daemon's place. store() sends descriptors.
SAYS = f"""#!{sys.executable}
import os, socket, sys
keeper = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
keeper.connect(os.environ["NOTIFY_SOCKET"])
def store(name, *fds):
    socket.send_fds(keeper, [f"FDSTORE=1\\nFDPOLL=0\\nFDNAME={{name}}".encode()], list(fds))
"""
GOES_ON = f"\nos.execv({DAEMON!r}, sys.argv)\n"


def environment(pid):
    """The variables that a process was started with."""
    pairs = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(pair.decode().split("=", 1) for pair in pairs if pair)


class Kept(Daemon):
    """A daemon with a keeper. The keeper's program is a copy, which a test can replace."""

    def __init__(self, config=CONFIG, **keywords):
        self.programs = pathlib.Path(keywords.pop("programs"))
        self.program = self.programs / "gpupoold"
        shutil.copy(DAEMON, self.program)
        keywords["environment"] = {"XDG_RUNTIME_DIR": str(self.programs), **keywords.get("environment", {})}
        super().__init__(config, arguments=["--keeper", *keywords.pop("arguments", [])], **keywords)

    def command(self):
        return [str(self.program) if word == DAEMON else word for word in super().command()]

    def replace(self, text=None):
        """Puts another program in the place of the daemon's, in one step; without a text the daemon's own."""
        fresh = self.programs / "fresh"
        if text is None:
            shutil.copy(DAEMON, fresh)
        else:
            fresh.write_text(text)
            fresh.chmod(0o755)
        fresh.replace(self.program)

    def pid(self):
        """The daemon's, which answers."""
        return self.ask("ping")["daemon"]["pid"]

    def child(self):
        """The keeper's, which need not answer."""
        return int(pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def end_daemon(self, number=signal.SIGKILL):
        """Sends the daemon a signal that ends it, and waits for its end."""
        pid = self.pid()
        end = os.pidfd_open(pid)
        try:
            os.kill(pid, number)
            if not select.select([end], [], [], WAIT_S)[0]:
                raise AssertionError("the daemon does not end:\n" + self.log_text())
        finally:
            os.close(end)

    def kill_daemon(self):
        """Returns the number of the daemon that serves then."""
        self.end_daemon()
        return self.pid()

    def upgrade(self):
        """Has the keeper execute its program anew."""
        count = self.log_text().count("keeps process")
        self.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: self.log_text().count("keeps process") > count, "the keeper executes itself")

    def files(self):
        """The open files of the keeper, but for the estate and segments."""
        folder, found = pathlib.Path(f"/proc/{self.process.pid}/fd"), []
        for entry in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.append(os.readlink(entry))
        return sorted(name for name in found if not name.startswith("/memfd:gpupool"))

    def wait_for_files(self, count):
        """The daemon's messages reach the keeper while the daemon goes on."""
        wait_until(lambda: len(self.files()) == count, f"the keeper has {count} open files")

    def start(self):
        super().start()
        wait_until(lambda: not any(name.startswith("pipe:") for name in self.files()), "the keeper closes --ready-fd")

    def close(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
        super().close()


class Keeper(unittest.TestCase):
    def folder(self):
        directory = tempfile.TemporaryDirectory(prefix="gpupool-keeper-")
        self.addCleanup(directory.cleanup)
        return pathlib.Path(directory.name)

    def start(self, config=CONFIG, **keywords):
        daemon = Kept(config, programs=self.folder(), **keywords)
        self.addCleanup(daemon.close)
        return daemon

    def away(self, daemon):
        """Ends the daemon, and has the keeper not start another one until it gets a SIGCONT."""
        daemon.process.send_signal(signal.SIGSTOP)
        daemon.end_daemon()

    def names(self, daemon):
        """Of the descriptors that the daemon was started with, but for the estate and what belongs to it."""
        variables = environment(daemon.pid())
        names = variables["LISTEN_FDNAMES"].split(":")
        self.assertEqual(len(names), int(variables["LISTEN_FDS"]))
        return [name for name in names if not re.fullmatch("[ESCDPRB][A-Za-z0-9_-]{1,3}", name)]


class Deaths(Keeper):
    def test_a_killed_daemon_is_started_again_with_its_sockets(self):
        daemon = self.start()
        before = [os.stat(path).st_ino for path in (daemon.socket, daemon.admin_socket)]
        pids = {daemon.pid()}
        for _ in range(5):
            pids.add(daemon.kill_daemon())  # asks without a pause: no connection is refused
        self.assertEqual(len(pids), 6)
        self.assertEqual([os.stat(path).st_ino for path in (daemon.socket, daemon.admin_socket)], before)
        self.assertEqual(len(self.names(daemon)), 2)
        with holding(daemon):
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)

    def test_clients_that_come_while_the_daemon_is_away_are_served(self):
        daemon = self.start()
        self.away(daemon)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(WAIT_S)
            client.connect(str(daemon.socket))
            client.send(HELLO)
            variables = {**os.environ, "GPUPOOL_SOCKET": str(daemon.socket), "GPUPOOL_SIM_LATENCY": "0"}
            with subprocess.Popen([HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables) as holder:
                files = pathlib.Path(f"/proc/{holder.pid}/fd")
                wait_until(lambda: any("socket:" in os.readlink(entry) for entry in files.iterdir()), "the client connects")
                self.assertEqual(select.select([client, holder.stdout], [], [], 0)[0], [])
                daemon.process.send_signal(signal.SIGCONT)
                self.assertEqual(int.from_bytes(client.recv(2048)[:2], "little"), 64)  # HELLO_REPLY
                self.assertEqual(holder.stdout.readline(), b"holding\n")

    def test_scopes_keep_their_sockets(self):
        daemon = self.start()
        count = len(daemon.files())
        for name in ("first", "second"):
            self.assertEqual(ctl("scope", "add", name, socket_path=daemon.admin_socket).returncode, 0)
        sockets = {scope["scope"]: scope["socket"] for scope in daemon.ask("scopes")["scopes"]}
        before = {name: os.stat(path).st_ino for name, path in sockets.items()}
        daemon.wait_for_files(count + 2)
        daemon.kill_daemon()
        self.assertEqual(len(self.names(daemon)), 4)
        with holding(daemon, GPUPOOL_SOCKET=sockets["first"]):
            self.assertEqual({name: os.stat(path).st_ino for name, path in sockets.items()}, before)
        self.assertEqual(ctl("scope", "drop", "second", socket_path=daemon.admin_socket).returncode, 0)
        daemon.wait_for_files(count + 1)
        daemon.kill_daemon()
        self.assertEqual(len(self.names(daemon)), 3)

    def test_no_program_that_a_daemon_would_execute_has_its_descriptors(self):
        daemon = self.start()
        with holding(daemon):
            pid = daemon.kill_daemon()
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)
            self.assertGreater(int(environment(pid)["LISTEN_FDS"]), 4)
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    flags = int(re.search(r"^flags:\s*(\d+)$", pathlib.Path(f"/proc/{pid}/fdinfo/{number}").read_text(), re.M)[1], 8)
                    self.assertTrue(int(number) <= 2 or flags & os.O_CLOEXEC, (number, oct(flags)))

    def test_a_socket_whose_file_is_gone_is_made_anew(self):
        daemon = self.start()
        daemon.socket.unlink()
        daemon.kill_daemon()
        with holding(daemon):
            self.assertTrue(daemon.socket.is_socket())
        daemon.kill_daemon()
        self.assertEqual(len(self.names(daemon)), 2)  # the old one is not stored any more
        self.assertEqual(daemon.log_text().count("is made anew"), 1)

    def test_a_socket_with_other_users_is_made_anew(self):
        daemon = self.start()
        daemon.socket.chmod(0o666)
        daemon.kill_daemon()
        self.assertEqual(daemon.socket.stat().st_mode & 0o7777, 0o660)
        self.assertIn("is made anew", daemon.log_text())

    def test_a_directory_may_give_its_group_to_the_socket(self):
        if os.geteuid() != 0:
            self.skipTest("another group needs root")
        daemon = self.start(start=False)
        os.chown(daemon.socket.parent, -1, 12345)
        daemon.socket.parent.chmod(0o2755)
        daemon.start()
        self.assertEqual(daemon.socket.stat().st_gid, 12345)
        before = daemon.socket.stat().st_ino
        daemon.kill_daemon()
        self.assertEqual(daemon.socket.stat().st_ino, before)

    def test_a_socket_whose_file_is_another_ones_is_made_anew(self):
        daemon = self.start()
        daemon.socket.unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.bind(str(daemon.socket))
            daemon.socket.chmod(0o660)  # as the daemon's own has it
            other.listen()
            daemon.end_daemon()
            wait_until(lambda: "another daemon serves" in daemon.log_text(), "the daemon leaves the other one's file alone")
        daemon.pid()
        with holding(daemon):
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)
        self.assertIn("is made anew", daemon.log_text())

    def test_a_daemon_that_dies_again_and_again_does_not_have_the_keeper_spin(self):
        daemon = self.start()
        starts = daemon.programs / "starts"
        daemon.replace(f'#!/bin/sh\necho "$GPUPOOL_DEATHS_BEFORE_READY" >> {starts}\nexit 3\n')
        daemon.end_daemon()
        wait_until(lambda: f"died {MANY} times in a row" in daemon.log_text(), "the keeper says that no start succeeds")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(WAIT_S)
            client.connect(str(daemon.socket))
            client.send(HELLO)
            count = len(starts.read_text().splitlines())
            self.assertLessEqual(count, MANY + 1)  # it pauses now, and a look takes no second
            wait_until(lambda: len(starts.read_text().splitlines()) > count, "the keeper goes on")
            daemon.replace()
            self.assertEqual(int.from_bytes(client.recv(2048)[:2], "little"), 64)
        wait_until(lambda: "the daemon serves again" in daemon.log_text(), "the keeper knows that a daemon is ready")
        told = [int(line) for line in starts.read_text().splitlines()]
        self.assertEqual(told, list(range(len(told))))
        self.assertLess(daemon.processor_ticks(), os.sysconf("SC_CLK_TCK"))
        daemon.replace(f'#!/bin/sh\necho "$GPUPOOL_DEATHS_BEFORE_READY" >> {starts}\nexec {DAEMON} "$@"\n')
        daemon.kill_daemon()
        self.assertEqual(starts.read_text().splitlines()[-1], "0")  # one was ready since

    def test_a_configuration_that_got_bad_meanwhile_waits_for_its_mend(self):
        daemon = self.start()
        before = os.stat(daemon.socket).st_ino
        daemon.config.write_text("nonsense = 1\n")
        daemon.end_daemon()
        wait_until(lambda: "ended with status 2 before it was ready" in daemon.log_text(), "the daemon finds the mistake")
        daemon.config.write_text(CONFIG)
        daemon.pid()
        self.assertEqual(os.stat(daemon.socket).st_ino, before)

    def test_a_daemon_that_fails_after_it_took_the_sockets_over_leaves_them_to_the_next(self):
        daemon = self.start()
        before = os.stat(daemon.socket).st_ino
        daemon.replace(f'#!/bin/sh\nexec {DAEMON} "$@" --gpu cuda\n')
        if subprocess.run([DAEMON, "--check-config", "--gpu", "cuda"], capture_output=True, check=False, timeout=WAIT_S).returncode == 0:
            self.skipTest("there is a GPU")
        daemon.end_daemon()
        wait_until(lambda: "before it was ready" in daemon.log_text(), "a start fails")
        self.assertEqual(os.stat(daemon.socket).st_ino, before)
        daemon.replace()
        daemon.pid()
        self.assertEqual(os.stat(daemon.socket).st_ino, before)


class Ends(Keeper):
    def ended(self, daemon, status=0):
        self.assertEqual(daemon.process.wait(WAIT_S), status, daemon.log_text())
        daemon.process = None
        self.assertFalse(daemon.socket.exists() or daemon.admin_socket.exists())
        self.assertEqual([entry.name for entry in daemon.programs.iterdir()], ["gpupoold"])  # nor one for messages

    def test_a_stop_ends_both_and_leaves_no_socket(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                daemon = self.start()
                pid = daemon.pid()
                end = os.pidfd_open(pid)
                self.addCleanup(os.close, end)
                daemon.process.send_signal(number)
                self.ended(daemon)
                self.assertTrue(select.select([end], [], [], 0)[0])

    def test_a_stop_after_a_restart_leaves_no_socket_either(self):
        daemon = self.start()
        daemon.kill_daemon()
        daemon.process.send_signal(signal.SIGTERM)
        self.ended(daemon)

    def test_a_stop_while_the_daemon_starts_ends_both_and_leaves_no_socket(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                daemon = self.start()
                daemon.config.unlink()
                os.mkfifo(daemon.config)  # the next daemon waits for its configuration
                daemon.end_daemon()
                with contextlib.ExitStack() as stack:
                    config = []

                    def is_read():
                        with contextlib.suppress(OSError):
                            config.append(stack.enter_context(open(os.open(daemon.config, os.O_WRONLY | os.O_NONBLOCK), "w", encoding="utf-8")))
                        return config

                    wait_until(is_read, "the next daemon reads its configuration")
                    status = pathlib.Path(f"/proc/{daemon.child()}/status")
                    daemon.process.send_signal(number)
                    wait_until(lambda: int(re.search(r"^ShdPnd:\s*(\w+)$", status.read_text(), re.M)[1], 16) & 1 << number - 1,
                               "the keeper forwards the signal, which waits")
                    config[0].write(CONFIG)
                self.ended(daemon)

    def test_a_daemon_that_was_told_to_stop_ends_the_keeper(self):
        daemon = self.start()
        os.kill(daemon.pid(), signal.SIGTERM)
        self.ended(daemon)

    def test_a_stop_ends_a_keeper_whose_daemon_cannot_start(self):
        daemon = self.start()
        daemon.replace("#!/bin/sh\nexit 3\n")
        daemon.end_daemon()
        wait_until(lambda: f"died {MANY} times in a row" in daemon.log_text(), "no daemon runs")
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.process.wait(WAIT_S), 3)
        daemon.process = None

    def test_a_mistake_at_the_first_start_ends_the_keeper_with_the_daemons_status(self):
        for config, arguments in (("nonsense = 1\n", []), (CONFIG, ["--socket", "/nowhere/at/all"])):
            with self.subTest(arguments):
                daemon = self.start(config, start=False, arguments=arguments)
                with open(daemon.log, "ab") as log:
                    alone = [word for word in daemon.command() if word != "--keeper"]
                    status = subprocess.run(alone, stdout=log, stderr=log, check=False, timeout=WAIT_S, env=daemon.variables()).returncode
                    kept = subprocess.run(daemon.command(), stdout=log, stderr=log, check=False, timeout=WAIT_S, env=daemon.variables())
                self.assertNotEqual(status, 0)
                self.assertEqual(kept.returncode, status, daemon.log_text())
                self.assertNotIn("started again", daemon.log_text())

    def test_a_daemon_goes_on_without_its_keeper_and_no_second_one_starts_beside_it(self):
        daemon = self.start()
        pid, keeper = daemon.pid(), daemon.process
        keeper.kill()
        keeper.wait(WAIT_S)
        alone = [word for word in daemon.command() if word != "--keeper"]
        second = subprocess.run(alone, check=False, capture_output=True, text=True, timeout=WAIT_S, env=daemon.variables())
        self.assertEqual((second.returncode, daemon.pid()), (1, pid), second.stderr)
        self.assertIn("another daemon serves", second.stderr)
        daemon.end_daemon(signal.SIGTERM)
        self.assertFalse(daemon.socket.exists())
        daemon.process = None

    def test_a_private_daemon_has_no_keeper(self):
        done = subprocess.run([DAEMON, "--keeper", "--private"], check=False, capture_output=True, text=True, timeout=WAIT_S)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--private", done.stderr)


class Signals(Keeper):
    def test_a_reload_reaches_the_daemon(self):
        daemon = self.start()
        daemon.config.write_text("[daemon]\nsessions_limit = 77\n" + CONFIG)
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: daemon.ask("stats")["daemon"]["sessions_limit"] == 77, "the limit changes")

    def test_a_reload_before_the_daemon_is_ready_waits_for_it(self):
        daemon = self.start()
        here, go_on = daemon.programs / "here", daemon.programs / "go_on"
        daemon.replace(f'#!/bin/sh\ntouch {here}\nuntil test -e {go_on}; do sleep 0.01; done\nexec {DAEMON} "$@"\n')
        daemon.end_daemon()
        wait_until(here.exists, "the next one begins")
        daemon.process.send_signal(signal.SIGHUP)
        go_on.touch()
        wait_until(lambda: "configuration read again" in daemon.log_text(), "the daemon reads it again")
        self.assertEqual(daemon.log_text().count("is started again"), 1)

    def test_a_keeper_that_executes_itself_keeps_daemon_and_descriptors(self):
        daemon = self.start()
        with holding(daemon):
            files, pid = daemon.files(), daemon.pid()
            for _ in range(3):
                daemon.upgrade()
            self.assertEqual((daemon.files(), daemon.pid()), (files, pid))
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)
        self.assertNotEqual(daemon.kill_daemon(), pid)
        daemon.upgrade()
        self.assertEqual(len(self.names(daemon)), 2)
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "configuration read again" in daemon.log_text(), "signals arrive")

    def test_a_daemon_that_dies_while_the_keeper_executes_itself_is_started_again(self):
        daemon = self.start()
        here, go_on = daemon.programs / "here", daemon.programs / "go_on"
        daemon.replace(f"#!{sys.executable}\nimport os, sys, time\nopen({str(here)!r}, 'x')\nwhile not os.path.exists({str(go_on)!r}):\n"
                       f"    time.sleep(0.01)\nos.execv({DAEMON!r}, sys.argv)\n")
        daemon.process.send_signal(signal.SIGUSR2)
        wait_until(here.exists, "another program is in the keeper's place")
        daemon.replace()
        daemon.end_daemon()
        go_on.touch()
        daemon.pid()
        self.assertEqual(len(self.names(daemon)), 2)

    def test_a_keeper_that_cannot_be_executed_goes_on(self):
        daemon = self.start()
        files, pid = daemon.files(), daemon.pid()
        daemon.program.unlink()
        daemon.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: "this keeper goes on" in daemon.log_text(), "the keeper says that it cannot")
        self.assertEqual((daemon.files(), daemon.pid()), (files, pid))
        daemon.replace()
        self.assertNotEqual(daemon.kill_daemon(), pid)

    def test_the_new_file_is_started_after_an_upgrade(self):
        daemon = self.start()
        mark = daemon.programs / "mark"
        daemon.replace(f'#!/bin/sh\ntouch {mark}\nexec {DAEMON} "$@"\n')
        self.assertFalse(mark.exists())
        daemon.kill_daemon()
        self.assertTrue(mark.exists())


class Estate(Keeper):
    """An upgrade, and a next daemon that does not go on with the estate."""

    # Overwrites the estate, so that the daemon that goes on in this process cannot read it.
    SPOILS = """
names = os.environ["LISTEN_FDNAMES"].split(":")
estate = next(3 + i for i, name in enumerate(names) if name.startswith("E"))
os.pwrite(estate, bytes([255]) * os.fstat(estate).st_size, 0)
"""

    def die(self, daemon, count):
        """The next daemons take the estate and end before they are ready, for there is no such GPU. The one behind them goes on."""
        starts = daemon.programs / "starts"
        starts.write_text("")
        daemon.replace(f'#!/bin/sh\necho . >> {starts}\n[ $(wc -l < {starts}) -gt {count} ] && exec {DAEMON} "$@"\n'
                       f'CUDA_VISIBLE_DEVICES= exec {DAEMON} "$@" --gpu cuda\n')
        daemon.end_daemon()
        self.ready(daemon)
        self.assertEqual(len(starts.read_text().splitlines()), count + 1)

    def ready(self, daemon):
        """Deaths before that count."""
        wait_until(lambda: all(pool["state"] == "ready" for pool in daemon.ask("pools")["pools"]), "the daemon is ready")

    def test_an_upgrade_whose_daemon_begins_anew_says_so(self):
        daemon = self.start()
        with holding(daemon):
            identity = daemon.ask("ping")["daemon"]["identity"]
            daemon.replace(SAYS + self.SPOILS + GOES_ON)
            done = ctl("upgrade", f"--daemon={DAEMON}", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 1, done)
            self.assertRegex(done.stdout, "begins anew, with 0 sessions, as process [0-9]+, after ")
            self.assertIn("did not go on with the sessions", done.stderr)
            self.assertNotEqual(daemon.ask("ping")["daemon"]["identity"], identity)
            self.assertIn("is let go", daemon.log_text())

    def test_an_upgrade_that_no_daemon_follows_says_so(self):
        daemon = self.start()
        with holding(daemon):
            daemon.replace("#!/bin/sh\nexec sleep 600\n")
            done = ctl("upgrade", f"--daemon={DAEMON}", "--timeout=500ms", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 3, done)
            self.assertIn("no other daemon answers after 500 ms", done.stderr)
            daemon.replace()
            os.kill(daemon.child(), signal.SIGKILL)
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)

    def test_an_upgrade_asks_the_program_that_a_link_leads_to_by_then(self):
        daemon = self.start(start=False)
        for name in ("old", "new"):
            (daemon.programs / name).mkdir()
            shutil.copy(DAEMON, daemon.programs / name / "gpupoold")

        def link(name):
            fresh = daemon.programs / "fresh"
            fresh.symlink_to(daemon.programs / name / "gpupoold")
            fresh.replace(daemon.program)

        link("old")
        daemon.start()
        with holding(daemon):
            pid = daemon.pid()
            (daemon.programs / "odd").mkdir()
            odd = daemon.programs / "odd" / "gpupoold"
            odd.write_text("#!/bin/sh\n[ \"$1\" = --reads-estate ] && exit 1\n")
            odd.chmod(0o755)
            link("odd")
            done = ctl("upgrade", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn(f"{daemon.program} cannot go on with what this daemon has", done.stderr)
            self.assertEqual(daemon.pid(), pid)
            link("new")
            done = ctl("upgrade", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 0, done)
            self.assertEqual(os.readlink(f"/proc/{daemon.pid()}/exe"), str(daemon.programs / "new" / "gpupoold"))

    @unittest.skipUnless(os.getuid() == 0, "only root can give a file away")
    def test_root_does_not_execute_what_another_users_daemon_leads_to(self):
        daemon = self.start()
        mark = daemon.programs / "mark"
        daemon.replace(f"#!/bin/sh\necho >> {mark}\nexit 1\n")
        os.chown(daemon.program, 4242, -1)
        pid = daemon.pid()
        done = ctl("upgrade", socket_path=daemon.admin_socket)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("is another user's file", done.stderr)
        self.assertFalse(mark.exists())
        done = ctl("upgrade", f"--daemon={daemon.program}", socket_path=daemon.admin_socket)
        self.assertIn("cannot go on with what this daemon has", done.stderr)
        self.assertTrue(mark.exists())
        self.assertEqual(daemon.pid(), pid)

    def test_an_upgrade_that_ends_sessions_is_not_begun_unasked(self):
        daemon = self.start(prefix=["prlimit", f"--nofile={OWN_DESCRIPTORS + 3}:{OWN_DESCRIPTORS + 3}"])
        with holding(daemon):  # there was room for two sockets and the estate
            self.assertEqual(daemon.ask("estate")["estate"]["sessions"], {"kept": 0, "lost": 1})
            pid = daemon.pid()
            done = ctl("upgrade", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn("does not have all descriptors of 1 session: a restart ends them", done.stderr)
            self.assertEqual(daemon.pid(), pid)
            done = ctl("upgrade", "--yes", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 0, done)
            self.assertRegex(done.stdout, "goes on with 0 sessions")

    def test_a_store_without_room_for_an_estate_is_told_of(self):
        daemon = self.start(prefix=["prlimit", f"--nofile={OWN_DESCRIPTORS + 2}:{OWN_DESCRIPTORS + 2}"])
        estate = daemon.ask("estate")["estate"]
        self.assertEqual((estate["kept"], estate["manager"]), (False, "keeper"))
        self.assertIn("had no room for it", estate["why"])
        done = ctl("upgrade", socket_path=daemon.admin_socket)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("had no room for it", done.stderr)

    def test_an_upgrade_for_programs_prints_the_reply(self):
        daemon = self.start()
        pid = daemon.pid()
        with holding(daemon):
            done = ctl("upgrade", "--json", socket_path=daemon.admin_socket)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f'{{"pid":{pid}}}\n', ""))
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)

    def test_after_the_third_death_before_it_is_ready_the_estate_is_let_go(self):
        daemon = self.start()
        with holding(daemon):
            identity = daemon.ask("ping")["daemon"]["identity"]
            self.die(daemon, 3)
            self.assertNotEqual(daemon.ask("ping")["daemon"]["identity"], identity)
            self.assertEqual(daemon.ask("sessions")["sessions"], [])
            self.assertIn("because the daemon died again and again before it was ready: its sessions are over", daemon.log_text())
            estate = daemon.ask("estate")["estate"]
            self.assertEqual((estate["kept"], estate["incarnation"]), (True, 1))
        with holding(daemon):  # it is as good as new
            daemon.kill_daemon()
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)

    def test_two_deaths_before_it_is_ready_keep_the_sessions(self):
        daemon = self.start()
        with holding(daemon):
            for _ in range(2):  # a daemon that is ready begins the count anew
                self.die(daemon, 2)
                self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)

    def test_deaths_after_it_was_ready_do_not_count(self):
        daemon = self.start()
        with holding(daemon):
            for _ in range(6):
                self.ready(daemon)
                daemon.kill_daemon()
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)
            self.assertEqual(daemon.ask("estate")["estate"]["incarnation"], 7)

    def test_a_second_daemon_with_the_estate_of_one_that_lives_does_not_start(self):
        daemon = self.start()
        with holding(daemon):
            pid = daemon.pid()
            os.kill(pid, signal.SIGSTOP)  # a daemon that hangs
            try:
                with contextlib.ExitStack() as stack:
                    held = []
                    for entry in pathlib.Path(f"/proc/{daemon.process.pid}/fd").iterdir():
                        if "gpupool-estate" in os.readlink(entry):
                            held.append(stack.enter_context(open(entry, "r+b", buffering=0)).fileno())
                    (estate,) = held
                    script = f'exec 3<&{estate}; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=EA FDSTORE=10 NOTIFY_SOCKET=/nonexistent exec "$@"'
                    folder = self.folder()
                    second = subprocess.run(
                        ["bash", "-c", script, "bash", DAEMON, "--gpu=none", f"--socket={folder}/s", f"--admin-socket={folder}/a"],
                        pass_fds=[estate], capture_output=True, text=True, timeout=WAIT_S, check=False)
            finally:
                os.kill(pid, signal.SIGCONT)
            self.assertEqual(second.returncode, 1, second)
            self.assertIn("another daemon is alive and has the estate", second.stderr)
            self.assertEqual(daemon.pid(), pid)
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)
            daemon.kill_daemon()  # nothing was taken from it
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)


class Store(Keeper):
    """The protocol of the descriptor store."""

    def say(self, daemon, program):
        """Has a program speak in the place of the next daemon, which goes on in its process."""
        daemon.replace(SAYS + program + GOES_ON)
        daemon.kill_daemon()
        daemon.replace()

    def stored_names(self, daemon):
        daemon.kill_daemon()
        return self.names(daemon)

    def passed(self, daemon):
        """The names that the next daemon gets beside the two of its sockets."""
        return sorted(name for name in self.stored_names(daemon) if not name.startswith("L"))

    def test_a_foreign_process_is_not_heard(self):
        daemon = self.start()
        path = environment(daemon.pid())["NOTIFY_SOCKET"]
        self.assertEqual(os.stat(os.path.dirname(path)).st_mode & 0o777, 0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as foreign, open(os.devnull, "rb") as null:
            foreign.connect(path)
            socket.send_fds(foreign, [b"FDSTORE=1\nFDNAME=odd"], [null.fileno()])
            for name in self.stored_names(daemon):
                foreign.send(f"FDSTOREREMOVE=1\nFDNAME={name}".encode())
        wait_until(lambda: daemon.log_text().count("which is not the daemon, is ignored") >= 3, "the keeper says so")
        self.assertEqual(self.passed(daemon), [])
        self.assertEqual(len(self.names(daemon)), 2)

    def test_an_unknown_descriptor_is_closed_and_removed(self):
        daemon = self.start()
        count = len(daemon.files())
        self.say(daemon, "r, w = os.pipe()\nstore('odd', 0, r)\nstore('L!', w)\nstore('LAAA', os.memfd_create('x'))\n"
                         "store('LZ', os.memfd_create('y'))\n")
        self.assertEqual(len(daemon.files()), count + 5)
        self.assertEqual(self.passed(daemon), ["odd", "odd"])
        wait_until(lambda: "named 'odd', which this daemon does not know" in daemon.log_text(), "the daemon says so")
        daemon.wait_for_files(count)
        self.assertEqual(sorted(self.stored_names(daemon)), ["LA", "LB"])

    def test_an_open_file_is_stored_once(self):
        daemon = self.start()
        self.say(daemon, "a, b = os.pipe()\nstore('one', a, os.dup(a))\nstore('two', a)\nstore('one', b)\n")
        self.assertEqual(self.passed(daemon), ["one", "one"])

    def test_a_removal_takes_all_of_a_name(self):
        daemon = self.start()
        self.say(daemon, "store('one', *os.pipe())\nstore('two', *os.pipe())\nkeeper.send(b'FDSTOREREMOVE=1\\nFDNAME=one')\n")
        self.assertEqual(self.passed(daemon), ["two", "two"])

    def test_a_descriptor_without_a_sound_name_has_systemds(self):
        daemon = self.start()
        self.say(daemon, "socket.send_fds(keeper, [b'FDSTORE=1'], [0])\nstore('a:b', 1)\nstore('x' * 256, 1)\n")
        self.assertEqual(self.passed(daemon), ["stored", "stored"])

    def test_a_barrier_comes_back_when_all_before_it_is_done(self):
        daemon = self.start()
        self.say(daemon, "import select\nr, w = os.pipe()\nstore('one', *os.pipe())\nsocket.send_fds(keeper, [b'BARRIER=1'], [w])\n"
                         f"os.close(w)\nassert select.select([r], [], [], {WAIT_S})[0]\nos.close(r)\n")
        self.assertEqual(self.passed(daemon), ["one", "one"])

    def test_what_a_daemon_stored_just_before_its_death_is_kept(self):
        daemon = self.start()
        mark, pid = daemon.programs / "mark", daemon.pid()
        daemon.replace(SAYS + f"store('one', *os.pipe())\nopen({str(mark)!r}, 'x')\nos.kill(os.getpid(), 9)\n")
        daemon.process.send_signal(signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        daemon.process.send_signal(signal.SIGCONT)
        wait_until(mark.exists, "the program says what it has to say")
        daemon.replace()
        self.assertIn("one", self.names(daemon))

    def test_the_soft_limit_of_descriptors_becomes_the_hard_one(self):
        daemon = self.start(prefix=["prlimit", "--nofile=100:4096"])
        for pid in (daemon.process.pid, daemon.pid()):
            self.assertEqual(resource.prlimit(pid, resource.RLIMIT_NOFILE), (4096, 4096))
        self.assertLess(int(environment(daemon.pid())["FDSTORE"]), 4096)

    def orphans(self, daemon):
        return sum(pool["orphans"] for pool in daemon.ask("estate")["estate"]["pools"])

    def test_the_place_of_a_descriptor_that_is_missing_is_given_to_no_other(self):
        """The record of what it belonged to names it still: the next daemon but one would take another descriptor for it."""
        daemon = self.start()
        with holding(daemon):
            daemon.kill_daemon()
            lost = [name for name in environment(daemon.pid())["LISTEN_FDNAMES"].split(":") if re.fullmatch("S[A-Za-z0-9_-]{1,3}", name)]
            self.assertTrue(lost)
            self.say(daemon, f"for name in {lost}:\n    keeper.send(f'FDSTOREREMOVE=1\\nFDNAME={{name}}'.encode())\n")
            daemon.kill_daemon()
            orphans = self.orphans(daemon)
            with holding(daemon), holding(daemon):
                daemon.kill_daemon()
                stored = environment(daemon.pid())["LISTEN_FDNAMES"].split(":")
                self.assertFalse({name[1:] for name in stored} & {name[1:] for name in lost}, (stored, lost))
                self.assertGreaterEqual(self.orphans(daemon), orphans)

    def test_no_more_is_stored_than_the_limit_of_descriptors_allows(self):
        daemon = self.start(prefix=["prlimit", "--nofile=320:320"])
        limit = int(environment(daemon.pid())["FDSTORE"])
        count = len(daemon.files())
        self.say(daemon, "for i in range(50):\n    store('one', *os.pipe())\nkeeper.close()\n")
        wait_until(lambda: "a descriptor is not stored" in daemon.log_text(), "the keeper says so")
        self.assertEqual(len(self.stored_names(daemon)), limit - 1)  # one is the estate
        daemon.wait_for_files(count)

    def test_as_many_as_the_daemon_stores_at_most_are_kept(self):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        daemon = self.start()
        count, limit = len(daemon.files()), int(environment(daemon.pid())["FDSTORE"])
        slots = int(re.search(r"#define STORE_SLOTS +(\d+)u", (SOURCE / "daemon/loop/store.h").read_text())[1])
        self.assertEqual(limit, min(slots, hard - OWN_DESCRIPTORS))
        mark = daemon.programs / "mark"
        # Names as the daemon's, of four characters but for the first 4,096.
        daemon.replace(SAYS + f"""
digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
for n in range(100, 100 + {limit} - int(os.environ["LISTEN_FDS"])):
    name = ("" if n < 4096 else digits[n // 4096 % 64]) + digits[n // 64 % 64] + digits[n % 64]
    fd = os.memfd_create("many")
    store("S" + name, fd)
    os.close(fd)
open({str(mark)!r}, "x")
import signal
signal.pause()
""")
        daemon.end_daemon()
        wait_until(mark.exists, "all are sent")
        daemon.replace()
        daemon.upgrade()
        os.kill(daemon.child(), signal.SIGKILL)
        self.assertEqual(int(environment(daemon.pid())["LISTEN_FDS"]), limit)
        self.assertNotIn("not stored", daemon.log_text())
        daemon.wait_for_files(count)  # the daemon knows none of them, and removes them

    def test_a_limit_without_room_is_told_of(self):
        daemon = self.start(prefix=["prlimit", "--nofile=200:200"])
        self.assertIn("nothing can be held", daemon.log_text())
        daemon.end_daemon()

        def is_served():
            with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
                return daemon.pid() > 0
            return False

        wait_until(is_served, "another daemon serves, at a new socket")

    def test_names_that_would_not_fit_into_an_environment_are_refused(self):
        daemon = self.start()
        count = len(daemon.files())
        self.say(daemon, "for i in range(300):\n    store(f'{i:0250}', *os.pipe())\nkeeper.close()\n")
        wait_until(lambda: "a descriptor is not stored" in daemon.log_text(), "the keeper says so")
        self.assertGreater(len(self.passed(daemon)), 400)  # and the daemon starts
        daemon.wait_for_files(count)
        self.assertEqual(self.passed(daemon), [])


class Manager(Keeper):
    """A keeper under a service manager."""

    def test_its_manager_hears_what_the_daemon_says(self):
        folder = self.folder()
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(notify.close)
        notify.bind(f"{folder}/notify")
        notify.settimeout(WAIT_S)
        daemon = self.start(environment={"NOTIFY_SOCKET": f"{folder}/notify"})

        def hears(word):
            while word not in notify.recv(4096).decode().split("\n"):
                pass

        hears("READY=1")
        daemon.process.send_signal(signal.SIGHUP)
        hears("RELOADING=1")
        hears("READY=1")
        daemon.kill_daemon()
        hears("READY=1")
        daemon.process.send_signal(signal.SIGTERM)
        hears("STOPPING=1")
        self.assertEqual(daemon.process.wait(WAIT_S), 0)
        daemon.process = None

    def test_its_managers_sockets_are_passed_on(self):
        daemon = self.start(start=False)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as admin:
            admin.bind(str(daemon.admin_socket))
            admin.listen()
            before = os.stat(daemon.admin_socket).st_ino
            daemon.prefix = ["/bin/bash", "-c", f"exec 3<&{admin.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=admin exec \"$@\"", "bash"]
            with open(daemon.log, "ab") as log:
                daemon.process = subprocess.Popen(daemon.command(), pass_fds=[admin.fileno()], env=daemon.variables(), stdout=log, stderr=log)
        for _ in range(3):
            daemon.kill_daemon()
        self.assertEqual(sorted(self.names(daemon)), ["LA", "admin"])
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(os.stat(daemon.admin_socket).st_ino, before)  # it is the manager's


if __name__ == "__main__":
    unittest.main()
