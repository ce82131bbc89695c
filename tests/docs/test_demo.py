# SPDX-License-Identifier: Apache-2.0
"""The example `relay`, as ./dev demo runs it: on a simulated GPU, with files that are awkward."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

RELAY, DAEMON, CTL = (os.environ[name] for name in ("GPUPOOL_RELAY", "GPUPOOLD", "GPUPOOLCTL"))
MIB = 1 << 20
CHUNK = 4 * MIB  # relay.h's CHUNK_BYTES
WAIT_S = 120


class Demo(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="gpupool-demo-")
        self.addCleanup(self.directory.cleanup)
        self.files = pathlib.Path(self.directory.name) / "files"
        self.temporary = pathlib.Path(self.directory.name) / "temporary"
        self.files.mkdir()
        self.temporary.mkdir()
        unset = ("GPUPOOL_SOCKET", "GPUPOOL_DAEMON_ARGS")
        self.environment = {**{name: value for name, value in os.environ.items() if name not in unset},
                            "GPUPOOL_DAEMON": DAEMON, "TMPDIR": str(self.temporary),
                            "XDG_RUNTIME_DIR": str(self.temporary), "GPUPOOL_SIM_LATENCY": "0",
                            "PATH": f"{os.path.dirname(CTL)}:{os.environ['PATH']}"}

    def relay(self, *arguments):
        return subprocess.run([RELAY, *map(str, arguments)], check=False, capture_output=True, text=True,
                              env=self.environment, timeout=WAIT_S)

    def write(self, name, size):
        path = self.files / name
        path.write_bytes(os.urandom(size))
        return path

    def check_nothing_is_left(self):
        self.assertEqual([path.name for path in self.temporary.glob("gpupool-relay-*")], [])

    def test_files_of_awkward_sizes_arrive(self):
        sizes = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 0, 6 * CHUNK + 513, 0)
        files = [self.write(f"{i} with a blank", size) for i, size in enumerate(sizes)]
        done = self.relay("--gpu", "sim", *files)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn("SIMULATED", done.stdout.splitlines()[0])
        self.assertIn(f"compared byte by byte: {len(files)} files, {sum(sizes) / MIB:.1f} MiB, all alike", done.stdout)
        self.check_nothing_is_left()

    def test_it_chooses_files_by_itself(self):
        done = self.relay("--gpu", "sim")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        size = re.search(r"compared byte by byte: \d+ files, ([\d.]+) MiB", done.stdout)
        self.assertGreater(float(size.group(1)), 1)

    def test_the_stats_show_the_killed_worker_and_its_memory_coming_back(self):
        done = self.relay("--gpu", "sim", self.write("file", 1000))
        self.assertEqual(done.returncode, 0, done.stderr)
        before, during, after = done.stdout.split("\n--- ")[1:]
        device = [re.search(r"^ +\d+  device 0 +ready +\S+ +\[.{10}\] +(\d+) M?i?B +(\d+) M?i?B", text, re.MULTILINE)
                  for text in (before, during, after)]
        in_use_and_cached = [sum(map(int, match.groups())) for match in device]
        self.assertEqual(in_use_and_cached, [0, 48, 0])
        self.assertEqual([text.count("relay holder") for text in (before, during, after)], [0, 1, 0])
        self.assertIn("was back", during)

    def test_without_the_tool_it_shows_the_pools_itself(self):
        self.environment["PATH"] = str(self.files)
        done = self.relay("--gpu", "sim", self.write("file", 1000))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertEqual(done.stdout.count("leased MiB"), 3)

    def test_it_measures(self):
        done = self.relay("--gpu", "sim", self.write("file", 1000))
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = re.findall(r"^  (\S.*?) +(\d+) +([\d.]+ [um]s) +([\d.]+ [um]s)$", done.stdout, re.MULTILINE)
        measured = [row[0] for row in rows]
        for what in ("socket round trip", "host 1 MiB: acquire", "host 1 MiB: release", "plain 1 MiB", "plain 32 MiB",
                     "device 1 MiB: acquire", "device: attach, first", "host: attach, first"):
            self.assertTrue(any(row.startswith(what) for row in measured), f"{what} not in {measured}")

    def test_what_cannot_be_read_is_an_error(self):
        missing = self.relay("--gpu", "sim", self.files / "missing")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("missing: No such file or directory", missing.stderr)
        directory = self.relay("--gpu", "sim", self.files)
        self.assertEqual(directory.returncode, 1)
        self.assertIn("not a regular file", directory.stderr)

    def test_a_daemon_that_cannot_be_started_is_an_error(self):
        self.environment["GPUPOOL_DAEMON"] = "/nonexistent/gpupoold"
        done = self.relay(self.write("file", 1000))
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/gpupoold", done.stderr)

    def test_a_worker_that_dies_is_an_error_and_nothing_is_left(self):
        # The limit on the size of files ends the writer. It holds for the daemon's memory too, so it lies above what the
        # pools take at a time.
        path = self.files / "sparse"
        with open(path, "wb") as file:
            file.truncate(200 * MIB)
        done = subprocess.run(["/bin/sh", "-c", f'ulimit -f {128 * MIB // 512}; exec "$@"', "sh", RELAY, "--gpu", "sim",
                               str(path)], check=False, capture_output=True, text=True, env=self.environment,
                              timeout=WAIT_S)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("the writer was ended by signal", done.stderr)  # SIGXFSZ
        self.check_nothing_is_left()

    def test_when_it_is_terminated_nothing_is_left(self):
        path = self.files / "sparse"
        with open(path, "wb") as file:
            file.truncate(2048 * MIB)
        process = subprocess.Popen([RELAY, "--gpu", "sim", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   text=True, env=self.environment)
        with process:
            self.assertIn("SIMULATED", process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, 1)
        self.check_nothing_is_left()


if __name__ == "__main__":
    unittest.main()
