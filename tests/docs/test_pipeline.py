# SPDX-License-Identifier: Apache-2.0
"""The example `pipeline` on a simulated GPU, and the picture that tests/bench/pages/timeline.py draws from its times. No test
here judges how fast anything was."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SOURCE = pathlib.Path(os.environ["GPUPOOL_SOURCE"])
PIPELINE, DAEMON = os.environ["GPUPOOL_PIPELINE"], os.environ["GPUPOOLD"]
sys.path.insert(0, str(SOURCE / "tests/bench/pages"))
import timeline  # noqa: E402

BATCHES, STREAMS = 7, 3  # which share no divisor
STEPS = ["copy in", "compute", "copy out"]
WAIT_S = 120


def pipeline(*arguments, **environment):
    unset = ("GPUPOOL_SOCKET", "GPUPOOL_DAEMON_ARGS")
    return subprocess.run([PIPELINE, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=WAIT_S,
                          env={**{name: value for name, value in os.environ.items() if name not in unset},
                               "GPUPOOL_DAEMON": DAEMON, "GPUPOOL_SIM_LATENCY": "0", **environment})


class Run(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="gpupool-pipeline-")
        cls.path = pathlib.Path(cls.directory.name) / "pipeline.json"
        cls.done = pipeline("--gpu", "sim", "--batches", BATCHES, "--batch-kib", 300, "--streams", STREAMS, "--rounds", 2,
                            "--json", cls.path)
        if cls.done.returncode != 0:
            raise AssertionError(cls.done.stdout + cls.done.stderr)
        cls.document = json.loads(cls.path.read_text())

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def test_it_says_that_the_gpu_is_simulated(self):
        self.assertIn("SIMULATED", self.done.stdout.splitlines()[0])
        self.assertEqual((self.done.stderr, self.document["gpu"]), ("", "sim"))

    def test_the_table_has_all_ways_beside_the_first_and_the_limit(self):
        rows = re.findall(r"^  \((\d)\) (.+?) +([\d.]+) ms +([\d.]+) +([\d.]+)x +([\d.]+)%$", self.done.stdout, re.MULTILINE)
        self.assertEqual([row[1] for row in rows],
                         ["1 stream, pageable memory", "1 stream, pool memory", f"{STREAMS} streams, pool memory"])
        times = [way["ns"] for way in self.document["ways"]]
        for row, time in zip(rows, times):
            self.assertAlmostEqual(float(row[2]), time / 1e6, delta=0.006)
            self.assertAlmostEqual(float(row[4]), times[0] / time, delta=0.006)
            self.assertAlmostEqual(float(row[5]), 100 * self.document["limit_ns"] / time, delta=0.06)

    def test_the_limit_is_the_slowest_step_by_itself(self):
        alone = {way["name"]: way["ns"] for way in self.document["alone"]}
        self.assertEqual(self.document["limit_ns"], max(alone[step] for step in STEPS))

    def test_every_step_of_every_batch_is_in_the_timeline_in_its_streams_order(self):
        for way in self.document["ways"]:
            with self.subTest(way["name"]):
                self.assertEqual([(span["batch"], span["step"]) for span in way["spans"]],
                                 [(batch, step) for batch in range(BATCHES) for step in STEPS])
                for stream in range(way["streams"]):
                    spans = [span for span in way["spans"] if span["stream"] == stream]
                    self.assertEqual({span["batch"] for span in spans}, set(range(stream, BATCHES, way["streams"])))
                    times = [time for span in spans for time in (span["ready_ns"], span["begin_ns"], span["end_ns"])]
                    self.assertEqual(times, sorted(times))
                self.assertLessEqual(max(span["end_ns"] for span in way["spans"]), way["traced_ns"])

    def test_the_picture_shows_the_steps_where_they_were(self):
        picture = pathlib.Path(self.directory.name) / "pipeline.svg"
        timeline.main(self.path, picture)
        root = xml.etree.ElementTree.parse(picture).getroot()
        space = {"svg": "http://www.w3.org/2000/svg"}
        until_ns = timeline.shown_ns(self.document)
        for step, colour in timeline.COLOURS.items():
            bars = root.findall(f".//svg:rect[@fill='{colour}']", space)
            shown = [span for way in self.document["ways"] for span in way["spans"]
                     if span["step"] == step and span["begin_ns"] < until_ns]
            self.assertEqual(len(bars), len(shown) + 1)  # and one in the legend
        texts = [text.text for text in root.findall(".//svg:text", space)]
        self.assertIn("1 stream, pool memory: 5 batches done in this time", texts)
        self.assertEqual(texts.count("stream 0"), 3)
        self.assertEqual(texts.count(f"stream {STREAMS - 1}"), 1)

    def test_figures_and_picture_come_into_the_page_in_the_place_of_others(self):
        text = (SOURCE / "docs/streams.md").read_text()
        once = timeline.page(text, self.document)
        self.assertIn(f"| {STREAMS} streams, pool memory |", once)
        self.assertIn("](plots/pipeline.svg)", once)
        self.assertEqual(timeline.page(once, self.document), once)
        without = [page.split(timeline.BEGIN)[0] + page.split(timeline.END)[1] for page in (text, once)]
        self.assertEqual(*without)

    def test_what_is_no_pipelines_file_is_said(self):
        directory = pathlib.Path(self.directory.name)
        files = {"empty": "", "text": "pipeline\n", "list": "[]", "object": "{}", "no ways": json.dumps({**self.document, "ways": []}),
                 "no spans": json.dumps({**self.document, "ways": [{**way, "spans": []} for way in self.document["ways"]]}),
                 "binary": "\x00"}
        for name, text in files.items():
            with self.subTest(name):
                (directory / name).write_text(text)
                done = self.draw(directory / name, directory / "picture.svg")
                self.assertEqual((done.returncode, done.stderr), (1, f"{directory / name}: not what `pipeline --json` writes\n"))
        (directory / "latin-1").write_bytes(b"\xe9")
        self.assertIn("not what", self.draw(directory / "latin-1", directory / "picture.svg").stderr)
        done = self.draw(directory / "missing", directory / "picture.svg")
        self.assertEqual((done.returncode, done.stderr), (1, f"{directory / 'missing'}: No such file or directory\n"))
        done = self.draw(self.path, "/nonexistent/picture.svg")
        self.assertEqual((done.returncode, done.stderr), (1, "/nonexistent/picture.svg: No such file or directory\n"))

    def draw(self, *arguments):
        return subprocess.run([sys.executable, SOURCE / "tests/bench/pages/timeline.py", *arguments], check=False, capture_output=True, text=True,
                              timeout=WAIT_S)

    def test_the_commands_of_the_page_work(self):
        """Without the first lines, which build and say where the daemon is: here it is another one."""
        commands = re.search(r"^export GPUPOOL_DAEMON=.*\n((?:.*\n)+?)```$", (SOURCE / "docs/streams.md").read_text(), re.MULTILINE)[1]
        commands = commands.replace("build/release/client/examples/pipeline", f"'{PIPELINE}' --gpu sim --batches 3 --rounds 1")
        commands = commands.replace("tests/bench/pages/timeline.py", f"'{SOURCE}/tests/bench/pages/timeline.py'")
        directory = pathlib.Path(self.directory.name) / "commands"
        directory.mkdir()
        unset = ("GPUPOOL_SOCKET", "GPUPOOL_DAEMON_ARGS")
        environment = {**{name: value for name, value in os.environ.items() if name not in unset}, "GPUPOOL_DAEMON": DAEMON,
                       "GPUPOOL_SIM_LATENCY": "0"}
        done = subprocess.run(["/bin/sh", "-eu", "-c", commands], check=False, capture_output=True, text=True, timeout=WAIT_S,
                              cwd=directory, env=environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""), commands)
        picture = xml.etree.ElementTree.parse(directory / "picture.svg").getroot()
        texts = [text.text for text in picture.findall(".//{http://www.w3.org/2000/svg}text")]
        self.assertEqual(sum("8 streams, pool memory" in text for text in texts), 1)

    def test_all_bars_lie_in_the_picture(self):
        root = xml.etree.ElementTree.fromstring(timeline.draw(self.document))
        width, height = float(root.get("width")), float(root.get("height"))
        for bar in root.findall(".//{http://www.w3.org/2000/svg}rect"):
            x, y = (float(bar.get(name, 0)) for name in "xy")
            self.assertLessEqual(x + float(bar.get("width")), width)
            self.assertLessEqual(y + float(bar.get("height")), height)


class Errors(unittest.TestCase):
    def test_more_streams_than_batches_leave_some_idle(self):
        done = pipeline("--gpu", "sim", "--batches", 2, "--batch-kib", 4, "--streams", 8, "--rounds", 1)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_what_is_no_number_is_refused(self):
        for option in ("--batches", "--batch-kib", "--streams", "--rounds", "--compute"):
            for number in ("0", "-1", "many", "", "4294967297"):
                with self.subTest(option=option, number=number):
                    done = pipeline("--gpu", "sim", option, number)
                    self.assertEqual((done.returncode, done.stdout), (1, ""))
                    self.assertIn("usage", done.stderr)

    def test_a_file_that_cannot_be_written_is_an_error(self):
        done = pipeline("--gpu", "sim", "--batches", 1, "--batch-kib", 4, "--rounds", 1, "--json", "/nonexistent/file")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/file: No such file or directory", done.stderr)

    def test_a_pool_that_is_too_small_is_an_error(self):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
            config.write("[device]\nlimit = 4MiB\nstep = 2MiB\n")
            config.flush()
            done = pipeline("--batches", 2, "--batch-kib", 8192, "--rounds", 1, GPUPOOL_SOCKET="private",
                            GPUPOOL_DAEMON_ARGS=f"--gpu sim --config {config.name}")
        self.assertEqual(done.returncode, 1)
        self.assertIn("acquiring device memory", done.stderr)

    def test_a_machine_without_a_gpu_that_is_not_to_be_simulated_is_an_error(self):
        done = pipeline(GPUPOOL_SOCKET="private", GPUPOOL_DAEMON_ARGS="--gpu none")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no device pool", done.stderr)


if __name__ == "__main__":
    unittest.main()
