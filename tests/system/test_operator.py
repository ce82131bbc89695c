# SPDX-License-Identifier: Apache-2.0
"""The daemon as an operator sees it: its log, its stats, the output of --check-config, and the tool's hints."""
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import tempfile
import unittest

from gpupool_system import CTL, DAEMON, HOLDER, SCHEMAS, SOURCE, WAIT_S, Daemon, check_schema, ctl, holding, wait_until
from gpupool_restart import Worker

MIB = 1 << 20

# Makes files of more than 1 MiB impossible, and so host memory: segments are memfds.
NO_HOST_MEMORY = ["env", "--ignore-signal=XFSZ", "prlimit", "--fsize=1048576:1048576"]


class Client:
    """A client that speaks the wire protocol, as a process without a GPU and without a cache."""

    def __init__(self, daemon):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(str(daemon.socket))
        self.socket.send(struct.pack("<HHIQIHHII", 1, 0, 32, 1, 0x4C505047, 1, 1, 2, 0))
        self.reply()

    def ask(self, pool, size_bytes, timeout_ns):
        """Sends a request for a block."""
        self.socket.send(struct.pack("<HHIQIIQQQ", 3, 0, 48, 2, pool, 0, size_bytes, 0, timeout_ns))

    def reply(self):
        """Which operation the next reply is: 66 is a lease, 70 an error."""
        data = self.socket.recv(16384)
        return struct.unpack_from("<H", data)[0] if data else None

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def host_pool(daemon):
    return next(pool for pool in daemon.ask("pools")["pools"] if pool["kind"] == "host")


