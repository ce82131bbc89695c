#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each alert of gpupool.rules.yml in a real Prometheus: it fires when a real daemon has the trouble, and resolves when the trouble is over.

The rules are the project's own with all times divided by FASTER. One exporter serves all tests: its admin socket is a link that leads
to the daemon of the test. A second target is a file of metrics as node_exporter would serve it; it is empty but in one test.
"""
import contextlib
import http.server
import json
import os
import pathlib
import re
import resource
import select
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from gpupool_system import SOURCE, WAIT_S, Daemon, ctl, holding, wait_until
from test_metrics import EXPORTER, Exporter, dashboard_queries
from test_operator import MIB, Client, host_pool

PROMETHEUS = "/usr/bin/prometheus"
RULES = SOURCE / "systemd" / "gpupool.rules.yml"
FASTER = 200
# Those that a keeper leaves to itself.
OWN_DESCRIPTORS = 300
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
FOREVER = 0xFFFFFFFFFFFFFFFF
OPENED, LEASE, ERROR = 8, 66, 70  # docs/wire.md
# Rules without any time. Another one that has none belongs here, else the test says that it was not scaled.
TIMELESS = {"GpupoolPoolClosed"}


def scaled(rules):
    """The rules with durations (for, ranges, offsets) and thresholds in seconds divided by FASTER, and how many each alert had of them."""
    counts = {}

    def duration(found):
        return f"{found[1]}{int(found[2]) * UNITS_MS[found[3]] // FASTER}ms"

    def threshold(found):
        return f"{found[1]}{float(found[2]) / FASTER:g}"

    def rule(found):
        text, durations = re.subn(r"(\bfor: |\[|\boffset )(\d+)([smhd])\b", duration, found[0])
        text, thresholds = re.subn(r"(_seconds(?:\{[^}]*\})? *[<>]=? *)(\d+(?:\.\d+)?)\b", threshold, text)
        counts[found[1]] = durations + thresholds
        return text

    return re.sub(r"(?ms)^ *- alert: (\w+)$.*?(?=^ *- alert: |\Z)", rule, rules), counts


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Page(http.server.BaseHTTPRequestHandler):
    """Serves what the server has as its text."""

    def do_GET(self):  # pylint: disable=invalid-name
        body = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Prometheus:
    def __init__(self, directory, rules, targets):
        self.directory = pathlib.Path(directory)
        (self.directory / "rules.yml").write_text(rules)
        jobs = "".join(f"  - job_name: {job}\n    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n" for job, port in targets.items())
        (self.directory / "prometheus.yml").write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 200ms}\n"
            f"rule_files: [rules.yml]\nscrape_configs:\n{jobs}")
        self.port = free_port()
        with open(self.directory / "log", "wb") as log:
            self.process = subprocess.Popen([PROMETHEUS, f"--config.file={self.directory}/prometheus.yml", f"--storage.tsdb.path={self.directory}/data",
                                             f"--web.listen-address=127.0.0.1:{self.port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.ended = os.pidfd_open(self.process.pid)
        try:
            self.wait_for(self.is_ready, "Prometheus is ready")
        except BaseException:
            self.close()
            raise

    def close(self):
        self.process.terminate()
        self.process.wait(WAIT_S)
        os.close(self.ended)

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=WAIT_S) as answer:
            return answer.read()

    def ask(self, what):
        return json.loads(self.get("/api/v1/" + what))["data"]

    def query(self, expression):
        return self.ask("query?" + urllib.parse.urlencode({"query": expression}))["result"]

    def is_ready(self):
        try:
            return self.get("/-/ready")
        except (urllib.error.URLError, ConnectionError):
            return False

    def alerts(self):
        """The names of the alerts that are active and their states; the most advanced of each name."""
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["state"] for alert in sorted(alerts, key=lambda alert: alert["state"] == "firing")}

    def wait_for(self, condition, what):
        """As wait_until(), with a pause between two questions, in which Prometheus may end."""
        end = time.monotonic() + WAIT_S
        while not condition():
            ended = select.select([self.ended], [], [], 0.1)[0]
            if ended or time.monotonic() > end:
                state = [self.ask("alerts"), self.ask("targets")["activeTargets"]] if not ended and self.is_ready() else None
                raise AssertionError(f"this did not come to pass: {what}; Prometheus' alerts and targets: {state}; its log ends:\n"
                                     + (self.directory / "log").read_text()[-4000:])


@unittest.skipUnless(os.access(PROMETHEUS, os.X_OK), f"there is no {PROMETHEUS} (Debian: prometheus)")
@unittest.skipIf(EXPORTER is None, "the exporter was not built")
class Alerts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="gpupool-alerts-")))
        cls.link = cls.directory / "admin.sock"
        rules, cls.counts = scaled(RULES.read_text())
        cls.exporter = cls.enterClassContext(Exporter(cls.link))
        cls.page = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        cls.page.text = ""
        cls.addClassCleanup(cls.page.server_close)
        threading.Thread(target=cls.page.serve_forever, daemon=True).start()
        cls.addClassCleanup(cls.page.shutdown)
        cls.prometheus = Prometheus(cls.directory, rules, {"gpupool": cls.exporter.port, "node": cls.page.server_port})
        cls.addClassCleanup(cls.prometheus.close)

    def daemon(self, *arguments, **keywords):
        """A daemon that Prometheus watches from now on."""
        daemon = Daemon(*arguments, **keywords)
        self.addCleanup(daemon.close)
        self.watch(daemon)
        return daemon

    def watch(self, daemon):
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(daemon.admin_socket)

    def fires(self, alert, *others):
        """Waits until it fires, and none but it and those named. GpupoolMissing may, too: a loaded machine misses scrapes."""
        def condition():
            firing = {name for name, state in self.prometheus.alerts().items() if state == "firing"}
            return alert in firing and firing <= {alert, "GpupoolMissing", *others}

        self.prometheus.wait_for(condition, f"{alert} fires, and no other")

    def resolves(self, alert):
        self.prometheus.wait_for(lambda: alert not in self.prometheus.alerts(), f"{alert} resolves")

    def is_quiet(self):
        self.prometheus.wait_for(lambda: not self.prometheus.alerts(), "no alert is active")

    def reload(self, daemon, config):
        daemon.config.write_text(config)
        done = ctl("reload", socket_path=daemon.admin_socket)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def restart(self, daemon):
        daemon.stop()  # with a device that is lost or hangs it may end with an error
        daemon.start()

    def client(self, daemon):
        client = Client(daemon)
        self.addCleanup(client.close)
        return client

    def lease(self, client, daemon, size_bytes, timeout_ns=FOREVER, reply=LEASE):
        """Asks the host pool for memory, and says that the descriptor has come, if one does with the reply."""
        client.ask(host_pool(daemon)["id"], size_bytes, timeout_ns)
        data = client.socket.recv(16384)
        self.assertEqual(struct.unpack_from("<H", data)[0], reply)
        if reply == LEASE and struct.unpack_from("<I", data, 92)[0] != 0:
            client.socket.send(struct.pack("<HHIQ", OPENED, 0, 24, 0) + data[32:40])

    # --- The trouble of each alert

    def test_a_request_waits(self):
        daemon = self.daemon("[host]\nlimit = 8MiB\n")
        self.is_quiet()
        self.lease(self.client(daemon), daemon, 4 * MIB)
        waiter = self.client(daemon)
        waiter.ask(host_pool(daemon)["id"], 8 * MIB, FOREVER)
        self.fires("GpupoolRequestWaits")
        waiter.close()
        self.resolves("GpupoolRequestWaits")

    def test_memory_in_quarantine(self):
        daemon = self.daemon()
        self.is_quiet()
        with holding(daemon) as holder:
            session, = daemon.ask("sessions")["sessions"]
            done = ctl("session", "end", str(session["id"]), "--yes", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.fires("GpupoolQuarantine")
            holder.kill()
        self.resolves("GpupoolQuarantine")

    def test_refusals(self):
        """Prometheus sees that a counter grows only if it saw the daemon's counter before, and not another daemon's as its last one."""
        daemon = self.daemon("[host]\nlimit = 8MiB\n")
        counters = "gpupool_pool_failures_total"
        self.link.unlink()
        self.prometheus.wait_for(lambda: not self.prometheus.query(counters), "the last daemon's counters are forgotten")
        self.watch(daemon)
        self.prometheus.wait_for(lambda: self.prometheus.query(counters), "the daemon's counters are known")
        self.is_quiet()
        client = self.client(daemon)
        self.lease(client, daemon, 4 * MIB)
        self.lease(client, daemon, 8 * MIB, timeout_ns=1, reply=ERROR)
        self.fires("GpupoolRefusals")
        self.resolves("GpupoolRefusals")

    def test_a_pool_is_full(self):
        daemon = self.daemon("[host]\nlimit = 4MiB\n")
        self.is_quiet()
        self.lease(self.client(daemon), daemon, 4 * MIB)
        self.fires("GpupoolPoolFull")
        self.reload(daemon, "[host]\nlimit = 64MiB\n")
        self.resolves("GpupoolPoolFull")

    def no_host_memory(self):
        """A daemon that gets no memory from the kernel, whose request for some fails: files may have 1 MiB, and segments are memfds."""
        daemon = self.daemon("[host]\nlimit = 64MiB\nstep = 2MiB\nlow_water = 0\n", prefix=["env", "--ignore-signal=XFSZ"])
        self.is_quiet()
        client = self.client(daemon)
        self.lease(client, daemon, MIB)
        before = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (MIB, before[1]))
        reserved_bytes = host_pool(daemon)["reserved_bytes"]
        self.lease(client, daemon, 30 * MIB, timeout_ns=10**8, reply=ERROR)
        self.fires("GpupoolGrowthFails", "GpupoolRefusals", "GpupoolRequestWaits")
        return daemon, client, before, reserved_bytes

    def test_growth_fails_until_there_is_memory(self):
        daemon, client, before, _ = self.no_host_memory()
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, before)
        self.lease(client, daemon, 30 * MIB)
        self.resolves("GpupoolGrowthFails")

    def test_growth_fails_until_the_limit_is_what_the_pool_has(self):
        daemon, _, _, reserved_bytes = self.no_host_memory()
        self.reload(daemon, f"[host]\nlimit = {reserved_bytes // MIB}MiB\nstep = 2MiB\nlow_water = 0\n")
        self.resolves("GpupoolGrowthFails")

    def test_a_pool_is_lost_or_failed(self):
        """Such a pool does not grow, either; that is no alert of its own."""
        growth_fails, = [rule["query"] for group in self.prometheus.ask("rules")["groups"] for rule in group["rules"] if rule["name"] == "GpupoolGrowthFails"]
        for state, fault in (("failed", "device_check@1:1:46"), ("lost", "device_check@1:3!:999")):
            with self.subTest(state):
                daemon = self.daemon(environment={"GPUPOOL_SIM_FAIL": fault, "WATCHDOG_USEC": "300000"})
                wait_until(lambda: state in [pool["state"] for pool in daemon.ask("pools")["pools"]], f"a pool is {state}")
                self.fires("GpupoolPoolClosed")
                self.prometheus.wait_for(lambda: self.prometheus.query(f"gpupool_pool_growth_failing == 1 unless ({growth_fails})"), "the pool does not grow")
                self.assertEqual(self.prometheus.query(growth_fails), [])
                daemon.environment = {}
                self.restart(daemon)
                self.resolves("GpupoolPoolClosed")

    def test_a_driver_call_hangs(self):
        file = self.directory / "hang"
        file.touch()
        daemon = self.daemon(environment={"GPUPOOL_SIM_HANG": f"device_check@1:3:{file}", "WATCHDOG_USEC": "300000"})
        self.fires("GpupoolWorkerHangs")
        file.unlink()
        self.resolves("GpupoolWorkerHangs")
        self.assertEqual([pool["state"] for pool in daemon.ask("pools")["pools"] if pool["kind"] == "device"], ["ready", "ready"])

    def test_sessions_run_out(self):
        daemon = self.daemon("[daemon]\nsessions_limit = 2\n")
        self.is_quiet()
        self.client(daemon), self.client(daemon)
        self.fires("GpupoolDescriptors")
        self.reload(daemon, "[daemon]\nsessions_limit = 20\n")
        self.resolves("GpupoolDescriptors")

    def test_descriptors_of_segments_run_out(self):
        daemon = self.daemon("[host]\nstep = 2MiB\nlow_water = 0\n[quota]\nsegments = 1000\n", prefix=["prlimit", "--nofile=256:256"])
        self.is_quiet()
        client = self.client(daemon)
        limit = daemon.ask("stats")["daemon"]["described_segments_limit"]
        for _ in range(limit * 9 // 10 + 1):
            self.lease(client, daemon, 2 * MIB)
        self.fires("GpupoolDescriptors")
        daemon.prefix = ["prlimit", "--nofile=1024:1024"]
        self.restart(daemon)
        self.resolves("GpupoolDescriptors")

    def test_the_store_fills_up(self):
        limit = OWN_DESCRIPTORS + 10
        daemon = self.daemon(arguments=["--keeper"], prefix=["prlimit", f"--nofile={limit}:{limit}"])
        self.is_quiet()
        with contextlib.ExitStack() as clients:
            while daemon.ask("stats")["daemon"]["stored_descriptors"] < 10:
                clients.enter_context(contextlib.closing(Client(daemon)))
            self.fires("GpupoolStore")
        self.resolves("GpupoolStore")

    def test_there_are_no_metrics_at_all(self):
        """From any machine: for a Prometheus of its own, which has never seen the metrics."""
        self.link.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="gpupool-alerts-") as directory:
            prometheus = Prometheus(directory, scaled(RULES.read_text())[0], {"gpupool": self.exporter.port})
            try:
                prometheus.wait_for(lambda: prometheus.alerts() == {"GpupoolMissing": "firing"}, "GpupoolMissing fires")
                self.daemon()
                prometheus.wait_for(lambda: not prometheus.alerts(), "GpupoolMissing resolves")
            finally:
                prometheus.close()

    def test_one_of_two_machines_has_no_metrics(self):
        """The other one's come from a file that is written again and again."""
        other, over = Daemon(), threading.Event()

        def write():
            while not over.wait(0.2):
                self.page.text = ctl("metrics", socket_path=other.admin_socket).stdout.removesuffix("# EOF\n")

        def end():
            over.set()
            writer.join()
            self.page.text = ""
            other.close()

        writer = threading.Thread(target=write)
        writer.start()
        self.addCleanup(end)
        daemon = self.daemon()
        self.prometheus.wait_for(lambda: len(self.prometheus.query("gpupool_uptime_seconds")) == 2, "there are metrics of both")
        self.is_quiet()
        daemon.stop()
        self.fires("GpupoolMissing")
        daemon.start()
        self.resolves("GpupoolMissing")

    def test_a_file_of_metrics_is_not_written_any_more(self):
        daemon = self.daemon()
        self.is_quiet()
        self.page.text = ctl("metrics", socket_path=daemon.admin_socket).stdout.removesuffix("# EOF\n")
        self.fires("GpupoolMissing")
        self.page.text = ""
        self.resolves("GpupoolMissing")

    def test_the_dashboards_queries_have_answers(self):
        """But those for what is above 0: nothing is wrong here."""
        daemon = self.daemon("[quota]\nhost = 64MiB\n")
        done = ctl("--json", "scope", "add", "pod", "--label", "pod=trainer-0", socket_path=daemon.admin_socket)
        self.assertEqual(done.returncode, 0, done.stderr)
        with holding(daemon), holding(daemon, GPUPOOL_SOCKET=json.loads(done.stdout)["socket"]):
            unanswered = [(title, query) for title, query in dashboard_queries() if not query.endswith("> 0")]

            def condition():
                unanswered[:] = [(title, query) for title, query in unanswered if not self.prometheus.query(query)]
                return not unanswered

            self.prometheus.wait_for(condition, unanswered)

    # --- The rules themselves

    def test_every_rule_is_tried_and_scaled(self):
        names = set(re.findall(r"\balert: (\w+)", RULES.read_text()))
        groups = self.prometheus.ask("rules")["groups"]
        self.assertEqual({rule["name"] for group in groups for rule in group["rules"]}, names)
        self.assertEqual({rule["health"] for group in groups for rule in group["rules"]} - {"ok", "unknown"}, set())
        self.assertEqual({name for name, count in self.counts.items() if count == 0}, TIMELESS)
        self.assertEqual(set(self.counts), names)
        sources = "".join(pathlib.Path(__file__).read_text().split("# --- The rules themselves")[0])
        self.assertEqual(set(re.findall(r'self\.resolves\("(\w+)"\)', sources)), names)


if __name__ == "__main__":
    unittest.main()
