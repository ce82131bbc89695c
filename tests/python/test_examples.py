# SPDX-License-Identifier: Apache-2.0
"""The programs of client/examples/python, on a simulated GPU: small models, and a short video that ffmpeg makes. They need PyTorch and
torchvision, and restart.py safetensors too; their messages about missing things are tested without."""
import contextlib
import importlib.util
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

import scene
from scene import torch

PROGRAMS = pathlib.Path(os.environ["GPUPOOL_SOURCE"]) / "client/examples/python"
RUN_S = 300
sys.path.insert(0, str(PROGRAMS))

import common
import frames

if hasattr(getattr(torch, "float32", None), "itemsize"):
    import gpupool.torch
    import restart
    from gpupool import names


def has(package):
    return importlib.util.find_spec(package) is not None


def find_ffmpeg():
    if path := shutil.which("ffmpeg"):
        return path
    if has("imageio_ffmpeg"):
        import imageio_ffmpeg
        with contextlib.suppress(RuntimeError):
            return imageio_ffmpeg.get_ffmpeg_exe()
    return None


FFMPEG = find_ffmpeg()
needs_models = unittest.skipUnless(has("torch") and has("torchvision"), "PyTorch and torchvision cannot be imported")
needs_ffmpeg = unittest.skipUnless(FFMPEG, "there is no ffmpeg")


@contextlib.contextmanager
def started(arguments, **options):
    """A program with pipes, in a process group of its own, of which nothing is left afterwards."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=scene.WAIT_S)


def run_to_its_end(arguments, **options):
    with started(arguments, **options) as process:
        output, messages = process.communicate(timeout=RUN_S)
    return subprocess.CompletedProcess(arguments, process.returncode, output, messages)


def is_running(pid):
    """Whether a process is there, and no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def run(*arguments, environment=None):
    return run_to_its_end([sys.executable, *arguments], cwd=PROGRAMS, env=environment)