class Stats(unittest.TestCase):
    def test_a_session_shows_what_it_has_of_each_pool_and_an_error_free_run_no_failures(self):
        with Daemon("[host]\nlimit = 64MiB\n") as daemon:
            with holding(daemon) as holder:
                session, = daemon.ask("sessions")["sessions"]
                pools = {pool["id"]: pool for pool in daemon.ask("pools")["pools"]}
                self.assertEqual({pools[has["id"]]["kind"] for has in session["pools"]}, {"device", "host"})
                for member in ("leased_bytes", "in_use_bytes", "cached_bytes", "fenced_bytes", "segments"):
                    self.assertEqual(sum(has[member] for has in session["pools"]), session[member])
                for has in session["pools"]:
                    self.assertEqual(has["leased_bytes"], pools[has["id"]]["leased_bytes"])
                    self.assertEqual(pools[has["id"]]["leased_peak_bytes"], has["leased_bytes"])
                self.assertEqual([pool["failures"] for pool in pools.values()], [0] * len(pools))
                shown = ctl("stats", socket_path=daemon.admin_socket).stdout
                self.assertIn("Their memory", shown)
                holder.stdin.close()

    def test_a_waiter_shows_its_pool_its_times_and_its_reason(self):
        with Daemon("[host]\nlimit = 4MiB\n") as daemon, Client(daemon) as first, Client(daemon) as second:
            pool = host_pool(daemon)["id"]
            first.ask(pool, 4 * MIB, 0xFFFFFFFFFFFFFFFF)
            self.assertEqual(first.reply(), 66)
            second.ask(pool, MIB, 3600 * 10**9)
            wait_until(lambda: host_pool(daemon)["waiters"] == 1, "the second waits")
            request, = [request for session in daemon.ask("sessions")["sessions"] for request in session["requests"]]
            self.assertEqual((request["pool"], request["bytes"], request["reason"]), (pool, MIB, "own-process"))
            self.assertEqual(request["waiting_ns"] + request["left_ns"], 3600 * 10**9)
            shown = ctl("sessions", socket_path=daemon.admin_socket).stdout
            self.assertRegex(shown, rf"(?m)^ +\d+ +{os.getpid()} +{pool} +1 MiB .* memory that only its own process holds$")
            first.close()  # its end frees what it had: it has no GPU, and its process would have to end
            wait_until(lambda: host_pool(daemon)["quarantined_bytes"] == 4 * MIB, "it is in quarantine")
            self.assertEqual(host_pool(daemon)["quarantined_peak_bytes"], 4 * MIB)
            before = host_pool(daemon)["quarantine_oldest_ns"]
            self.assertGreater(host_pool(daemon)["quarantine_oldest_ns"], before)

    def test_what_nobody_waited_for_is_a_failure_and_no_timeout(self):
        with Daemon("[host]\nlimit = 4MiB\n") as daemon, Client(daemon) as holder, Client(daemon) as client:
            pool = host_pool(daemon)["id"]
            holder.ask(pool, 4 * MIB, 0xFFFFFFFFFFFFFFFF)
            self.assertEqual(holder.reply(), 66)
            client.ask(pool, MIB, 0)
            self.assertEqual(client.reply(), 70)
            self.assertEqual([host_pool(daemon)[name] for name in ("failures", "timeouts", "probes")], [1, 0, 0])
            client.ask(pool, MIB, 1)
            self.assertEqual(client.reply(), 70)
            self.assertEqual([host_pool(daemon)[name] for name in ("failures", "timeouts", "probes")], [2, 1, 0])

    def test_sessions_that_were_refused_are_counted(self):
        with Daemon("[daemon]\nsessions_limit = 1\n") as daemon, Client(daemon), Client(daemon):
            self.assertEqual(daemon.ask("stats")["daemon"]["sessions_refused"], 1)
            self.assertIn("1 session refused", ctl("stats", socket_path=daemon.admin_socket).stdout)

    def test_a_revocation_tells_a_session_that_there_is_not_from_one_that_sent_nothing(self):
        with Daemon() as daemon, Client(daemon):
            session, = daemon.ask("sessions")["sessions"]
            for options in ([], ["--yes"]):
                done = ctl("parcels", "--revoke", str(session["id"]), *options, socket_path=daemon.admin_socket)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn("0 buffers revoked", done.stdout)
                done = ctl("parcels", "--revoke", str(session["id"] + 1), *options, socket_path=daemon.admin_socket)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn("there is no session of this number", done.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to be another user")
    def test_other_users_are_not_told_what_a_session_has_and_waits_for(self):
        asked = """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.connect(sys.argv[1])
s.sendall(b'{"command":"sessions"}\\n')
print(s.makefile("r").readline(), end="")
"""
        with Daemon("[host]\nlimit = 4MiB\n") as daemon, Client(daemon) as client:
            client.ask(host_pool(daemon)["id"], MIB, 0xFFFFFFFFFFFFFFFF)
            self.assertEqual(client.reply(), 66)
            done = subprocess.run(["/usr/bin/python3", "-c", asked, str(daemon.admin_socket)], check=True,
                                  capture_output=True, text=True, timeout=WAIT_S, user=65534, group=65534, extra_groups=[],
                                  cwd="/")
            reply = json.loads(done.stdout)
            check_schema(reply, "sessions")
            session, = reply["sessions"]
            self.assertEqual((session["leased_bytes"], session["pools"], session["requests"]), (MIB, None, None))


class Names(unittest.TestCase):
    """A buffer that a process publishes under a name, and that the name keeps."""

    NAME = "weights/a-name-that-is-longer-than-records-have-room-for"

    def ask(self, daemon, command):
        reply = daemon.ask(command)
        check_schema(reply, command)
        return reply

    def test_a_name_is_seen_while_its_publisher_lives_and_after(self):
        with Daemon("[host]\nlimit = 64MiB\n") as daemon:
            with holding(daemon, GPUPOOL_HOLDER_NAME=self.NAME) as holder:
                pid = holder.pid
                name, = self.ask(daemon, "names")["names"]
                self.assertEqual((name["name"], name["uid"], name["scope"], name["pid"]), (self.NAME, os.getuid(), None, pid))
                self.assertEqual((name["kept"], name["live"], name["publisher"]), (True, False, "active"))
                self.assertEqual((name["bytes"], name["buffers"], name["directory_bytes"], name["holders"]), (MIB, 1, 12, 1))
                leases = self.ask(daemon, "leases")["leases"]
                self.assertEqual([lease["holders"] for lease in leases if lease["name"] == self.NAME], [2])
                block, = self.ask(daemon, "sharing")["blocks"]
                self.assertEqual((block["parcels"], block["names"], block["name"]), (0, 1, self.NAME))
                self.assertEqual((host_pool(daemon)["named"], host_pool(daemon)["named_bytes"]), (1, 0))
                holder.stdin.close()
                holder.wait(WAIT_S)
            wait_until(lambda: self.ask(daemon, "names")["names"][0]["publisher"] == "gone", "the publisher's session has ended")
            name, = self.ask(daemon, "names")["names"]
            self.assertEqual((name["pid"], name["holders"], name["kept"]), (pid, 0, True))
            self.assertEqual(self.ask(daemon, "parcels"), {"parcels": [], "total": 0})
            pool = host_pool(daemon)
            self.assertEqual([pool[member] for member in ("parcels", "parcel_bytes", "named", "named_bytes", "leased_bytes")], [0, 0, 1, MIB, MIB])
            quota, = self.ask(daemon, "quota")["quotas"]
            self.assertEqual((quota["names"], quota["names_limit"], quota["kept_bytes"], quota["kept_bytes_limit"]), (1, 4096, MIB, None))
            self.assertIn("1 buffer published under names; no process has 1 MiB of that", ctl("stats", socket_path=daemon.admin_socket).stdout)
            self.assertRegex(ctl("metrics", socket_path=daemon.admin_socket).stdout, rf'(?m)^gpupool_user_kept_bytes\{{uid="{os.getuid()}"\}} {MIB}$')

    def test_what_a_name_keeps_comes_back_when_it_is_unpublished(self):
        with Daemon("[host]\nlimit = 64MiB\n") as daemon:
            with holding(daemon, GPUPOOL_HOLDER_NAME=self.NAME) as holder:
                holder.stdin.close()
                holder.wait(WAIT_S)
            wait_until(lambda: daemon.ask("names")["names"][0]["publisher"] == "gone", "the publisher's session has ended")
            generation = daemon.ask("names")["names"][0]["generation"]
            done = ctl("unpublish", self.NAME, "--yes", "--json", socket_path=daemon.admin_socket)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            reply = json.loads(done.stdout)
            check_schema(reply, "unpublish")
            self.assertEqual((reply["generation"], reply["bytes"], reply["came_bytes"]), (generation, MIB, MIB))
            self.assertEqual(host_pool(daemon)["leased_bytes"], 0)
            self.assertEqual(self.ask(daemon, "names"), {"names": [], "total": 0})
            done = ctl("unpublish", self.NAME, "--yes", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 1)
            self.assertIn("no-such-name", done.stderr)
            events = ctl("events", socket_path=daemon.admin_socket).stdout
            self.assertRegex(events, rf"(?m) publish +1 MiB published, generation {generation}$")
            self.assertRegex(events, rf"(?m) named +its name is '{self.NAME[:23]}\.\.\.'$")
            self.assertRegex(events, rf"(?m) unpublish +generation {generation} is published no more, of 1 MiB$")
            found = [json.loads(row) for row in ctl("events", "--json", socket_path=daemon.admin_socket).stdout.splitlines()]
            self.assertEqual([event["published"] for event in found if event["kind"] == "named"], [self.NAME[:23]])
            self.assertEqual({event["published"] for event in found if event["kind"] != "named"}, {None})
            self.assertEqual([(event["bytes"], event["value"]) for event in found if event["kind"] in ("publish", "unpublish")], [(MIB, generation)] * 2)
            of_pid = [json.loads(row) for row in ctl("events", f"--pid={holder.pid}", "--json", socket_path=daemon.admin_socket).stdout.splitlines()]
            of_name = [event for event in of_pid if event["kind"] in ("publish", "named", "unpublish")]
            self.assertEqual([(event["kind"], event["name"], event["uid"]) for event in of_name],
                             [(kind, "system_holder", os.getuid()) for kind in ("publish", "named", "unpublish")])

    def test_a_name_in_a_scope_is_another_one(self):
        with Daemon("[host]\nlimit = 64MiB\nstep = 4MiB\n") as daemon:
            added = json.loads(ctl("scope", "add", "pod-a", f"--uid={os.getuid()}", "--quota=kept=2MiB", "--json", socket_path=daemon.admin_socket).stdout)
            with holding(daemon, GPUPOOL_HOLDER_NAME=self.NAME, GPUPOOL_SOCKET=added["socket"]) as inside, holding(daemon, GPUPOOL_HOLDER_NAME=self.NAME) as outside:
                names = {name["pid"]: name["scope"] for name in self.ask(daemon, "names")["names"]}
                self.assertEqual(names, {inside.pid: "pod-a", outside.pid: None})
                scope, = self.ask(daemon, "scopes")["scopes"]
                self.assertEqual((scope["kept_bytes"], scope["kept_bytes_limit"]), (MIB, 2 * MIB))
                for options, left in ((("--scope=pod-a",), [None]), ((), [])):
                    done = ctl("unpublish", self.NAME, "--yes", *options, socket_path=daemon.admin_socket)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertEqual([name["scope"] for name in self.ask(daemon, "names")["names"]], left)
                done = ctl("unpublish", self.NAME, "--yes", "--scope=pod-b", socket_path=daemon.admin_socket)
                self.assertEqual(done.returncode, 1)
                self.assertIn("no-such-scope", done.stderr)
                self.assertEqual(self.ask(daemon, "scopes")["scopes"][0]["kept_bytes"], 0)
                for holder in (inside, outside):
                    holder.stdin.close()

    def test_the_quota_of_what_is_kept_is_told_and_refuses(self):
        with Daemon("[host]\nlimit = 64MiB\n[quota]\nkept = 512KiB\n") as daemon:
            variables = {**os.environ, "GPUPOOL_SOCKET": str(daemon.socket), "GPUPOOL_SIM_LATENCY": "0", "GPUPOOL_HOLDER_NAME": self.NAME}
            done = subprocess.run([HOLDER], env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("of the 512 KiB that names may keep", done.stderr)
            self.assertIn("'kept'", done.stderr)
            with holding(daemon):
                quota, = daemon.ask("quota")["quotas"]
                self.assertEqual((quota["names"], quota["kept_bytes"], quota["kept_bytes_limit"]), (0, 0, 512 << 10))

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to be another user")
    def test_other_users_neither_see_nor_end_a_name(self):
        asked = """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.connect(sys.argv[1])
s.sendall(sys.argv[2].encode() + b"\\n")
print(s.makefile("r").readline(), end="")
"""

        def ask_as_another(request):
            done = subprocess.run(["/usr/bin/python3", "-c", asked, str(daemon.admin_socket), json.dumps(request)], check=True, capture_output=True,
                                  text=True, timeout=WAIT_S, user=65534, group=65534, extra_groups=[], cwd="/")
            return json.loads(done.stdout)

        with Daemon("[host]\nlimit = 64MiB\n") as daemon, holding(daemon, GPUPOOL_HOLDER_NAME=self.NAME):
            self.assertEqual(ask_as_another({"command": "names"}), {"names": [], "total": 0})
            for keys, code in (({}, "no-such-name"), ({"uid": os.getuid()}, "permission-denied"), ({"scope": "a"}, "permission-denied")):
                self.assertEqual(ask_as_another({"command": "unpublish", "name": self.NAME, **keys})["error"]["code"], code)
            self.assertEqual(len(daemon.ask("names")["names"]), 1)


class Channels(unittest.TestCase):
    """A channel of host memory of two workers, as an operator sees it."""

    NAME = "frames"

    def setUp(self):
        self.daemon = Daemon("[host]\nlimit = 64MiB\n")
        self.addCleanup(self.daemon.close)

    def worker(self):
        worker = Worker(self.daemon)
        self.addCleanup(lambda: worker.process.poll() is None and worker.kill())
        return worker

    def ask(self, command):
        reply = self.daemon.ask(command)
        check_schema(reply, command)
        return reply

    def channel(self):
        channel, = self.ask("channels")["channels"]
        return channel

    def show(self, *words):
        return ctl(*words, socket_path=self.daemon.admin_socket).stdout

    def places(self, *members):
        return [tuple(place[member] for member in members) for place in self.channel()["places"]]

    def start(self, consumer=1):
        """A worker that made the channel and sends, and one that receives."""
        producer, receiver = self.worker(), self.worker()
        producer.do("make-channel", 0, self.NAME, 0, 4)
        producer.do("join", 0, self.NAME, 0, 10000)
        receiver.do("join", 0, self.NAME, consumer, 10000)
        return producer, receiver

    def test_a_channel_tells_where_each_process_is(self):
        self.assertEqual(self.ask("channels"), {"channels": [], "total": 0})
        self.assertEqual((host_pool(self.daemon)["channels"], host_pool(self.daemon)["channel_bytes"]), (0, 0))
        producer, consumer = self.start()
        channel = self.channel()
        self.assertEqual((channel["name"], channel["uid"], channel["scope"], channel["kept"], channel["policy"]), (self.NAME, os.getuid(), None, True, "wait"))
        self.assertEqual((channel["slots"], channel["slot_bytes"], channel["consumers"], channel["metadata_bytes"]), (4, 65536, 1, 8))
        self.assertGreaterEqual(channel["bytes"], 4 * 65536)
        self.assertEqual((channel["pool"], channel["maker"], channel["pid"]), (host_pool(self.daemon)["id"], "active", producer.process.pid))
        self.assertEqual((host_pool(self.daemon)["channels"], host_pool(self.daemon)["channel_bytes"]), (1, channel["bytes"]))
        self.assertEqual(self.places("place", "state", "pid", "processes"),
                         [(0, "taken", producer.process.pid, 1), (1, "taken", consumer.process.pid, 1)])
        self.assertEqual({command for command, in self.places("command")}, {"system_worker"})
        for i in range(3):
            producer.do("send-frame", 0, "-", i, 10000)
        self.assertEqual(self.channel()["sent"], 3)
        self.assertEqual(self.places("received", "behind", "held"), [(None, None, None), (0, 3, 0)])
        consumer.do("receive-frame", 0, "-", 0, 10000)
        consumer.do("hold-frame", 0, "-", 1, 10000)
        self.assertEqual(self.places("received", "behind", "held")[1], (2, 1, 1))
        text = self.show("channels")
        self.assertRegex(text, rf"(?m)^ +frames .* 4 +64 KiB +wait +kept +{producer.process.pid} +3 +0$")
        self.assertRegex(text, rf"(?m)^ +frames +producer +taken +\d+ +{producer.process.pid} +- +- +system_worker$")
        self.assertRegex(text, rf"(?m)^ +frames +consumer 1 +taken +\d+ +{consumer.process.pid} +1 +1 +system_worker$")
        name, = self.ask("names")["names"]
        self.assertEqual((name["name"], name["channel"], name["kept"], name["bytes"], name["publisher"], name["holders"]),
                         (self.NAME, True, True, channel["bytes"], "active", 2))
        self.assertRegex(self.show("names"), rf"frames .* 1 +channel +kept +{producer.process.pid} ")
        self.assertIn(self.NAME, {lease["name"] for lease in self.ask("leases")["leases"]})
        self.assertRegex(self.show("metrics"), r'(?m)^gpupool_pool_channels\{.*kind="host".*\} 1$')

    def test_a_place_whose_process_died_is_vacant_and_its_queue_stays(self):
        producer, consumer = self.start()
        producer.do("send-frame", 0, "-", 7, 10000)
        consumer.do("hold-frame", 0, "-", 7, 10000)
        producer.do("send-frame", 0, "-", 8, 10000)
        consumer.kill()
        wait_until(lambda: self.places("state")[1] == ("vacant",), "the consumer's GPU work is over")
        self.assertEqual(self.places("pid", "command", "behind", "held")[1], (None, None, 1, 1))
        self.assertEqual(host_pool(self.daemon)["vacant_consumers"], 1)
        self.assertIn("'frames': consumer 1 died. Its frames wait for the next process", " ".join(self.show("channels").split()))
        next_one = self.worker()
        next_one.do("join", 0, self.NAME, 1, 10000)
        self.assertEqual(next_one.do("receive-frame", 0, "-", 7, 10000), "again")
        self.assertEqual(self.places("state", "pid", "processes", "behind", "held")[1], ("taken", next_one.process.pid, 2, 1, 0))
        self.assertEqual(host_pool(self.daemon)["vacant_consumers"], 0)
        next_one.do("leave", 0)
        self.assertEqual(self.places("state", "pid")[1], ("left", None))
        self.assertRegex(self.show("channels"), r"consumer 1 +left +\d+ +- +- +- +-\n")

    def test_a_channel_is_unpublished_and_lasts_while_processes_are_in_it(self):
        producer, consumer = self.start()
        done = ctl("unpublish", self.NAME, "--yes", "--json", socket_path=self.daemon.admin_socket)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        reply = json.loads(done.stdout)
        check_schema(reply, "unpublish")
        channel = self.channel()
        self.assertEqual((reply["name"], reply["channel"], reply["generation"], reply["bytes"], reply["came_bytes"]),
                         (self.NAME, True, channel["id"], channel["bytes"], 0))
        self.assertIsNone(channel["name"])
        self.assertEqual(self.ask("names")["names"], [])
        self.assertIn("ended, with processes in it", self.show("channels"))
        producer.do("stream-frames", 0, "-", 3, 1)
        consumer.do("stream-frames", 0, "-", 3, 1)
        for worker in (producer, consumer):
            worker.do("leave", 0)
        self.assertEqual(self.ask("channels"), {"channels": [], "total": 0})
        self.assertIn("No channels.", self.show("channels"))

    def test_a_channel_that_no_process_is_in_comes_back_at_once(self):
        producer, consumer = self.start()
        for worker in (producer, consumer):
            worker.do("leave", 0)
            worker.end()
        wait_until(lambda: not self.daemon.ask("sessions")["sessions"], "the sessions are gone")
        channel = self.channel()
        self.assertEqual((channel["maker"], channel["pid"]), ("gone", None))
        reply = json.loads(ctl("unpublish", self.NAME, "--yes", "--json", socket_path=self.daemon.admin_socket).stdout)
        self.assertEqual((reply["bytes"], reply["came_bytes"]), (channel["bytes"], channel["bytes"]))
        self.assertEqual(host_pool(self.daemon)["leased_bytes"], 0)

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to be another user")
    def test_other_users_do_not_see_a_channel(self):
        self.start()
        asked = """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.connect(sys.argv[1])
s.sendall(b'{"command":"channels"}\\n')
print(s.makefile("r").readline(), end="")
"""
        done = subprocess.run(["/usr/bin/python3", "-c", asked, str(self.daemon.admin_socket)], check=True, capture_output=True, text=True,
                              timeout=WAIT_S, user=65534, group=65534, extra_groups=[], cwd="/")
        self.assertEqual(json.loads(done.stdout), {"channels": [], "total": 0})


def check(text, *arguments):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "gpupoold.conf"
        path.write_text(text)
        return subprocess.run([DAEMON, "--config", str(path), "--check-config", *arguments], check=False,
                              capture_output=True, text=True, timeout=WAIT_S)


def memory_group(limit_bytes):
    """A new control group below that of this process with a limit of memory. None where there can be none."""
    lines = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
    for base, limit, groups in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", [group for _, names, group in lines if "memory" in names.split(",")]),
                                ("/sys/fs/cgroup", "memory.max", [group for number, names, group in lines if number == "0" and names == ""])):
        for group in groups:
            path = pathlib.Path(base + group) / f"gpupool-test-{os.getpid()}"
            try:
                path.mkdir()
            except OSError:
                continue
            try:
                (path / limit).write_text(str(limit_bytes))
                return path
            except OSError:
                path.rmdir()
    return None


class ControlGroup(unittest.TestCase):
    """A daemon whose control group allows 300 MiB, as a container does, or MemoryMax=."""

    def setUp(self):
        self.group = memory_group(300 * MIB)
        if self.group is None:
            self.skipTest("this takes root, and a memory controller that it may use")
        self.addCleanup(lambda: wait_until(self.removed, "the control group is empty"))
        self.prefix = ["sh", "-c", f'echo $$ > {self.group}/cgroup.procs && exec "$@"', "sh"]

    def removed(self):
        try:
            self.group.rmdir()
        except OSError:
            return False
        return True

    def test_shares_are_of_what_the_group_allows(self):
        with Daemon(gpu="none", prefix=self.prefix) as daemon:
            self.assertEqual(host_pool(daemon)["limit_bytes"], 150 * MIB)
            self.assertNotIn("warning", daemon.log_text())

    def test_a_larger_limit_is_told_of_and_cut(self):
        for text in ("[host]\nlimit = 1GiB\n", "[host 0]\nlimit = 301MiB\n"):
            with Daemon(text, gpu="none", prefix=self.prefix) as daemon, Client(daemon) as client:
                words = rf"above the 300 MiB that the daemon's control group \S*{self.group.name} allows \(memory\.\w+; MemoryMax="
                self.assertRegex(daemon.log_text(), words)
                self.assertEqual(host_pool(daemon)["limit_bytes"], 300 * MIB)
                done = subprocess.run([*daemon.command(), "--check-config"], check=False, capture_output=True, text=True, timeout=WAIT_S)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stderr, words)
                client.ask(1, 400 * MIB, 0)
                data = client.socket.recv(16384)
                self.assertEqual(struct.unpack_from("<H", data)[0], 70)
                self.assertIn(b"which may grow to 300 MiB, although its limit is above the memory that the daemon's control group", data)

    def test_growth_ends_before_the_kernel_kills_the_daemon(self):
        """Simulated GPUs are the daemon's memory, too, while their memory is made."""
        config = "[host]\nlimit = 100%\nreserve = 100%\n[device]\nlimit = 512MiB\nreserve = 512MiB\n"
        with Daemon(config, prefix=self.prefix) as daemon:
            words = (r"host memory, node 0: growth by .* failed: the daemon's control group \S* \(memory\.\w+: 300 MiB\) has .* left, "
                     r"too little for a segment of .* beside 32 MiB")
            wait_until(lambda: daemon.ask("ping") and re.search(words, daemon.log_text()), "the host pool grows no more")
            wait_until(lambda: all(pool["growing_bytes"] == 0 for pool in daemon.ask("pools")["pools"]), "no pool grows any more")
            self.assertIn(host_pool(daemon)["reserved_bytes"], range(64 * MIB, 300 * MIB))


