# SPDX-License-Identifier: Apache-2.0
"""gpupoolctl report: the page says what the records say, holds nothing from elsewhere and no markup of a process, and stays small."""
import contextlib
import html
import html.parser
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile
import time
import unittest

from gpupool_system import HOLDER, WAIT_S, Daemon, ctl, holding, wait_until

MIB = 1 << 20
HOUR_NS = 3600 * 10**9
HOSTILE = "<script>\"'&"
VOID = {"meta", "br", "link", "img"}
FULL = "[device]\nlimit = 2MiB\nstep = 2MiB\n[quota]\nwaiting = 1\n"  # the device's pools have room for two holders


class Page(html.parser.HTMLParser):
    """A page, of which each tag is closed; with the rows of its tables, by their headings, and its text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.text, self.open, self.tags, self.words, self.titles = text, [], set(), [], []
        self.tables, self.row = [], None
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.row = []
            self.tables[-1].append(self.row)
        elif tag in ("td", "th"):
            self.row.append("")
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attributes), attributes

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.row[-1] += data
        if self.open and self.open[-1] == "title":
            self.titles.append(data)

    def rows(self, *heads):
        """The rows of the tables that have these headings."""
        return [row for table in self.tables if set(heads) <= set(table[0]) for row in table[1:]]


def report(test, socket_path, *arguments):
    result = ctl("report", *arguments, socket_path=socket_path)
    test.assertEqual((result.returncode, result.stderr), (0, ""))
    for word in ("http:", "https:", "src=", "url(", "@import", "<script", "javascript:"):
        test.assertNotIn(word, result.stdout)
    page = Page(result.stdout)
    test.assertTrue(result.stdout.startswith("<!DOCTYPE html>\n<html lang=\"en\">"))
    test.assertIn("prefers-color-scheme:dark", page.text)
    return page


def lines(socket_path, *arguments):
    result = ctl("--json", *arguments, socket_path=socket_path)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def figures(page):
    """The figures of the first pool's boxes, by name."""
    text = page.text[: page.text.index("</dl>")]
    return {name: html.unescape(re.sub("<[^>]*>", " ", value)) for name, value in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)}


