# SPDX-License-Identifier: Apache-2.0
"""gpupoolctl against a scripted admin server."""
import copy
import fcntl
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import tempfile
import termios
import unittest

from gpupool_system import CTL, WAIT_S, FakeAdmin, check_schema, ctl, stride

GIB = 1 << 30

DAEMON = {"version": "0.1.0", "pid": 4711, "uptime_ns": 125_000_000_000, "gpu": "sim", "identity": "0123456789abcdef" * 2}
DAEMON_STATS = {**DAEMON, "socket": "/run/gpupool/gpupool.sock", "admin_socket": "/run/gpupool-admin/admin.sock", "cuda_toolkit": None, "sessions": 2,
                "sessions_limit": 1024, "sessions_refused": 0, "lingering_sockets": 0, "lingering_oldest_ns": None, "descriptors_limit": 65536,
                "described_segments": 5, "described_segments_limit": 57216, "notices": ["The GPUs are simulated.", "No huge pages are free."]}
NO_TIMES = {"count": 0, "sum": 0, "p50": None, "p90": None, "p99": None, "buckets": []}
TIMES = {
    "acquire_ns": {"count": 12, "sum": 120_000, "p50": 9_500, "p90": 12_000, "p99": 15_000, "buckets": [[16384, 12]]},
    "waiting_ns": {"count": 3, "sum": 2**40, "p50": 7_000_000, "p90": 2**38, "p99": 2**38,
                   "buckets": [[2**23, 1], [None, 2]]},
    "growth_ns": NO_TIMES}
DEVICE_POOL = {
    "id": 1, "kind": "device", "name": "Simulated GPU 0", "uuid": "GPU-53494d00-0000-0000-0000-000000000000", "device": 0,
    "numa_node": None, "export": "ipc", "pages": None, "zeroed_by": "daemon", "context": True, "state": "ready", "limit_bytes": 8 * GIB, "step_bytes": 64 << 20,
    "reserve_bytes": 0, "low_water_bytes": 32 << 20, "reserved_bytes": 3 * GIB, "leased_bytes": 2 * GIB, "in_use_bytes": 5 * GIB // 4,
    "cached_bytes": 3 * GIB // 4, "hit_ratio": 0.9375, "moves": 1_133, "free_bytes": GIB - (2 << 20),
    "fenced_bytes": 6 << 20, "quarantined_bytes": 2 << 20, "largest_free_bytes": 512 << 20, "growing_bytes": 0, "segments": 3, "leases": 12,
    "parcels": 5, "parcel_bytes": 640 << 20, "waiters": 1, "waiting_oldest_ns": 2_500_000_000, "acquires": 2**53, "releases": 1_234_567, "grows": 3, "retires": 0, "failures": 7, "timeouts": 5, "quota_refusals": 4, "probes": 92,
    "closes": 2, "close_ns": 104_000_000, "leased_peak_bytes": 9 * GIB // 4, "reserved_peak_bytes": 13 * GIB // 4,
    "quarantined_peak_bytes": 48 << 20, "quarantine_oldest_ns": 3_000_000_000, "histograms": TIMES,
    "worker_call": "cudaMalloc", "worker_call_ns": 12_000_000_000, "last_error": "cudaErrorMemoryAllocation: out of memory"}
HOST_POOL = {**DEVICE_POOL, "id": 2, "kind": "host", "name": "host memory, node 0", "uuid": None, "device": None,
             "numa_node": 0, "export": "memfd", "pages": "transparent", "zeroed_by": "kernel", "context": False, "leased_bytes": 0, "in_use_bytes": 0, "cached_bytes": 0,
             "hit_ratio": None, "failures": 0, "quarantine_oldest_ns": None, "worker_call": None, "worker_call_ns": None, "last_error": None}
SESSION = {"id": 7, "pid": 815, "uid": 1000, "scope": None, "gid": 100, "command": "loader", "state": "active",
           "quarantine_reason": None, "quarantined_ns": None, "unanswered_ns": None, "end_rule": "listing", "under_mps": False, "own_bytes": 777 << 20, "leases": 3, "leased_bytes": 3 * GIB // 2,
           "in_use_bytes": GIB, "cached_bytes": GIB // 2, "hit_ratio": 0.75, "moves": 17, "fenced_bytes": 4 << 20, "waiting": 0,
           "segments": 2, "connected_ns": 90_000_000_000,
           "pools": [{"id": 1, "leased_bytes": 11 << 20, "in_use_bytes": 7 << 20, "cached_bytes": 4 << 20,
                      "fenced_bytes": 3 << 20, "closing_bytes": 6 << 20, "segments": 2,
                      "asked": 3, "answered": 3, "outcome": "capturing", "owed_ns": None, "came_bytes": 512 << 20,
                      "kept_bytes": 5 << 20}], "requests": []}
DEAD_SESSION = {**SESSION, "id": 8, "pid": 816, "state": "quarantined", "command": "trainer",
                "quarantine_reason": "pid 816 is still listed by NVML", "quarantined_ns": 3_000_000_000,
                "under_mps": True, "own_bytes": None, "pools": None, "requests": None}
WAITING_SESSION = {**SESSION, "id": 9, "pid": 817, "waiting": 4, "pools": [], "requests": [
    {"pool": 1, "bytes": 33 << 20, "wanted_bytes": 64 << 20, "waiting_ns": 21_000_000_000, "left_ns": 39_000_000_000,
     "reason": reason} for reason in ("room", "quota", "growth", "own-process", "no-answer", "other-users", "pieces")]}

QUOTA = {"uid": 1000, "scope": None, "charged_to": None, "sessions": 3, "sessions_limit": 1008, "leases": 20, "leases_limit": None, "ranges": 31, "ranges_limit": None, "segments": 7, "segments_limit": 28608, "waiting": 0, "waiting_limit": 4,
         "reply_bytes": 1 << 20, "reply_bytes_limit": 64 << 20, "refusals": 5,
         "pools": [{"id": 1, "kind": "device", "bytes": 3 * GIB, "bytes_limit": 4 * GIB},
                   {"id": 2, "kind": "host", "bytes": 0, "bytes_limit": None}]}
FULL_QUOTA = {**QUOTA, "uid": 1001, "charged_to": 1000, "waiting": 4,
              "pools": [{"id": 1, "kind": "device", "bytes": 4 * GIB, "bytes_limit": 4 * GIB},
                        {"id": 2, "kind": "host", "bytes": 0, "bytes_limit": 0}]}

PARCEL = {"session": 7, "pid": 815, "uid": 1000, "scope": None, "pool": 1, "bytes": 24 << 20, "takers": 2, "sent_ns": 4_000_000_000,
          "left_ns": 56_000_000_000}

NAME = {"name": "weights/llama", "uid": 1000, "scope": None, "channel": False, "generation": 7, "kept": True, "live": False, "bytes": 24 * GIB, "buffers": 3,
        "directory_bytes": 40_000, "layout": "fffffffffffffffe", "session": 7, "pid": 815, "publisher": "gone", "age_ns": 7200_000_000_000,
        "opens": 12, "holders": 0, "builder_session": None, "builder_pid": None, "waiting": 0}
BUILT_NAME = {**NAME, "name": "dataset/train", "generation": None, "kept": False, "bytes": 0, "buffers": 0, "directory_bytes": 0, "layout": None,
              "session": None, "pid": None, "publisher": None, "age_ns": None, "opens": 0, "builder_session": 9, "builder_pid": 817, "waiting": 4}

PLACE = {"place": 1, "state": "taken", "session": 9, "pid": 817, "command": "detector", "processes": 1, "received": 93, "behind": 7, "held": 2}
PRODUCER = {**PLACE, "place": 0, "session": 7, "pid": 815, "command": "camera", "received": None, "behind": None, "held": None}
CHANNEL = {"id": 12, "name": "frames", "uid": 1000, "scope": None, "pool": 1, "bytes": 24 << 20, "slots": 8, "slot_bytes": 3 << 20, "metadata_bytes": 64,
           "consumers": 2, "policy": "drop-oldest", "kept": False, "session": 7, "pid": 815, "maker": "active", "waiting": 0, "sent": 100,
           "places": [PRODUCER, PLACE, {**PLACE, "place": 2, "state": "empty", "session": None, "pid": None, "command": None, "processes": 0,
                                        "received": 0, "behind": 100, "held": 0}]}


def change(section, key, before, after, source="file", line_=None, needs_restart=False):
    return {"section": section, "key": key, "before": before, "after": after, "source": source, "line": line_, "needs_restart": needs_restart}


def setting(section, key, value, source="default", line_=None, needs_restart=False, in_force=None, reason=None, next_=(None, None, None)):
    return {"section": section, "key": key, "value": value, "source": source, "line": line_, "needs_restart": needs_restart,
            "in_force": in_force, "reason": reason, **dict(zip(("next_value", "next_source", "next_line"), next_, strict=True))}


ESTATE = {"kept": True, "why": None, "manager": "systemd", "incarnation": 4, "records": 412, "bytes": 576 << 10,
          "format": {"major": 1, "desk": 1, "kinds": [{"kind": 1, "size_bytes": 64, "holds": True}]},
          "descriptors": {"stored": 99, "limit": 100, "refused": True}, "sessions": {"kept": 3, "lost": 1},
          "pools": [{"id": 1, "kept_segments": 3, "kept_bytes": GIB, "lost_segments": 2, "lost_bytes": 64 << 20, "orphans": 1, "orphan_bytes": 32 << 20}]}