class Messages(unittest.TestCase):
    """Messages that need no package."""

    def test_help_says_what_is_compared(self):
        for program, words in (("frames.py", "torch.multiprocessing"), ("training.py", "pin_memory=True"), ("restart.py", "safetensors"),
                               ("batches.py", "gpupool.torch.collate")):
            done = run(program, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn(words, done.stdout)

    def test_what_is_missing_is_named(self):
        this = pathlib.Path(__file__)
        for program in "frames.py", "training.py":
            for arguments, words in ((("--video", "/nowhere.avi"), "no video /nowhere.avi"),
                                     (("--video", this, "--ffmpeg", "/nowhere"), "/nowhere does not run"),
                                     (("--ways", "other"), "no way 'other'")):
                done = run(program, *arguments)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(words, done.stderr)
                self.assertNotIn("Traceback", done.stderr)

    def test_the_wait_for_another_process_is_bounded(self):
        watched, (ours, theirs) = common.Watched(), multiprocessing.Pipe()
        process = watched.start(multiprocessing.get_context("spawn"), "sleeper", time.sleep, scene.WAIT_S)
        with self.assertRaisesRegex(SystemExit, "some way: no answer in 0.1 s"):
            watched.receive(ours, "some way", 0.1)
        self.assertFalse(process.is_alive())
        theirs.close()
        ours.close()

    def test_the_bound_of_a_round_grows_with_its_frames(self):
        bounds = []

        class Pipeline(frames.Pipeline):
            def __init__(self):
                self.controls = dict.fromkeys(frames.ROLES, types.SimpleNamespace(send=lambda command: None))

            def receive(self, role, seconds):
                bounds.append(seconds)
                return (0, [], 0) if role == "writer" else 0

        Pipeline().round(1, 1)
        Pipeline().round(1001, 1)
        self.assertEqual({after - before for before, after in zip(bounds[:3], bounds[3:])}, {1000 * frames.FRAME_S})
        self.assertGreaterEqual(bounds[0], common.WAIT_S)

    @unittest.skipIf(torch, "PyTorch is there")
    def test_a_missing_pytorch_is_named(self):
        self.assertIn("needs the package torch", run("restart.py").stderr)

    @scene.needs_torch_2
    def test_a_missing_daemon_is_named(self):
        done = run("restart.py", environment={**os.environ, "GPUPOOL_SOCKET": "/nowhere/socket"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("Start gpupoold", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


@needs_models
class Programs(scene.Scene):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory(prefix="gpupool-examples-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        if FFMPEG:
            subprocess.run([FFMPEG, "-v", "error", "-f", "lavfi", "-i", "testsrc=size=128x96:rate=10:duration=4", "-c:v", "mjpeg",
                            cls.folder / "video.avi"], check=True, timeout=RUN_S)

    def tearDown(self):
        self.daemon.ask("parcels-revoke")  # of messages that were cut by a kill, or that a killed trainer had not read
        self.wait_until_nothing_is_leased()

    def arguments(self, program, **options):
        source = () if program in ("restart.py", "batches.py") else ("--ffmpeg", FFMPEG, "--video", self.folder / "video.avi")
        return [sys.executable, PROGRAMS / program, *source,
                *(part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value)))]

    def run_to_its_end(self, program, **options):
        """Returns what it prints, and the figures that it writes."""
        file = self.folder / "figures.json"
        file.unlink(missing_ok=True)
        done = run_to_its_end(self.arguments(program, json=file, **options), env=self.daemon.environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout, json.loads(file.read_text())

    def kill_one(self, program, pattern, **options):
        """Starts a program, kills the process whose number it prints in a line of the pattern, while memory is in use; returns its
        exit status and messages."""
        with started(self.arguments(program, **options), env=self.daemon.environment) as process:
            line = scene.read_line(process.stdout, RUN_S)
            pid = re.search(pattern, line)
            if not pid:
                os.killpg(process.pid, signal.SIGKILL)
                self.fail(line + process.communicate(timeout=scene.WAIT_S)[1])
            scene.wait_until(lambda: self.daemon.leases() > 0, "the program uses memory of the pools")
            os.kill(int(pid[1]), signal.SIGKILL)
            _, messages = process.communicate(timeout=RUN_S)
        return process.returncode, messages

    @needs_ffmpeg
    def test_frames_arrive_in_all_ways_and_as_a_video(self):
        video = self.folder / "painted.avi"
        ways = "gpupool", "torch", "pickle", "gpupool-gpu", "channels", "channels-gpu"
        printed, figures = self.run_to_its_end("frames.py", size="64x48", rounds=1, frames=12, threads=1, ways=",".join(ways), output=video)
        for way in ways:
            self.assertEqual(len(figures["figures"][way]["latency"]), 12)
            self.assertIn(f"\n| {way} |", printed)
        self.assertGreater(video.stat().st_size, 0)

    @needs_ffmpeg
    def test_a_killed_process_of_the_frames_leaves_nothing(self):
        for role, way in (("decoder", "gpupool"), ("model", "gpupool-gpu"), ("writer", "gpupool"), ("decoder", "channels"), ("model", "channels-gpu"),
                          ("writer", "channels")):
            with self.subTest(role):
                status, messages = self.kill_one("frames.py", rf"{role} (\d+)", size="64x48", frames=100_000, threads=1, ways=way)
                self.assertEqual(status, 1, messages)
                self.assertIn(f"{way}: the process '{role}' ended before its time, with exit code -9", messages)
                self.daemon.ask("parcels-revoke")
                self.wait_until_nothing_is_leased()

    def test_messages_that_nobody_receives_are_drained(self):
        reader, writer = multiprocessing.Pipe(duplex=False)
        for pool in self.host, self.device:
            writer.send((1.0, gpupool.torch.zeros(1000, pool=pool)))
        self.client.trim()
        self.assertGreater(self.daemon.leases(), 0)
        writer.close()
        frames.drain(reader)
        gpupool.trim()
        self.wait_until_nothing_is_leased()

    @needs_ffmpeg
    def test_training_has_the_same_batches_in_all_ways(self):
        for start in "fork", "spawn":
            printed, figures = self.run_to_its_end("training.py", model="resnet18", side=32, batch=4, steps=8, first=2, rounds=1, images=20,
                                                   workers=2, start=start, ways="collate,plain")
            self.assertIn("\n| plain |", printed)
            self.assertGreater(figures["figures"]["collate"][0]["pool"], 0)
            self.assertEqual(figures["figures"]["plain"][0]["pool"], 0)
            self.assertGreater(figures["figures"]["plain"][0]["shared"], 0)

    @needs_ffmpeg
    def test_a_killed_worker_or_trainer_leaves_nothing(self):
        for pattern, word in ((r"workers (\d+)", "killed by signal"), (r"trainer (\d+)", "")):
            with self.subTest(pattern):
                status, messages = self.kill_one("training.py", pattern, model="resnet18", side=32, batch=4, steps=100_000, images=20, workers=2,
                                                 ways="collate")
                self.assertNotEqual(status, 0)
                self.assertIn(word, messages)
                scene.wait_until(self.revoke_until_nothing_is_leased, "all memory went back")

    def test_batches_are_the_same_from_all_loaders(self):
        for workers in 1, 3:
            printed, figures = self.run_to_its_end("batches.py", images=50, batch=8, side=16, workers=workers, rounds=2)
            self.assertIn("\n| channels |", printed)
            self.assertEqual({way: len(seconds) for way, seconds in figures["figures"].items()}, {"channels": 2, "collate": 2, "plain": 2})

    def test_a_killed_worker_or_trainer_of_batches_leaves_nothing(self):
        status, messages = self.kill_one("batches.py", r"workers (\d+)", images=1_000_000, batch=8, side=16, workers=2, ways="channels")
        self.assertEqual(status, 1, messages)
        self.assertIn("ended before its last batch", messages)
        self.wait_until_nothing_is_leased()
        with started(self.arguments("batches.py", images=1_000_000, batch=8, side=16, workers=2, ways="channels"),
                     env=self.daemon.environment) as process:
            workers = [int(number) for number in scene.read_line(process.stdout, RUN_S).split()[1:]]
            scene.wait_until(lambda: self.daemon.leases() > 0, "the program uses memory of the pools")
            process.kill()
            process.wait(scene.WAIT_S)
            scene.wait_until(lambda: not any(is_running(worker) for worker in workers), "the workers end")
        self.wait_until_nothing_is_leased()

    def revoke_until_nothing_is_leased(self):
        """Workers of a killed trainer send until they notice, some seconds later."""
        self.daemon.ask("parcels-revoke")
        return self.daemon.leases() == 0

    @unittest.skipUnless(has("safetensors"), "safetensors cannot be imported")
    def test_a_restarted_worker_gives_the_same_answers(self):
        models = "resnet18,llama-tiny" if has("transformers") else "resnet18"
        printed, figures = self.run_to_its_end("restart.py", models=models, rounds=1, folder=self.folder)
        for model in models.split(","):
            self.assertEqual(set(figures["models"][model]["figures"]), {"gpupool", "safetensors", "torch"})
            self.assertGreater(figures["models"][model]["back"]["own_bytes"], 0)
        self.assertIn("the pools had them again", printed)

    @unittest.skipUnless(has("safetensors"), "safetensors cannot be imported")
    def test_the_weights_are_read_once_and_forgotten_at_the_end(self):
        context = multiprocessing.get_context("spawn")
        restart.result_of(context, restart.prepare, "resnet18", self.folder, "cpu")
        weights = restart.Weights(self.folder / "weights.safetensors", "weights")
        supervisor = restart.Supervisor(context, "gpupool", "resnet18", "cpu", weights)
        request = restart.make_request("resnet18", 1)
        answers = supervisor.ask(request)[0]
        generations = [one.generation for one in names.names()]
        self.assertEqual(len(generations), 1)
        supervisor.worker.process.kill()
        self.assertEqual(supervisor.ask(request)[0], answers)
        self.assertEqual((supervisor.restarts, [one.generation for one in names.names()]), (1, generations))
        supervisor.end()
        self.assertEqual(names.names(), [])
        gpupool.trim()


if __name__ == "__main__":
    unittest.main()
