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

    def test_it_shows_one_thing_after_the_other_in_few_lines(self):
        done = self.relay("--gpu", "sim", self.write("file", 3 * MIB))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        lines = done.stdout.splitlines()
        self.assertLessEqual(len(lines), 24)
        self.assertLessEqual(max(map(len, lines)), 120)
        self.assertEqual([line[0] for line in lines if re.match(r"\d\. ", line)], ["1", "2", "3"])
        self.assertRegex(done.stdout, r"1 file, 3\.0 MiB in 1 parcel: \d+\.\d\d GB/s")

    def test_the_killed_workers_memory_comes_back(self):
        done = self.relay("--gpu", "sim", self.write("file", 1000))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"process \d+ held 48 MiB of the GPU and 24 MiB of host memory: all back \d+\.\d ms after the kill")

    def test_it_needs_no_other_program(self):
        self.environment["PATH"] = str(self.files)
        done = self.relay("--gpu", "sim", self.write("file", 1000))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_it_measures(self):
        done = self.relay("--gpu", "sim", self.write("file", 1000))
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = re.findall(r"^   (\S.*?) {2,}(\d+ ns|\d+\.\d (?:µs|ms))(?:, .*)?$", done.stdout, re.MULTILINE)
        self.assertEqual([row[0] for row in rows if not row[0].startswith("mmap, touch")],
                         ["host memory of the pool", "device memory of the pool", "one message to a process, and its answer",
                          "attach GPU memory of another process", "attach host memory of another process"], done.stdout)
        self.assertEqual(len(rows), 6)

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