REPLIES = {
    "estate": {"estate": ESTATE},
    "quota": {"quotas": [QUOTA, FULL_QUOTA]},
    "ping": {"daemon": DAEMON},
    "stats": {"daemon": DAEMON_STATS, "pools": [DEVICE_POOL, HOST_POOL], "sessions": [SESSION, DEAD_SESSION]},
    "pools": {"pools": [DEVICE_POOL, HOST_POOL]},
    "sessions": {"sessions": [SESSION, DEAD_SESSION, WAITING_SESSION]},
    "quarantine": {"sessions": [DEAD_SESSION]},
    "parcels": {"parcels": [PARCEL], "total": 3},
    "names": {"names": [NAME, BUILT_NAME], "total": 4},
    "channels": {"channels": [CHANNEL], "total": 3},
    "leases": {"leases": [{"id": 3, "session": 7, "pid": 4242, "uid": 1000, "scope": None, "command": "train.py", "pool": 1, "segment": 9,
                           "offset_bytes": 512, "bytes": 64 << 20, "ranges": 1, "state": "held", "holders": 2, "age_ns": 90_000_000_000}],
               "total": 5},
    "sharing": {"blocks": [{"pool": 1, "segment": 9, "offset_bytes": 512, "bytes": 64 << 20, "parcels": 1, "holders_total": 1,
                            "holders": [{"session": 7, "pid": 4242, "uid": 1000, "scope": None, "command": "train.py", "lease": 3, "state": "fenced"}]}],
                "is_whole": False},
    "config": {"file": "/etc/gpupool/gpupoold.conf",
               "settings": [setting("daemon", "gpu", "auto", needs_restart=True, in_force="none", reason="the driver finds no GPU"),
                            setting("daemon", "log_level", "debug", "command-line"),
                            setting("daemon", "sim_gpus", "1", needs_restart=True, next_=("2", "file", 3)),
                            setting("daemon", "group", "render", "kept", needs_restart=True, next_=(None, "default", None)),
                            setting("device", "limit", "80%", "file", 12), setting("device", "step", None),
                            setting("device 0", "export", "ipc", "kept", needs_restart=True, next_=("vmm", "file", 9))],
               "pools": [{"id": 1, "kind": "device", "name": "Simulated GPU 0", "settings": [
                   setting("device", "limit", "80%", "file", 12, in_force="6553MiB", reason="of the 8 GiB that the GPU has"),
                   setting("device", "reserve", "0")]}]},
    "reload": {"file": "/etc/gpupool/gpupoold.conf", "applied": True, "mistakes": [], "mistakes_total": 0,
               "warnings": ["there is no user 'alice'"], "warnings_total": 3, "changes_total": 103,
               "changes": [change("device", "limit", "90%", "80%", line_=4), change("daemon", "gpu", "auto", "sim", line_=2, needs_restart=True),
                           change("quota", "sessions", None, "5", line_=9), change("host", "limit", "1GiB", "50%", "default")]},
    "trim": {"trimmed_bytes": 64 << 20, "pools": [{"id": 1, "trimmed_bytes": 64 << 20}, {"id": 2, "trimmed_bytes": 0}]},
}


def line(document, **keywords):
    return json.dumps(document, **keywords).encode() + b"\n"