class Report(unittest.TestCase):
    def load(self, daemon, stack):
        """Two holders fill pool 1, one waits and is served when one of them dies; a further one is refused."""
        self.first = stack.enter_context(holding(daemon, GPUPOOL_CLIENT_NAME="first"))
        self.second = stack.enter_context(holding(daemon, GPUPOOL_CLIENT_NAME=HOSTILE))
        kinds = lambda: [(event["kind"], event["pool"]) for event in lines(daemon.admin_socket, "events")]
        variables = {**os.environ, "GPUPOOL_SOCKET": str(daemon.socket), "GPUPOOL_SIM_LATENCY": "0"}
        waiting = kinds().count(("wait", 1))
        late = stack.enter_context(subprocess.Popen([HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                    env={**variables, "GPUPOOL_CLIENT_NAME": "late"}))
        stack.callback(late.kill)
        wait_until(lambda: kinds().count(("wait", 1)) > waiting, "the late one waits")
        refused = subprocess.run([HOLDER], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=WAIT_S,
                                 env={**variables, "GPUPOOL_CLIENT_NAME": "refused"})
        self.assertIn("1 waiting request of at most 1", refused.stderr)
        self.first.kill()
        self.first.wait(WAIT_S)
        self.assertEqual(late.stdout.readline(), b"holding\n")
        self.late = late

    def check(self, page, daemon, *arguments):
        """The page against the records and the hours."""
        events = [event for event in lines(daemon.admin_socket, "events", "--since=24h", *arguments) if event["pool"] == 1]
        hours = [hour for hour in lines(daemon.admin_socket, "history", "--since=24h") if hour["pool"] == 1]
        boxes = figures(page)
        self.assertRegex(boxes["Most lent"], rf"^{max(hour['leased_peak_bytes'] for hour in hours) // MIB} MiB ")
        self.assertRegex(boxes["Most reserved"], rf"^{max(hour['reserved_peak_bytes'] for hour in hours) // MIB} MiB ")
        for name, member in (("Waits", "waits"), ("Refusals", "refused"), ("Deaths with memory", "deaths")):
            self.assertEqual(int(boxes[name].split()[0]), sum(hour[member] for hour in hours), name)
        refused = [event for event in events if event["kind"] == "refuse" and not event["flags"] & 4]
        self.assertEqual(len(refused), sum(hour["refused"] for hour in hours))
        rows = page.rows("the pool lent", "why")
        self.assertEqual([row[1] for row in rows], [f"{event['name']} {event['pid']}" for event in reversed(refused)])
        self.assertEqual([row[6] for row in rows], ["the user's quota of waiting requests"])
        waits = [event for event in events if event["kind"] == "serve" or (event["kind"] == "refuse" and event["flags"] & 1)]
        self.assertEqual(sorted(row[1] for row in page.rows("since", "end") if row[1].split()[0] in ("late", "refused")),
                         sorted(f"{event['name']} {event['pid']}" for event in waits if event["name"] in ("late", "refused")))
        self.assertEqual([row[1] for row in page.rows("in quarantine")][:1], [f"first {self.first.pid}"])
        holders = {row[0]: row[2] for row in page.rows("bytes x hours")}
        self.assertTrue({f"first {self.first.pid}", f"{HOSTILE} {self.second.pid}", f"late {self.late.pid}"} <= set(holders), holders)
        self.assertEqual(holders[f"late {self.late.pid}"], "1 MiB")

    def test_the_page_says_what_the_records_say(self):
        with Daemon(FULL) as daemon, contextlib.ExitStack() as stack:
            self.load(daemon, stack)
            whole = report(self, daemon.admin_socket)
            self.assertEqual(re.findall("<h2>(.*?):", whole.text), ["Pool 1", "Pool 2", "Pool 3"])
            self.assertFalse({"script", "img", "link", "iframe"} & whole.tags)
            self.assertIn(html.escape(HOSTILE, quote=True).replace("&#x27;", "&#39;"), whole.text)
            page = report(self, daemon.admin_socket, "--pool=1")
            self.assertEqual(re.findall("<h2>(.*?):", page.text), ["Pool 1"])
            self.check(page, daemon)
            self.assertTrue(any("1 MiB to 2 MiB lent" in title or "2 MiB lent" in title for title in page.titles), page.titles)
            self.assertTrue(any("2 MiB reserved" in title for title in page.titles), page.titles)
            self.assertNotIn("does not live", page.text)

    def test_the_daemon_need_not_live(self):
        with Daemon(FULL) as daemon, contextlib.ExitStack() as stack:
            self.load(daemon, stack)
            daemon.kill()
            page = report(self, daemon.admin_socket, "--pool=1")
            self.check(page, daemon)
            self.assertIn("the daemon that wrote them does not live", page.text)
            older = report(self, daemon.admin_socket, "--until=24h", "--since=48h")
            self.assertIn("<p>0 records of this time.", older.text)
            self.assertEqual(older.rows("bytes x hours"), [])

    def test_scopes_have_their_names(self):
        with Daemon() as daemon:
            result = ctl("--json", "scope", "add", "pod-7", socket_path=daemon.admin_socket)
            with holding(daemon, GPUPOOL_SOCKET=json.loads(result.stdout)["socket"]) as holder:
                page = report(self, daemon.admin_socket, "--pool=1")
                self.assertIn("of scope pod-7; of these", figures(page)["Of that, one user"])
                rows = {row[0]: row[1] for row in page.rows("bytes x hours")}
                self.assertRegex(rows[f"system_holder {holder.pid}"], r", scope pod-7$")

    def test_a_daemon_that_nobody_has_used(self):
        with Daemon() as daemon:
            page = report(self, daemon.admin_socket)
            self.assertEqual(figures(page)["Most lent"].strip(), "0 B")
            self.assertEqual(page.tables, [])

    def test_wrong_uses(self):
        with Daemon() as daemon:
            for arguments, code, told in ((["--pool=9"], 1, "no pool of this number"), (["--since=1h", "--until=2h"], 2, "ends before it begins"),
                                          (["--records=/nonexistent"], 3, "No such file"), (["--pid=1"], 2, "--pid is for")):
                result = ctl("report", *arguments, socket_path=daemon.admin_socket)
                self.assertEqual((result.returncode, result.stdout), (code, ""), arguments)
                self.assertIn(told, result.stderr)


class Ring:
    """A file of records (proto/records.h) of one pool, which no daemon has written."""
    KINDS = {"start": 1, "open": 6, "farewell": 7, "death": 8, "lease": 11, "release": 13, "serve": 17, "refuse": 18, "grow": 19}
    PAGE, HOURS = 16384, 336

    def __init__(self, path, count, begin_ns, step_ns):
        self.path, self.count, self.time_ns, self.step_ns, self.records, self.hours = path, count, begin_ns, step_ns, [], {}
        self.leased = self.reserved = 0

    def add(self, kind, pool=1, session=0, value=0, size=0, name=None, reason=0, flags=0):
        body = struct.pack("3Q", size, self.leased if pool else 0, value) if name is None else name.encode()[:23].ljust(24, b"\0")
        self.records.append(struct.pack("Q", self.time_ns) + body + struct.pack("QIIBBBBBBH", session, 1000 + session % 60000, session % 5,
                                                                                self.KINDS[kind], pool, reason, 0, flags, 0, 0))
        row = self.hours.setdefault(self.time_ns // HOUR_NS, [0, 0, 0])
        row[:] = max(row[0], self.leased), max(row[1], self.reserved), row[2] + (kind == "refuse")
        self.time_ns += self.step_ns

    def write(self):
        hours = bytearray(self.HOURS * 128)
        for hour, (leased, reserved, refused) in self.hours.items():
            struct.pack_into("QQQQQQQQQII22sHIIIIII", hours, hour % self.HOURS * 128, hour, leased, hour * HOUR_NS, reserved, 0, leased, leased, 0, 0,
                             1000, 4242, HOSTILE.encode(), 0, 0, refused, 0, 0, 0, 0)
        ring = bytearray(self.count * 64)
        for number in range(max(1, len(self.records) - self.count + 1), len(self.records) + 1):
            place = (number - 1) % self.count * 64
            ring[place : place + 64] = struct.pack("Q", number) + self.records[number - 1]
        offset = self.PAGE + len(hours)
        header = struct.pack("16s6QII16siI64s", b"gpupool records\2", offset, self.count, self.PAGE, self.HOURS, offset + len(ring),
                             len(self.records) + 1, 0, 1, b"", -1, 0, HOSTILE.encode())
        self.path.write_bytes(header.ljust(self.PAGE, b"\0") + hours + ring)


class FullRing(unittest.TestCase):
    COUNT = 262144

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpupool-report-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "admin.records"

    def test_a_page_of_a_full_ring_is_small_and_quick(self):
        step_ns = 20 * HOUR_NS // (self.COUNT + 10000)
        ring = Ring(self.path, self.COUNT, time.time_ns() - 20 * HOUR_NS, step_ns)
        session, grown = 0, 0
        while len(ring.records) < self.COUNT + 5000:
            session += 1
            ring.add("open", pool=0, session=session, name=HOSTILE)
            if grown < 64:
                grown, ring.reserved = grown + 1, ring.reserved + 4 * MIB
                ring.add("grow", size=4 * MIB)
            size = (1 + session % 200) * MIB
            ring.leased += size
            ring.add("lease", session=session, size=size)
            ring.add("serve", session=session, size=size, value=session * 1000)
            ring.add("refuse", session=session, size=MIB, value=10**6, reason=5, flags=3)
            ring.add("death" if session % 50 == 0 else "farewell", session=session, size=size)
            ring.leased -= size
        ring.write()
        begin = time.monotonic()
        page = report(self, None, f"--records={self.path}")
        self.assertLess(time.monotonic() - begin, 20)  # some 0.1 s, but a sanitizer takes its time
        self.assertLess(len(page.text), 2_000_000)
        self.assertIn("newer ones have taken the place of older ones", page.text)
        self.assertEqual(len(page.rows("the pool lent", "why")), 50)
        self.assertEqual(len(page.rows("since", "end")), 50)
        self.assertEqual(len(page.rows("in quarantine")), 50)
        self.assertEqual(len(re.findall(r"\d+ more, which \w+ \w+, are not shown", page.text)), 3)
        self.assertTrue(any("256 MiB reserved" in title for title in page.titles), page.titles[:5])
        self.assertLess(len(re.findall(r"<(?:path|rect)", page.text)), 1500)

    def test_what_the_ring_has_forgotten(self):
        """A session of before the oldest record: its end tells what it had."""
        begin_ns = time.time_ns() - 3 * HOUR_NS
        ring = Ring(self.path, 4, begin_ns, HOUR_NS // 2)
        ring.add("open", pool=0, session=1, name="gone")
        ring.leased = ring.reserved = 64 * MIB
        ring.add("lease", session=1, size=64 * MIB)
        ring.add("open", pool=0, session=2, name="stays")
        ring.leased += 8 * MIB
        ring.add("lease", session=2, size=8 * MIB)
        ring.add("farewell", session=1, size=64 * MIB)
        ring.leased -= 64 * MIB
        ring.add("release", session=2, size=8 * MIB)
        ring.write()
        page = report(self, None, f"--records={self.path}")
        rows = {row[0]: row[2:4] for row in page.rows("bytes x hours")}
        self.assertEqual(rows, {"? 1001": ["64 MiB", "64 MiB h"], "stays 1002": ["8 MiB", "8 MiB h"]})


if __name__ == "__main__":
    unittest.main()
