# SPDX-License-Identifier: Apache-2.0
"""The real daemon on simulated GPUs, from its admin socket, its tool, its signals and its service manager's side."""
import json
import os
import pathlib
import random
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import tempfile
import unittest

from gpupool_system import CTL, DAEMON, SOURCE, WAIT_S, Admin, Daemon, check_schema, ctl, holding, wait_until

MIB = 1 << 20
LINE_MAX = 16384
CONFIG = "[host]\nlimit = 256MiB\n"


class AdminSocket(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(CONFIG)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def test_every_reply_is_what_its_schema_says(self):
        with self.daemon.admin() as admin:
            for command in ("ping", "stats", "pools", "sessions", "quota", "trim"):
                self.assertNotIn("error", admin.ask(command))

    def test_ping_tells_who_answers(self):
        daemon = self.daemon.ask("ping")["daemon"]
        self.assertEqual((daemon["pid"], daemon["gpu"]), (self.daemon.process.pid, "sim"))

    def test_stats_say_that_the_gpus_are_simulated(self):
        daemon = self.daemon.ask("stats")["daemon"]
        self.assertEqual(daemon["socket"], str(self.daemon.socket))
        self.assertEqual((daemon["sessions"], daemon["sessions_limit"]), (0, 1024))
        self.assertTrue(any("simulated" in notice.lower() for notice in daemon["notices"]), daemon["notices"])

    def test_there_is_a_pool_for_each_gpu_and_a_host_pool(self):
        pools = self.daemon.ask("pools")["pools"]
        self.assertEqual([pool["device"] for pool in pools if pool["kind"] == "device"], [0, 1])
        hosts = [pool for pool in pools if pool["kind"] == "host"]
        self.assertGreaterEqual(len(hosts), 1)
        self.assertTrue(all(pool["limit_bytes"] == 256 * MIB for pool in hosts))
        self.assertEqual(len({pool["id"] for pool in pools}), len(pools))
        self.assertEqual(len({pool["uuid"] for pool in pools if pool["kind"] == "device"}), 2)
        for pool in pools:
            self.assertLessEqual(pool["leased_bytes"] + pool["free_bytes"] + pool["fenced_bytes"] + pool["quarantined_bytes"],
                                 pool["reserved_bytes"])

    def test_commands_on_one_connection_are_answered_in_order(self):
        commands = ["ping", "stats", "nonsense", "pools", "sessions", "ping"] * 20
        with self.daemon.admin() as admin:
            admin.send(b"".join(json.dumps({"command": command}).encode() + b"\n" for command in commands))
            for command in commands:
                reply = admin.receive()
                check_schema(reply, "error" if command == "nonsense" else command)

    def test_a_command_may_come_in_pieces(self):
        with self.daemon.admin() as admin:
            for byte in b'{"command":"ping"}\n':
                admin.send(bytes([byte]))
                wait_until(lambda: admin.unread() == 0, "the daemon reads what is there of the line")
            check_schema(admin.receive(), "ping")

    def test_what_is_no_request_is_refused_and_the_connection_goes_on(self):
        refused = [
            (b"", "invalid-request"), (b"ping", "invalid-request"), (b"{}", "invalid-request"), (b"[]", "invalid-request"),
            (b"null", "invalid-request"), (b'"ping"', "invalid-request"), (b"{", "invalid-request"),
            (b'{"command":"ping"} x', "invalid-request"), (b'{"command":"ping"}{"command":"ping"}', "invalid-request"),
            (b'{"command":"dance"}', "unknown-command"), (b'{"command":""}', "unknown-command"),
            (b'{"command":"PING"}', "unknown-command"), (b'{"Command":"ping"}', "invalid-request"),
            (b'{"command":1}', "invalid-request"), (b'{"command":null}', "invalid-request"),
            (b'{"command":["ping"]}', "invalid-request"), (b'{"command":"ping","extra":1}', "invalid-request"),
            (b'{"command":"ping","command":"ping"}', "invalid-request"), (b'{"command":"ping","pool":1}', "invalid-request"),
            (b'{"command":"trim","pool":"1"}', "invalid-request"), (b'{"command":"trim","pool":1.5}', "invalid-request"),
            (b'{"command":"trim","pool":-1}', "invalid-request"), (b'{"command":"trim","pool":1e400}', "invalid-request"),
            (b'{"command":"trim","pool":null}', "invalid-request"), (b'{"command":"trim","pool":true}', "invalid-request"),
            (b'{"command":"trim","pool":1,"pool":2}', "invalid-request"),
            (b'{"command":"trim","pool":999999}', "no-such-pool"),
            (b'{"command":"trim","session":1}', "invalid-request"), (b'{"command":"quarantine-release"}', "invalid-request"),
            (b'{"command":"quarantine-release","session":1,"session":1}', "invalid-request"),
            (b'{"command":"quarantine-release","session":999999}', "no-such-session"),
            (b'{"command":"parcels","session":1}', "invalid-request"),
            (b'{"command":"parcels-revoke","session":0}', "no-such-session"),
            (b'{"command":"parcels-revoke","session":12345}', "no-such-session"),
            (b'{"command":"unpublish"}', "invalid-request"), (b'{"command":"unpublish","name":1}', "invalid-request"),
            (b'{"command":"unpublish","name":"a","uid":4294967295}', "invalid-request"), (b'{"command":"names","name":"a"}', "invalid-request"),
            (b'{"command":"unpublish","name":"a"}', "no-such-name"), (b'{"command":"unpublish","name":"a","scope":"b"}', "no-such-scope"),
            (b'{"command":"pi\xffng"}', "invalid-request"), (b'{"command":"pi\x01ng"}', "invalid-request"),
            (b'{"command":"ping\x00"}', "invalid-request"), (b"[" * 10_000, "invalid-request"),
            (b'{"command":' * 1000 + b"1" + b"}" * 1000, "invalid-request"),
        ]
        with self.daemon.admin() as admin:
            for request, code in refused:
                with self.subTest(request[:60]):
                    admin.send(request + b"\n")
                    reply = admin.receive()
                    check_schema(reply, "error")
                    self.assertEqual(reply["error"]["code"], code, reply)
            self.assertNotIn("error", admin.ask("ping"))

    def test_a_long_line_is_served_and_one_too_long_ends_the_connection(self):
        with self.daemon.admin() as admin:
            admin.send(b'{"command":"ping"' + b" " * (LINE_MAX - 100) + b"}\n")
            check_schema(admin.receive(), "ping")
        for line in (b'{"command":"ping"' + b" " * LINE_MAX + b"}\n", b"x" * (LINE_MAX + 1)):
            with self.subTest(len(line)), self.daemon.admin() as admin:
                admin.send(line)
                reply = admin.receive()
                check_schema(reply, "error")
                self.assertEqual(reply["error"]["code"], "too-long")
                try:
                    self.assertIsNone(admin.receive())
                except ConnectionResetError:
                    pass  # the daemon closed with some of the line unread: the kernel says so
        self.assertNotIn("error", self.daemon.ask("ping"))

    def test_each_of_ten_thousand_broken_lines_gets_one_answer(self):
        chance = random.Random(20240607)
        valid = [b'{"command":"%s"}' % name for name in (b"ping", b"sessions", b"pools", b"trim")] + \
            [b'{"command":"trim","pool":1}', b'{"command":"trim","pool":4294967295}']
        codes = set()

        def broken():
            if chance.random() < 0.3:
                line = chance.randbytes(chance.randrange(300))
            else:
                line = bytearray(chance.choice(valid))
                for _ in range(chance.randrange(1, 5)):
                    place = chance.randrange(len(line) + 1)
                    what = chance.randrange(4)
                    if what == 0:
                        line[place:place] = chance.randbytes(chance.randrange(1, 4))
                    elif what == 1:
                        del line[place:place + chance.randrange(1, 4)]
                    elif what == 2:
                        line[place:place] = line[:place]
                    elif place < len(line):
                        line[place] ^= 1 << chance.randrange(8)
            return bytes(line).replace(b"\n", b" ")

        with self.daemon.admin() as good:
            for _ in range(100):
                with self.daemon.admin() as admin:
                    lines = [broken() for _ in range(100)]
                    admin.send(b"".join(line + b"\n" for line in lines) + b'{"command":"nonsense"}\n')
                    for line in lines:
                        reply = admin.receive()
                        self.assertIsNotNone(reply, line)
                        if "error" in reply:
                            check_schema(reply, "error")
                            codes.add(reply["error"]["code"])
                    self.assertEqual(admin.receive()["error"]["code"], "unknown-command")
                self.assertNotIn("error", good.ask("ping"))
        self.assertLessEqual({"invalid-request", "unknown-command", "no-such-pool"}, codes)
        self.assertNotIn("internal", codes)

    def test_a_client_that_never_reads_does_not_hold_up_the_others(self):
        deaf = Admin(self.daemon.admin_socket)
        deaf.socket.setblocking(False)
        try:
            for _ in range(2000):
                deaf.send(b'{"command":"stats"}\n' * 50)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass  # its queue is full, or the daemon has had enough
        self.assertNotIn("error", self.daemon.ask("stats"))
        deaf.close()
        self.assertNotIn("error", self.daemon.ask("stats"))

    def test_many_that_ask_at_once_all_get_their_answers(self):
        clients = [self.daemon.admin() for _ in range(40)]
        for client in clients:
            client.send(b'{"command":"ping"}\n{"command":"stats"}\n' * 20)
        for client in clients[::4]:  # some leave before it is their turn
            client.close()
        for client in (client for i, client in enumerate(clients) if i % 4 != 0):
            for _ in range(20):
                check_schema(client.receive(), "ping")
                check_schema(client.receive(), "stats")
            client.close()

    def test_connections_that_break_off_leave_no_descriptors(self):
        descriptors = f"/proc/{self.daemon.process.pid}/fd"
        self.daemon.ask("ping")
        before = len(os.listdir(descriptors))
        for end in range(0, 19):
            with self.daemon.admin() as admin:
                admin.send(b'{"command":"ping"}\n'[:end])
        wait_until(lambda: len(os.listdir(descriptors)) <= before, "the descriptors of broken connections are closed")

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to be another user")
    def test_other_users_may_read_and_not_change(self):
        os.chmod(self.daemon.admin_socket, 0o666)
        asked = """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.connect(sys.argv[1])
for command in (b'"stats"', b'"trim"', b'"quarantine-release","session":1', b'"parcels-revoke"'):
    s.sendall(b'{"command":' + command + b'}\\n')
    print(s.makefile("r").readline(), end="")
"""
        done = subprocess.run(["/usr/bin/python3", "-c", asked, str(self.daemon.admin_socket)], check=True,
                              capture_output=True, text=True, timeout=WAIT_S, user=65534, group=65534, extra_groups=[],
                              cwd="/")
        stats, trim, release, revoke = [json.loads(line) for line in done.stdout.splitlines()]
        check_schema(stats, "stats")
        check_schema(trim, "error")
        self.assertEqual(trim["error"]["code"], "permission-denied")
        check_schema(release, "error")
        self.assertEqual(release["error"]["code"], "permission-denied")
        self.assertEqual(revoke["error"]["code"], "permission-denied")


class Tool(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(CONFIG)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def test_each_command_works_for_people_and_for_programs(self):
        for command in ("ping", "stats", "pools", "sessions", "quota", "quarantine", "trim"):
            with self.subTest(command):
                done = ctl(command, "--json", socket_path=self.daemon.admin_socket)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                check_schema(json.loads(done.stdout), command)
                done = ctl(command, socket_path=self.daemon.admin_socket)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertNotEqual(done.stdout, "")

    def test_a_pool_that_is_not_there_is_refused(self):
        done = ctl("trim", "--pool=999999", socket_path=self.daemon.admin_socket)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no-such-pool", done.stderr)

    def test_trim_of_one_pool_speaks_of_that_pool(self):
        done = ctl("trim", "--pool=1", "--json", socket_path=self.daemon.admin_socket)
        self.assertEqual([pool["id"] for pool in json.loads(done.stdout)["pools"]], [1])


class Workers(unittest.TestCase):
    """The reports of the admin socket and the tool on a worker that holds a buffer of 1 MiB of each kind."""

    def setUp(self):
        self.daemon = Daemon(CONFIG)
        self.addCleanup(self.daemon.close)
        self.worker = self.enterContext(holding(self.daemon))
        self.addCleanup(self.end_worker)

    def end_worker(self):
        self.worker.stdin.close()
        self.worker.stdout.close()
        return self.worker.wait(WAIT_S)

    def pools(self, member):
        return [pool[member] for pool in self.daemon.ask("pools")["pools"]]

    def test_a_session_shows_what_it_holds(self):
        session, = self.daemon.ask("sessions")["sessions"]
        self.assertEqual((session["pid"], session["uid"], session["gid"], session["state"]),
                         (self.worker.pid, os.getuid(), os.getgid(), "active"))
        self.assertEqual((session["leases"], session["segments"]), (2, 2))
        leased = session["leased_bytes"]  # an extent may be larger than what is cut from it
        self.assertIn(leased, (2 * MIB, 3 * MIB, 4 * MIB))
        self.assertIn("holder", session["command"])
        self.assertEqual(sum(self.pools("leased_bytes")), leased)
        self.assertEqual(sum(self.pools("leases")), 2)
        self.assertEqual(self.daemon.ask("stats")["daemon"]["sessions"], 1)
        rows = ctl("sessions", socket_path=self.daemon.admin_socket).stdout.splitlines()
        shown, = [row for row in rows if "active" in row]
        self.assertEqual(session["in_use_bytes"] + session["cached_bytes"], leased)
        in_use = f"{session['in_use_bytes'] // MIB} MiB"
        for word in (str(self.worker.pid), "active", in_use, session["command"]):
            self.assertIn(word, shown)

    def test_a_users_quota_shows_what_its_workers_hold(self):
        quota, = self.daemon.ask("quota")["quotas"]
        self.assertEqual((quota["uid"], quota["sessions"], quota["leases"]), (os.getuid(), 1, 2))
        self.assertEqual(sum(pool["bytes"] for pool in quota["pools"]), sum(self.pools("leased_bytes")))
        shown = ctl("quota", socket_path=self.daemon.admin_socket).stdout
        self.assertIn("1 of 1008", shown)
        self.daemon.config.write_text(CONFIG + "[quota]\ndevice = 50%\nhost = 3MiB\nsessions = 2\n")
        self.daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.daemon.ask("quota")["quotas"][0]["sessions_limit"] == 2, "the reloaded quota is there")
        quota, = self.daemon.ask("quota")["quotas"]
        limits = {pool["id"]: pool["limit_bytes"] for pool in self.daemon.ask("pools")["pools"]}
        for pool in quota["pools"]:
            self.assertEqual(pool["bytes_limit"], 3 * MIB if pool["kind"] == "host" else limits[pool["id"]] // 2)

    def test_times_and_use_add_up(self):
        session, = self.daemon.ask("sessions")["sessions"]
        self.assertEqual(session["in_use_bytes"] + session["cached_bytes"], session["leased_bytes"])
        for pool in self.daemon.ask("pools")["pools"]:
            self.assertEqual(pool["in_use_bytes"] + pool["cached_bytes"], pool["leased_bytes"])
            times = pool["histograms"]
            self.assertEqual(times["growth_ns"]["count"], pool["grows"])
            # Each acquire has one answer. A client may ask again after a refusal.
            self.assertEqual(times["acquire_ns"]["count"] + times["waiting_ns"]["count"],
                             pool["acquires"] + pool["failures"])
            for each in times.values():
                self.assertEqual(sum(count for _, count in each["buckets"]), each["count"])
                if each["count"] > 0:
                    self.assertLessEqual(each["p50"], each["p90"])
                    self.assertLessEqual(each["p90"], each["p99"])
                    self.assertLessEqual(each["p50"], 2 * each["sum"])
        self.assertGreater(sum(pool["acquires"] for pool in self.daemon.ask("pools")["pools"]), 0)

    def test_a_low_water_mark_that_is_raised_has_a_pool_grow_ahead_of_demand(self):
        def reserved():
            return {pool["kind"]: pool["reserved_bytes"] for pool in self.daemon.ask("pools")["pools"]
                    if pool["leased_bytes"] > 0}

        before = reserved()
        self.assertEqual(set(before), {"device", "host"})
        self.daemon.config.write_text(CONFIG + "step = 8MiB\nlow_water = 100MiB\n")
        self.daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: reserved()["host"] > 100 * MIB, "the host pool grows")
        self.assertLess(reserved()["host"], 256 * MIB)
        self.assertEqual(reserved()["device"], before["device"])  # its mark is what it was
        unused = [pool for pool in self.daemon.ask("pools")["pools"] if pool["leased_bytes"] == 0]
        self.assertEqual([pool["reserved_bytes"] for pool in unused], [0] * len(unused))

    def test_a_farewell_returns_the_leases_and_trim_the_segments(self):
        self.assertEqual(self.end_worker(), 0)
        wait_until(lambda: sum(self.pools("leased_bytes")) + sum(self.pools("quarantined_bytes")) == 0,
                   "the leases return")
        self.assertEqual(self.daemon.ask("sessions")["sessions"], [])
        reserved = sum(self.pools("reserved_bytes"))
        self.assertGreater(reserved, 0)
        self.assertEqual(self.daemon.ask("trim")["trimmed_bytes"], reserved)
        wait_until(lambda: sum(self.pools("reserved_bytes")) == 0, "the driver has taken them back")

    def test_trim_leaves_what_is_in_use(self):
        leased = sum(self.pools("leased_bytes"))
        self.daemon.ask("trim")
        self.assertEqual(sum(self.pools("leased_bytes")), leased)
        self.assertGreaterEqual(sum(self.pools("reserved_bytes")), 2 * MIB)

    def test_the_memory_of_a_killed_worker_comes_back(self):
        self.worker.kill()
        wait_until(lambda: sum(self.pools("leased_bytes")) + sum(self.pools("quarantined_bytes")) == 0,
                   "the leases return")
        wait_until(lambda: self.daemon.ask("sessions")["sessions"] == [], "the session ends")


class Configuration(unittest.TestCase):
    def check(self, text, *arguments):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "gpupoold.conf"
            path.write_text(text)
            return subprocess.run([DAEMON, "--config", str(path), "--check-config", *arguments], check=False,
                                  capture_output=True, text=True, timeout=WAIT_S)

    def test_the_shipped_configuration_is_valid_with_and_without_its_comments(self):
        shipped = (SOURCE / "systemd/gpupoold.conf").read_text()
        self.assertEqual(self.check(shipped).returncode, 0)
        uncommented = re.sub(r"(?m)^# (\w+ = )", r"\1", shipped)
        self.assertGreater(uncommented.count("\n" + "limit = "), 1)
        done = self.check(uncommented)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_manual_pages_example_is_valid(self):
        page = (SOURCE / "docs/man/gpupoold.conf.5.scd").read_text()
        example = re.search(r"# EXAMPLE\n\n```\n(.*?)```", page, re.DOTALL).group(1)
        done = self.check(example, "--gpu", "sim", "--sim-memory", "80GiB")
        for complaint in done.stderr.splitlines():  # the machine has neither its GPUs nor its users, nor its memory perhaps
            self.assertRegex(complaint, "there is no (user|group) |there is no such GPU|GPUs are simulated|limit of 32 GiB is above the ")

    def test_mistakes_are_named_with_their_line(self):
        for text, number in (("[daemon]\n\ncolour = blue\n", 3), ("[daemon]\nsessions_limit = many\n", 2),
                             ("[devices]\nlimit = 1GiB\n", 1), ("[device]\nlimit = 120%\n", 2),
                             ("[host]\nhuge_pages = sometimes\n", 2), ("[device]\nexport = rdma\n", 2), ("[device]\nzero = never\n", 2), ("[host]\nexport = ipc\n", 2), ("[daemon]\nno value\n", 2)):
            with self.subTest(text):
                done = self.check(text)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(f"gpupoold.conf:{number}", done.stderr)

    def test_options_that_make_no_sense_are_refused(self):
        for arguments in (["--gpu", "toaster"], ["--sim-gpus", "0"], ["--sim-memory", "much"], ["--log-level", "loud"],
                          ["--nonsense"], ["--socket"], ["superfluous"]):
            with self.subTest(arguments):
                done = self.check("", *arguments)
                self.assertNotEqual(done.returncode, 0)
                self.assertNotEqual(done.stderr, "")

    def test_help_and_version(self):
        done = subprocess.run([DAEMON, "--help"], check=True, capture_output=True, text=True, timeout=WAIT_S)
        page = (SOURCE / "docs/man/gpupoold.8.scd").read_text()
        for option in re.findall(r"(?m)^(?:\*-h\*, )?\*(--[a-z-]+)\*", page):
            self.assertIn(option, done.stdout)
        done = subprocess.run([DAEMON, "--version"], check=True, capture_output=True, text=True, timeout=WAIT_S)
        self.assertRegex(done.stdout, r"\d+\.\d+\.\d+")

    def test_reload_changes_what_it_can_and_names_what_it_cannot(self):
        with Daemon(CONFIG) as daemon:
            def limits():
                return {pool["limit_bytes"] for pool in daemon.ask("pools")["pools"] if pool["kind"] == "host"}

            daemon.config.write_text("[daemon]\nsessions_limit = 7\n[host]\nlimit = 128MiB\n")
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: limits() == {128 * MIB}, "the reloaded limit is there")
            self.assertEqual(daemon.ask("stats")["daemon"]["sessions_limit"], 7)

            # A mistake changes nothing, not even what stands before it; the reload after it works.
            daemon.config.write_text("[host]\nlimit = 64MiB\nlimit = nonsense\n")
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "gpupoold.conf:3" in daemon.log_text(), "the log names the mistake")
            self.assertEqual(limits(), {128 * MIB})
            daemon.config.write_text("[host]\nlimit = 32MiB\n")
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: limits() == {32 * MIB}, "the daemon reloads after a mistake")

    def test_reserves_are_there_from_the_start_and_trim_tells_what_it_frees(self):
        with Daemon("[device]\nreserve = 64MiB\n[host]\nlimit = 256MiB\n") as daemon:
            pools = [pool for pool in daemon.ask("pools")["pools"] if pool["kind"] == "device"]
            self.assertEqual([pool["reserve_bytes"] for pool in pools], [64 * MIB] * 2)
            wait_until(lambda: all(pool["reserved_bytes"] >= 64 * MIB and pool["state"] == "ready"
                                   for pool in daemon.ask("pools")["pools"] if pool["kind"] == "device"),
                       "the reserve is made")
            reply = daemon.ask("trim")
            self.assertNotIn("error", reply)
            self.assertEqual(reply["trimmed_bytes"], sum(pool["trimmed_bytes"] for pool in reply["pools"]))