def on_terminal(*words, reply, columns=80, typed=None, environment=None):
    """Runs gpupoolctl on a terminal of so many columns, against a server that answers so. Returns its exit status, what it wrote, and
    what it asked the server."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    if typed is not None:
        os.write(controller, typed)
    with FakeAdmin(reply) as fake:
        process = subprocess.Popen([CTL, f"--admin-socket={fake.path}", *words], stdin=terminal, stdout=terminal, stderr=terminal,
                                   env={"TERM": "xterm", "LC_ALL": "C.UTF-8", **(environment or {})})
        os.close(terminal)
        text = b""
        while select.select([controller], [], [], WAIT_S)[0]:
            try:
                piece = os.read(controller, 65536)
            except OSError:  # what the controlling side gets when the last writer has gone
                break
            if piece == b"":
                break
            text += piece
        code = process.wait(WAIT_S)
        os.close(controller)
        requests = [json.loads(request) for request in fake.requests]
    return code, text.decode().replace("\r\n", "\n"), requests


def columns_of(text, heading):
    """The rows under the title row that begins with a heading, cut where the titles are, by the alignment of the cells:
    two or more blanks separate columns."""
    lines = text.splitlines()
    start = next(i for i, row in enumerate(lines) if row.split()[:1] == [heading])
    rows = []
    for row in lines[start:]:
        if not row.strip() or row.lstrip().startswith(("pool ", "session ", "process-end: ", "listing: ", "descriptors: ")):
            break
        rows.append(row)
    return rows


class Replies(unittest.TestCase):
    def test_the_replies_of_these_tests_are_what_the_schemas_say(self):
        for command, reply in REPLIES.items():
            check_schema(reply, command)

    def test_the_schemas_refuse_what_is_missing_and_what_is_too_much(self):
        for command, reply in REPLIES.items():
            for part in reply:
                less = {key: value for key, value in reply.items() if key != part}
                with self.subTest(command, without=part), self.assertRaises(Exception):
                    check_schema(less, command)
            with self.subTest(command, extra=True), self.assertRaises(Exception):
                check_schema({**reply, "extra": 1}, command)
        for change in ({"device": None}, {"pages": "plain"}, {"leased_bytes": -1}, {"leased_bytes": 2**53 + 1},
                       {"state": "odd"}, {"extra": 1}, {"hit_ratio": 1.01}, {"histograms": {}},
                       {"histograms": {**TIMES, "acquire_ns": {**NO_TIMES, "buckets": [[1]]}}}):
            with self.subTest(change), self.assertRaises(Exception):
                check_schema({"pools": [{**DEVICE_POOL, **change}]}, "pools")


class Commands(unittest.TestCase):
    def test_each_command_asks_what_the_schema_allows_and_succeeds(self):
        for command, reply in REPLIES.items():
            for options in ([], ["--json"]):
                with self.subTest(command, options=options), FakeAdmin(line(reply)) as fake:
                    done = ctl(command, *options, socket_path=fake.path)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertEqual(len(fake.requests), 1)
                    request = json.loads(fake.requests[0])
                    check_schema(request, "request")
                    self.assertEqual(request, {"command": command})

    def test_trim_names_its_pool(self):
        with FakeAdmin(line(REPLIES["trim"])) as fake:
            self.assertEqual(ctl("trim", "--pool", "4294967295", socket_path=fake.path).returncode, 0)
            self.assertEqual(json.loads(fake.requests[0]), {"command": "trim", "pool": 4294967295})

    def test_parcels_are_revoked_by_their_sender_or_all(self):
        reply = {"revoked": 3, "revoked_bytes": 24 << 20}
        for value, request in (("7", {"command": "parcels-revoke", "session": 7}), ("all", {"command": "parcels-revoke"})):
            for options in (["--yes"], ["--yes", "--json"]):
                with self.subTest(value, options=options), FakeAdmin(line(reply)) as fake:
                    done = ctl("parcels", "--revoke", value, *options, socket_path=fake.path)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertEqual(json.loads(fake.requests[0]), request)
                    check_schema(request, "request")
                    if "--json" in options:
                        check_schema(json.loads(done.stdout), "parcels-revoke")
                    else:
                        self.assertIn("3 buffers revoked, 24 MiB", done.stdout)
        for arguments in (("parcels", "--revoke", "0"), ("parcels", "--revoke", "some"), ("pools", "--revoke", "all")):
            self.assertEqual(ctl(*arguments).returncode, 2)

    @staticmethod
    def parcels(connection, request):
        """Answers as a daemon that has two parcels of session 7 and one of session 6."""
        asked = json.loads(request)
        parcels = [PARCEL, PARCEL, {**PARCEL, "session": 6}]
        if asked["command"] == "parcels":
            reply = {"parcels": parcels, "total": len(parcels)}
        elif asked.get("session", 7) in (6, 7):
            reply = {"revoked": 2, "revoked_bytes": 48 << 20}
        else:
            reply = {"error": {"code": "no-such-session", "message": "there is no session of this number"}}
        connection.sendall(line(reply))

    def test_a_revocation_asks_first(self):
        listed, revoke = {"command": "parcels"}, {"command": "parcels-revoke", "session": 7}
        code, text, requests = on_terminal("parcels", "--revoke=7", reply=self.parcels, typed=b"y\n")
        self.assertEqual((code, requests), (0, [listed, revoke]))
        for words in ("Session 7 (pid 815, user ", "2 buffers (48 MiB) sent and not taken yet", "Revoke them? [y/N]", "2 buffers revoked, 48 MiB"):
            self.assertIn(words, text)
        code, text, requests = on_terminal("parcels", "--revoke=all", reply=self.parcels, typed=b"y\n")
        self.assertEqual((code, requests), (0, [listed, {"command": "parcels-revoke"}]))
        self.assertIn("3 buffers (72 MiB) sent", text)
        for typed in (b"n\n", b"\n", b"\4"):
            code, text, requests = on_terminal("parcels", "--revoke=7", reply=self.parcels, typed=typed)
            self.assertEqual((code, requests), (1, [listed]), typed)
            self.assertIn("nothing was revoked", text)

    def test_a_revocation_without_a_terminal_wants_yes(self):
        for options in ([], ["--json"]):
            with FakeAdmin(self.parcels) as fake:
                done = ctl("parcels", "--revoke=7", *options, socket_path=fake.path)
                self.assertEqual((done.returncode, len(fake.requests)), (1, 1))
            self.assertIn("add --yes", done.stderr)
            if options:
                self.assertEqual(json.loads(done.stdout)["error"]["code"], "invalid-request")

    def test_a_revocation_of_no_session_is_an_error(self):
        """There is nothing to ask: the daemon is told, and refuses."""
        for options in ([], ["--yes"], ["--json"]):
            with self.subTest(options), FakeAdmin(self.parcels) as fake:
                done = ctl("parcels", "--revoke=9", *options, socket_path=fake.path)
                self.assertEqual(done.returncode, 1)
                self.assertIn("there is no session of this number", done.stderr)
                if "--json" in options:
                    self.assertEqual(json.loads(done.stdout)["error"]["code"], "no-such-session")

    def test_a_revocation_asks_where_not_all_parcels_are_told(self):
        def answer(connection, request):
            connection.sendall(line({"parcels": [], "total": 5}))

        code, text, requests = on_terminal("parcels", "--revoke=7", reply=answer, typed=b"n\n")
        self.assertEqual((code, requests), (1, [{"command": "parcels"}]))
        self.assertIn("5 buffers on the way in all", text)

    def test_parcels_that_are_not_told_are_counted(self):
        for reply, text in (({"parcels": [PARCEL], "total": 3}, "And 2 more buffers."),
                            ({"parcels": [PARCEL], "total": 2}, "And 1 more buffer."),
                            ({"parcels": [], "total": 4}, "4 buffers on the way"),
                            ({"parcels": [], "total": 1}, "1 buffer on the way"),
                            ({"parcels": [], "total": 0}, "Nothing is on its way")):
            with self.subTest(text), FakeAdmin(line(reply)) as fake:
                self.assertIn(text, ctl("parcels", socket_path=fake.path).stdout)

    @staticmethod
    def names(connection, request):
        """Answers as a daemon that has two names of the tool's user, and one in a scope."""
        asked = json.loads(request)
        check_schema(asked, "request")
        own = {**NAME, "uid": os.geteuid()}
        names = [own, {**own, "scope": "pod-a", "bytes": 1 << 20, "buffers": 1, "holders": 2, "publisher": "active"}, {**BUILT_NAME, "uid": os.geteuid()}]
        if asked["command"] == "names":
            reply = {"names": names, "total": len(names)}
        elif asked["name"] == NAME["name"]:
            reply = {"name": NAME["name"], "uid": 1000, "scope": None, "channel": False, "generation": 7, "bytes": 24 * GIB, "came_bytes": 20 * GIB}
        else:
            reply = {"error": {"code": "no-such-name", "message": "nothing is published"}}
        connection.sendall(line(reply))

    def test_a_name_is_unpublished_after_a_question(self):
        listed, unpublish = {"command": "names"}, {"command": "unpublish", "name": "weights/llama"}
        code, text, requests = on_terminal("unpublish", "weights/llama", reply=self.names, typed=b"y\n", columns=120)
        self.assertEqual((code, requests), (0, [listed, unpublish]))
        for words in ("24 GiB in 3 buffers, which no process has", "Unpublish 'weights/llama'? [y/N]", "is published no more: 20 GiB given back", "4 GiB stay"):
            self.assertIn(words, text)
        code, text, requests = on_terminal("unpublish", "weights/llama", "--scope=pod-a", reply=self.names, typed=b"y\n", columns=120)
        self.assertEqual((code, requests), (0, [listed, {**unpublish, "scope": "pod-a"}]))
        self.assertIn("1 MiB in 1 buffer, which processes have until they close it", text)
        for typed in (b"n\n", b"\n", b"\4"):
            code, text, requests = on_terminal("unpublish", "weights/llama", reply=self.names, typed=typed)
            self.assertEqual((code, requests), (1, [listed]), typed)
            self.assertIn("nothing was unpublished", text)

    def test_unpublish_without_a_terminal_wants_yes(self):
        reply = {"name": "a", "uid": 1000, "scope": None, "channel": False, "generation": 7, "bytes": 1, "came_bytes": 1}
        for options in (["--uid=4000000001"], ["--scope", "pod-a"], ["--uid=4000000001", "--scope=pod-a", "--json"]):
            with self.subTest(options), FakeAdmin(line(reply)) as fake:
                done = ctl("unpublish", 'w/"ä"', "--yes", *options, socket_path=fake.path)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                request = json.loads(fake.requests[0])
                check_schema(request, "request")
                expected = {"command": "unpublish", "name": 'w/"ä"'}
                expected |= {"uid": 4000000001} if "--uid=4000000001" in options else {}
                expected |= {"scope": "pod-a"} if len(options) > 1 else {}
                self.assertEqual(request, expected)
                if "--json" in options:
                    check_schema(json.loads(done.stdout), "unpublish")
        with FakeAdmin(self.names) as fake:
            done = ctl("unpublish", "weights/llama", socket_path=fake.path)
            self.assertEqual((done.returncode, len(fake.requests)), (1, 1))
        self.assertIn("add --yes", done.stderr)
        for name in ("dataset/train", "neither"):  # nothing is published: there is nothing to ask
            with self.subTest(name), FakeAdmin(self.names) as fake:
                done = ctl("unpublish", name, socket_path=fake.path)
                self.assertEqual((done.returncode, len(fake.requests)), (1, 2))
                self.assertIn("no-such-name", done.stderr)

    def test_unpublish_asks_where_not_all_names_are_told(self):
        code, _, requests = on_terminal("unpublish", "a", reply=line({"names": [], "total": 300}), typed=b"n\n")
        self.assertEqual((code, requests), (1, [{"command": "names"}]))

    def test_unpublish_takes_one_name_of_one_user(self):
        for arguments in (("unpublish",), ("unpublish", "a", "b"), ("unpublish", "a", "--uid=no-such-user"), ("unpublish", "a", "--uid=1", "--uid=2"),
                          ("unpublish", "a", "--label=a=b"), ("names", "--uid=1")):
            self.assertEqual(ctl(*arguments, "--yes", socket_path="/nonexistent").returncode, 2, arguments)

    def release(self, *options, reply=None, terminal=None):
        """Asks for session 8 to be released. Returns what the tool says and what it asked the daemon."""
        reply = reply or {"session": 8, "pid": 816, "released_bytes": 2 * GIB, "quarantine_reason": "a reason"}

        def answer(connection, request):
            release = json.loads(request)["command"] == "quarantine-release"
            connection.sendall(line(reply if release else REPLIES["quarantine"]))

        with FakeAdmin(answer) as fake:
            done = ctl("quarantine", *options, socket_path=fake.path)
            requests = [json.loads(request) for request in fake.requests]
        for request in requests:
            check_schema(request, "request")
        return done, requests

    def test_a_release_warns_and_asks_first(self):
        ask = {"command": "quarantine"}
        done, requests = self.release("--release", "8", "--yes")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(requests, [ask, {"command": "quarantine-release", "session": 8}])
        self.assertIn("may overwrite", done.stderr)
        self.assertIn("pid 816 is still listed by NVML", done.stderr)
        self.assertIn("2 GiB", done.stdout)
        done, requests = self.release("--release", "8")  # and there is no terminal to ask
        self.assertEqual((done.returncode, requests), (1, [ask]))
        self.assertIn("--yes", done.stderr)
        done, requests = self.release("--release", "7", "--yes")
        self.assertEqual((done.returncode, requests), (1, [ask]))
        self.assertIn("not in quarantine", done.stderr)
        done, _ = self.release("--release", "8", "--yes", reply={"error": {"code": "permission-denied", "message": "no"}})
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        done, _ = self.release("--release", "8", "--yes", "--json")
        check_schema(json.loads(done.stdout), "quarantine-release")

    def test_a_release_that_is_refused_is_an_error_object_with_json(self):
        for options, code in ((("--release", "7", "--yes"), "no-such-session"), (("--release", "8"), "invalid-request")):
            with self.subTest(options):
                done, _ = self.release(*options, "--json")
                self.assertEqual((done.returncode, done.stdout.count("\n")), (1, 1))
                check_schema(json.loads(done.stdout), "error")
                self.assertEqual(json.loads(done.stdout)["error"]["code"], code)
        with FakeAdmin(line({"error": {"code": "internal", "message": "no"}})) as fake:
            done = ctl("quarantine", "--release", "8", "--yes", "--json", socket_path=fake.path)
        self.assertEqual((done.returncode, json.loads(done.stdout)["error"]["code"]), (1, "internal"))

    def test_json_is_one_line_with_every_integer_exact(self):
        for command, reply in REPLIES.items():
            with self.subTest(command), FakeAdmin(line(reply)) as fake:
                done = ctl("--json", command, socket_path=fake.path)
                self.assertEqual(done.stdout.count("\n"), 1)
                self.assertTrue(done.stdout.endswith("\n"))
                self.assertEqual(json.loads(done.stdout), reply)

    def test_the_reply_may_come_in_pieces(self):
        def trickle(connection, _):
            for byte in line(REPLIES["ping"]):
                connection.sendall(bytes([byte]))

        with FakeAdmin(trickle) as fake:
            self.assertEqual(json.loads(ctl("ping", "--json", socket_path=fake.path).stdout), REPLIES["ping"])

    def test_members_of_a_newer_daemon_are_passed_over(self):
        newer = {"daemon": {**DAEMON, "mood": {"good": [1, 2]}}, "weather": None}
        with FakeAdmin(line(newer)) as fake:
            self.assertEqual(ctl("ping", socket_path=fake.path).returncode, 0)

    def test_the_environment_names_the_socket_and_the_option_wins(self):
        with FakeAdmin(line(REPLIES["ping"])) as named, FakeAdmin(line(REPLIES["ping"])) as other:
            ctl("ping", environment={"GPUPOOL_ADMIN_SOCKET": named.path})
            self.assertEqual((len(named.requests), len(other.requests)), (1, 0))
            ctl("ping", socket_path=other.path, environment={"GPUPOOL_ADMIN_SOCKET": named.path})
            self.assertEqual((len(named.requests), len(other.requests)), (1, 1))

    def test_help_is_a_command_too(self):
        done = ctl("help", socket_path="/nonexistent")
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ctl("--help").stdout))

    def test_each_command_has_help_of_its_own(self):
        general = ctl("--help").stdout
        words_of = {"record": " export", "unpublish": " NAME", "session": " end ID", "scope": " add NAME | set NAME | drop NAME | list"}
        commands = re.findall(r"^  (\w+) ", general.partition("Commands:\n")[2].partition("\nOptions:")[0], re.MULTILINE)
        self.assertEqual(set(commands), {*REPLIES, "drain", "upgrade", "events", "history", "metrics", "record", "report", "run", "scope", "session", "top", "unpublish", "help"})
        own = {"top": {"--interval", "--once", "--batch", "--pool", "--pid", "--user", "--scope"}, "leases": {"--session"}, "session": {"--yes"}, "scope": {"--uid", "--quota", "--label", "--end", "--no-wait"}, "events": {"--since", "--until", "--pool", "--pid", "--user", "--scope", "--follow", "--records"},
               "history": {"--since", "--until", "--pool", "--records"}, "report": {"--since", "--until", "--pool", "--records"},
               "record": {"--since", "--until", "--pool", "--pid", "--user", "--scope", "--records", "--perfetto", "--memory-viz"}, "trim": {"--pool"}, "drain": {"--pool", "--off", "--no-wait"}, "quarantine": {"--release", "--yes"}, "parcels": {"--revoke", "--yes"}, "unpublish": {"--uid", "--scope", "--yes"},
               "estate": {"--drop", "--yes"}, "upgrade": {"--daemon", "--yes"}}
        for command in commands:
            with self.subTest(command):
                done = ctl("help", command, socket_path="/nonexistent")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual([row for row in done.stdout.splitlines() if len(row) > 80], [])
                if command == "run":
                    self.assertEqual(done.stdout, subprocess.run([CTL, "run", "--help"], check=True, capture_output=True, text=True).stdout)
                    continue
                self.assertEqual(ctl(command, "--help", socket_path="/nonexistent").stdout, done.stdout)
                if command == "help":
                    self.assertEqual(done.stdout, general)
                    continue
                self.assertTrue(done.stdout.startswith(f"Usage: gpupoolctl [OPTION...] {command}" + words_of.get(command, "") + "\n"))
                self.assertRegex(done.stdout.splitlines()[1], r"^(Shows|Gives) ")
                options = set(re.findall(r"^ +(?:-h, )?(--[a-z-]+)", done.stdout, re.MULTILINE))
                self.assertEqual(options, {"--json", "--admin-socket", "--timeout", "--color", "--help", "--version"} | own.get(command, set()))
        for text in [general] + [ctl("help", command).stdout for command in REPLIES]:
            self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_a_misspelt_command_gets_the_one_that_is_meant(self):
        for word, meant in (("stat", "stats"), ("sesions", "sessions"), ("quaratnine", "quarantine"), ("pool", "pools")):
            for words in ((word,), ("help", word), (word, "--help")):
                with self.subTest(words):
                    done = ctl(*words)
                    self.assertEqual((done.returncode, done.stdout), (2, ""))
                    self.assertIn(f"there is no command '{word}': did you mean '{meant}'?", done.stderr)
        self.assertNotIn("did you mean", ctl("dance").stderr)
        for word, meant in (("--jsn", "--json"), ("--tiemout=3s", "--timeout")):
            self.assertIn(f"did you mean '{meant}'?", ctl("ping", word).stderr)
        for words in (["--pool"], ["-x"], ["--dance"]):
            done = ctl("trim", *words)
            self.assertEqual(done.returncode, 2)
            self.assertNotIn("did you mean", done.stderr)

    def test_help_and_version_need_no_daemon(self):
        done = ctl("--help", socket_path="/nonexistent")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for word in ("stats", "pools", "sessions", "quota", "trim", "quarantine", "--release", "ping",
                     "--json", "--admin-socket", "--timeout", "--color"):
            self.assertIn(word, done.stdout)
        self.assertRegex(ctl("--version").stdout, r"^gpupoolctl \d+\.\d+\.\d+\n$")


