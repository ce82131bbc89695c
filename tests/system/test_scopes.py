#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scopes: which users each socket admits; two scopes share no memory; a dropped scope leaves nothing behind."""
import json
import os
import pathlib
import stat
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from gpupool_system import CTL, WAIT_S, Admin, Daemon, ctl, holding, wait_until  # noqa: E402

STRANGER = 65533
# HELLO of a client without a GPU, as docs/wire.md has it.
HELLO = struct.pack("<HHIQIHHII", 1, 0, 32, 1, 0x4C505047, 1, 1, 2, 0).hex()


def ctl_of(daemon, *words, code=0):
    done = ctl(*words, socket_path=daemon.admin_socket)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done


def add(daemon, name, *options):
    """Adds a scope; returns its socket's path."""
    return pathlib.Path(json.loads(ctl_of(daemon, "--json", "scope", "add", name, *options).stdout)["socket"])


def scopes(daemon):
    return {scope["scope"]: scope for scope in daemon.ask("scopes")["scopes"]}


def as_user(uid, program, **keywords):
    return subprocess.run([sys.executable, "-c", program], user=uid, group=uid, extra_groups=[], capture_output=True, text=True, timeout=WAIT_S,
                          check=False, **keywords)


class Scopes(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon("[device]\nlimit = 512MiB\n[host]\nlimit = 512MiB\n")
        self.addCleanup(lambda: self.daemon.close())

    def test_each_has_its_own_socket_and_its_own_tenants(self):
        first, second = add(self.daemon, "first", "--label", "pod=trainer-0", "--label", 'job="a b"\\'), add(self.daemon, "second")
        self.assertNotEqual(first, second)
        with holding(self.daemon, GPUPOOL_SOCKET=str(first)), holding(self.daemon, GPUPOOL_SOCKET=str(second)), holding(self.daemon):
            quotas = {quota["scope"]: quota for quota in self.daemon.ask("quota")["quotas"]}
            self.assertEqual(set(quotas), {None, "first", "second"})
            self.assertEqual({quota["uid"] for quota in quotas.values()}, {os.getuid()})
            self.assertEqual([quota["sessions"] for quota in quotas.values()], [1, 1, 1])
            self.assertEqual({session["scope"] for session in self.daemon.ask("sessions")["sessions"]}, {None, "first", "second"})
            listed = scopes(self.daemon)
            self.assertEqual(listed["first"]["labels"], {"pod": "trainer-0", "job": '"a b"\\'})
            self.assertEqual((listed["first"]["sessions"], listed["first"]["users"], listed["second"]["labels"]), (1, 1, {}))
            self.assertGreater(listed["first"]["reserved_bytes"], 0)
            table = ctl_of(self.daemon, "scope", "list").stdout
            self.assertIn("pod=trainer-0", table)
            self.assertIn(str(first.parent), table)
            metrics = ctl_of(self.daemon, "metrics").stdout
            self.assertIn('gpupool_scope_info{scope="first",pod="trainer-0",job="\\"a b\\"\\\\"} 1\n', metrics)
            self.assertIn('gpupool_scope_sessions{scope="second"} 1\n', metrics)
            self.assertIn(f'gpupool_user_sessions{{uid="{os.getuid()}"}} 1\n', metrics)

    def test_a_container_that_has_one_socket_finds_no_other(self):
        inside = add(self.daemon, "pod").parent
        outer = inside.parent
        self.assertEqual(sorted(os.listdir(inside)), ["gpupool.sock", "gpupool.sock.sim"])
        self.assertEqual(stat.S_IMODE(inside.stat().st_mode), 0o755)
        self.assertEqual(stat.S_IMODE(outer.stat().st_mode), 0o700)
        self.assertEqual(stat.S_IMODE((inside / "gpupool.sock").stat().st_mode), 0o666)
        self.assertEqual(stat.S_IMODE((outer / "scope.json").stat().st_mode), 0o600)
        open_to_one = add(self.daemon, "job", "--uid", str(STRANGER)).parent.parent
        self.assertEqual(stat.S_IMODE(open_to_one.stat().st_mode), 0o711)

    @unittest.skipIf(os.geteuid() != 0, "this takes root, to be another user")
    def test_users_who_are_not_named_are_sent_away(self):
        path = add(self.daemon, "job", "--uid", str(STRANGER), "--uid", "root")
        program = f"import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect({str(path)!r}); print('connected')"
        self.assertEqual(as_user(STRANGER, program).stdout, "connected\n")
        other = add(self.daemon, "other", "--uid", str(STRANGER))
        with self.assertRaises(AssertionError):
            with holding(self.daemon, GPUPOOL_SOCKET=str(other)):
                pass
        self.assertIn("user 0 may not come in through scope 'other'", self.daemon.log_text())
        with holding(self.daemon, GPUPOOL_SOCKET=str(path)):
            self.assertEqual(scopes(self.daemon)["job"]["sessions"], 1)
        # one who is sent away and never reads that takes nothing from those who may come in
        program = ("import socket, sys\nsockets = []\nfor _ in range(400):\n    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
                   f"    s.connect({str(path)!r})\n    try:\n        s.send(bytes.fromhex({HELLO!r}))\n    except BrokenPipeError:\n        pass  # too many\n    sockets.append(s)\nprint('sent', flush=True); sys.stdin.read()")
        with subprocess.Popen([sys.executable, "-c", program], user=STRANGER + 1, group=STRANGER, extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as crowd:
            self.assertEqual(crowd.stdout.readline(), b"sent\n")
            wait_until(lambda: self.daemon.ask("stats")["daemon"]["lingering_sockets"] > 100, "the refusals linger")
            with holding(self.daemon, GPUPOOL_SOCKET=str(path)):
                self.assertEqual(scopes(self.daemon)["job"]["users"], 1)
                self.assertLess(scopes(self.daemon)["job"]["reply_bytes"], 4096)  # a few of its own may be on their way
            crowd.stdin.close()
        program = f"import os; os.listdir({str(path.parent.parent.parent)!r})"
        self.assertIn("PermissionError", as_user(STRANGER, program).stderr)
        closed = add(self.daemon, "closed")
        program = f"import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect({str(closed)!r})"
        self.assertIn("PermissionError", as_user(STRANGER, program).stderr)

    def test_a_quota_is_of_all_users_together(self):
        path = add(self.daemon, "small", "--quota", "sessions=1", "--quota", "device=50%")
        scope = scopes(self.daemon)["small"]
        self.assertEqual((scope["sessions_limit"], scope["pools"][0]["bytes_limit"]), (1, 256 << 20))
        with holding(self.daemon, GPUPOOL_SOCKET=str(path)):
            with self.assertRaises(AssertionError):
                with holding(self.daemon, GPUPOOL_SOCKET=str(path)):
                    pass
            with holding(self.daemon):  # elsewhere there is room
                pass
        log = self.daemon.log_text()
        self.assertIn("of scope 'small' (all users of the scope) has 1 session", log)
        self.assertIn("raise 'sessions' of the scope's quota", log)
        self.assertEqual(scopes(self.daemon)["small"]["refusals"], 1)  # also when its users are gone
        self.daemon.config.write_text("[device]\nlimit = 512MiB\n[host]\nlimit = 512MiB\n[quota]\nsessions = 1\n")
        ctl_of(self.daemon, "reload")
        more = add(self.daemon, "more", "--quota", "sessions=2")  # more than each user may have elsewhere
        with holding(self.daemon, GPUPOOL_SOCKET=str(more)), holding(self.daemon, GPUPOOL_SOCKET=str(more)):
            self.assertEqual(scopes(self.daemon)["more"]["sessions"], 2)
        self.daemon.config.write_text("[device]\nlimit = 256MiB\n[host]\nlimit = 512MiB\n")
        ctl_of(self.daemon, "reload")
        self.assertEqual(scopes(self.daemon)["small"]["pools"][0]["bytes_limit"], 128 << 20)

    def test_what_one_has_can_be_changed(self):
        path = add(self.daemon, "pod", "--quota", "sessions=1", "--quota", "host=64MiB", "--label", "pod=a", "--uid", "root")
        with holding(self.daemon, GPUPOOL_SOCKET=str(path)):
            ctl_of(self.daemon, "scope", "set", "pod", "--quota", "sessions=2")
            with holding(self.daemon, GPUPOOL_SOCKET=str(path)):
                scope = scopes(self.daemon)["pod"]
                self.assertEqual((scope["sessions"], scope["sessions_limit"], scope["pools"][-1]["bytes_limit"]), (2, 2, None))
                self.assertEqual((scope["labels"], scope["uids"]), ({"pod": "a"}, [0]))
        ctl_of(self.daemon, "scope", "set", "pod", "--label", "job=7", "--uid", "1")
        for code in (0, None):  # and of the next daemon
            scope = scopes(self.daemon)["pod"]
            self.assertEqual((scope["labels"], scope["uids"], scope["sessions_limit"]), ({"job": "7"}, [1], 2), code)
            self.daemon.stop()
            self.daemon.start()
        self.assertIn("no-such-scope", ctl_of(self.daemon, "scope", "set", "nix", "--label", "a=b", code=1).stderr)
        self.assertIn("did you mean", ctl_of(self.daemon, "scope", "set", "pod", "--quota", "devic=1", code=1).stderr)

    def test_nonsense_is_refused_and_changes_nothing(self):
        add(self.daemon, "there")
        for words, text in ((("../x",), "cannot be a scope's name"), ((".x",), "cannot be"), (("-x",), "invalid option"), (("x" * 64,), "cannot be"), (("",), "cannot be"),
                            (("there",), "there is a scope"), (("a", "--quota", "devic=1"), "did you mean 'device'"), (("a", "--quota", "device=1x"), "neither a size"),
                            (("a", "--quota", "device"), "NAME=VALUE"), (("a", "--label", "1x=a"), "cannot be a label's name"), (("a", "--label", "scope=a"), "cannot be a label's name"),
                            (("a", "--label", "x=" + "y" * 200), "at most 127 bytes"), (("a", "--uid", "no-such-user"), "there is no user"),
                            (("a", "--quota", "sessions=1", "--quota", "sessions=2"), "given twice"), (("a", "--end"), "scope drop only"),
                            (("a", *(f"--label=l{i}=x" for i in range(9))), "at most 8 labels"), (("a", *(f"--uid={i}" for i in range(17))), "at most 16 users")):
            done = ctl("scope", "add", *words, socket_path=self.daemon.admin_socket)
            self.assertNotEqual(done.returncode, 0, words)
            self.assertIn(text, done.stderr)
        for request in ({"scope": 7}, {"scope": "a", "uids": 7}, {"scope": "a", "uids": []}, {"scope": "a", "uids": [-1]}, {"scope": "a", "uids": [1.5]}, {"scope": "a", "uids": [4294967295]},
                        {"scope": "a", "quota": []}, {"scope": "a", "quota": {"device": 7}}, {"scope": "a", "labels": {"x": 7}}, {"scope": "a", "labels": {"x": "\u0001"}},
                        {"scope": "a", "labels": {"x": "1", "x ": "2"}}, {"scope": "a", "session": 7}, {}):
            with self.daemon.admin() as admin:
                admin.send(json.dumps({"command": "scope-add", **request}).encode() + b"\n")
                self.assertEqual(admin.receive()["error"]["code"], "invalid-request", request)
        self.assertFalse((pathlib.Path(self.daemon.directory.name) / "admin.scopes" / "a").exists())
        for words in ((), ("add",), ("drop", "there", "--uid", "0"), ("list", "--end"), ("list", "a"), ("drop",), ("remove", "a")):
            self.assertEqual(ctl("scope", *words, socket_path=self.daemon.admin_socket).returncode, 2, words)
        self.assertIn("no-such-scope", ctl_of(self.daemon, "scope", "drop", "nix", code=1).stderr)
        self.assertEqual(set(scopes(self.daemon)), {"there"})

    @unittest.skipIf(os.geteuid() != 0, "this takes root, to be another user")
    def test_scopes_are_for_operators(self):
        add(self.daemon, "there")
        for command in ('"scopes"', '"scope-add","scope":"x"', '"scope-drop","scope":"there"'):
            program = ("import socket; s = socket.socket(socket.AF_UNIX); "
                       f"s.connect({str(self.daemon.admin_socket)!r}); s.sendall(b'{{\"command\":{command}}}\\n'); print(s.recv(4096).decode())")
            self.assertIn("permission-denied", as_user(STRANGER, program).stdout)
        self.assertEqual(scopes(self.daemon)["there"]["state"], "open")

    def test_dropping_one_waits_for_its_processes(self):
        path = add(self.daemon, "pod")
        with holding(self.daemon, GPUPOOL_SOCKET=str(path)) as holder:
            done = ctl_of(self.daemon, "scope", "drop", "pod", "--no-wait")
            self.assertIn("It still has 1 session", done.stdout)
            self.assertFalse(path.parent.parent.exists())
            self.assertEqual((scopes(self.daemon)["pod"]["state"], scopes(self.daemon)["pod"]["socket"]), ("dropped", None))
            self.assertIn("there is a scope", ctl_of(self.daemon, "scope", "add", "pod", code=1).stderr)
            waiting = subprocess.Popen([CTL, f"--admin-socket={self.daemon.admin_socket}", "scope", "drop", "pod"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertIn("Waiting for the end of 1 session", waiting.stderr.readline() + waiting.stderr.readline())
            self.assertIsNone(waiting.poll())
            holder.stdin.close()
        self.assertEqual(waiting.wait(WAIT_S), 0)
        self.assertIn("is gone", waiting.stdout.read())
        waiting.stdout.close()
        waiting.stderr.close()
        self.assertEqual(scopes(self.daemon), {})
        wait_until(lambda: sum(pool["segments"] for pool in self.daemon.ask("pools")["pools"]) == 0, "the memory goes back")

    def test_dropping_one_can_end_its_processes(self):
        path = add(self.daemon, "pod")
        with holding(self.daemon, GPUPOOL_SOCKET=str(path)) as holder, holding(self.daemon) as other:
            ctl_of(self.daemon, "scope", "drop", "pod", "--no-wait", "--end")
            wait_until(lambda: scopes(self.daemon).get("pod") is None or all(
                session["state"] == "quarantined" for session in self.daemon.ask("sessions")["sessions"] if session["scope"] == "pod"), "the session ends")
            holder.kill()
            wait_until(lambda: scopes(self.daemon) == {}, "the scope is gone")
            self.assertEqual([session["scope"] for session in self.daemon.ask("sessions")["sessions"]], [None])
            other.stdin.close()
        add(self.daemon, "pod")

    def test_the_next_daemon_has_them_again(self):
        path = add(self.daemon, "pod", "--quota", "sessions=3", "--label", "pod=a", "--uid", "0")
        number = scopes(self.daemon)["pod"]["id"]
        inside = os.open(path.parent, os.O_PATH)  # as a container has it
        try:
            for end in (self.daemon.kill, self.daemon.stop):
                end()
                self.daemon.start()
                scope = scopes(self.daemon)["pod"]
                self.assertEqual((scope["sessions_limit"], scope["labels"], scope["uids"], scope["id"]), (3, {"pod": "a"}, [0], number))
                self.assertEqual(os.stat("gpupool.sock", dir_fd=inside).st_ino, path.stat().st_ino)
                if os.geteuid() == 0:
                    with holding(self.daemon, GPUPOOL_SOCKET=str(path)):
                        pass
        finally:
            os.close(inside)
        self.daemon.stop()
        self.assertFalse(path.exists())
        saved = path.parent.parent / "scope.json"
        for text in (b"", b"{", b"[]", b'{"id":1}', b'{"id":"x","scope":"pod"}', b'{"id":2,"scope":"pod","quota":{"x":"1"}}', b"\xff" * 100, b"x" * 100000):
            saved.write_bytes(text)
            self.daemon.start()
            self.assertEqual(set(scopes(self.daemon)), {"pod"} if text == b'{"id":1}' else set(), text)
            self.daemon.stop()
        (path.parent.parent.parent / "stray").write_text("")
        (path.parent.parent.parent / "left").mkdir()
        saved.write_bytes(b"{")
        self.daemon.start()
        self.assertEqual(self.daemon.log_text().rsplit("gpupoold: info: serving", 1)[0].rsplit("records and", 1)[1].count("is not there again"), 1)
        ctl_of(self.daemon, "scope", "drop", "pod")
        self.assertFalse(path.parent.parent.exists())

    @unittest.skipIf(os.geteuid() != 0, "this takes root, to be another user")
    def test_directories_of_others_are_not_used(self):
        directory = pathlib.Path(self.daemon.directory.name) / "admin.scopes"
        (directory / "evil").mkdir(parents=True)
        (directory / "evil" / "scope.json").write_text('{"id":7}')
        os.chown(directory, STRANGER, STRANGER)
        self.daemon.stop()
        self.daemon.start()
        self.assertEqual(scopes(self.daemon), {})
        self.assertIn("is not this daemon's own", self.daemon.log_text())
        self.assertIn("Operation not permitted", ctl_of(self.daemon, "scope", "add", "a", code=1).stderr)

    def test_labels_of_any_kind_are_printed(self):
        add(self.daemon, "pod", *(f"--label={name * 31}=" + '"' * 127 for name in "abcdefgh"))
        metrics = ctl_of(self.daemon, "metrics").stdout
        self.assertIn("h" * 31 + '="' + '\\"' * 127 + '"} 1\n', metrics)

    def test_waiting_for_one_leaves_the_next_of_its_name_alone(self):
        path = add(self.daemon, "pod")
        with holding(self.daemon, GPUPOOL_SOCKET=str(path)) as holder:
            waiting = subprocess.Popen([CTL, f"--admin-socket={self.daemon.admin_socket}", "scope", "drop", "pod"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            waiting.stderr.readline()
            holder.stdin.close()
            wait_until(lambda: ctl("scope", "add", "pod", socket_path=self.daemon.admin_socket).returncode == 0, "the name is free")
        self.assertEqual((waiting.wait(WAIT_S), waiting.stdout.read()), (0, b"The scope is gone.\n"))
        waiting.stdout.close()
        waiting.stderr.close()
        self.assertEqual(scopes(self.daemon)["pod"]["state"], "open")

    def test_records_tell_the_scope(self):
        path = add(self.daemon, "a-name-of-more-than-23-bytes")
        with holding(self.daemon, GPUPOOL_SOCKET=str(path)), holding(self.daemon):
            top = ctl_of(self.daemon, "top", "--once", "--scope", "a-name-of-more-than-23-bytes").stdout
        self.assertEqual(top.count("system_h"), 1, top)
        every = [json.loads(line) for line in ctl_of(self.daemon, "--json", "events").stdout.splitlines()]
        its = [json.loads(line) for line in ctl_of(self.daemon, "--json", "events", "--scope", "a-name-of-more-than-23-bytes").stdout.splitlines()]
        self.assertEqual([record for record in every if record["scope"] is not None], its)
        self.assertEqual({record["scope"] for record in its}, {"a-name-of-more-than-23-"})
        self.assertEqual({record["kind"] for record in its} & {"scope", "open", "lease", "farewell"}, {"scope", "open", "lease", "farewell"})
        self.assertIn(", scope a-name-of-more-than-23-\n", ctl_of(self.daemon, "events").stdout)
        self.assertRegex(ctl_of(self.daemon, "history").stdout, r"\(0\) of a-name-of-more-than-23-: " if os.geteuid() == 0 else " of a-name")
        ctl_of(self.daemon, "scope", "drop", "a-name-of-more-than-23-bytes")
        self.assertIn("the scope is gone", ctl_of(self.daemon, "events").stdout)

    def test_many_come_and_go(self):
        descriptors = len(os.listdir(f"/proc/{self.daemon.process.pid}/fd"))
        with Admin(self.daemon.admin_socket) as admin:
            for _ in range(3):
                for number in range(40):
                    admin.ask("scope-add", scope=f"s{number}")
                self.assertEqual(len(admin.ask("scopes")["scopes"]), 40)
                for number in range(40):
                    self.assertTrue(admin.ask("scope-drop", scope=f"s{number}")["is_gone"])
        wait_until(lambda: len(os.listdir(f"/proc/{self.daemon.process.pid}/fd")) <= descriptors + 1, "nothing is left open")


if __name__ == "__main__":
    unittest.main(verbosity=2)