class Life(unittest.TestCase):
    def test_it_stops_cleanly_and_takes_its_sockets_along(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number), Daemon(CONFIG) as daemon:
                daemon.process.send_signal(number)
                self.assertEqual(daemon.process.wait(WAIT_S), 0, daemon.log_text())
                daemon.process = None
                self.assertFalse(daemon.socket.exists())
                self.assertFalse(daemon.admin_socket.exists())

    def test_closed_standard_streams_are_the_null_device(self):
        for closed in range(8):
            numbers = [number for number in range(3) if closed & 1 << number]
            redirections = " ".join(f"{number}>&-" for number in numbers)
            with self.subTest(closed=numbers), Daemon(prefix=["sh", "-c", f'exec "$@" {redirections}', "sh"]) as daemon:
                for number in numbers:
                    self.assertEqual(os.readlink(f"/proc/{daemon.process.pid}/fd/{number}"), "/dev/null")
                self.assertNotIn("error", daemon.ask("ping"))

    def test_the_tool_prints_nothing_to_a_socket(self):
        with Daemon() as daemon:
            for redirection, code in (("", 0), ("0>&-", 0), ("1>&-", 1), ("2>&-", 0), ("0>&- 2>&-", 0), ("0>&- 1>&- 2>&-", 1)):
                with self.subTest(redirection):
                    done = subprocess.run(["sh", "-c", f'"$0" "$@" {redirection}', CTL, f"--admin-socket={daemon.admin_socket}", "ping"],
                                          check=False, capture_output=True, text=True, timeout=WAIT_S)
                    self.assertEqual(done.returncode, code, done.stderr)

    def test_a_second_daemon_on_the_same_socket_is_refused(self):
        with Daemon(CONFIG) as daemon:
            second = subprocess.run(daemon.command(), check=False, capture_output=True, text=True, timeout=WAIT_S,
                                    env=daemon.variables())
            self.assertNotEqual(second.returncode, 0)
            self.assertIn(str(daemon.socket), second.stderr)
            self.assertEqual(daemon.ask("ping")["daemon"]["pid"], daemon.process.pid)

    def test_a_flood_beyond_the_descriptors_is_told_of_and_does_not_flood_the_log(self):
        with Daemon(prefix=["prlimit", "--nofile=64:64"]) as daemon:
            clients = []
            for _ in range(400):
                client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                client.settimeout(WAIT_S)
                client.connect(str(daemon.socket))
                clients.append(client)
            for client in clients[200:]:  # sent away, or let in and then closed by us
                client.close()
            wait_until(lambda: "no descriptors are left" in daemon.log_text(), "the log tells of it")
            for client in clients[:200]:
                client.close()

            def is_served():
                try:
                    return "daemon" in daemon.ask("ping")
                except OSError:
                    return False  # sent away
                except TypeError:
                    return False

            wait_until(is_served, "the daemon serves again")
            self.assertLess(daemon.log_text().count("no descriptors are left"), 20)

    def test_a_daemon_whose_descriptors_the_kernel_does_not_take_rests_and_goes_on_when_it_does(self):
        # The kernel lets a user without privileges have as many descriptors unread as the process that sends one may
        # have open. Those of the user's other programs count, too.
        unprivileged = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
        with Daemon(prefix=[*unprivileged, "prlimit", "--nofile=64:64"]) as daemon:
            host = next(pool["id"] for pool in daemon.ask("pools")["pools"] if pool["kind"] == "host")
            hello = struct.pack("<HHIQIHHII", 1, 0, 32, 1, 0x4C505047, 1, 1, 2, 0)  # no GPU: its end is its end
            acquire = struct.pack("<HHIQIIQQQ", 3, 0, 48, 2, host, 0, 4096, 0, WAIT_S * 10**9)

            def rests():
                """Whether the daemon used no processor between two looks, in which the client got nothing."""
                before = daemon.processor_ticks()
                select.select([client], [], [], 0.2)
                return daemon.processor_ticks() == before

            here, there = socket.socketpair()
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with here, there, client, open(os.devnull, "rb") as null:
                socket.send_fds(here, [b"?"], 200 * [null.fileno()])
                client.settimeout(WAIT_S)
                client.connect(str(daemon.socket))
                client.send(hello)
                client.recv(1024)
                client.send(acquire)
                wait_until(lambda: "does not take" in daemon.log_text(), "the log tells of it")
                self.assertEqual(select.select([client], [], [], 0)[0], [])
                wait_until(rests, "the daemon rests")
                here.close()
                there.close()
                self.assertEqual(struct.unpack_from("<H", client.recv(1024))[0], 66)  # LEASE

    def test_few_descriptors_bound_the_sessions_and_are_told_of(self):
        with Daemon(prefix=["prlimit", "--nofile=256:256"]) as daemon:
            stats = daemon.ask("stats")["daemon"]
            self.assertEqual(stats["descriptors_limit"], 256)
            sessions, segments = stats["sessions_limit"], stats["described_segments_limit"]
            self.assertTrue(8 < sessions < 30, sessions)
            self.assertIn(f"sessions_limit is 1024, and 256 descriptors (RLIMIT_NOFILE) allow {sessions} sessions", daemon.log_text())
            self.assertIn(f"256 descriptors (RLIMIT_NOFILE): up to {sessions} sessions, and {segments} segments", daemon.log_text())
            hello = struct.pack("<HHIQIHHII", 1, 0, 32, 1, 0x4C505047, 1, 1, 2, 0)
            clients, answers = [], []
            for _ in range(30):
                client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.addCleanup(client.close)
                client.settimeout(WAIT_S)
                client.connect(str(daemon.socket))
                client.send(hello)
                answers.append(struct.unpack_from("<H", client.recv(2048))[0])
                clients.append(client)
            self.assertEqual(answers, sessions * [64] + (30 - sessions) * [70])  # HELLO_REPLY, and ERROR, not an end of file
            self.assertNotIn("no descriptors are left", daemon.log_text())

    def test_its_soft_limit_of_descriptors_becomes_the_hard_one(self):
        with Daemon(prefix=["prlimit", "--nofile=100:4096"]) as daemon:
            self.assertEqual(daemon.ask("stats")["daemon"]["descriptors_limit"], 4096)
            self.assertEqual(resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE), (4096, 4096))

    def test_short_of_descriptors_it_serves_or_says_why_not(self):
        for limit in range(8, 100):
            with self.subTest(limit), Daemon(CONFIG, start=False) as daemon:
                ready, daemons = os.pipe()
                with open(daemon.log, "ab") as log:
                    daemon.process = subprocess.Popen(
                        [*daemon.command(), "--ready-fd", str(daemons)], pass_fds=[daemons], stdout=log, stderr=log,
                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
                        stdin=subprocess.DEVNULL, env=daemon.variables())
                os.close(daemons)
                self.assertTrue(select.select([ready], [], [], WAIT_S)[0])
                serves = os.read(ready, 1) == b"1"
                os.close(ready)
                if serves:
                    break
                self.assertNotEqual(daemon.process.wait(WAIT_S), 0)
                daemon.process = None
                self.assertIn("gpupoold: error: ", daemon.log_text())
        self.assertTrue(serves)

    def test_what_a_killed_daemon_left_behind_is_replaced(self):
        with Daemon(CONFIG) as daemon:
            daemon.kill()
            self.assertTrue(daemon.socket.exists())
            daemon.start()
            self.assertEqual(daemon.ask("ping")["daemon"]["pid"], daemon.process.pid)

    def test_a_file_that_is_no_socket_is_left_alone(self):
        with Daemon(CONFIG, start=False) as daemon:
            daemon.socket.write_text("precious")
            done = subprocess.run(daemon.command(), check=False, capture_output=True, text=True, timeout=WAIT_S,
                                  env=daemon.variables())
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(daemon.socket.read_text(), "precious")


