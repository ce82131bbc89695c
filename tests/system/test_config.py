#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The configuration of a running daemon: where each value comes from, what the daemon made of it, and what a reload changes."""
import pathlib
import re
import subprocess
import tempfile
import unittest

from gpupool_system import CTL, DAEMON, SOURCE, WAIT_S, Daemon

COMMON = ("daemon", "device", "host", "quota")
CONFIG = """\
[daemon]
sessions_limit = 256
[device]
limit = 50%
[device 1]
reserve = 64MiB
[host]
limit = 1000TiB
allow = user:root, group:no-such-group
[quota user:no-such-user]
sessions = 5
"""


def ctl(daemon, *arguments):
    return subprocess.run([CTL, "--admin-socket", str(daemon.admin_socket), *arguments], check=False, capture_output=True,
                          text=True, timeout=WAIT_S)


def settings(reply):
    return {(setting["section"], setting["key"]): setting for setting in reply["settings"]}


def of_pool(reply, number):
    pool, = (pool for pool in reply["pools"] if pool["id"] == number)
    return {setting["key"]: setting for setting in pool["settings"]}


class Origins(unittest.TestCase):
    def setUp(self):
        self.daemon = self.enterContext(Daemon(CONFIG))
        self.reply = self.daemon.ask("config")
        self.settings = settings(self.reply)

    def origin(self, section, key):
        setting = self.settings[section, key]
        return setting["value"], setting["source"], setting["line"]

    def test_each_value_has_its_origin(self):
        self.assertEqual(self.reply["file"], str(self.daemon.config))
        for place, origin in {("daemon", "sessions_limit"): ("256", "file", 2), ("device", "limit"): ("50%", "file", 4),
                              ("device 1", "reserve"): ("64MiB", "file", 6), ("host", "allow"): ("user:root, group:no-such-group", "file", 9),
                              ("quota user:no-such-user", "sessions"): ("5", "file", 11),
                              ("daemon", "sim_gpus"): ("2", "command-line", None), ("daemon", "gpu"): ("sim", "command-line", None),
                              ("daemon", "socket"): (str(self.daemon.socket), "command-line", None),
                              ("daemon", "session_leases_limit"): ("65536", "default", None), ("daemon", "group"): (None, "default", None),
                              ("host", "limit"): ("1000TiB", "file", 8), ("device", "step"): (None, "default", None)}.items():
            with self.subTest(place):
                self.assertEqual(self.origin(*place), origin)
        self.assertNotIn(("device 1", "limit"), self.settings)

    def test_what_the_daemon_made_of_it_is_told_with_its_reason(self):
        unset = self.settings["quota", "sessions"]
        self.assertEqual((unset["value"], unset["in_force"]), (None, "252"))
        self.assertIn("no such user", self.settings["quota user:no-such-user", "sessions"]["reason"])
        limit = of_pool(self.reply, 1)["limit"]
        self.assertEqual((limit["section"], limit["value"], limit["in_force"], limit["reason"]),
                         ("device", "50%", "512MiB", "of the 1 GiB that the GPU has"))
        reserve = of_pool(self.reply, 2)["reserve"]
        self.assertEqual((reserve["section"], reserve["value"], reserve["source"], reserve["line"]), ("device 1", "64MiB", "file", 6))
        self.assertRegex(of_pool(self.reply, 3)["limit"]["reason"], "^cut to the .* that the (node has|daemon's control group)")

    def test_every_user_may_ask(self):
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", CTL, "--admin-socket",
                               str(self.daemon.admin_socket), "config"], check=False, capture_output=True, text=True, timeout=WAIT_S)
        if "setpriv: " in done.stderr:
            self.skipTest("this takes root")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"{self.daemon.config}:4", done.stdout)

    def test_the_tool_prints_a_file_that_means_the_same(self):
        done = ctl(self.daemon, "config")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, rf"(?m)^limit = 50% +; {re.escape(str(self.daemon.config))}:4$")
        self.assertRegex(done.stdout, r"(?m)^sim_gpus = 2 +; command line")
        with tempfile.TemporaryDirectory() as directory:
            printed = pathlib.Path(directory) / "printed.conf"
            printed.write_text(done.stdout)
            checked = subprocess.run([DAEMON, "--config", str(printed), "--check-config"], check=False, capture_output=True, text=True,
                                     timeout=WAIT_S)
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_descriptors_that_do_not_suffice_are_the_reason(self):
        with Daemon(CONFIG, prefix=["prlimit", "--nofile=256:256", "--"]) as daemon:
            limit = settings(daemon.ask("config"))["daemon", "sessions_limit"]
            self.assertEqual((limit["value"], limit["source"]), ("256", "file"))
            self.assertLess(int(limit["in_force"]), 256)
            self.assertEqual(limit["reason"], "256 descriptors (RLIMIT_NOFILE) allow no more")


class Pages(unittest.TestCase):
    def test_the_manual_page_and_the_sample_have_each_key_with_its_default(self):
        page = (SOURCE / "docs/man/gpupoold.conf.5.scd").read_text()
        sample = (SOURCE / "systemd/gpupoold.conf").read_text()
        with Daemon() as daemon:
            table = settings(daemon.ask("config"))
        self.assertEqual({section for section, _ in table}, set(COMMON))
        entries = {}
        for title, text in re.findall(r"(?ms)^# \[(DAEMON|DEVICE|QUOTA)[^\n]*\n(.*?)(?=^# [A-Z\[])", page):
            for heads, body in re.findall(r"(?m)^((?:\*\w+\* = [^\n]*)+)\n((?:\t[^\n]*\n|\n(?=\t))+)", text):
                for key in re.findall(r"\*(\w+)\* = ", heads):
                    entries[title, key] = body
        for (section, key), setting in table.items():
            with self.subTest(section=section, key=key):
                body = entries.get(({"host": "DEVICE"}.get(section, section.upper()), key))
                self.assertIsNotNone(body, "the manual page does not have the key")
                self.assertEqual("restart" in body, setting["needs_restart"])
                if setting["source"] == "default" and setting["value"] not in (None, "0", "all", "unlimited"):
                    value = setting["value"]
                    self.assertTrue(value in body or re.sub(r"(\d)(\w)", r"\1 \2", value, count=1) in body, f"{value} is not in: {body}")
                line = re.search(rf"(?ms)^\[{section}\].*?^# ({key} = [^\n]*)", sample)
                if line is not None and setting["needs_restart"]:
                    self.assertIn("; restart", line[1])
        known = {({"host": "DEVICE"}.get(section, section.upper()), key) for section, key in table}
        self.assertEqual(set(entries), known)


if __name__ == "__main__":
    unittest.main()
