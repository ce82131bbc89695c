# SPDX-License-Identifier: Apache-2.0
"""The example `classifier`: it recognises digits, on any number of streams, with the very scores of its CPU path, and what is
wrong with one image is no other's trouble. On a simulated GPU, or on that of GPUPOOL_TEST_GPU.

By hand, on a machine with a GPU: CLASSIFIER=… MAKE_DIGITS=… CLASSIFIER_IMAGES=… GPUPOOL_DAEMON=… GPUPOOL_TEST_GPU=cuda
python3 test_classifier.py. Tests with a planted fault are left out there (CLASSIFIER_PLANTED)."""
import contextlib
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import tempfile
import time
import unittest
import zlib

CLASSIFIER, MAKE_DIGITS = os.environ["CLASSIFIER"], os.environ["MAKE_DIGITS"]
PLANTED = os.environ.get("CLASSIFIER_PLANTED", "")
MODEL = pathlib.Path(os.environ.get("CLASSIFIER_MODEL", pathlib.Path(CLASSIFIER).parent / "digits.model"))
IMAGES = sorted(pathlib.Path(os.environ["CLASSIFIER_IMAGES"]).glob("*.png"))
GPU = os.environ.get("GPUPOOL_TEST_GPU", "sim")
EXPORT = pathlib.Path(__file__).resolve().parents[1] / f"export_{os.environ.get('GPUPOOL_TEST_EXPORT', 'ipc')}.conf"
HELD_OUT = min(int(os.environ.get("CLASSIFIER_HELD_OUT", "1000")), 1000 if os.environ.get("GPUPOOL_TEST_FULL") else 300)
HELD_OUT_SEED = 700000  # no image of the tree, and no training, has it
RIGHT_MIN_PERCENT = 97
WAIT_S = 200

LINE = re.compile(r"^(?P<path>/.*): (?P<digit>\d) \((?P<percent>[\d.]+) %\)$", re.MULTILINE)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, rows, bits=8):
    """A grey PNG file of these bytes a row."""
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