class CheckConfig(unittest.TestCase):
    def test_what_is_wrong_on_this_machine_is_found(self):
        warned = [
            ("[quota user:no-such-user]\nhost = 1GiB\n", (), "there is no user 'no-such-user'"),
            ("[host]\nallow = group:no-such-group\n", (), "there is no group 'no-such-group'"),
            ("[device 2]\nlimit = 1GiB\n", ("--gpu", "sim", "--sim-gpus", "2"), "[device 2]: there is no such GPU"),
            ("[device GPU-00112233-4455-6677-8899-aabbccddeeff]\nlimit = 1GiB\n", ("--gpu", "sim"),
             "[device GPU-00112233-4455-6677-8899-aabbccddeeff]: there is no such GPU"),
            ("[host 4000]\nlimit = 1GiB\n", (), "[host 4000]: this machine has no such NUMA node"),
            ("[device]\nlimit = 50%\nreserve = 5GiB\n", ("--gpu", "sim", "--sim-memory", "8GiB"),
             "its reserve of 5 GiB is above its limit of 4 GiB"),
            ("[device]\nlimit = 9GiB\n", ("--gpu", "sim", "--sim-memory", "8GiB"),
             "its limit of 9 GiB is above the 8 GiB that the GPU has, and is cut to that"),
            ("[host]\nlimit = 1000TiB\n", (), "its limit of 1000 TiB is above the "),
            ("[device]\nlimit = 0\n", ("--gpu", "sim"), "its limit of 0 B is less than a segment"),
            ("[device]\nzero = daemon\n", ("--gpu", "sim"), "zero has an effect with export = vmm alone"),
            ("[host]\nzero = driver\n", (), "zero has an effect with export = vmm alone"),
            ("[host]\nlimit = 1MiB\n", (), "its limit of 1 MiB is less than a segment"),
        ]
        refused = [
            ("[daemon]\ngroup = no-such-group\n", (), "there is no group 'no-such-group'"),
            ("[host]\nenabled = no\n", ("--gpu", "none"), "no pool is enabled"),
            ("", ("--socket", "/tmp/one", "--admin-socket", "/tmp/one"), "socket and admin_socket are both /tmp/one"),
            ("[daemon]\nsocket = /tmp/one\nadmin_socket = /tmp/one\n", (), "socket and admin_socket are both /tmp/one"),
        ]
        for text, arguments, words in warned:  # a start serves all the same
            with self.subTest(text=text, arguments=arguments):
                done = check(text, *arguments)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertIn("no mistakes, 1 warning\n", done.stdout)
        for text, arguments, words in refused:
            with self.subTest(text=text, arguments=arguments):
                done = check(text, *arguments)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(words, done.stderr)
                self.assertNotIn("no mistakes", done.stdout)

    def test_all_mistakes_are_named_at_once(self):
        done = check("[daemon]\ngpus = sim\n[device]\nlimit = 4GB # half\nsteps = 5\n", "--sim-gpus", "0", "--log-level", "inof")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual([re.sub(r"^\S*gpupoold\.conf", "conf", line.partition("gpupoold: error: ")[2]) for line in done.stderr.splitlines()], [
            "conf:2: [daemon] has no key 'gpus'; did you mean 'gpu'? See gpupoold.conf(5)",
            "conf:4: limit: '4GB # half' has a '#' in it: a comment behind a value begins with a blank and ';', and '#' begins one on a line of its own only",
            "conf:5: [device] has no key 'steps'; did you mean 'step'? See gpupoold.conf(5)",
            "--sim-gpus: sim_gpus: '0' is not a number from 1 to 16",
            "--log-level: log_level: 'inof' is none of error, warning, info, debug; did you mean 'info'?"])

    def test_a_file_of_mistakes_has_a_short_answer(self):
        done = check("[daemon]\n" + "colour = blue\n" * 10000)
        self.assertNotEqual(done.returncode, 0)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 21)
        self.assertIn("9980 more mistakes", lines[-1])

    def test_what_is_right_is_called_right(self):
        for text, arguments in (("[device 1]\nlimit = 1GiB\n[host 0]\nreserve = 0\n", ("--gpu", "sim", "--sim-gpus", "2")),
                                ("[device 1]\nenabled = no\n", ("--gpu", "sim", "--sim-gpus", "2")),
                                ("[device]\nexport = vmm\nzero = daemon\n", ("--gpu", "sim")),
                                ("[device 7]\nlimit = 1GiB\n", ("--gpu", "none")),
                                ("[quota user:root]\nhost = 1GiB\n[host]\nallow = group:0\n", ())):
            with self.subTest(text):
                done = check(text, *arguments)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("no mistakes", done.stdout)

    def test_a_start_warns_of_the_same_and_serves(self):
        with Daemon("[device 5]\nlimit = 1GiB\n[host]\nlimit = 64MiB\nreserve = 128MiB\n") as daemon:
            self.assertIn("[device 5]: there is no such GPU", daemon.log_text())
            self.assertIn("its reserve of 128 MiB is above its limit of 64 MiB", daemon.log_text())

    def test_the_samples_values_are_the_defaults(self):
        sample = (SOURCE / "systemd/gpupoold.conf").read_text()
        uncommented = re.sub(r"(?m)^# (\w+ = )", r"\1", sample)
        self.assertGreater(uncommented.count(" = "), 20)

        def tell(config):
            """The sizes, limits and quotas that a daemon with a configuration reports. Its sockets are the test's."""
            class Plain(Daemon):
                def command(self):
                    return [DAEMON, "--config", str(self.config), "--socket", str(self.socket), "--admin-socket",
                            str(self.admin_socket), "--gpu", "sim"]

            with Plain(config) as daemon, Client(daemon):
                keys = ("kind", "limit_bytes", "step_bytes", "reserve_bytes", "low_water_bytes", "pages")
                pools = [[pool[key] for key in keys] for pool in daemon.ask("pools")["pools"]]
                quota, = daemon.ask("quota")["quotas"]
                return pools, quota, daemon.ask("stats")["daemon"]["sessions_limit"]

        self.assertEqual(tell(uncommented), tell(""))
        help_text = subprocess.run([DAEMON, "--help"], check=True, capture_output=True, text=True, timeout=WAIT_S).stdout
        for key, option in (("socket", "--socket PATH"), ("admin_socket", "--admin-socket PATH"), ("log_level", "--log-level LEVEL")):
            value = re.search(rf"(?m)^{key} = (\S+)", uncommented).group(1)
            self.assertRegex(help_text, rf"{option} (?:.*\n? *)\(default {re.escape(value)}[,)]")
        self.assertIn("\ngpu = auto ", uncommented)


