#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpupoolctl metrics: what Prometheus' own parser makes of it, and whether the numbers are the daemon's."""
import http.client
import json
import os
import pathlib
import re
import select
import shutil
import socket
import subprocess
import tempfile
import unittest

from gpupool_system import SOURCE, WAIT_S, Daemon, FakeAdmin, ctl, holding
from prometheus_client.parser import text_string_to_metric_families
from test_ctl import REPLIES

# With members that the replies of 0.1.0 do not have.
STATS = {**REPLIES["stats"], "daemon": {**REPLIES["stats"]["daemon"], "stored_descriptors": 99, "stored_descriptors_limit": 24000}}
SCOPES = {"scopes": [{**{key: value for key, value in REPLIES["quota"]["quotas"][0].items() if key not in ("uid", "charged_to")}, "id": 3, "scope": "pod-a",
                      "state": "open", "socket": "/run/x/gpupool.sock", "uids": [], "labels": {"pod": "trainer-0"}, "users": 1, "reserved_bytes": 7}]}
RULES = SOURCE / "systemd" / "gpupool.rules.yml"
DASHBOARD = SOURCE / "systemd" / "gpupool.dashboard.json"
# The variables in queries, and values as Grafana puts in their place.
VARIABLES = {"$instance": ".*", "$pool": ".*", "$__rate_interval": "3s"}


def dashboard_queries():
    """The dashboard's queries, as Grafana sends them, each with its panel's title."""
    queries = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = re.sub(re.escape(name) + r"\b", value, query)
            queries.append((panel["title"], query))
    return queries