class Classifier(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="gpupool-classifier-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        unset = ("GPUPOOL_SOCKET", "GPUPOOL_DAEMON_ARGS")
        libraries = os.environ.get("CLASSIFIER_LIBRARY_PATH")  # for the program; Python has its own
        self.environment = {**{name: value for name, value in os.environ.items() if name not in unset},
                            **({"LD_LIBRARY_PATH": libraries} if libraries is not None else {}),
                            "XDG_RUNTIME_DIR": str(self.directory), "GPUPOOL_SIM_LATENCY": "0"}

    def run_program(self, program, *arguments):
        return subprocess.run([program, *map(str, arguments)], check=False, capture_output=True, text=True,
                              env=self.environment, timeout=WAIT_S)

    def classify(self, *arguments, program=CLASSIFIER):
        return self.run_program(program, "--gpu", GPU, "--model", MODEL, *arguments)

    def classify_well(self, *arguments):
        done = self.classify(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def write(self, name, data):
        path = self.directory / name
        path.write_bytes(data)
        return path

    def compared(self, output):
        same, of = re.search(r"^compared with the CPU path: (\d+) of (\d+) have the same scores$", output,
                             re.MULTILINE).groups()
        return int(same), int(of)

    def test_digits_not_seen_in_training_are_recognised_and_the_scores_are_those_of_the_cpu(self):
        held_out = self.directory / "held out"
        held_out.mkdir()
        self.assertEqual(self.run_program(MAKE_DIGITS, held_out, HELD_OUT, HELD_OUT_SEED).returncode, 0)
        files = sorted(held_out.glob("*.png"))
        self.assertEqual(len(files), HELD_OUT)
        output = self.classify_well("--check", "--labels", *files)
        self.assertEqual(self.compared(output), (HELD_OUT, HELD_OUT))
        found = LINE.findall(output)
        self.assertEqual([line[0] for line in found], [str(path) for path in files])
        right = sum(pathlib.Path(path).name[0] == digit for path, digit, _ in found)
        self.assertIn(f"right: {right} of {HELD_OUT} ", output)
        print(f"{100 * right / HELD_OUT:.2f} % right")
        self.assertGreaterEqual(100 * right / HELD_OUT, RIGHT_MIN_PERCENT)

    def test_the_images_of_the_tree_are_recognised(self):
        self.assertGreaterEqual(len(IMAGES), 10)
        output = self.classify_well("--check", *IMAGES)
        self.assertEqual([(path, digit) for path, digit, _ in LINE.findall(output)],
                         [(str(path), path.name[0]) for path in IMAGES])

    def test_the_number_of_streams_changes_nothing_and_the_weights_are_copied_once(self):
        outputs = [self.classify_well("--check", "--streams", streams, "--repeat", repeat, *IMAGES)
                   for streams, repeat in ((1, 1), (4, 3), (16, 8))]
        for output, repeat in zip(outputs, (1, 3, 8)):
            self.assertEqual(LINE.findall(output), LINE.findall(outputs[0]))
            self.assertEqual(self.compared(output), (repeat * len(IMAGES), repeat * len(IMAGES)))
            self.assertRegex(output, r"copies of the weights \(\d+ bytes\) to the device: 1\n")

    def test_a_bad_file_ends_its_own_request_and_no_other(self):
        good = IMAGES[3].read_bytes()
        damaged = bytearray(good)
        damaged[good.index(b"IDAT") + 20] ^= 0xff
        bad = {
            "missing": None,
            "a directory": None,
            "empty": b"",
            "text": b"this is no image\n" * 100,
            "only the signature": good[:8],
            "ends in the header": good[:20],
            "ends in the pixels": good[:len(good) // 2],
            "damaged": bytes(damaged),
            "no pixels": png(0, 10, []),
            "too few rows": png(40, 40, [bytes(40)] * 20),
            "huge": png(60000, 60000, [bytes(60000)]),
            "beyond any number": png(0x7fffffff, 0x7fffffff, []),
        }
        arguments = []
        for i, (name, data) in enumerate(bad.items()):
            path = self.directory / name
            if name == "a directory":
                path.mkdir()
            elif data is not None:
                path.write_bytes(data)
            arguments += [path, IMAGES[i % len(IMAGES)]]
        for streams in (1, 4):
            done = self.classify("--check", "--streams", streams, *arguments)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertEqual([(path, digit) for path, digit, _ in LINE.findall(done.stdout)],
                             [(str(path), path.name[0]) for path in arguments[1::2]])
            self.assertEqual(self.compared(done.stdout), (len(bad), len(bad)))
            messages = done.stderr.splitlines()
            for path in arguments[::2]:
                self.assertEqual(sum(f"{path}: " in line for line in messages), 1, f"{path} in {done.stderr}")
            self.assertIn(f"{len(bad)} of {2 * len(bad)} requests failed", messages[-1])
            self.assertEqual(len(messages), len(bad) + 1, done.stderr)
            self.assertIn("missing: No such file or directory", done.stderr)

    @unittest.skipUnless(GPU == "sim", "failures are planned in the simulation")
    def test_a_copy_that_fails_ends_its_own_request_and_no_other(self):
        """The n-th copy fails, for each n: of an image's pixels, of the weights, of an image's scores."""
        images = IMAGES[:6:2]
        for n in range(1, 100):
            self.environment["GPUPOOL_SIM_FAIL"] = f"memory_copy:{n}:719"
            done = self.classify("--check", "--streams", 2, *images)
            if done.returncode == 0:
                break
            with self.subTest(n=n):
                self.assertIn(f"1 of {len(images)} requests failed", done.stderr)
                self.assertIn("cudaErrorLaunchFailure", done.stderr)
                self.assertEqual(self.compared(done.stdout), (len(images) - 1, len(images) - 1))
        self.assertEqual(n, 2 * len(images) + 1 + 1, "each image is copied in and out, the weights in, and then none fails")

    def test_an_image_that_fits_into_no_memory_fails_alone(self):
        """Its own daemon has pools that are smaller than the image."""
        large = self.write("large.png", png(4000, 4000, [bytes(4000)] * 4000))
        configuration = self.write("configuration", b"[host]\nlimit = 8MiB\nstep = 2MiB\n[device]\nlimit = 8MiB\nstep = 2MiB\n"
                                   + EXPORT.read_bytes())
        with self.daemon("--config", configuration):
            done = self.classify("--check", IMAGES[0], large, IMAGES[1])
            other = self.run_program(CLASSIFIER, "--gpu", "cuda" if GPU == "sim" else "sim", "--model", MODEL, IMAGES[0])
        self.assertEqual(done.returncode, 1)
        self.assertEqual([path for path, _, _ in LINE.findall(done.stdout)], [str(IMAGES[0]), str(IMAGES[1])])
        self.assertRegex(done.stderr, r"large\.png: pinned memory for the pixels: .*\d")
        self.assertIn("1 of 3 requests failed", done.stderr)
        self.assertEqual((other.returncode, other.stdout), (1, ""))
        self.assertIn("another kind of GPU", other.stderr)

    @contextlib.contextmanager
    def daemon(self, *arguments):
        """One that several programs use; it ends well."""
        sockets = [self.directory / name for name in ("data", "admin")]
        with subprocess.Popen([os.environ["GPUPOOL_DAEMON"], "--gpu", GPU, "--log-level", "error", "--socket", sockets[0],
                               "--admin-socket", sockets[1], *arguments], env=self.environment) as daemon:
            try:
                self.environment["GPUPOOL_SOCKET"] = str(sockets[0])
                self.wait_for_daemon(daemon)
                yield
                daemon.terminate()
                self.assertEqual(daemon.wait(WAIT_S), 0)
            finally:
                daemon.kill()

    def leased(self):
        """Bytes of all pools that somebody has."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self.directory / "admin"))
            admin.sendall(b'{"command":"pools"}\n')
            pools = json.loads(admin.makefile().readline())["pools"]
        return sum(pool[name] for pool in pools for name in ("leased_bytes", "quarantined_bytes", "fenced_bytes"))

    @unittest.skipIf(GPU != "sim", "a real driver fails when it wants to")
    def test_any_failing_call_of_the_driver_fails_requests_and_leaves_nothing(self):
        with self.daemon():
            failures = 0
            for number in range(1, 120, 3):
                self.environment["GPUPOOL_SIM_FAIL"] = f"any:{number}:999"
                done = self.classify("--check", "--streams", 3, *IMAGES)
                failures += done.returncode
                self.assertIn(done.returncode, (0, 1), f"call {number}: {done.stderr}")
                self.assertTrue(done.returncode == 0 or "cudaErrorUnknown" in done.stderr, f"call {number}: {done.stderr}")
                self.assertNotIn("not those of the CPU path", done.stderr)
                for path, digit, _ in LINE.findall(done.stdout):
                    self.assertEqual(pathlib.Path(path).name[0], digit)
            self.assertGreater(failures, 10)
            del self.environment["GPUPOOL_SIM_FAIL"]
            self.classify_well("--check", *IMAGES)
            until = time.monotonic() + WAIT_S  # what could not say farewell is in quarantine until it is known to be gone
            while self.leased() > 0:
                self.assertLess(time.monotonic(), until)

    def wait_for_daemon(self, daemon):
        """The first client that gets through: one that is refused tries again, for as long as the daemon lives."""
        while self.classify(IMAGES[0]).returncode != 0:
            self.assertIsNone(daemon.poll(), "the daemon ended")

    def test_sizes_from_one_pixel_on_are_computed_alike(self):
        files = []
        for width, height in ((1, 1), (1, 500), (500, 1), (31, 33), (32, 32), (3000, 2), (1000, 900)):
            rows = [bytes((x * 7 + y * 13) % 256 for x in range(width)) for y in range(height)]
            files.append(self.write(f"{width}x{height}.png", png(width, height, rows)))
        output = self.classify_well("--check", "--streams", 2, "--repeat", 2, *files)
        self.assertEqual(self.compared(output), (2 * len(files), 2 * len(files)))

    def test_sixteen_bits_are_read_as_eight(self):
        rows = [bytes(min(255, abs(x - 30) * 40 + y) for x in range(60)) for y in range(60)]
        eight = self.write("8.png", png(60, 60, rows))
        sixteen = self.write("16.png", png(60, 60, [bytes(b for byte in row for b in (byte, byte)) for row in rows], 16))
        lines = LINE.findall(self.classify_well(eight, sixteen))
        self.assertEqual(lines[0][1:], lines[1][1:])

    def test_a_model_that_is_none_is_refused(self):
        model = MODEL.read_bytes()
        out_of_range = bytearray(model)
        out_of_range[8:12] = struct.pack("<i", 0x7fffffff)
        for name, data in (("empty", b""), ("short", model[:-1]), ("long", model + b"\0"), ("other", b"X" + model[1:]),
                           ("out of range", bytes(out_of_range))):
            with self.subTest(name):
                path = self.write(name, data)
                done = self.run_program(CLASSIFIER, "--gpu", GPU, "--model", path, IMAGES[0])
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(f"{path}: ", done.stderr)
        done = self.run_program(CLASSIFIER, "--gpu", GPU, "--model", self.directory / "missing", IMAGES[0])
        self.assertEqual(done.returncode, 1)
        self.assertIn("missing: No such file or directory", done.stderr)

    def test_wrong_arguments_are_explained(self):
        for arguments in ((), ("--streams", "0", IMAGES[0]), ("--streams", "4x", IMAGES[0]), ("--streams", "65", IMAGES[0]),
                          ("--repeat", "-1", IMAGES[0]), ("--gpu", "fast", IMAGES[0]), ("--nonsense", IMAGES[0])):
            done = self.run_program(CLASSIFIER, *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn("usage: classifier", done.stderr)

    @unittest.skipIf(PLANTED == "", "no program with a planted fault here")
    def test_the_comparison_sees_scores_that_are_not_those_of_the_cpu(self):
        done = self.classify("--check", *IMAGES, program=PLANTED)
        self.assertEqual(done.returncode, 1, done.stdout)
        same, of = self.compared(done.stdout)
        self.assertEqual(of, len(IMAGES))
        self.assertLess(same, of)
        self.assertIn("the scores are not those of the CPU path", done.stderr)


if __name__ == "__main__":
    unittest.main()
