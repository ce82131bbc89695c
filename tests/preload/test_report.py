# SPDX-License-Identifier: Apache-2.0
"""gpupoolctl run --report: what a process of the program got from the pools and what it did not, over a driver that is a
fake."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from run_scene import CONFIG, WAIT_S, environment, gpupool_system

PROGRAM, COMMUNICATION, CALLER = (os.environ[name] for name in ("REPORT_PROGRAM", "DRIVER_COMMUNICATION", "PRELOAD_CALLER_13"))
HEAD = re.compile(r"gpupool report: (\S+) \(pid (\d+)\): at most (.+?) on loan(.*) from the pools")


class Block:
    """The report of one process."""

    def __init__(self, head, lines):
        self.name, self.pid, self.peak, self.shares = head
        self.rows = {}
        kind = None
        for line in lines:
            if line.startswith(("  FROM THE POOLS", "  NOT FROM THE POOLS")):
                kind = line.startswith("  FROM")
                continue
            words = [word.strip() for word in re.split(r"\s{2,}", line.strip())]
            call, count, total, largest = words[:4]
            why = None if kind else words[4]
            assert (call, why) not in self.rows, line
            self.rows[call, why] = (int(count), total, largest)


def blocks(text):
    """The reports in a text; other lines stand alone before and after them."""
    found, head, lines = [], None, []
    for line in text.splitlines():
        match = HEAD.fullmatch(line)
        if head is not None and not line.startswith("  "):
            found.append(Block(head, lines))
            head, lines = None, []
        if match:
            head = match.groups()
        elif head is not None:
            lines.append(line)
    if head is not None:
        found.append(Block(head, lines))
    return found


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = gpupool_system.Daemon(CONFIG)
        cls.directory = tempfile.TemporaryDirectory(prefix="gpupool-report-")
        cls.work = pathlib.Path(cls.directory.name)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()
        cls.daemon.close()

    def run_with(self, *arguments, options=("--report",), code=0, **keywords):
        done = subprocess.run([gpupool_system.CTL, "run", "--socket", str(self.daemon.socket), *options, "--", *arguments],
                              check=False, capture_output=True, text=True, timeout=WAIT_S, env=environment(GPUPOOL_ALLOC_TIMEOUT="30s"),
                              stdin=subprocess.DEVNULL, **keywords)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def one(self, *arguments, **keywords):
        found = blocks(self.run_with(PROGRAM, *arguments, **keywords).stderr)
        self.assertEqual(len(found), 1)
        return found[0]

    def test_each_kind_of_memory_has_its_row_and_its_reason(self):
        report = self.one("all")
        self.assertEqual(report.name, "preload_report_program")
        self.assertEqual(report.peak, "6 MiB")
        self.assertEqual(report.rows, {
            ("device memory", None): (3, "5 MiB", "3 MiB"),
            ("pinned memory", None): (1, "2 MiB", "2 MiB"),
            ("any", "pool refused: an error"): (1, "2 PiB", "2 PiB"),
            ("cuMemAlloc and its like", "not the primary context"): (1, "10 MiB", "10 MiB"),
            ("cuMemHostAlloc and its like", "not the primary context"): (1, "11 MiB", "11 MiB"),
            ("cuMemAllocManaged", "managed memory"): (2, "11 MiB", "6 MiB"),
            ("cuMemPoolCreate", "its own memory pool"): (1, "0 B", "0 B"),
            ("cuMemAllocAsync and its like", "its own memory pool"): (1, "7 MiB", "7 MiB"),
            ("cuMemCreate", "VMM: expandable segments"): (1, "20 MiB", "20 MiB"),
            ("cuMemCreate", "VMM, host memory"): (1, "22 MiB", "22 MiB"),
            ("cuArrayCreate and its like", "array"): (3, "44 MiB", "20 MiB"),
            ("cuMemHostAlloc", "WriteCombined"): (1, "9 MiB", "9 MiB"),
            ("cuMemHostRegister", "registered memory of the program"): (1, "4 KiB", "4 KiB"),
        })
        # 5 of 97 MiB, and 2 of 44: refusals and registered memory are no memory that was given
        self.assertEqual(report.shares, ", 5.2 % of the device memory, 4.5 % of the pinned memory")

    def test_memory_during_a_capture_is_told(self):
        self.assertEqual(self.one("capture", CALLER).rows[("cuMemAllocAsync and its like", "during a capture")],
                         (1, "1 MiB", "1 MiB"))

    def test_functions_found_by_address_count(self):
        self.assertEqual(self.one("addresses").rows, {("cuMemAllocManaged", "managed memory"): (1, "1 MiB", "1 MiB"),
                                                      ("cuArrayCreate and its like", "array"): (1, "1 MiB", "1 MiB")})

    def test_what_a_library_for_communication_asks_the_driver_for_counts(self):
        self.assertEqual(self.one("communication", COMMUNICATION).rows, {("cuMemAllocManaged", "managed memory"): (1, "1 MiB", "1 MiB")})

    def test_without_a_report_an_unserved_call_is_the_drivers_own(self):
        done = self.run_with(PROGRAM, "hooks", options=())
        self.assertEqual((done.stdout, blocks(done.stderr)), ("real\n", []))
        self.assertEqual(self.run_with(PROGRAM, "hooks").stdout, "counted\n")

    def test_a_process_that_asked_for_nothing_says_nothing(self):
        self.assertNotIn("report", self.run_with(PROGRAM, "nothing").stderr)
        self.assertNotIn("report", self.run_with("true").stderr)

    def test_every_end_is_an_end(self):
        for part, code in (("underscore", 3), ("capital", 4), ("threads", 5)):
            with self.subTest(part):
                self.assertEqual(self.one(part, code=code).rows[("device memory", None)], (1, "1 MiB", "1 MiB"))

    def test_a_child_has_its_own_report(self):
        done = self.run_with(PROGRAM, "forks")
        self.assertEqual([block.rows for block in blocks(done.stderr)], [{("device memory", None): (1, "2 MiB", "2 MiB")},
                                                                         {("device memory", None): (1, "4 MiB", "4 MiB")}])
        self.assertEqual(len({block.pid for block in blocks(done.stderr)}), 2)

    def test_a_child_in_its_parents_memory_has_none(self):
        self.assertEqual(self.one("vforks").rows, {("device memory", None): (1, "4 MiB", "4 MiB")})

    def test_pythons_end_by_os_exit_is_an_end(self):
        text = ("import ctypes, os; driver = ctypes.CDLL('libcuda.so.1'); driver.fake_use_primary(); m = ctypes.c_uint64(); "
                "assert driver.cuMemAlloc_v2(ctypes.byref(m), ctypes.c_size_t(1 << 20)) == 0; os._exit(7)")
        driver = pathlib.Path(PROGRAM).parent / "driver"
        done = subprocess.run([gpupool_system.CTL, "run", "--socket", str(self.daemon.socket), "--report", "--",
                               "/usr/bin/python3", "-c", text], check=False, capture_output=True, text=True, timeout=WAIT_S,
                              env={**environment(GPUPOOL_ALLOC_TIMEOUT="30s"), "LD_LIBRARY_PATH": str(driver)}, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertEqual([block.rows for block in blocks(done.stderr)], [{("device memory", None): (1, "1 MiB", "1 MiB")}])

    def test_a_file_gets_one_block_a_process_at_its_end(self):
        file = self.work / "report"
        file.write_text("before\n")
        for options in ([f"--report={file}"], ["--report=report"]):
            done = self.run_with("sh", "-c", 'cd / && "$0" forks', PROGRAM, options=options, cwd=self.work)
            self.assertNotIn("report", done.stderr)
        text = file.read_text()
        self.assertTrue(text.startswith("before\ngpupool report"))
        self.assertEqual(len(blocks(text)), 4)

    def test_a_file_that_goes_away_does_not_disturb_the_program(self):
        directory = self.work / "gone"
        directory.mkdir()
        done = self.run_with("sh", "-c", 'rm -r "$1" && exec "$0" vforks', PROGRAM, str(directory),
                             options=[f"--report={directory / 'file'}"])
        self.assertIn("cannot be written", done.stderr)

    def test_a_file_that_cannot_be_written_is_an_error(self):
        for value, text in ((self.work, "Is a directory"), (self.work / "no" / "file", "No such file"), ("", "no file is named")):
            done = self.run_with("echo", "ran", options=[f"--report={value}"], code=125)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