def read(text):
    """The samples by name and labels."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, f"{key} comes twice"
            samples[key] = sample.value
        assert family.documentation and family.type != "unknown", family.name
    return samples


def of(samples, name, **labels):
    """The sample of this name that has these labels, and perhaps more."""
    found = [value for (sample, given), value in samples.items() if sample == name and labels.items() <= dict(given).items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


class Metrics(unittest.TestCase):
    def test_the_numbers_are_those_of_the_stats(self):
        with Daemon("[host]\nlimit = 8MiB\n") as daemon:
            with holding(daemon) as holder:
                done = ctl("metrics", socket_path=daemon.admin_socket)
                with daemon.admin() as admin:
                    stats = admin.ask("stats")
                holder.stdin.close()
        self.assertEqual(done.returncode, 0, done.stderr)
        samples = read(done.stdout)
        self.assertTrue(done.stdout.endswith("# EOF\n"))
        for pool in stats["pools"]:
            labels = {"pool": str(pool["id"]), "kind": pool["kind"]}
            for member in ("limit_bytes", "reserved_bytes", "leased_bytes", "free_bytes", "segments", "leases", "waiters"):
                self.assertEqual(of(samples, "gpupool_pool_" + member, **labels), pool[member], member)
            self.assertEqual(of(samples, "gpupool_pool_acquires_total", **labels), pool["acquires"])
            self.assertEqual(of(samples, "gpupool_pool_state", state="ready", **labels), 1)
            self.assertEqual(of(samples, "gpupool_pool_state", state="lost", **labels), 0)
            self.assertEqual(of(samples, "gpupool_pool_acquire_seconds_count", **labels), pool["histograms"]["acquire_ns"]["count"])
            if pool["uuid"] is not None:
                self.assertEqual(of(samples, "gpupool_pool_limit_bytes", UUID=pool["uuid"], gpu=str(pool["device"])), pool["limit_bytes"])
        self.assertEqual(of(samples, "gpupool_sessions"), 1)
        self.assertEqual(of(samples, "gpupool_user_sessions", uid=str(os.getuid())), 1)

    def answer(self, **replies):
        """The tool's output for these replies, which are named by their commands."""
        def send(connection, line):
            connection.sendall(json.dumps(replies[json.loads(line)["command"]]).encode() + b"\n")

        admin = FakeAdmin(send)
        self.addCleanup(admin.close)
        return ctl("metrics", socket_path=admin.path)

    def test_histograms_grow_with_their_bounds(self):
        done = self.answer(stats=STATS, quota=REPLIES["quota"], scopes=SCOPES)
        self.assertEqual(done.returncode, 0, done.stderr)
        samples = read(done.stdout)
        for name in ("acquire", "waiting", "growth"):
            buckets = {}
            for (sample, labels), value in samples.items():
                labels = dict(labels)
                if sample == f"gpupool_pool_{name}_seconds_bucket" and labels["pool"] == "1":
                    buckets[float(labels["le"])] = value
            values = [buckets[bound] for bound in sorted(buckets)]
            self.assertEqual(values, sorted(values))
            self.assertEqual(values[-1], of(samples, f"gpupool_pool_{name}_seconds_count", pool="1"))
        # of the three that waited, one took less than 2^23 ns; the others are longer than any bound
        self.assertEqual(of(samples, "gpupool_pool_waiting_seconds_bucket", pool="1", le="0.016777216"), 1)
        self.assertEqual(of(samples, "gpupool_pool_waiting_seconds_bucket", pool="1", le="0.004194304"), 0)
        self.assertEqual(of(samples, "gpupool_pool_waiting_seconds_bucket", pool="1", le="+Inf"), 3)
        self.assertEqual(of(samples, "gpupool_pool_waiting_oldest_seconds", pool="1"), 2.5)
        self.assertEqual(of(samples, "gpupool_pool_growth_failing", pool="1"), 1)
        self.assertEqual(of(samples, "gpupool_pool_growth_failing", pool="2"), 0)

    def test_what_names_keep_is_told_of_users_and_scopes(self):
        keeps = {"kept_bytes": 24 << 30, "kept_bytes_limit": 25 << 30}
        pool = {**STATS["pools"][0], "named": 3, "named_bytes": 7 << 20}
        quotas = {"quotas": [{**REPLIES["quota"]["quotas"][0], "names": 5, "names_limit": 4096, **keeps}]}
        samples = read(self.answer(stats={**STATS, "pools": [pool]}, quota=quotas, scopes={"scopes": [{**SCOPES["scopes"][0], **keeps}]}).stdout)
        for labels, owner in (({"uid": "1000"}, "user"), ({"scope": "pod-a"}, "scope")):
            self.assertEqual(of(samples, f"gpupool_{owner}_kept_bytes", **labels), 24 << 30)
            self.assertEqual(of(samples, f"gpupool_{owner}_kept_limit_bytes", **labels), 25 << 30)
        self.assertEqual(of(samples, "gpupool_user_names", uid="1000"), 5)
        self.assertEqual((of(samples, "gpupool_pool_named_buffers", pool="1"), of(samples, "gpupool_pool_named_bytes", pool="1")), (3, 7 << 20))
        unlimited = {"quotas": [{**quotas["quotas"][0], "kept_bytes_limit": None}]}
        names = {name for name, _ in read(self.answer(stats=STATS, quota=unlimited, scopes=SCOPES).stdout)}
        self.assertIn("gpupool_user_kept_bytes", names)
        self.assertFalse(names & {"gpupool_user_kept_limit_bytes", "gpupool_scope_kept_bytes", "gpupool_pool_named_bytes"})

    def test_channels_of_a_pool_are_told(self):
        pool = {**STATS["pools"][0], "channels": 2, "channel_bytes": 5 << 20, "vacant_consumers": 1}
        samples = read(self.answer(stats={**STATS, "pools": [pool]}, quota=REPLIES["quota"], scopes=SCOPES).stdout)
        self.assertEqual([of(samples, f"gpupool_pool_{name}", pool="1") for name in ("channels", "channel_bytes", "vacant_consumers")], [2, 5 << 20, 1])

    def test_what_an_older_daemon_does_not_tell_is_left_out(self):
        samples = read(self.answer(stats=REPLIES["stats"], quota=REPLIES["quota"], scopes=SCOPES).stdout)
        self.assertEqual([name for name, _ in samples if name.startswith("gpupool_stored")], [])
        self.assertEqual(of(samples, "gpupool_pool_draining", pool="1"), 0)
        samples = read(self.answer(stats=STATS, quota=REPLIES["quota"], scopes=SCOPES).stdout)
        self.assertEqual((of(samples, "gpupool_stored_descriptors"), of(samples, "gpupool_stored_descriptors_limit")), (99, 24000))

    @unittest.skipIf(shutil.which("promtool") is None, "no promtool (Debian: prometheus)")
    def test_promtool_finds_nothing(self):
        done = self.answer(stats=STATS, quota=REPLIES["quota"], scopes=SCOPES)
        checked = subprocess.run(["promtool", "check", "metrics"], input=done.stdout, capture_output=True, text=True, timeout=WAIT_S, check=False)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))

    def test_the_alerts_are_about_metrics_that_there_are(self):
        names = {name for name, _ in read(self.answer(stats=STATS, quota=REPLIES["quota"], scopes=SCOPES).stdout)}
        used = set(re.findall(r"\b(gpupool_\w+)", " ".join(re.findall(r"(?m)^ *expr: (.*)$", RULES.read_text()))))
        self.assertGreaterEqual(len(used), 10)
        self.assertEqual(used - names, set())

    def test_the_dashboard_is_about_metrics_that_there_are(self):
        names = {name for name, _ in read(self.answer(stats=STATS, quota=REPLIES["quota"], scopes=SCOPES).stdout)}
        used = set(re.findall(r"\b(gpupool_\w+)", " ".join(query for _, query in dashboard_queries())))
        self.assertGreaterEqual(len(used), 30)
        self.assertEqual(used - names, set())
        variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
        self.assertEqual([variable["name"] for variable in variables], ["datasource", "instance", "pool"])
        self.assertEqual(set(re.findall(r"\bgpupool_\w+", json.dumps(variables))) - names, set())
        self.assertEqual([query for _, query in dashboard_queries() if "$" in query], [])

    def test_the_dashboards_panels_have_titles_and_places_of_their_own(self):
        panels = json.loads(DASHBOARD.read_text())["panels"]
        self.assertEqual([panel["title"] for panel in panels if panel["type"] == "row"],
                         ["State", "Pools", "Waits", "Users and scopes", "Growth and closes", "Daemon"])
        titles, taken = [panel.get("title", "") for panel in panels], {}
        self.assertNotIn("", titles)
        self.assertEqual(len(set(titles)), len(titles))
        for panel in panels:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            for cell in ((x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])):
                self.assertNotIn(cell, taken, (panel["title"], taken.get(cell)))
                taken[cell] = panel["title"]
            if panel["type"] != "row":
                self.assertTrue(panel["description"] and panel["targets"], panel["title"])
                self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": "${datasource}"}, panel["title"])
                references = [target["refId"] for target in panel["targets"]]
                self.assertEqual(len(set(references)), len(references), panel["title"])

    @unittest.skipIf(shutil.which("promtool") is None, "no promtool (Debian: prometheus)")
    def test_the_dashboards_queries_parse(self):
        rules = [{"record": f"query_{number}", "expr": query} for number, (_, query) in enumerate(dashboard_queries())]
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "queries.yml"
            path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
            checked = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, timeout=WAIT_S, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        self.assertIn(f"{len(rules)} rules found", checked.stdout)

    @unittest.skipIf(shutil.which("promtool") is None, "no promtool (Debian: prometheus)")
    def test_each_alert_fires_on_its_trouble_and_resolves(self):
        with tempfile.TemporaryDirectory() as directory:
            for path in (RULES, pathlib.Path(__file__).parent / "gpupool.rules.test.yml"):
                shutil.copy(path, directory)
            checked = subprocess.run(["promtool", "test", "rules", "gpupool.rules.test.yml"], cwd=directory, capture_output=True, text=True,
                                     timeout=WAIT_S, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_a_refusal_and_json_are_told(self):
        done = self.answer(stats=STATS, quota={"error": {"code": "internal", "message": "no"}})
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("no (internal)", done.stderr)
        done = ctl("metrics", "--json", socket_path="/nonexistent")
        self.assertEqual(done.returncode, 1)
        self.assertIn("leave --json out", done.stdout + done.stderr)


EXPORTER = os.environ.get("GPUPOOL_EXPORTER")


class Exporter:
    """gpupool-exporter on a port of its own."""

    def __init__(self, socket_path):
        self.process = subprocess.Popen([EXPORTER, "--listen=127.0.0.1:0", f"--admin-socket={socket_path}"], stderr=subprocess.PIPE, text=True)
        if not select.select([self.process.stderr], [], [], WAIT_S)[0]:
            raise AssertionError("the exporter does not serve")
        self.port = int(re.search(r"on port (\d+)", self.process.stderr.readline()).group(1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.code = self.process.wait(WAIT_S)
        self.process.stderr.close()

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request(method, path, body=body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers["Content-Type"], text


@unittest.skipIf(EXPORTER is None, "the exporter was not built")
class Http(unittest.TestCase):
    def test_it_serves_the_metrics_and_nothing_else(self):
        with Daemon() as daemon, Exporter(daemon.admin_socket) as exporter:
            status, kind, text = exporter.ask("GET", "/metrics")
            self.assertEqual((status, kind), (200, "text/plain; version=0.0.4; charset=utf-8"))
            self.assertEqual(of(read(text), "gpupool_sessions"), 0)
            self.assertEqual(exporter.ask("HEAD", "/metrics")[::2], (200, ""))
            for path in ("/", "/metrics/", "/metrics/../etc/passwd", "/%2e%2e/x"):
                self.assertEqual(exporter.ask("GET", path)[0], 404, path)
            for method in ("POST", "PUT", "DELETE", "OPTIONS"):
                self.assertEqual(exporter.ask(method, "/metrics", body=b"x" * 100000 if method == "PUT" else None)[0], 405, method)
        self.assertEqual(exporter.code, 0)

    def test_nonsense_and_silence_hold_up_nobody(self):
        with Daemon() as daemon, Exporter(daemon.admin_socket) as exporter:
            silent = [socket.create_connection(("127.0.0.1", exporter.port), timeout=WAIT_S) for _ in range(8)]
            for index, connection in enumerate(silent):
                connection.sendall((b"\xff\0nonsense\r\n\r\n", b"GET /metrics HT", b"")[index % 3])
            self.assertEqual(exporter.ask("GET", "/metrics")[0], 200)
            for connection in silent:
                connection.close()

    def test_a_daemon_that_goes_and_comes(self):
        with Daemon(start=False) as daemon, Exporter(daemon.admin_socket) as exporter:
            status, _, text = exporter.ask("GET", "/metrics")
            self.assertEqual(status, 503)
            self.assertIn("does not answer", text)
            daemon.start()
            self.assertEqual(exporter.ask("GET", "/metrics")[0], 200)
            daemon.stop()
            self.assertEqual(exporter.ask("GET", "/metrics")[0], 503)

    def test_a_wrong_command_line(self):
        for arguments, told in ((["--listen=nowhere"], "is no address and port"), (["--listen=127.0.0.1:http"], "is no address and port"), (["x"], "'x' is no option"), (["--y"], "--help")):
            done = subprocess.run([EXPORTER, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(told, done.stderr)


if __name__ == "__main__":
    unittest.main()
