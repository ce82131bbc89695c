# SPDX-License-Identifier: Apache-2.0
"""Which daemon gpupoolctl asks: that of the data socket which programs use, and never another one."""
import grp
import json
import os
import pathlib
import socket
import struct
import tempfile
import threading
import unittest

from gpupool_system import WAIT_S, Daemon, FakeAdmin, check_schema, ctl

UNREACHABLE = 3


def identity_of(daemon):
    return daemon.ask("ping")["daemon"]["identity"]


def asked(**environment):
    """The identity of the daemon that answers, or what gpupoolctl says where none does."""
    done = ctl("ping", "--json", environment=environment)
    if done.returncode == 0:
        return json.loads(done.stdout)["daemon"]["identity"]
    assert done.returncode == UNREACHABLE, done
    return done.stderr


class SilentDaemon:
    """Greets one client without an identity, or answers it otherwise."""

    def __init__(self, path, answer=lambda request: struct.pack("<HHIQIHHQII128x", 64, 0, 168, request, 0x4C505047, 1, 2, 1, 1, 0)):
        self.answer = answer
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen()
        self.listener.settimeout(WAIT_S)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        client, _ = self.listener.accept()
        with client:
            client.settimeout(WAIT_S)
            request = struct.unpack_from("<Q", client.recv(16384), 8)[0]
            client.send(self.answer(request))
            client.recv(16384)

    def close(self):
        self.thread.join(WAIT_S)
        self.listener.close()