class ServiceManager(unittest.TestCase):
    """The part of systemd, done by hand."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="gpupool-notify-")
        self.path = os.path.join(self.directory.name, "notify")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(self.path)

    def tearDown(self):
        self.notify.close()
        self.directory.cleanup()

    def wait_for(self, word, daemon):
        """Waits until the daemon has told the manager this, unless it ends first."""
        ended = os.pidfd_open(daemon.process.pid)
        try:
            while True:
                readable = select.select([self.notify, ended], [], [], WAIT_S)[0]
                if self.notify not in readable:
                    raise AssertionError(f"the daemon did not say {word}:\n" + daemon.log_text())
                if word in self.notify.recv(4096).decode().split("\n"):
                    return
        finally:
            os.close(ended)

    def test_it_says_when_it_is_ready_reloading_and_stopping(self):
        with Daemon(CONFIG, environment={"NOTIFY_SOCKET": self.path}) as daemon:
            self.wait_for("READY=1", daemon)
            daemon.process.send_signal(signal.SIGHUP)
            self.wait_for("RELOADING=1", daemon)
            self.wait_for("READY=1", daemon)
            daemon.process.send_signal(signal.SIGTERM)
            self.wait_for("STOPPING=1", daemon)
            self.assertEqual(daemon.process.wait(WAIT_S), 0)
            daemon.process = None

    def test_it_feeds_the_watchdog(self):
        with Daemon(CONFIG, environment={"NOTIFY_SOCKET": self.path, "WATCHDOG_USEC": "200000"}) as daemon:
            for _ in range(3):
                self.wait_for("WATCHDOG=1", daemon)

    def messages(self, daemon, last):
        """The messages of the daemon, with the number of descriptors of each message, up to the one that has this line. The
        descriptors are closed, which answers a barrier."""
        said = []
        while True:
            self.assertTrue(select.select([self.notify], [], [], WAIT_S)[0], daemon.log_text())
            text, fds, _, _ = socket.recv_fds(self.notify, 4096, 16)
            for fd in fds:
                os.close(fd)
            said.append((text.decode().split("\n"), len(fds)))
            if last in said[-1][0]:
                return said

    def test_it_stores_its_sockets_before_it_is_ready_and_removes_them_at_its_end(self):
        daemon = Daemon(CONFIG, environment={"NOTIFY_SOCKET": self.path, "FDSTORE": "10"}, start=False)
        self.addCleanup(daemon.close)
        with open(daemon.log, "ab") as log:
            daemon.process = subprocess.Popen(daemon.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=daemon.variables())
        said = self.messages(daemon, "READY=1")
        self.assertEqual(said, [*((["FDSTORE=1", "FDPOLL=0", f"FDNAME={name}"], 1) for name in ("LA", "LB", "EC")),
                                (["BARRIER=1"], 1), (["READY=1"], 0)])
        daemon.process.send_signal(signal.SIGINT)
        said = self.messages(daemon, "FDNAME=LB")
        if (["STOPPING=1"], 0) not in said:  # a thread says it
            said += self.messages(daemon, "STOPPING=1")
        self.assertCountEqual(said, [(["STOPPING=1"], 0), *((["FDSTOREREMOVE=1", f"FDNAME={name}"], 0) for name in ("LA", "LB"))])
        self.assertEqual(daemon.process.wait(WAIT_S), 0)
        daemon.process = None

    def test_it_leaves_everything_to_the_next_daemon_where_it_is_told_to_end(self):
        daemon = Daemon(CONFIG, environment={"NOTIFY_SOCKET": self.path, "FDSTORE": "10"})
        self.addCleanup(daemon.close)
        self.messages(daemon, "READY=1")
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.messages(daemon, "STOPPING=1"), [(["STOPPING=1"], 0)])
        self.assertEqual(daemon.process.wait(WAIT_S), 0)
        daemon.process = None
        self.assertTrue(daemon.socket.is_socket() and daemon.admin_socket.is_socket())
        self.assertFalse(select.select([self.notify], [], [], 0)[0])

    def test_it_stores_nothing_where_there_is_no_store(self):
        for variables in ({}, {"FDSTORE": "0"}, {"FDSTORE": "many"}):
            with self.subTest(variables), Daemon(CONFIG, environment={"NOTIFY_SOCKET": self.path, **variables}) as daemon:
                self.assertEqual(self.messages(daemon, "READY=1"), [(["READY=1"], 0)])
            while select.select([self.notify], [], [], 0)[0]:
                self.assertNotIn(b"FDSTORE", self.notify.recv(4096))

    def test_a_store_that_is_full_is_told_of(self):
        with Daemon(CONFIG, environment={"NOTIFY_SOCKET": self.path, "FDSTORE": "1"}, start=False) as daemon:
            with open(daemon.log, "ab") as log:
                daemon.process = subprocess.Popen(daemon.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=daemon.variables())
            stored = [lines for lines, n_fds in self.messages(daemon, "READY=1") if "FDSTORE=1" in lines]
            self.assertEqual(len(stored), 1)
            self.assertIn("a descriptor is not stored", daemon.log_text())

    def test_it_takes_its_sockets_from_the_manager(self):
        with Daemon(CONFIG, start=False) as daemon:
            listeners = []
            for kind, path in ((socket.SOCK_STREAM, daemon.admin_socket), (socket.SOCK_SEQPACKET, daemon.socket)):
                listener = socket.socket(socket.AF_UNIX, kind)
                listener.bind(str(path))
                listener.listen()
                listeners.append(listener)
            before = [os.stat(path).st_ino for path in (daemon.admin_socket, daemon.socket)]
            # The manager's descriptors are 3 and 4 and LISTEN_PID is the daemon's own, which a shell knows before it becomes
            # the daemon.
            copies = [os.dup(listener.fileno()) for listener in listeners]
            command = f"exec 3<&{copies[0]} 4<&{copies[1]}; LISTEN_PID=$$ exec \"$@\""
            environment = {**daemon.variables(), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "admin:data",
                           "NOTIFY_SOCKET": self.path}
            with open(daemon.log, "ab") as log:
                daemon.process = subprocess.Popen(["/bin/bash", "-c", command, "bash", *daemon.command()], pass_fds=copies,
                                                  env=environment, stdout=log, stderr=log)
            for copy in copies:
                os.close(copy)
            for listener in listeners:
                listener.close()
            self.wait_for("READY=1", daemon)
            self.assertEqual(daemon.ask("ping")["daemon"]["pid"], daemon.process.pid)
            self.assertEqual([setting["key"] for setting in daemon.ask("config")["settings"] if "service manager" in (setting["reason"] or "")],
                             ["socket", "admin_socket"])
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as data:
                data.connect(str(daemon.socket))
                wait_until(lambda: select.select([data], [], [], 0)[0] or daemon.ask("ping"), "it serves")
            self.assertEqual([os.stat(path).st_ino for path in (daemon.admin_socket, daemon.socket)], before)
            self.assertEqual(daemon.stop(), 0, daemon.log_text())
            # They are the manager's: the next daemon finds them where they were.
            self.assertTrue(daemon.socket.exists() and daemon.admin_socket.exists())


class PrivateLog(unittest.TestCase):
    """A private daemon writes to its program's standard error: warnings alone, unless its options say otherwise."""

    def test_a_private_daemon_is_silent_when_it_is_healthy(self):
        with Daemon(arguments=["--private"]) as daemon:
            daemon.ask("ping")
            self.assertNotIn(" info: ", daemon.log_text())
        for config, arguments in (("", ["--log-level", "info"]), ("[daemon]\nlog_level = info\n", [])):
            with Daemon(config, arguments=["--private", *arguments]) as daemon:
                self.assertIn(" info: ", daemon.log_text())

    def test_the_help_and_the_errors_name_the_same_kinds_of_gpus(self):
        with Daemon(start=False) as daemon:
            said = subprocess.run([*daemon.command()[:1], "--help"], check=True, capture_output=True, text=True, timeout=WAIT_S).stdout
            wrong = subprocess.run([*daemon.command()[:1], "--gpu", "tpu"], check=False, capture_output=True, text=True, timeout=WAIT_S).stderr
            kinds = re.search(r"none of ([a-z, ]+)", wrong)[1].split(", ")
            self.assertIn("--gpu " + "|".join(kinds), said)


if __name__ == "__main__":
    unittest.main()