class ForPeople(unittest.TestCase):
    def show(self, command, reply=None, *options, **keywords):
        with FakeAdmin(line(reply or REPLIES[command])) as fake:
            done = ctl(command, *options, socket_path=fake.path, **keywords)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_stats_tells_of_daemon_pools_and_sessions(self):
        text = self.show("stats")
        for words in ("gpupoold 0.1.0", "pid 4711", "2 min 5 s", "simulated GPU", "/run/gpupool/gpupool.sock",
                      "2 of at most 1024", "built without CUDA", "The GPUs are simulated.", "No huge pages are free.",
                      "Simulated GPU 0", "host memory, node 0", "1.25 GiB", "768 MiB", "25.0%", "[##+-      ]", "93.8%", "512 MiB", "8 GiB",
                      "cudaErrorMemoryAllocation: out of memory", "loader", "1 GiB", "75.0%", "trainer",
                      "in quarantine for 3 s: pid 816 is still listed by NVML"):
            self.assertIn(words, text)
        self.assertNotIn(str(2 * GIB), text)

    def test_pools_tells_the_counters_in_full(self):
        text = self.show("pools")
        for words in (str(2**53), "1234567", "transparent", DEVICE_POOL["uuid"], "64 MiB", "9.5 us", "15 us", "7 ms"):
            self.assertIn(words, text)

    def test_pools_tells_the_kind_of_the_segments(self):
        pools = [DEVICE_POOL, {**DEVICE_POOL, "id": 2, "export": "vmm"}, {**HOST_POOL, "id": 3}, {**HOST_POOL, "id": 4, "export": "vmm"}]
        text = self.show("pools", {"pools": pools})
        table = next(part.splitlines() for part in text.split("\n\n") if "EXPORT" in part)
        column = table[0].index("EXPORT")
        self.assertEqual([row[column:].split()[0] for row in table], ["EXPORT", "ipc", "vmm", "memfd", "vmm"])

    def test_pools_tells_what_zeroes_and_where_the_daemon_has_a_context(self):
        pools = [DEVICE_POOL, {**DEVICE_POOL, "id": 2, "export": "vmm", "zeroed_by": "driver", "context": False}, {**HOST_POOL, "id": 3}]
        text = self.show("pools", {"pools": pools})
        table = next(part.splitlines() for part in text.split("\n\n") if "ZEROED BY" in part)
        column = table[0].index("ZEROED BY")
        self.assertEqual([row[column:].split()[:2] for row in table],
                         [["ZEROED", "BY"], ["daemon", "yes"], ["driver", "no"], ["kernel", "no"]])

    def test_pools_tells_what_was_refused_and_the_peaks(self):
        text = self.show("pools")
        refused = [line.split() for line in text.splitlines() if "TIMEOUTS" in line]
        self.assertEqual(refused, [["POOL", "FAILURES", "TIMEOUTS", "BY", "QUOTA", "PROBES", "CLOSES", "TIME", "TO", "CLOSE"]])
        self.assertRegex(text, r"(?m)^ +1 +7 +5 +4 +92 +2 +104 ms$")
        self.assertRegex(text, r"(?m)^ +1 +2.25 GiB +3.25 GiB +48 MiB +3 s$")
        self.assertRegex(text, r"(?m)^ +2 +.* +-$")

    def test_sessions_tells_what_each_has_of_each_pool(self):
        text = self.show("sessions", {"sessions": [SESSION, DEAD_SESSION]})
        self.assertRegex(text, r"(?m)^ +7 +815 +1 +11 MiB +7 MiB +5 MiB +4 MiB +3 MiB +6 MiB +2$")
        self.assertIn("session 7, pool 1: asked for idle memory 3 times, answered 3, 512 MiB came, 5 MiB kept idle by the program: "
                      "a stream is being captured\n", text)
        self.assertNotRegex(text, r"(?m)^ +8 +816 +1 ")  # the daemon does not tell
        self.assertNotIn("WAITS FOR", text)

    def test_sessions_tells_what_a_stop_of_the_daemon_would_leave(self):
        holder = {**SESSION, "leased_bytes": 3 << 20, "waiting": 2}
        idle = {**SESSION, "leased_bytes": 0, "waiting": 0}
        self.assertTrue(self.show("sessions", {"sessions": [holder, {**holder, "waiting": 0}, idle]}).endswith(
            "If the daemon stopped now: up to 6 MiB of 2 sessions would stay with the processes until they end or give it back, "
            "and 2 waiting requests would fail.\n"))
        self.assertTrue(self.show("sessions", {"sessions": [idle]}).endswith(
            "If the daemon stopped now: no session holds memory, no request waits.\n"))

    def test_sessions_tells_what_a_restart_of_the_daemon_keeps(self):
        kept = {**SESSION, "leased_bytes": 3 << 20, "waiting": 1, "outlives_daemon": True}
        restart = "If the daemon were restarted now: 2 sessions would go on, with up to 6 MiB and 2 waiting requests; 'gpupoolctl estate' tells more.\n"
        self.assertTrue(self.show("sessions", {"sessions": [kept, kept]}).endswith(restart))
        self.assertTrue(self.show("sessions", {"sessions": [kept, {**kept, "outlives_daemon": False}, kept]}).endswith(
            restart + "The others would not: up to 3 MiB of 1 session would stay with the processes until they end or give it back, "
            "and 1 waiting request would fail.\n"))

    def test_a_daemon_without_an_estate_is_not_upgraded(self):
        with FakeAdmin(line({"error": {"code": "unknown-command", "message": "the commands are ping, stats"}})) as fake:
            done = ctl("upgrade", socket_path=fake.path)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("of a release that keeps nothing", done.stderr)
        self.assertEqual(len(fake.requests), 1)

    def test_the_next_daemon_is_asked_about_kinds_that_hold_memory(self):
        kinds = [{"kind": 1, "size_bytes": 64, "holds": True}, {"kind": 21, "size_bytes": 8, "holds": False}, {"kind": 3, "size_bytes": 16, "holds": True}]
        estate = {**ESTATE, "format": {"major": 1, "desk": 2, "kinds": kinds}}
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "gpupoold")
            with open(program, "w", encoding="ascii") as file:
                os.fchmod(file.fileno(), 0o755)
                file.write(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/asked\nexit 1\n')
            reply = {"estate": {"estate": estate}, "ping": {"daemon": DAEMON}}
            with FakeAdmin(lambda connection, asked: connection.sendall(line(reply[json.loads(asked)["command"]]))) as fake:
                done = ctl("upgrade", f"--daemon={program}", socket_path=fake.path)
            with open(os.path.join(folder, "asked"), encoding="ascii") as file:
                asked = file.read()
            self.assertEqual(asked, "--reads-estate\n1/2 1:64 3:16\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot go on with what this daemon has", done.stderr)

    def test_estate_tells_what_a_restart_keeps_and_why_not(self):
        text = self.show("estate")
        for words in ("keeps 3 sessions; 1 would end", "412 records in 576 KiB, by systemd, which holds 99 of at most 100 descriptors",
                      "this is daemon 4 of it, and its format is 1/1", "FileDescriptorStoreMax=", "export = vmm"):
            self.assertIn(words, text)
        self.assertRegex(text, r"(?m)^ +1 +3 +1 GiB +2 +64 MiB +32 MiB$")
        without = {**ESTATE, "kept": False, "manager": None, "why": "this is a private daemon, which ends with its program"}
        self.assertEqual(self.show("estate", {"estate": without}),
                         "A restart of the daemon ends all sessions: this is a private daemon, which ends with its program\n")

    def test_sessions_tells_what_each_has_beside_the_pools(self):
        table = self.show("sessions", {"sessions": [SESSION, DEAD_SESSION]}).splitlines()
        end = table[1].index("BESIDES") + len("BESIDES")
        self.assertEqual([row[:end].split()[-2:] for row in table[2:4]][0], ["777", "MiB"])
        self.assertEqual(table[3][:end].split()[-1], "-")

    def test_sessions_tells_what_each_waits_for(self):
        text = self.show("sessions")
        for words in ("memory that is in use", r"memory of its own user \(quota\)", "growth of the pool",
                      "memory that only its own process holds", "idle memory of a process that does not answer",
                      "memory in segments of other users", "free memory that lies in pieces"):
            self.assertRegex(text, rf"(?m)^ +9 +817 +1 +33 MiB +21 s +39 s +{words}$")
        forever = {**WAITING_SESSION, "requests": [{**WAITING_SESSION["requests"][0], "left_ns": None}]}
        self.assertRegex(self.show("sessions", {"sessions": [forever]}), r"(?m)^ +9 +817 +1 +33 MiB +21 s +- +memory")

    def test_quarantine_explains_the_rules_that_it_names(self):
        held = {**DEAD_SESSION, "id": 9, "end_rule": "descriptors", "under_mps": False,
                "quarantine_reason": "pid 900 (python3), which may be a child of pid 816, holds /dev/nvidia0"}
        text = self.show("quarantine", {"sessions": [DEAD_SESSION, held]})
        self.assertRegex(text, r"(?m)^ +8 +816 .* listing, MPS +trainer +pid 816 is still listed by NVML$")
        self.assertRegex(text, r"(?m)^ +9 +816 .* descriptors +trainer +pid 900 \(python3\), which may be a child of pid 816, holds /dev/nvidia0$")
        self.assertRegex(text, r"(?m)^  listing: .* the driver lists it no more$")
        self.assertRegex(text, r"(?m)^  descriptors: .* no process that may be its child holds files of the driver$")
        self.assertNotIn("process-end", text)

    def test_a_session_that_does_not_answer_is_told_of(self):
        self.assertIn("session 7 was asked for idle memory 21 s ago and does not answer: is its process stopped?",
                      self.show("sessions", {"sessions": [{**SESSION, "unanswered_ns": 21_000_000_000}]}))
        self.assertNotIn("does not answer", self.show("sessions", {"sessions": [SESSION]}))

    def test_refused_sessions_are_told_of(self):
        refused = {**REPLIES["stats"], "daemon": {**DAEMON_STATS, "sessions_refused": 12}}
        self.assertIn("12 sessions refused since", self.show("stats", refused))
        self.assertNotIn("refused since", self.show("stats"))

    def test_unread_answers_are_told_of_when_they_stay(self):
        def stats(sockets, oldest_ns):
            return {**REPLIES["stats"], "daemon": {**DAEMON_STATS, "lingering_sockets": sockets, "lingering_oldest_ns": oldest_ns}}

        self.assertIn("  1 socket of an ended connection has answers that its process has not read, for 3 s\n",
                      self.show("stats", stats(1, 3_000_000_000)))
        self.assertIn("  2 sockets of ended connections have answers that their processes have not read, for up to 1 min 30 s\n",
                      self.show("stats", stats(2, 90_000_000_000)))
        for ordinary in (stats(1, 40_000_000), stats(0, None)):  # a client that is about to read its last answer
            self.assertNotIn("not read", self.show("stats", ordinary))

    def test_bars_show_how_the_limit_is_taken(self):
        empty = {**DEVICE_POOL, "leased_bytes": 0, "in_use_bytes": 0, "cached_bytes": 0, "free_bytes": 0, "fenced_bytes": 0,
                 "quarantined_bytes": 0, "reserved_bytes": 0, "limit_bytes": 10 * GIB}
        bars = [({}, "          "), ({"in_use_bytes": 1}, "#         "), ({"in_use_bytes": 2 * GIB}, "##        "),
                ({"in_use_bytes": 10 * GIB}, "##########"), ({"in_use_bytes": GIB + 1, "cached_bytes": GIB}, "##+       "),
                ({"fenced_bytes": GIB, "quarantined_bytes": GIB, "free_bytes": 3 * GIB}, "!!---     "),
                ({"free_bytes": 20 * GIB, "reserved_bytes": 20 * GIB}, "----------"),  # the limit was lowered
                ({"limit_bytes": 0}, "          ")]
        for change, bar in bars:
            with self.subTest(bar):
                self.assertIn(f"[{bar}]", self.show("pools", {"pools": [{**empty, **change}]}))

    def test_the_tables_of_pools_fit_into_a_hundred_columns(self):
        for row in self.show("stats").split("\nSessions\n")[0].splitlines():
            self.assertLessEqual(len(row), 100, row)

    def test_config_tells_where_each_value_comes_from(self):
        lines = [" ".join(line.split()) for line in self.show("config").splitlines()]
        for line in ("gpu = auto ; default; in force none, the driver finds no GPU (restart)", "log_level = debug ; command line",
                     "limit = 80% ; /etc/gpupool/gpupoold.conf:12", "# step = ; default",
                     "export = ipc ; kept until a restart (/etc/gpupool/gpupoold.conf:9: vmm from the next start)",
                     "sim_gpus = 1 ; default (/etc/gpupool/gpupoold.conf:3: 2 from the next start)",
                     "group = render ; kept until a restart (default: nothing set from the next start)",
                     "# limit = 80%: in force 6553MiB, of the 8 GiB that the GPU has; [device], /etc/gpupool/gpupoold.conf:12"):
            self.assertIn(line, lines)
        self.assertEqual([line for line in lines if line.startswith("[")], ["[daemon]", "[device]", "[device 0]"])
        self.assertFalse([line for line in lines if "reserve" in line])
        users = ", ".join(f"user:{uid}" for uid in range(1000, 1200))
        self.assertIn(f"allow = {users} ; command line", self.show("config", {**REPLIES["config"], "settings": [setting("host", "allow", users, "command-line")]}))
        self.assertIn("there is no file", self.show("config", {**REPLIES["config"], "file": None}))

    def test_reload_tells_what_changed_and_what_needs_a_restart(self):
        self.assertEqual(self.show("reload").splitlines(), [
            "[device] limit: 90% -> 80% (/etc/gpupool/gpupoold.conf:4)",
            "[daemon] gpu: auto -> sim (/etc/gpupool/gpupoold.conf:2) needs a restart",
            "[quota] sessions: default -> 5 (/etc/gpupool/gpupoold.conf:9)",
            "[host] limit: 1GiB -> 50% (default)", "99 more changes are not shown.",
            "warning: there is no user 'alice'", "2 more warnings are not shown."])
        nothing = {**REPLIES["reload"], "changes": [], "changes_total": 0, "warnings": [], "warnings_total": 0}
        self.assertEqual(self.show("reload", nothing), "Nothing changed.\n")

    def test_a_reload_that_was_refused_is_exit_1_with_its_mistakes(self):
        reply = {**REPLIES["reload"], "applied": False, "mistakes": ["/etc/gpupool/gpupoold.conf:3: gpu: 'x' is none of"], "mistakes_total": 5,
                 "changes": [], "changes_total": 0, "warnings": [], "warnings_total": 0}
        for options in ([], ["--json"]):
            with FakeAdmin(line(reply)) as fake:
                done = ctl("reload", *options, socket_path=fake.path)
                self.assertEqual(done.returncode, 1)
        with FakeAdmin(line(reply)) as fake:
            self.assertEqual(ctl("reload", socket_path=fake.path).stdout.splitlines(), [
                reply["mistakes"][0], "4 more mistakes are not shown.", "The configuration stays as it was."])

    def test_trim_tells_what_came_back(self):
        text = self.show("trim")
        self.assertIn("64 MiB given back", text)

    def test_quota_tells_what_users_have_of_what_they_may_have(self):
        text = self.show("quota")
        for words in ("1000", "3 of 1008", "20", "0 of 4", "1 MiB of 64 MiB", "4 of 4", "3 GiB", "4 GiB", "75.0%", "100.0%",
                      "unlimited", "REFUSED"):
            self.assertIn(words, text)
        self.assertIn("No users.", self.show("quota", {"quotas": []}))

    def test_quota_and_scopes_tell_what_names_keep(self):
        keeps = {**QUOTA, "names": 3, "names_limit": 4096, "kept_bytes": 24 * GIB, "kept_bytes_limit": 25 * GIB}
        for quota in (keeps, {**keeps, "kept_bytes_limit": None}):
            check_schema({"quotas": [quota]}, "quota")
        self.assertRegex(self.show("quota", {"quotas": [keeps]}), r"3 of 4096 +24 GiB of 25 GiB")
        self.assertRegex(self.show("quota", {"quotas": [{**keeps, "kept_bytes_limit": None}]}), r"3 of 4096 +24 GiB  ")
        self.assertRegex(self.show("quota", {"quotas": [QUOTA]}), r"1 MiB of 64 MiB +- +- +5")  # an older daemon's
        scope = {"id": 3, "scope": "pod-a", "state": "open", "socket": "/run/x/gpupool.sock", "uids": [], "labels": {}, "users": 1, "reserved_bytes": 7,
                 **{key: value for key, value in keeps.items() if key not in ("uid", "charged_to", "names", "names_limit", "scope")}}
        check_schema({"scopes": [scope]}, "scopes")
        with FakeAdmin(line({"scopes": [scope]})) as fake:
            self.assertIn("24 GiB of 25 GiB", ctl("scope", "list", socket_path=fake.path).stdout)

    def test_names_tell_what_holds_them(self):
        rows = columns_of(self.show("names"), "NAME")
        self.assertRegex(rows[1], r"^ +weights/llama .* 7 +24 GiB +3 +fixed +kept +gone +2 h 0 min +0 +12 +0$")
        self.assertRegex(rows[2], r"^ +dataset/train .* - +0 B +0 +- +session 9 builds it +- +- +0 +0 +4$")
        self.assertIn("And 2 more names.", self.show("names"))
        for change, words in (({"publisher": "active"}, "kept +815 "), ({"publisher": "active", "kept": False}, "until its publisher ends +815 "),
                              ({"publisher": "quarantined"}, "publisher in quarantine +815 "), ({"live": True}, "live +kept +gone"),
                              ({"generation": None, "publisher": None}, "awaited +- "), ({"uid": 0, "scope": "pod-a"}, r"root \(0\) of pod-a")):
            with self.subTest(change):
                self.assertRegex(self.show("names", {"names": [{**NAME, **change}], "total": 1}), words)
        self.assertIn("No names.", self.show("names", {"names": [], "total": 0}))

    def test_a_name_of_a_channel_says_so(self):
        name = {**NAME, "channel": True, "live": True, "kept": False, "layout": None, "age_ns": None, "publisher": "active"}
        for change, words in (({}, "channel +while processes use it +815 +- "), ({"kept": True}, "channel +kept +815 "),
                              ({"publisher": "gone", "pid": None, "kept": True}, "channel +kept +gone ")):
            with self.subTest(change):
                reply = {"names": [{**name, **change}], "total": 1}
                check_schema(reply, "names")
                self.assertRegex(self.show("names", reply), words)

    def test_a_channel_is_unpublished_after_a_question(self):
        def answer(connection, request):
            name = {**NAME, "uid": os.geteuid(), "channel": True, "layout": None, "age_ns": None, "bytes": 24 << 20}
            done = {"name": NAME["name"], "uid": 1000, "scope": None, "channel": True, "generation": 7, "bytes": 24 << 20, "came_bytes": 0}
            check_schema(done, "unpublish")
            connection.sendall(line({"names": [name], "total": 1} if json.loads(request)["command"] == "names" else done))

        code, text, _ = on_terminal("unpublish", "weights/llama", reply=answer, typed=b"y\n", columns=140)
        self.assertEqual(code, 0)
        for words in ("It stands for a channel of 24 MiB. No process can join it then.", "'weights/llama' is no channel any more: 0 B given back",
                      "24 MiB stay while processes are in its places"):
            self.assertIn(words, text)

    def test_channels_tell_who_is_where(self):
        text = self.show("channels")
        rows = text.splitlines()
        self.assertRegex(rows[1], r"^ +frames .* 1 +24 MiB +8 +3 MiB +drop-oldest +while processes use it +815 +100 +0$")
        places = columns_of(text, "CHANNEL")
        self.assertRegex(places[1], r"^ +frames +producer +taken +7 +815 +- +- +camera$")
        self.assertRegex(places[2], r"^ +frames +consumer 1 +taken +9 +817 +7 +2 +detector$")
        self.assertRegex(places[3], r"^ +frames +consumer 2 +empty +- +- +100 +0 +-$")
        self.assertIn("And 2 more channels.", text)
        self.assertNotIn("died", text)
        self.assertIn("No channels.", self.show("channels", {"channels": [], "total": 0}))
        for place, name, words in (({**PLACE, "state": "vacant"}, "frames", "'frames': consumer 1 died. Its frames wait for the next process in its place"),
                                   ({**PRODUCER, "state": "vacant"}, "frames", "'frames': the producer died. Another one can join."),
                                   ({**PLACE, "state": "left"}, "frames", r"consumer 1 +left +9 +817 +- +- "),
                                   ({**PLACE, "received": None, "behind": None, "held": None}, "frames", r"consumer 1 +taken +9 +817 +- +- "),
                                   (PLACE, None, "ended, with processes in it")):
            with self.subTest(words):
                reply = {"channels": [{**CHANNEL, "name": name, "places": [place]}], "total": 1}
                check_schema(reply, "channels")
                self.assertRegex(self.show("channels", reply), words)

    def test_what_names_hold_is_not_on_the_way(self):
        lease, block = REPLIES["leases"]["leases"][0], {**REPLIES["sharing"]["blocks"][0], "parcels": 0}
        self.assertNotIn("NAME", self.show("leases"))
        reply = {"leases": [{**lease, "name": "weights/llama"}, {**lease, "name": None}], "total": 2}
        check_schema(reply, "leases")
        self.assertRegex(self.show("leases", reply), r"train.py +weights/llama\n")
        for names, words in ((1, r" 0 +weights/llama +7 "), (3, r" 0 +weights/llama and 2 more +7 ")):
            reply = {"blocks": [{**block, "names": names, "name": "weights/llama"}], "is_whole": True}
            check_schema(reply, "sharing")
            self.assertRegex(self.show("sharing", reply), words)
        pool = {**DEVICE_POOL, "parcels": 0, "named": 1, "named_bytes": 24 * GIB}
        check_schema({"pools": [pool]}, "pools")
        text = self.show("pools", {"pools": [pool]})
        self.assertIn("1 buffer published under names; no process has 24 GiB of that", text)
        self.assertNotIn("not taken yet", text)

    def test_nothing_there_is_said_in_words(self):
        text = self.show("stats", {"daemon": {**DAEMON_STATS, "notices": []}, "pools": [], "sessions": []})
        self.assertIn("No pools.", text)
        self.assertIn("No sessions.", text)

    def test_columns_line_up_whatever_is_in_them(self):
        sessions = [{**SESSION, "id": i, "pid": 10 ** (i % 7), "command": "x" * (i * 7 % 40) + "é" * (i % 3) + "中"}
                    for i in range(1, 30)]
        rows = columns_of(self.show("sessions", {"sessions": sessions}), "SESSION")
        self.assertEqual(len(rows), 1 + len(sessions))
        # Right-aligned: each PID ends where its title ends. Left-aligned: each STATE begins where its title begins.
        end_of_pid, start_of_state = rows[0].index("PID") + len("PID"), rows[0].index("STATE")
        start_of_command = rows[0].index("COMMAND")
        for row, session in zip(rows[1:], sessions):
            self.assertTrue(row[:end_of_pid].endswith(" " + str(session["pid"])), row)
            self.assertEqual(row[start_of_state:start_of_state + 6], "active")
            self.assertEqual(row[start_of_command:], session["command"])
            self.assertEqual(row[start_of_command - 1], " ")

    def test_control_characters_never_reach_the_terminal(self):
        evil = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202e\x7f\r\n\tname"
        reply = copy.deepcopy(REPLIES["stats"])
        reply["sessions"][0]["command"] = evil
        reply["sessions"][1]["quarantine_reason"] = evil
        reply["pools"][0]["name"] = reply["pools"][0]["last_error"] = evil
        reply["daemon"]["notices"] = [evil]
        reply["daemon"]["version"] = evil
        dangerous = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e]")
        for ascii_only in (True, False):
            with FakeAdmin(line(reply, ensure_ascii=ascii_only)) as fake:
                done = ctl("stats", socket_path=fake.path)
                self.assertEqual(done.returncode, 0)
                self.assertIsNone(dangerous.search(done.stdout))
                self.assertEqual(done.stdout.count("name\n"), 5, done.stdout)  # wherever it was put, and whole
                self.assertEqual(done.stdout.count(r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x7f\x0d\x0a\x09name"), 6, done.stdout)
                done = ctl("stats", "--json", socket_path=fake.path)
                self.assertIsNone(dangerous.search(done.stdout))
                self.assertEqual(json.loads(done.stdout), reply)

    def test_the_locale_decides_what_can_be_shown(self):
        sessions = {"sessions": [{**SESSION, "command": "naïve"}]}
        self.assertIn("naïve", self.show("sessions", sessions))
        self.assertIn("na??ve", self.show("sessions", sessions, environment={"LC_ALL": "C"}))
        self.assertIn("naïve", self.show("sessions", sessions, environment={"LC_ALL": ""}))

    def test_letters_of_all_scripts_stay(self):
        for name in ("Zähler", "счётчик", "計數器", "e\u0301te\u0301", "मापक"):
            with self.subTest(name):
                self.assertIn(name, self.show("sessions", {"sessions": [{**SESSION, "command": name}]}))

    def test_refusals_are_cleaned_too(self):
        with FakeAdmin(line({"error": {"code": "internal", "message": "\x1b[2Jboom"}})) as fake:
            self.assertNotIn("\x1b", ctl("trim", socket_path=fake.path).stderr)


class Singulars(unittest.TestCase):
    def test_one_is_in_the_singular(self):
        one = {**REPLIES["stats"], "daemon": {**DAEMON_STATS, "sessions": 1, "sessions_limit": 1, "sessions_refused": 1, "described_segments": 1},
               "pools": [{**DEVICE_POOL, "parcels": 1}],
               "sessions": [{**SESSION, "pools": [{**SESSION["pools"][0], "asked": 1, "answered": 1}]}]}
        replies = {"stats": one, "parcels": {"parcels": [PARCEL], "total": 2}, "sessions": one}
        text = ""
        for command, reply in replies.items():
            with FakeAdmin(line({key: reply[key] for key in REPLIES[command]})) as fake:
                done = ctl(command, socket_path=fake.path)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                text += done.stdout
        with FakeAdmin(line({"revoked": 1, "revoked_bytes": 0})) as fake:
            text += ctl("parcels", "--revoke=all", "--yes", socket_path=fake.path).stdout
        self.assertNotRegex(text, r"(?<![\d.])1 (more )?(sessions|segments|buffers|times|sockets|descriptors)")
        for words in ("1 session refused", "1 buffer sent", "1 time, answered 1", "1 more buffer", "1 buffer revoked"):
            self.assertIn(words, text)


class Users(unittest.TestCase):
    def test_users_are_shown_by_name_and_number(self):
        unknown, none = 4_000_000_001, 4_294_967_295
        tables = {"sessions": ("sessions", [{**SESSION, "id": i, "uid": uid} for i, uid in enumerate((0, unknown, none, 0), 1)]),
                  "parcels": ("parcels", [{**PARCEL, "session": i, "uid": uid} for i, uid in enumerate((0, unknown, none, 0), 1)]),
                  "quarantine": ("sessions", [{**DEAD_SESSION, "id": i, "uid": uid} for i, uid in enumerate((0, unknown, none, 0), 1)])}
        for command, (key, rows) in tables.items():
            reply = {**REPLIES[command], key: rows, **({"total": len(rows)} if command == "parcels" else {})}
            with self.subTest(command), FakeAdmin(line(reply)) as fake:
                shown = columns_of(ctl(command, socket_path=fake.path).stdout, "SENDER" if command == "parcels" else "SESSION")
                start = shown[0].index("USER")
                self.assertEqual([re.split("  +", row[start:])[0] for row in shown],
                                 ["USER", "root (0)", str(unknown), "-", "root (0)"])
        quotas = {"quotas": [{**QUOTA, "uid": 0}, {**FULL_QUOTA, "uid": unknown}]}
        with FakeAdmin(line(quotas)) as fake:
            text = ctl("quota", socket_path=fake.path).stdout
            self.assertEqual(len(re.findall(r"(?m)^  root \(0\)  ", text)), 1 + len(QUOTA["pools"]))
            self.assertEqual(len(re.findall(rf"(?m)^  {unknown}  ", text)), 1 + len(QUOTA["pools"]))
            self.assertEqual(json.loads(ctl("quota", "--json", socket_path=fake.path).stdout), quotas)


class Widths(unittest.TestCase):
    LONG = {**REPLIES,
            "quarantine": {"sessions": [{**DEAD_SESSION, "quarantine_reason": "pid 816 is still listed by NVML, and " + "a child holds it, and " * 5 + "so on"}]},
            "pools": {"pools": [{**DEVICE_POOL, "name": "A very long name of a device that no terminal is wide enough for, 中文 and more of it"}, HOST_POOL]},
            "sessions": {"sessions": [{**SESSION, "id": 10**9, "pid": 4_194_304, "command": "a-long-name-of-a-process-" * 3}, DEAD_SESSION, WAITING_SESSION]}}

    def show(self, command, columns):
        code, text, _ = on_terminal(command, "--color=never", reply=line(self.LONG[command]), columns=columns)
        self.assertEqual(code, 0)
        return text

    @staticmethod
    def columns(text):
        return sum(2 if "\u4e00" <= character <= "\u9fff" else 1 for character in text)

    def test_every_line_fits_the_terminal(self):
        for command in self.LONG:
            for columns in (80, 100, 132):
                with self.subTest(command, columns=columns):
                    for row in self.show(command, columns).splitlines():
                        self.assertLessEqual(self.columns(row), columns, row)

    def test_no_number_is_broken_or_lost(self):
        """Each number with its unit that a wide terminal shows stands on one line of a narrow one."""
        number = re.compile(r"(?<![\w.])\d[\d.]*(?: (?:[KMGT]iB|B|ns|us|ms|s|min|h|d)\b|%)?")
        for command in self.LONG:
            wide = number.findall(self.show(command, 1000))
            for columns in (60, 80):
                narrow = number.findall(self.show(command, columns))
                for each in set(wide):
                    self.assertGreaterEqual(narrow.count(each), wide.count(each), (command, columns, each))
                self.assertEqual(set(narrow), set(wide))

    def test_each_part_of_a_table_tells_its_rows(self):
        text = self.show("sessions", 80)
        parts = [part.splitlines() for part in text.split("\n\n")]
        tables = [part[part[0] in ("Sessions", "Their memory", "Waiting"):] for part in parts]
        first = [rows for rows in tables if rows[0].split()[:1] == ["SESSION"] and "POOL" not in rows[0]]
        self.assertGreater(len(first), 1)
        for rows in first:
            end = rows[0].index("SESSION") + len("SESSION")
            width = max(end, 12)
            self.assertEqual([row[:width].split()[0] for row in rows[1:4]], [str(10**9), "8", "9"])
        for rows in tables:
            if "WAITS FOR" in rows[0]:
                self.assertRegex(rows[0], r"SESSION +PID +POOL")

    def test_times_stand_beside_what_they_are_of(self):
        for columns in range(50, 110, 7):
            for row in self.show("pools", columns).splitlines():
                titles = row.split()
                if "P50" in titles:
                    self.assertEqual(titles.count("P50"), sum(title in ("ONCE", "WAITED", "GROWTHS") for title in titles), row)

    def test_long_names_are_cut_and_sentences_go_on_below(self):
        sessions = self.show("sessions", 80)
        self.assertRegex(sessions, r"(?m) a-long-name-of-a-\S*…$")
        self.assertIn("a-long-name-of-a-process-" * 3, self.show("sessions", 300))
        why = self.show("quarantine", 80)
        self.assertNotIn("…", why)
        self.assertEqual(re.sub(r"\s+", " ", why).count("a child holds it, and"), 5)
        rows = why.splitlines()
        last = next(i for i, row in enumerate(rows) if "WHY" in row)
        start = rows[last].index("WHY")
        for row in rows[last + 1:]:
            self.assertNotEqual(row[start], " ")
        self.assertIn("...", on_terminal("sessions", "--color=never", reply=line(self.LONG["sessions"]), environment={"LC_ALL": "C"})[1])

    def test_wide_terminals_get_one_table(self):
        self.assertEqual(self.show("pools", 300).count("ZEROED BY"), 1)
        self.assertEqual(len(re.findall(r"(?m)^ *POOL ", self.show("pools", 300))), 6)
        self.assertGreater(len(re.findall(r"(?m)^ *POOL ", self.show("pools", 80))), 6)

    def test_a_pipe_gets_whole_lines_unless_columns_says_otherwise(self):
        with FakeAdmin(line(self.LONG["sessions"])) as fake:
            whole = ctl("sessions", socket_path=fake.path).stdout
            self.assertEqual(whole, ctl("sessions", socket_path=fake.path, environment={"COLUMNS": "junk"}).stdout)
            narrow = ctl("sessions", socket_path=fake.path, environment={"COLUMNS": "80"}).stdout
        self.assertIn("a-long-name-of-a-process-" * 3, whole)
        self.assertEqual(narrow, self.show("sessions", 80))


class Colours(unittest.TestCase):
    def on_terminal(self, *options, environment=None):
        """The text that gpupoolctl writes when its output is a terminal."""
        code, text, _ = on_terminal("stats", *options, reply=line(REPLIES["stats"]), environment=environment)
        self.assertEqual(code, 0)
        return text

    def test_colours_are_for_terminals_only(self):
        self.assertIn("\x1b[", self.on_terminal())
        with FakeAdmin(line(REPLIES["stats"])) as fake:
            self.assertNotIn("\x1b", ctl("stats", socket_path=fake.path).stdout)

    def test_no_color_and_dumb_terminals_are_respected(self):
        self.assertNotIn("\x1b", self.on_terminal(environment={"NO_COLOR": "1"}))
        self.assertNotIn("\x1b", self.on_terminal(environment={"TERM": "dumb"}))
        self.assertIn("\x1b[", self.on_terminal(environment={"NO_COLOR": ""}))

    def test_the_option_wins(self):
        self.assertNotIn("\x1b", self.on_terminal("--color=never"))
        self.assertIn("\x1b[", self.on_terminal("--color=always", environment={"NO_COLOR": "1"}))
        with FakeAdmin(line(REPLIES["stats"])) as fake:
            coloured = ctl("stats", "--color=always", socket_path=fake.path).stdout
            plain = ctl("stats", "--color=never", socket_path=fake.path).stdout
        self.assertIn("\x1b[", coloured)
        self.assertEqual(re.sub("\x1b\\[[0-9;]*m", "", coloured), plain)

    def test_json_has_no_colours(self):
        self.assertNotIn("\x1b", self.on_terminal("--json", "--color=always"))


class Failures(unittest.TestCase):
    def test_a_refusal_is_exit_1_with_its_reason(self):
        error = {"error": {"code": "permission-denied", "message": "trim is for root and uid 990"}}
        check_schema(error, "error")
        with FakeAdmin(line(error)) as fake:
            done = ctl("trim", socket_path=fake.path)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("trim is for root and uid 990", done.stderr)
            self.assertIn("permission-denied", done.stderr)
            done = ctl("trim", "--json", socket_path=fake.path)
            self.assertEqual((done.returncode, json.loads(done.stdout)), (1, error))

    def test_wrong_usage_is_exit_2_and_asks_nothing(self):
        wrong = ([], ["dance"], ["stats", "pools"], ["stats", "--pool", "1"], ["trim", "--pool", "0"],
                 ["trim", "--pool", "-1"], ["trim", "--pool", "1x"], ["trim", "--pool", "4294967296"],
                 ["trim", "--pool", ""], ["ping", "--timeout", "10"], ["ping", "--timeout", "0s"],
                 ["ping", "--timeout", "soon"], ["ping", "--color=blue"], ["ping", "--nonsense"], ["ping", "--pool"],
                 ["quarantine", "--release", "0"], ["quarantine", "--release", "x"], ["stats", "--release", "1"],
                 ["ping", "--yes"])
        with FakeAdmin(line(REPLIES["ping"])) as fake:
            for arguments in wrong:
                with self.subTest(arguments):
                    done = ctl(*arguments, socket_path=fake.path)
                    self.assertEqual((done.returncode, done.stdout), (2, ""))
                    self.assertNotEqual(done.stderr, "")
            self.assertEqual(fake.requests, [])

    def test_no_daemon_is_exit_3_and_says_what_to_do(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "admin.sock")
            done = ctl("ping", socket_path=path)
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertIn(path, done.stderr)
            self.assertIn("systemctl start gpupoold", done.stderr)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                dead.bind(path)
            done = ctl("ping", socket_path=path)
            self.assertEqual(done.returncode, 3)
            self.assertIn("systemctl start gpupoold", done.stderr)

    def test_a_path_too_long_for_a_socket_is_exit_3(self):
        done = ctl("ping", socket_path="/tmp/" + "x" * 200)
        self.assertEqual(done.returncode, 3)
        self.assertIn("shorter", done.stderr)

    def test_the_data_socket_is_told_apart(self):
        with tempfile.TemporaryDirectory() as directory, \
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as data:
            path = os.path.join(directory, "gpupool.sock")
            data.bind(path)
            data.listen()
            done = ctl("ping", socket_path=path)
            self.assertEqual(done.returncode, 3)
            self.assertIn("not an admin socket", done.stderr)

    def test_a_daemon_that_hangs_up_is_exit_3(self):
        whole = line(REPLIES["ping"])
        for length in {*range(4), *range(4, len(whole), 16), len(whole) - 1}:
            with self.subTest(length), FakeAdmin(whole[:length]) as fake:
                done = ctl("ping", socket_path=fake.path)
                self.assertEqual((done.returncode, done.stdout), (3, ""))
                self.assertIn("hung up", done.stderr)

    def test_a_daemon_that_is_silent_is_exit_3(self):
        def silence(connection, _):
            connection.recv(1)  # until the tool gives up

        with FakeAdmin(silence) as fake:
            done = ctl("ping", "--timeout=50ms", socket_path=fake.path)
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertIn("did not answer within 50 ms", done.stderr)

    def test_a_daemon_that_does_not_accept_is_exit_3(self):
        with tempfile.TemporaryDirectory() as directory, \
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, \
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
            path = os.path.join(directory, "admin.sock")
            listener.bind(path)
            listener.listen(0)
            first.connect(path)  # the queue is full now
            done = ctl("ping", "--timeout=50ms", socket_path=path)
            self.assertEqual(done.returncode, 3)
            self.assertIn("did not answer within 50 ms", done.stderr)

    def test_what_is_no_reply_is_exit_3(self):
        good = line(REPLIES["ping"]).rstrip(b"\n")
        garbage = [b"", b"hello", b"[]", b"null", b"1", b'"daemon"', good[:-1], good + b"}", good + b" x",
                   good.replace(b"0.1.0", b"0.1\x01"), good.replace(b"0.1.0", b"0.\xff"),
                   good.replace(b"0.1.0", b"\xc0\xaf"), good.replace(b"0.1.0", b"\xed\xa0\x80"),
                   good.replace(b"0.1.0", b"\xf4\x90\x80\x80"), good.replace(b"0.1.0", b"\xe4\xb8"),
                   good + b"\n" + good, b"[" * 100_000, b'{"error":1}', b'{"error":{"code":"internal"}}',
                   b'{"error":{"code":1,"message":"x"}}']
        for reply in garbage:
            with self.subTest(reply[:60]), FakeAdmin(reply + b"\n") as fake:
                for options in ([], ["--json"]):
                    done = ctl("ping", *options, socket_path=fake.path)
                    self.assertEqual((done.returncode, done.stdout), (3, ""))
                    self.assertNotEqual(done.stderr, "")

    def test_every_member_of_a_reply_must_be_there_and_of_its_type(self):
        places = [("stats", ("daemon",)), ("stats", ("pools", 1)), ("stats", ("pools", 1, "histograms")),
                  ("stats", ("sessions", 0)), ("stats", ("sessions", 0, "pools", 0)),
                  ("sessions", ("sessions", 2, "requests", 0)), ("trim", ("pools", 0))]
        # A sanitizer looks at one of four: a process of it takes several times as long.
        turn, turns = 0, stride(4) if os.environ["GPUPOOL_SANITIZE"] else 1
        for command, path in places:
            members = REPLIES[command]
            for step in path:
                members = members[step]
            for member in members:
                for wrong in (None, "missing", -1, 1.5, 2**53 + 2, True, {}):
                    if member in ("under_mps", "context") and wrong is True:
                        continue
                    if wrong is None and member in ("scope", "end_rule", "own_bytes", "uuid", "device", "numa_node", "pages", "last_error", "worker_call", "worker_call_ns",
                                                    "quarantine_reason", "quarantined_ns", "unanswered_ns", "owed_ns", "cuda_toolkit", "hit_ratio",
                                                    "quarantine_oldest_ns", "waiting_oldest_ns", "lingering_oldest_ns", "left_ns") or (
                            path[0] == "sessions" and member in ("pools", "requests")):
                        continue
                    turn += 1
                    if turn % turns != 0:
                        continue
                    reply = copy.deepcopy(REPLIES[command])
                    target = reply
                    for step in path:
                        target = target[step]
                    if wrong == "missing":
                        del target[member]
                    else:
                        target[member] = wrong
                    with self.subTest(command, member=member, wrong=wrong), FakeAdmin(line(reply)) as fake:
                        done = ctl(command, socket_path=fake.path)
                        self.assertEqual((done.returncode, done.stdout), (3, ""))
                        self.assertIn(member, done.stderr)

    def test_output_that_cannot_be_written_is_not_success(self):
        with FakeAdmin(line(REPLIES["stats"])) as fake, open("/dev/full", "wb") as full:
            for options in ([], ["--json"]):
                self.assertEqual(ctl("stats", *options, socket_path=fake.path, stdout=full).returncode, 1)


class LargeReplies(unittest.TestCase):
    def test_tens_of_thousands_of_sessions_are_shown(self):
        count = 20_000
        reply = {"sessions": [{**SESSION, "id": i, "pid": i, "command": f"worker-{i}"} for i in range(1, count + 1)]}
        data = line(reply)
        self.assertGreater(len(data), 4 << 20)
        with FakeAdmin(data) as fake:
            self.assertEqual(json.loads(ctl("sessions", "--json", socket_path=fake.path).stdout), reply)
            rows = columns_of(ctl("sessions", socket_path=fake.path).stdout, "SESSION")
            self.assertEqual(len(rows), 1 + count)
            self.assertTrue(rows[-1].endswith(f"worker-{count}"))

    def test_a_reply_without_end_is_given_up(self):
        piece = b"x" * (1 << 20)
        sent = 0

        def flood(connection, _):
            nonlocal sent
            while True:  # ends with the tool's hang-up
                connection.sendall(piece)
                sent += len(piece)

        with FakeAdmin(flood) as fake:
            done = ctl("stats", socket_path=fake.path)
        self.assertEqual(done.returncode, 3)
        self.assertLess(sent, 80 << 20)


if __name__ == "__main__":
    unittest.main()