def commands_of(request):
    """The commands that a kind of request in request.json has."""
    command = request["properties"]["command"]
    return command.get("enum") or [command["const"]]


class Drain(unittest.TestCase):
    """gpupoolctl drain."""

    def start(self):
        daemon = Daemon("[host]\nlimit = 64MiB\nreserve = 16MiB\n")
        self.addCleanup(daemon.close)
        wait_until(lambda: host_pool(daemon)["reserved_bytes"] == 16 * MIB, "the reserve is there")
        return daemon

    def drain(self, daemon, *options):
        return ctl("drain", *options, socket_path=daemon.admin_socket)

    def test_nothing_is_lent_until_it_ends(self):
        daemon = self.start()
        pool = host_pool(daemon)["id"]
        with Client(daemon) as holder, Client(daemon) as waiting, Client(daemon) as other:
            holder.ask(pool, 4 * MIB, 0xFFFFFFFFFFFFFFFF)
            self.assertEqual(holder.reply(), 66)
            waiting.ask(pool, 64 * MIB, 3600 * 10**9)
            wait_until(lambda: host_pool(daemon)["waiters"] == 1, "a request waits")
            done = self.drain(daemon, "--no-wait")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("No more is lent, and 4 MiB are held still.", done.stdout)
            self.assertRegex(done.stdout, rf"(?m)^ +{pool} +1 +4 MiB +")
            self.assertEqual(waiting.reply(), 70)
            other.ask(pool, MIB, 0)
            data = other.socket.recv(16384)
            self.assertEqual(struct.unpack_from("<H", data)[0], 70)
            self.assertIn(b"which an operator drains: no more is lent from it until 'gpupoolctl drain --off'", data)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late:
                late.settimeout(WAIT_S)
                late.connect(str(daemon.socket))
                late.send(struct.pack("<HHIQIHHII", 1, 0, 32, 1, 0x4C505047, 1, 1, 2, 0))
                self.assertIn(b"an operator drains the daemon", late.recv(16384))
            for command in ("stats", "pools"):
                shown = ctl(command, socket_path=daemon.admin_socket).stdout
                self.assertRegex(shown, rf"(?m)^ +{pool} +host.* draining ")
                self.assertIn("drains: no more is lent from it; 'gpupoolctl drain --off' ends that", shown)
            done = self.drain(daemon, "--timeout=300ms")
            self.assertEqual(done.returncode, 1, done)
            self.assertIn("Waiting for 4 MiB", done.stderr)
            self.assertIn("4 MiB are held still", done.stdout)
            done = self.drain(daemon, "--off")
            self.assertEqual((done.returncode, done.stdout), (0, "Memory is lent again.\n"))
            other.ask(pool, MIB, 0)
            self.assertEqual(other.reply(), 66)
            self.assertIn("an operator drains", daemon.log_text())
            self.assertIn("lend again", daemon.log_text())

    def test_metrics_and_the_flight_recorder_tell_of_it(self):
        daemon = self.start()
        pool = host_pool(daemon)["id"]

        def draining():
            text = ctl("metrics", socket_path=daemon.admin_socket).stdout
            return {int(number): int(value) for number, value in re.findall(r'(?m)^gpupool_pool_draining\{pool="(\d+)".*\} (\d)$', text)}

        others = {number: 0 for number in draining() if number != pool}
        self.assertEqual(draining(), {**others, pool: 0})
        with Client(daemon) as holder:
            holder.ask(pool, 4 * MIB, 0xFFFFFFFFFFFFFFFF)
            self.assertEqual(holder.reply(), 66)
            for _ in range(2):  # one that drains already is not drained again
                self.drain(daemon, f"--pool={pool}", "--no-wait")
            self.assertEqual(draining(), {**others, pool: 1})
            self.drain(daemon, "--off")
            self.assertEqual(draining(), {**others, pool: 0})
            events = ctl("events", f"--pool={pool}", socket_path=daemon.admin_socket).stdout
        self.assertEqual(re.findall(r" (drain|drain-end) .*?(\d+ MiB)", events), [("drain", "4 MiB"), ("drain-end", "4 MiB")])

    def test_it_tells_of_names_that_keep_memory(self):
        daemon = self.start()
        with holding(daemon, GPUPOOL_HOLDER_NAME="weights/one") as holder:
            holder.stdin.close()
            holder.wait(WAIT_S)
        wait_until(lambda: daemon.ask("names")["names"][0]["publisher"] == "gone", "the publisher's session has ended")
        command = [CTL, f"--admin-socket={daemon.admin_socket}", "drain", "--timeout=60s"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
            self.assertIn("Waiting for 1 MiB", waiting.stderr.readline())
            self.assertIn("names hold 1 MiB, and no program", waiting.stderr.readline())
            drained = daemon.ask("drain")
            check_schema(drained, "drain")
            self.assertEqual(sum(pool["named_bytes"] for pool in drained["pools"]), MIB)
            self.assertEqual(ctl("unpublish", "weights/one", "--yes", socket_path=daemon.admin_socket).returncode, 0)
            self.assertEqual(waiting.wait(WAIT_S), 0)

    def test_it_waits_until_all_memory_has_come_back(self):
        daemon = self.start()
        with holding(daemon) as holder:
            command = [CTL, f"--admin-socket={daemon.admin_socket}", "drain", "--timeout=60s"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
                self.assertIn("Waiting for ", waiting.stderr.readline())
                self.assertGreater(host_pool(daemon)["leased_bytes"], 0)
                holder.stdin.close()
                text = waiting.stdout.read()
                self.assertEqual(waiting.wait(WAIT_S), 0)
        self.assertIn("Drained: nothing is held, and no more is lent.", text)
        wait_until(lambda: host_pool(daemon)["reserved_bytes"] == 0, "all memory is the kernel's, the reserve too")
        self.drain(daemon, "--off")
        wait_until(lambda: host_pool(daemon)["reserved_bytes"] == 16 * MIB, "the reserve is made again")
        with holding(daemon):
            self.assertEqual(len(daemon.ask("sessions")["sessions"]), 1)

    def test_one_pool_can_drain(self):
        with Daemon("[host]\nlimit = 64MiB\n") as daemon:
            pools = {pool["kind"]: pool["id"] for pool in reversed(daemon.ask("pools")["pools"])}
            done = self.drain(daemon, f"--pool={pools['device']}", "--json")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            reply = json.loads(done.stdout)
            check_schema(reply, "drain")
            self.assertEqual([(pool["id"], pool["draining"], pool["held_bytes"]) for pool in reply["pools"]], [(pools["device"], True, 0)])
            with Client(daemon) as client:  # programs still connect
                client.ask(pools["device"], MIB, 10**10)
                self.assertEqual(client.reply(), 70)
                client.ask(pools["host"], MIB, 10**10)
                self.assertEqual(client.reply(), 66)
            done = self.drain(daemon, "--pool=63")
            self.assertEqual(done.returncode, 1)
            self.assertIn("no pool has this id", done.stderr)

    def test_another_operator_may_end_it(self):
        daemon = self.start()
        with holding(daemon):
            command = [CTL, f"--admin-socket={daemon.admin_socket}", "drain", "--timeout=60s"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
                waiting.stderr.readline()
                self.drain(daemon, "--off")
                self.assertEqual(waiting.wait(WAIT_S), 1)
                self.assertIn("the pools drain no more", waiting.stderr.read())


class Manual(unittest.TestCase):
    def test_the_manual_page_lists_the_daemons_commands(self):
        page = (SOURCE / "docs/man/gpupoold.8.scd").read_text()
        listed = set(re.findall(r'(?m)^\{"command":"([a-z-]+)"', page))
        with Daemon() as daemon:
            with daemon.admin() as admin:
                message = admin.ask("no-such-command")["error"]["message"]
        known = set(message.removeprefix("the commands are ").split(", "))
        self.assertIn("stats", known)
        self.assertEqual(listed, known)
        self.assertEqual({name for kind in json.loads((SCHEMAS / "request.json").read_text())["oneOf"] for name in commands_of(kind)}, known)


class Log(unittest.TestCase):
    def test_sessions_begin_and_end_with_their_reason(self):
        with Daemon("[host]\nlimit = 4MiB\n") as daemon:
            with holding(daemon) as holder:
                self.assertRegex(daemon.log_text(), rf"info: session 1 begins: pid {holder.pid} \(.*holder.*\) of user {os.getuid()}\n")
                holder.stdin.close()
                holder.wait(WAIT_S)
            wait_until(lambda: "session 1 ends" in daemon.log_text(), "the log tells of the farewell")
            self.assertRegex(daemon.log_text(), r"info: session 1 ends with a farewell: pid \d+ \(.*holder.*\), connected for ")
            with holding(daemon) as holder:
                holder.kill()
                wait_until(lambda: "session 2 ends" in daemon.log_text(), "the log tells of the crash")
                self.assertRegex(daemon.log_text(), rf"info: session 2 ends without a farewell: pid {holder.pid} \(.*holder.*\) "
                                                    r"(ended|closed its socket), connected for .*; it had [34] MiB in 2 leases")

    def test_refusals_are_told_of_at_a_bounded_rate_and_the_rest_is_counted(self):
        with Daemon("[host]\nlimit = 4MiB\n") as daemon, Client(daemon) as holder, Client(daemon) as client:
            pool = host_pool(daemon)["id"]
            holder.ask(pool, 4 * MIB, 0xFFFFFFFFFFFFFFFF)
            self.assertEqual(holder.reply(), 66)
            for _ in range(200):
                client.ask(pool, MIB, 0)
                self.assertEqual(client.reply(), 70)
            self.assertEqual(host_pool(daemon)["failures"], 200)
            self.assertEqual(daemon.stop(), 0)  # which ends the period
            log = daemon.log_text()
            told = len(re.findall(r"info: session \d+ was refused memory: pid \d+ \(.*\), 1 MiB asked of host memory, node 0", log))
            missing = sum(map(int, re.findall(r"info: this log lacks (\d+) lines? about refusals", log)))
            self.assertEqual(told + missing, 200)
            self.assertLess(told, 100)  # a few periods of 5 s at most
            self.assertGreater(told, 0)

    def test_sessions_that_are_refused_are_told_of(self):
        with Daemon("[daemon]\nsessions_limit = 1\n") as daemon, Client(daemon), Client(daemon):
            self.assertRegex(daemon.log_text(), r"info: pid \d+ \(.*\) of user \d+ gets no session: the daemon has as many")

    def test_what_is_on_loan_at_the_end_is_told(self):
        with Daemon("[host]\nlimit = 4MiB\n") as daemon, Client(daemon) as holder:
            holder.ask(host_pool(daemon)["id"], 3 * MIB, 0xFFFFFFFFFFFFFFFF)
            self.assertEqual(holder.reply(), 66)
            self.assertEqual(daemon.stop(), 0)
            self.assertIn("info: host memory, node 0: 3 MiB on loan, 0 B behind fences and 0 B in quarantine end with the "
                          "daemon (1 lease)", daemon.log_text())

    def test_at_level_warning_a_healthy_daemon_is_silent(self):
        with Daemon("[host]\nlimit = 4MiB\n", arguments=["--gpu", "none", "--log-level", "warning"]) as daemon:
            with Client(daemon) as client:
                client.ask(host_pool(daemon)["id"], 5 * MIB, 0)
                self.assertEqual(client.reply(), 70)
            wait_until(lambda: daemon.ask("sessions")["sessions"] == [], "the session ends")
            self.assertEqual(daemon.stop(), 0)
            self.assertNotIn("warning", daemon.log_text())


class Growth(unittest.TestCase):
    def test_host_memory_that_cannot_be_made_is_not_called_a_device(self):
        with Daemon("[host]\nreserve = 64MiB\n", arguments=["--gpu", "none"], prefix=NO_HOST_MEMORY) as daemon:
            warning, = [line for line in daemon.log_text().splitlines() if "growth by" in line]
            self.assertIn("host memory, node 0: growth by 64 MiB failed", warning)
            self.assertIn("lower the pool's limit, or free memory of the machine", warning)
            self.assertNotIn("device", warning)


if __name__ == "__main__":
    unittest.main()
