#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpupoolctl record export: what programs that draw records get, beside what the records say."""
import collections
import json
import os
import pathlib
import pickle
import pickletools
import pty
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from gpupool_system import CTL, Daemon, ctl, holding, wait_until  # noqa: E402

NAME = 'wörker "1"\\<b>'


def export(daemon, *options):
    done = subprocess.run([CTL, f"--admin-socket={daemon.admin_socket}", "record", "export", *options], capture_output=True, check=True)
    return done.stdout


def events(daemon):
    return [json.loads(line) for line in ctl("--json", "events", socket_path=daemon.admin_socket).stdout.splitlines()]


class Exports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A process with a farewell, one that is killed, and one that goes on: of two pools."""
        cls.daemon = Daemon("[host]\nlimit = 256MiB\n")
        with holding(cls.daemon, GPUPOOL_CLIENT_NAME=NAME) as holder:
            holder.stdin.close()
        with holding(cls.daemon) as killed:
            killed.kill()
        wait_until(lambda: not cls.daemon.ask("sessions")["sessions"], "the quarantine ends")
        cls.living = holding(cls.daemon)
        cls.living.__enter__()
        cls.events = events(cls.daemon)

    @classmethod
    def tearDownClass(cls):
        cls.living.__exit__(None, None, None)
        cls.daemon.close()

    def test_perfetto_gets_counters_spans_and_marks(self):
        trace = json.loads(export(self.daemon, "--perfetto"))["traceEvents"]
        kinds = collections.Counter(record["kind"] for record in self.events)
        names = {event["args"]["name"] for event in trace if event["name"] == "process_name"}
        self.assertIn("gpupoold", names)
        self.assertTrue(any(name.startswith("wörker \"1\"\\<b>") for name in names), names)
        for kind in ("start", "grow", "death", "retire"):
            self.assertEqual(sum(event["name"] == kind for event in trace), kinds[kind], kind)
        spans = [event for event in trace if event["ph"] in "be"]
        self.assertEqual(collections.Counter(event["ph"] for event in spans), {"b": kinds["serve"] + kinds["return"], "e": kinds["serve"] + kinds["return"]})
        for span in {event["id"] for event in spans}:
            begin, end = (event for event in spans if event["id"] == span)
            self.assertLessEqual(begin["ts"], end["ts"])
        last = {}  # of each process and pool
        for event in trace:
            if event["ph"] == "C" and event["name"].startswith("has"):
                last[event["pid"], event["name"]] = event["args"]["held"] + event["args"]["behind fences"]
        session, = self.daemon.ask("sessions")["sessions"]
        expected = {(session["pid"], f"has of pool {pool['id']}"): pool["leased_bytes"] for pool in session["pools"]}
        self.assertEqual({key: value for key, value in last.items() if value > 0}, {key: value for key, value in expected.items() if value > 0})
        lent = {}
        for event in trace:
            if event["name"].endswith("lends"):
                lent[event["name"]] = event["args"]["bytes"]
        self.assertEqual({f"pool {pool['id']} lends": pool["leased_bytes"] for pool in self.daemon.ask("pools")["pools"] if f"pool {pool['id']} lends" in lent}, lent)

    def replay(self, trace):
        """The bytes of each category that are not free at the end, as the page adds them up."""
        blocks, addresses = {}, set()
        for event in trace:
            match event["action"]:
                case "alloc":
                    self.assertNotIn(event["addr"], addresses)
                    addresses.add(event["addr"])
                    blocks[event["addr"]] = event
                case "free_requested":
                    self.assertEqual(blocks[event["addr"]]["size"], event["size"])
                case "free_completed":
                    self.assertEqual(blocks.pop(event["addr"])["size"], event["size"])
        left = collections.Counter()
        for event in blocks.values():
            left[event["category"]] += event["size"]
        return left

    def test_memory_viz_gets_blocks_of_processes(self):
        data = export(self.daemon, "--memory-viz")
        opcodes = {opcode.name for opcode, _, _ in pickletools.genops(data)}  # the page's reader knows few
        self.assertLessEqual(opcodes, {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "BINUNICODE", "LONG1", "SETITEM", "APPEND", "STOP"})
        snapshot = pickle.loads(data)
        pools = self.daemon.ask("pools")["pools"]
        self.assertEqual((len(snapshot["device_traces"]), [segment["device"] for segment in snapshot["segments"]]), (len(pools), list(range(len(pools)))))
        session, = self.daemon.ask("sessions")["sessions"]
        has = {pool["id"]: pool["leased_bytes"] for pool in session["pools"]}
        for pool, trace in zip(pools, snapshot["device_traces"], strict=True):
            left = self.replay(trace)
            expected = {f"{session['pid']} {session['command']}": has[pool["id"]]} if has.get(pool["id"], 0) > 0 else {}
            self.assertEqual(left, expected)
            self.assertEqual(trace[0], {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "category": "unknown"})
        categories = {event["category"] for trace in snapshot["device_traces"] for event in trace}
        self.assertTrue(any("wörker" in category for category in categories), categories)
        self.assertTrue(all(event["frames"][0]["name"].startswith("lease ") for trace in snapshot["device_traces"] for event in trace[1:]))

    def test_the_filters_choose_what_is_printed(self):
        session, = self.daemon.ask("sessions")["sessions"]
        trace = json.loads(export(self.daemon, "--perfetto", "--pid", str(session["pid"])))["traceEvents"]
        self.assertEqual({event["pid"] for event in trace}, {0, session["pid"]})
        snapshot = pickle.loads(export(self.daemon, "--memory-viz", "--pid", str(session["pid"])))
        self.assertEqual({event["category"] for trace in snapshot["device_traces"] for event in trace}, {"unknown", f"{session['pid']} {session['command']}"})

    def test_wrong_usage_is_told(self):
        for words, text in (((), "name the format"), (("--perfetto", "x"), "after 'record'"),):
            done = ctl("record", "export", *words, socket_path=self.daemon.admin_socket)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr)
        self.assertEqual(ctl("record", "--perfetto", socket_path=self.daemon.admin_socket).returncode, 2)
        first, second = pty.openpty()
        done = subprocess.run([CTL, f"--admin-socket={self.daemon.admin_socket}", "record", "export", "--perfetto"], stdout=second, stderr=subprocess.PIPE, check=False)
        os.close(first)
        os.close(second)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"not for a terminal", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