class Address(unittest.TestCase):
    def setUp(self):
        self.daemon, self.other = Daemon(), Daemon()
        self.addCleanup(self.daemon.close)
        self.addCleanup(self.other.close)
        self.identities = identity_of(self.daemon), identity_of(self.other)
        self.assertNotEqual(*self.identities)

    def test_the_data_socket_is_enough(self):
        for daemon, identity in zip((self.daemon, self.other), self.identities, strict=True):
            self.assertEqual(asked(GPUPOOL_SOCKET=str(daemon.socket)), identity)
            self.assertEqual(asked(GPUPOOL_SOCKET="private", GPUPOOL_PRIVATE_SOCKET=str(daemon.socket)), identity)
            done = ctl("stats", "--json", environment={"GPUPOOL_SOCKET": str(daemon.socket)})
            check_schema(json.loads(done.stdout), "stats")
            self.assertEqual(json.loads(done.stdout)["daemon"]["admin_socket"], str(daemon.admin_socket))
            self.assertEqual(json.loads(done.stdout)["sessions"], [], "the question opens no session")

    def test_an_admin_socket_that_is_named_wins(self):
        environment = {"GPUPOOL_SOCKET": str(self.daemon.socket), "GPUPOOL_ADMIN_SOCKET": str(self.other.admin_socket)}
        self.assertEqual(asked(**environment), self.identities[1])
        done = ctl("ping", "--json", socket_path=self.daemon.admin_socket, environment=environment)
        self.assertEqual(json.loads(done.stdout)["daemon"]["identity"], self.identities[0])

    def test_a_restart_makes_another_daemon(self):
        self.daemon.kill()
        self.daemon.start()
        again = asked(GPUPOOL_SOCKET=str(self.daemon.socket))
        self.assertEqual(again, identity_of(self.daemon))
        self.assertNotIn(again, self.identities)

    def move(self):
        """Moves the daemon's sockets, as the mounts of a container do: the path that it tells leads nowhere. Returns the new folder."""
        folder = tempfile.TemporaryDirectory(prefix="gpupool-mount-")
        self.addCleanup(folder.cleanup)
        for path in (self.daemon.socket, self.daemon.admin_socket):
            os.rename(path, os.path.join(folder.name, path.name))
        return pathlib.Path(folder.name)

    def test_the_admin_socket_is_found_beside_the_data_socket(self):
        folder = self.move()
        self.assertEqual(asked(GPUPOOL_SOCKET=str(folder / "gpupool.sock")), self.identities[0])
        os.symlink(self.other.admin_socket, self.daemon.admin_socket)  # another daemon where this one says that it is
        self.addCleanup(os.unlink, self.daemon.admin_socket)
        self.assertEqual(asked(GPUPOOL_SOCKET=str(folder / "gpupool.sock")), self.identities[0])

    def test_no_other_daemon_is_asked(self):
        folder = self.move()
        os.unlink(folder / "admin.sock")
        os.symlink(self.other.admin_socket, folder / "admin.sock")
        for place in (None, self.daemon.admin_socket):
            if place is not None:
                os.symlink(self.other.admin_socket, place)
                self.addCleanup(os.unlink, place)
            said = asked(GPUPOOL_SOCKET=str(folder / "gpupool.sock"))
            self.assertIn(self.identities[0], said)
            self.assertIn(f"{folder / 'admin.sock'} (another daemon answers there)", said)
            self.assertIn(f"{self.daemon.admin_socket} ({'another daemon' if place else 'No such file'}", said)
            self.assertIn("--admin-socket", said)
            trimmed = ctl("trim", environment={"GPUPOOL_SOCKET": str(folder / "gpupool.sock")})
            self.assertEqual((trimmed.returncode, trimmed.stdout), (UNREACHABLE, ""))

    def test_where_no_daemon_lends_nothing_is_asked(self):
        with FakeAdmin(b"") as fake:
            said = asked(GPUPOOL_SOCKET=os.path.join(os.path.dirname(fake.path), "gpupool.sock"))
            self.assertIn("no gpupoold answers", said)
            self.assertIn("GPUPOOL_SOCKET", said)
            self.assertEqual(fake.requests, [])
        self.assertIn("gpupool_socket_path()", asked(GPUPOOL_SOCKET="private"))

    def test_a_path_of_another_file_is_told(self):
        for path in (self.daemon.directory.name, str(self.daemon.config)):
            self.assertIn(f"{path} is not a socket: name the socket of gpupoold with GPUPOOL_SOCKET", asked(GPUPOOL_SOCKET=path))
            self.assertIn(f"{path} is not a socket", asked(GPUPOOL_ADMIN_SOCKET=path))

    def test_the_time_that_was_waited_is_told(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            path = os.path.join(self.daemon.directory.name, "silent.sock")
            listener.bind(path)
            listener.listen()
            done = ctl("ping", "--timeout=50ms", environment={"GPUPOOL_SOCKET": path})
            self.assertEqual(done.returncode, UNREACHABLE)
            self.assertIn("did not answer within 50 ms: look at its log, or wait longer with --timeout", done.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "another user is needed")
    def test_a_user_who_may_not_connect_is_told_of_the_group_that_may(self):
        for mode, group in ((0o660, " (it is for the group games)"), (0o600, "")):
            os.chown(self.daemon.socket, 0, grp.getgrnam("games").gr_gid)
            os.chmod(self.daemon.socket, mode)
            done = ctl("stats", environment={"GPUPOOL_SOCKET": str(self.daemon.socket)}, user=65534, group=65534, extra_groups=[])
            self.assertEqual(done.returncode, UNREACHABLE)
            self.assertIn(f"this user may not connect to {self.daemon.socket}{group}: ask its owner for access, or name its admin "
                          "socket with --admin-socket", done.stderr)

    def test_a_daemon_may_not_tell(self):
        with FakeAdmin(b"") as fake:
            path = os.path.join(os.path.dirname(fake.path), "gpupool.sock")
            silent = SilentDaemon(path)
            self.assertIn("cannot tell its admin socket", asked(GPUPOOL_SOCKET=path))
            silent.close()
            self.assertEqual(fake.requests, [])


def greet(daemon):
    """Opens a session. Returns its socket."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(WAIT_S)
    client.connect(str(daemon.socket))
    client.send(struct.pack("<HHIQIHHII", 1, 0, 32, 1, 0x4C505047, 1, 1, 2, 0))
    return client, struct.unpack_from("<HHIQIHHQ", client.recv(16384))


class Question(unittest.TestCase):
    """gpupoolctl asks which daemon it is without a session: also where none can be had, and without a trace in log and numbers."""

    def check(self, config):
        with Daemon(config) as daemon:
            client, greeting = greet(daemon)
            with client:
                refused, answer = greet(daemon)
                refused.close()
                self.assertEqual(answer[0], 70, "a second session gets an ERROR")
                log = daemon.log_text()
                environment = {"GPUPOOL_SOCKET": str(daemon.socket)}
                self.assertEqual(asked(**environment), identity_of(daemon))
                for command in ("stats", "quota", "pools"):
                    done = ctl(command, environment=environment)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                if not os.environ["GPUPOOL_SANITIZE"]:  # a sanitizer's library is not for any program
                    done = ctl("run", "--force", "true", environment=environment)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(daemon.ask("stats")["daemon"]["sessions_refused"], 1, "the second session alone")
                self.assertEqual(daemon.log_text(), log)
                client.send(struct.pack("<HHIQ", 9, 0, 16, 2))
                client.recv(16384)
            again, after = greet(daemon)
            again.close()
            self.assertEqual((after[0], after[-1]), (64, greeting[-1] + 1), "no question takes a session's number")

    def test_it_is_answered_where_the_daemon_has_all_its_sessions(self):
        self.check("[daemon]\nsessions_limit = 1\n")

    def test_it_is_answered_where_the_user_has_all_its_sessions(self):
        self.check("[quota]\nsessions = 1\n")


if __name__ == "__main__":
    unittest.main()
