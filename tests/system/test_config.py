#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The configuration of a running daemon: where each value comes from, what the daemon made of it, and what a reload changes."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

from gpupool_system import CTL, DAEMON, SOURCE, WAIT_S, Daemon, check_schema
from test_daemon import wait_until

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

    def test_the_daemon_prints_what_a_start_would_have(self):
        done = subprocess.run([*self.daemon.command(), "--print-config"], check=False, capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        told = ctl(self.daemon, "config").stdout

        def lines(text):  # without what the running daemon made of it, which stands behind another ';'
            return [";".join(line.split(";")[:2]).replace(" (restart)", "").rstrip() for line in text.splitlines() if re.match(r"\[|(# )?\w+ =", line)]

        self.assertEqual(lines(done.stdout), lines(told))
        wrong = subprocess.run([*self.daemon.command(), "--print-config", "--sim-gpus", "0"], check=False, capture_output=True, text=True, timeout=WAIT_S)
        self.assertNotEqual(wrong.returncode, 0)
        self.assertEqual(wrong.stdout, "")

    def test_descriptors_that_do_not_suffice_are_the_reason(self):
        with Daemon(CONFIG, prefix=["prlimit", "--nofile=256:256", "--"]) as daemon:
            limit = settings(daemon.ask("config"))["daemon", "sessions_limit"]
            self.assertEqual((limit["value"], limit["source"]), ("256", "file"))
            self.assertLess(int(limit["in_force"]), 256)
            self.assertEqual(limit["reason"], "256 descriptors (RLIMIT_NOFILE) allow no more")


class Reload(unittest.TestCase):
    """A reload tells the caller and the log what it changes, and what needs a restart."""

    def setUp(self):
        self.daemon = self.enterContext(Daemon("[daemon]\nsessions_limit = 256\n[device]\nlimit = 50%\n[device 1]\nexport = ipc\n"
                                               "[host]\nlimit = 64MiB\n"))

    def reload(self, text):
        self.daemon.config.write_text(text)
        return self.daemon.ask("reload")

    def changes(self, reply):
        return [(c["section"], c["key"], c["before"], c["after"], c["line"], c["needs_restart"]) for c in reply["changes"]]

    def limit(self, number):
        pool, = (pool for pool in self.daemon.ask("pools")["pools"] if pool["id"] == number)
        return pool["limit_bytes"]

    def test_changes_are_told_and_hold_when_the_answer_comes(self):
        reply = self.reload("[daemon]\nsessions_limit = 128\nlog_level = info\n[device]\nlimit = 25%\n[quota user:0]\nsessions = 5\n"
                            "[device 0]\nreserve = 0\n[host]\nlimit = 64MiB\n")
        self.assertTrue(reply["applied"])
        self.assertEqual(self.changes(reply), [("daemon", "sessions_limit", "256", "128", 2, False), ("device", "limit", "50%", "25%", 5, False),
                                               ("quota user:0", "sessions", "inherited", "5", 7, False)])
        self.assertEqual(reply["changes_total"], 3)
        self.assertEqual(self.limit(1), 256 << 20)
        self.assertIn("[device] limit: 50% -> 25% ", self.daemon.log_text())
        self.assertEqual(self.daemon.ask("reload")["changes"], [])
        reply = self.reload("")
        self.assertEqual(self.changes(reply), [("daemon", "sessions_limit", "128", "1024", None, False), ("device", "limit", "25%", "90%", None, False),
                                               ("host", "limit", "64MiB", "50%", None, False), ("quota user:0", "sessions", "5", "inherited", None, False)])

    def test_a_key_that_needs_a_restart_is_named_and_stays_as_it_was(self):
        text = ("[daemon]\nsessions_limit = 256\ngroup = 0\n[device]\nlimit = 50%\n[device 0]\nexport = vmm\n[host]\nlimit = 32MiB\nenabled = no\n")
        for _ in range(2):  # a second reload tells of them again
            reply = self.reload(text)
            self.assertTrue(reply["applied"])
            self.assertEqual([change for change in self.changes(reply) if change[5]], [
                ("daemon", "group", None, "0", 3, True), ("host", "enabled", "yes", "no", 10, True), ("device 0", "export", "ipc", "vmm", 7, True)])
            self.assertIn("[device 0] export: ipc -> vmm", self.daemon.log_text())
            self.assertEqual(self.limit(3), 32 << 20)  # the other keys change
        config = settings(self.daemon.ask("config"))
        self.assertEqual((config["host", "enabled"]["value"], config["daemon", "group"]["value"]), ("yes", None))
        self.assertEqual({pool["export"] for pool in self.daemon.ask("pools")["pools"] if pool["kind"] == "device"}, {"ipc"})
        self.assertEqual(self.reload(text.replace("vmm", "ipc").replace("enabled = no\n", "").replace("group = 0\n", ""))["changes"], [])

    def test_a_value_that_waits_for_a_restart_has_its_own_origin(self):
        with Daemon("[device 0]\nexport = vmm\n[device 1]\nreserve = 0\n") as daemon:
            daemon.config.write_text("[device 1]\nexport = vmm\n")
            reply = daemon.ask("reload")
            self.assertEqual(self.changes(reply), [("device 1", "export", "ipc", "vmm", 2, True), ("device 0", "export", "vmm", "ipc", None, True)])
            config = settings(daemon.ask("config"))
            self.assertEqual((config["device 0", "export"]["value"], config["device 0", "export"]["source"]), ("vmm", "kept"))
            self.assertNotIn(("device 1", "export"), config)
            waiting = [config["device 0", "export"][f"next_{name}"] for name in ("value", "source", "line")]
            self.assertEqual(waiting, ["ipc", "default", None])
            pools = {pool["name"]: settings(pool) for pool in daemon.ask("config")["pools"]}
            second = next(each for name, each in pools.items() if name.endswith("GPU 1"))
            self.assertEqual([value["next_value"] for (_, key), value in second.items() if key == "export"], ["vmm"])
            said = ctl(daemon, "config").stdout
            self.assertIn("kept until a restart (default: ipc from the next start)", said)
            self.assertIn(f"{daemon.config}:2: vmm from the next start", said)

    def test_a_default_that_waits_for_a_restart_tells_the_next_value(self):
        with Daemon() as daemon:
            daemon.config.write_text("[daemon]\ngroup = 0\n")
            daemon.ask("reload")
            group = settings(daemon.ask("config"))["daemon", "group"]
            self.assertEqual((group["source"], group["next_value"], group["next_source"], group["next_line"]), ("default", "0", "file", 2))
            self.assertIn(f"default ({daemon.config}:2: 0 from the next start)", ctl(daemon, "config").stdout)
            check_schema(daemon.ask("config"), "config")
            daemon.config.write_text("")
            daemon.ask("reload")
            self.assertIsNone(settings(daemon.ask("config"))["daemon", "group"]["next_source"])

    def test_a_mistake_changes_nothing_and_all_are_told(self):
        before = self.daemon.ask("config")
        reply = self.reload("[host]\nlimit = 32MiB\nlimt = 3\n[device]\nlimit = 10%\nreserve = 4GB\n")
        self.assertFalse(reply["applied"])
        path = str(self.daemon.config)
        self.assertEqual([text.split(": ")[0] for text in reply["mistakes"]], [f"{path}:3", f"{path}:6"])
        self.assertEqual((reply["mistakes_total"], reply["changes"], reply["changes_total"]), (2, [], 0))
        self.assertEqual(self.daemon.ask("config"), before)
        self.assertEqual((self.limit(1), self.limit(3)), (512 << 20, 64 << 20))
        for place in (f"{path}:3: ", f"{path}:6: "):
            self.assertIn(place, self.daemon.log_text())
        self.daemon.config.unlink()
        self.assertIn("No such file", self.daemon.ask("reload")["mistakes"][0])

    def test_the_tool_tells_the_outcome_and_its_exit_status_does(self):
        self.daemon.config.write_text("[device]\nlimit = 25%\n")
        done = ctl(self.daemon, "reload")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"[device] limit: 50% -> 25% ({self.daemon.config}:2)\n", done.stdout)
        self.daemon.config.write_text("[devcie]\nlimit = 25%\n")
        done = ctl(self.daemon, "reload")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{self.daemon.config}:1: there is no section [devcie]", done.stdout)
        self.assertIn("stays as it was", done.stdout)

    def test_warnings_go_to_the_one_that_asks(self):
        text = "[host]\nlimit = 1000TiB\n[quota user:no-such-user]\nsessions = 5\n"
        reply = self.reload(text + "[device 1]\nreserve = 0\n[device 7]\nlimit = 1GiB\n")
        self.assertTrue(reply["applied"])
        self.assertEqual(reply["warnings_total"], 3)
        self.assertEqual(reply["warnings"][2], "[device 7]: there is no such GPU; the section is not used")
        config = settings(self.daemon.ask("config"))
        self.assertIn("no such GPU", config["device 7", "limit"]["reason"])
        self.assertIsNone(config["device 1", "reserve"]["reason"])
        reply = self.reload(text)  # the machine is known after a second one, too
        self.assertEqual(reply["warnings_total"], 2)
        self.assertIn("there is no user 'no-such-user'", reply["warnings"][0])
        self.assertIn("its limit of 1000 TiB is above the ", reply["warnings"][1])

    def test_each_of_several_callers_has_an_answer(self):
        """Also one that asks while the file is being read: a file system that does not answer yet."""
        self.daemon.config.unlink()
        os.mkfifo(self.daemon.config)
        with self.daemon.admin() as first, self.daemon.admin() as second, self.daemon.admin() as gone:
            first.send(b'{"command":"reload"}\n')
            with open(self.daemon.config, "w") as file:  # opens when the daemon reads
                second.send(b'{"command":"reload"}\n')
                gone.send(b'{"command":"reload"}\n{"command":"ping"}\n')
                gone.close()
                wait_until(lambda: second.unread() == 0, "the daemon has the request")
                self.daemon.ask("ping")
                self.daemon.config.unlink()
                self.daemon.config.write_text("[device]\nlimit = 12%\n")
                file.write("[device]\nlimit = 13%\n")
            self.assertEqual([change["after"] for change in first.receive()["changes"] if change["key"] == "limit" and change["section"] == "device"], ["13%"])
            self.assertEqual([change["after"] for change in second.receive()["changes"]], ["12%"])
            self.assertEqual(settings(first.ask("config"))["device", "limit"]["value"], "12%")

    def test_a_daemon_that_stops_meanwhile_ends_well(self):
        self.daemon.config.unlink()
        os.mkfifo(self.daemon.config)
        with self.daemon.admin() as admin:
            admin.send(b'{"command":"reload"}\n')
            with open(self.daemon.config, "w") as file:
                self.daemon.process.send_signal(signal.SIGTERM)
                file.write("[device]\nlimit = 13%\n")

    def test_only_operators_may_ask(self):
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", CTL, "--admin-socket",
                               str(self.daemon.admin_socket), "reload"], check=False, capture_output=True, text=True, timeout=WAIT_S)
        if "setpriv: " in done.stderr:
            self.skipTest("this takes root")
        self.assertEqual(done.returncode, 1)
        self.assertIn("permission-denied", done.stderr)


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
