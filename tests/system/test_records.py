# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: its file, and what gpupoolctl events and history show of it, while the daemon lives and after its end."""
import json
import os
import pathlib
import select
import subprocess
import time
import unittest

from gpupool_system import CTL, WAIT_S, Daemon, ctl, holding

MIB = 1 << 20


def events(daemon, *arguments):
    result = ctl("events", "--json", *arguments, socket_path=daemon.admin_socket)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def kinds(found):
    return [event["kind"] for event in found]


class Events(unittest.TestCase):
    def test_the_life_of_a_process_is_recorded(self):
        with Daemon() as daemon:
            with holding(daemon) as holder:
                pid = holder.pid
                found = events(daemon, "--pid", str(pid))
                self.assertEqual(found[0]["kind"], "open")
                self.assertEqual({event["name"] for event in found}, {"system_holder"})
                leases = [event for event in found if event["kind"] == "lease"]
                self.assertTrue(leases and all(lease["leased_bytes"] >= lease["bytes"] >= MIB for lease in leases), found)
                self.assertEqual(events(daemon, "--pid", str(pid), "--pool", "1"),
                                 [event for event in found if event["pool"] == 1])
                self.assertEqual(events(daemon, "--user", str(os.getuid() + 1)), [])
                self.assertEqual(events(daemon, "--user", str(os.getuid())), found)
                holder.stdin.close()
                holder.wait(WAIT_S)
            self.assertIn("farewell", kinds(events(daemon, "--pid", str(pid))))

    def test_a_process_has_the_name_that_it_says(self):
        with Daemon() as daemon, holding(daemon, GPUPOOL_CLIENT_NAME="worker \x1b[31m7"):
            self.assertEqual(daemon.ask("sessions")["sessions"][0]["command"], "worker ?[31m7")
            self.assertEqual(events(daemon)[-1]["name"], "worker ?[31m7")

    def test_a_death_is_told_from_a_farewell(self):
        with Daemon() as daemon:
            with holding(daemon) as holder:
                holder.kill()
                holder.wait(WAIT_S)
                end = time.monotonic() + WAIT_S
                while "return" not in kinds(events(daemon)):
                    self.assertLess(time.monotonic(), end, events(daemon))
            found = events(daemon, "--pid", str(holder.pid))
            self.assertIn("death", kinds(found))
            self.assertNotIn("farewell", kinds(found))
            result = ctl("events", socket_path=daemon.admin_socket)
            self.assertRegex(result.stdout, r"session \d+ ended without a farewell; \d+ MiB in quarantine")
            result = ctl("history", "--json", socket_path=daemon.admin_socket)
            hours = [json.loads(line) for line in result.stdout.splitlines()]
            self.assertEqual({hour["pool"] for hour in hours}, {1, 2, 3}, hours)
            self.assertGreaterEqual(sum(hour["deaths"] for hour in hours), 1, hours)

    def test_records_outlive_the_daemon_and_the_next_one_goes_on(self):
        with Daemon() as daemon:
            with holding(daemon) as holder:
                daemon.kill()
                first = events(daemon)
                self.assertEqual(first[0]["kind"], "start")
                self.assertIn("lease", kinds(first))
                holder.kill()
            daemon.start()
            second = events(daemon)
            self.assertEqual(second[: len(first)], first)
            self.assertEqual(second[len(first)]["kind"], "start")
            self.assertEqual([event["number"] for event in second], list(range(1, len(second) + 1)))
            self.assertEqual(daemon.stop(), 0)
            self.assertEqual(events(daemon)[-1]["kind"], "stop")

    def test_another_shape_begins_anew_and_keeps_the_old_file(self):
        with Daemon() as daemon:
            self.assertEqual(daemon.stop(), 0)
            old = events(daemon)
            daemon.config.write_text("[daemon]\nrecords = 1MiB\nhistory_hours = 5\n")
            daemon.start()
            self.assertEqual(events(daemon)[0]["number"], 1)
            self.assertIn("has room for 16384 records and 5 hours", daemon.log_text())
            file = daemon.admin_socket.with_suffix(".records")
            result = ctl("events", "--json", f"--records={file}.old")
            self.assertEqual([json.loads(line) for line in result.stdout.splitlines()], old)

    def test_what_is_no_file_of_records_is_told(self):
        with Daemon(start=False) as daemon:
            file = pathlib.Path(daemon.directory.name) / "admin.records"
            for content in (b"", b"x" * 40000, b"gpupool records\1" + b"\xff" * 40000):
                file.write_bytes(content)
                for command in ("events", "history"):
                    result = ctl(command, socket_path=daemon.admin_socket)
                    self.assertEqual((result.returncode, result.stdout), (3, ""))
                    self.assertIn("no file of records", result.stderr)
            file.unlink()
            result = ctl("events", socket_path=daemon.admin_socket)
            self.assertEqual(result.returncode, 3)
            self.assertIn("No such file or directory", result.stderr)

    def test_where_no_file_can_be_made_the_daemon_serves_all_the_same(self):
        with Daemon(start=False) as daemon:
            (pathlib.Path(daemon.directory.name) / "admin.records").mkdir()
            daemon.start()
            with holding(daemon):
                self.assertRegex(daemon.log_text(), r"warning: \S+/admin.records: Is a directory: nothing is recorded")

    def test_a_file_that_another_daemon_writes_is_left_to_it(self):
        with Daemon() as daemon, Daemon(start=False) as other:
            link = pathlib.Path(other.directory.name) / "admin.records"
            link.symlink_to(daemon.admin_socket.with_suffix(".records"))
            other.start()
            self.assertRegex(other.log_text(), r"warning: \S+/admin.records: Too many levels of symbolic links: nothing is")

    def test_followers_see_what_comes_and_the_next_daemon(self):
        with Daemon() as daemon:
            with subprocess.Popen([CTL, f"--admin-socket={daemon.admin_socket}", "events", "--follow", "--json"],
                                  stdout=subprocess.PIPE, bufsize=0) as follower:
                def read_until(kind):
                    end = time.monotonic() + WAIT_S
                    while select.select([follower.stdout], [], [], max(0, end - time.monotonic()))[0]:
                        if json.loads(follower.stdout.readline())["kind"] == kind:
                            return
                    self.fail(f"no {kind} came")

                read_until("start")
                with holding(daemon):
                    read_until("lease")
                read_until("farewell")
                daemon.stop()
                read_until("stop")
                daemon.config.write_text("[daemon]\nrecords = 1MiB\n")
                daemon.start()
                read_until("start")
                follower.terminate()

    def test_an_operator_ends_a_session(self):
        with Daemon() as daemon, holding(daemon) as holder:
            session = daemon.ask("sessions")["sessions"][0]
            leases = daemon.ask("leases", session=session["id"])
            self.assertEqual((leases["total"], {lease["pid"] for lease in leases["leases"]}), (session["leases"], {holder.pid}))
            self.assertEqual(daemon.ask("leases", session=session["id"] + 1), {"leases": [], "total": 0})
            result = ctl("session", "end", str(session["id"]), socket_path=daemon.admin_socket)
            self.assertEqual(result.returncode, 1)
            self.assertIn("nothing was ended: there is no terminal to ask on", result.stderr)
            result = ctl("session", "end", str(session["id"]), "--yes", socket_path=daemon.admin_socket)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(f"session {session['id']} ended: pid {holder.pid} (system_holder)", result.stdout)
            ended = daemon.ask("sessions")["sessions"][0]
            self.assertEqual((ended["state"], ended["leased_bytes"]), ("quarantined", session["leased_bytes"]))
            result = ctl("session", "end", str(session["id"]), "--yes", socket_path=daemon.admin_socket)
            self.assertEqual(result.returncode, 1)
            self.assertIn("no active session has this id", result.stderr)
            self.assertEqual(kinds(events(daemon, "--pid", str(holder.pid)))[-4:].count("force"), 1)

    def test_the_words_behind_session(self):
        for words, told in ((["end"], "come 'end' and a session's number"), (["stop", "7"], "come 'end' and"), (["end", "x"], "'x' is not a session"),
                            (["end", "7", "8"], "come 'end' and")):
            result = ctl("session", *words)
            self.assertEqual(result.returncode, 2)
            self.assertIn(told, result.stderr)

    def test_times_that_are_none_are_refused(self):
        for option in ("--since=never", "--until=25:99", "--since=-1h", "--pid=0", "--pid=x", "--user=nobody-of-this-name"):
            result = ctl("events", option)
            self.assertEqual((result.returncode, result.stdout), (2, ""), option)
            self.assertIn(option.split("=")[0], result.stderr)
        result = ctl("stats", "--since=1h")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--since is for events, history, record, report only", result.stderr)

    def test_times_choose(self):
        with Daemon() as daemon:
            self.assertTrue(events(daemon, "--since=yesterday"))
            self.assertTrue(events(daemon, "--since=1h", "--until=2100-01-01"))
            self.assertEqual(events(daemon, "--until=2001-01-01 14:05"), [])
            self.assertEqual(events(daemon, "--since=2100-01-01T00:00"), [])


if __name__ == "__main__":
    unittest.main()
