# SPDX-License-Identifier: Apache-2.0
"""The programs channel_producer and channel_consumer, on a simulated GPU, also where one of them is killed; and the programs of
docs/channels.md, as they stand there."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent / "system")]
import installed  # noqa: E402
from gpupool_system import Daemon, wait_until  # noqa: E402

PRODUCER, CONSUMER = os.environ["GPUPOOL_CHANNEL_PRODUCER"], os.environ["GPUPOOL_CHANNEL_CONSUMER"]
PAGE = (installed.SOURCE / "docs/channels.md").read_text()
WAIT_S = 120
FRAMES = 4000  # that take more than a second


class Page(unittest.TestCase):
    def test_the_first_program_works_as_it_stands(self):
        build = pathlib.Path(os.environ["GPUPOOL_BUILD"])
        text, = (block for block in installed.blocks(PAGE, "c") if "int main(" in block)
        with tempfile.TemporaryDirectory(prefix="gpupool-docs-") as folder, Daemon("[host]\nlimit = 64MiB\n") as daemon:
            source, program = pathlib.Path(folder) / "example.c", pathlib.Path(folder) / "example"
            source.write_text(text)
            subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", f"-I{installed.SOURCE}/client/include", source, "-o", program,
                            f"-L{build}/client", "-lgpupool-client", f"-Wl,-rpath,{build}/client"], check=True, timeout=WAIT_S)
            environment = {**os.environ, "GPUPOOL_SOCKET": str(daemon.socket), "GPUPOOL_SIM_LATENCY": "0"}
            done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, "".join(f"image {i} of 307200 bytes: {10 * i}\n" for i in (1, 2, 3)))

    def test_the_program_in_python_is_the_one_that_python_wheel_runs(self):
        program, = installed.blocks(PAGE, "python")
        self.assertIn(program, installed.blocks((installed.SOURCE / "docs/python.md").read_text(), "python"))


class Programs(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon("[host]\nlimit = 64MiB\n")
        self.addCleanup(self.daemon.close)

    def start(self, program, *arguments):
        environment = {**os.environ, "GPUPOOL_SOCKET": str(self.daemon.socket), "GPUPOOL_SIM_LATENCY": "0"}
        process = subprocess.Popen([program, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.communicate()))
        return process

    def end(self, process):
        """Waits until the process has ended well. Returns its output."""
        output, errors = process.communicate(timeout=WAIT_S)
        self.assertEqual((process.returncode, errors), (0, ""))
        return output

    def place(self, number):
        channels = self.daemon.ask("channels")["channels"]
        return channels[0]["places"][number] if channels else {"state": None, "received": 0, "held": 0}

    def kill_in_between(self, process, place):
        """Kills a process that is in the place, when its consumer has received something. Returns the consumer's words."""
        wait_until(lambda: self.place(1)["received"] > 2, "frames are received")
        process.send_signal(signal.SIGSTOP)
        stat = pathlib.Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the process stands still")
        words = self.place(1)
        self.assertLess(words["received"], FRAMES)
        process.kill()
        wait_until(lambda: self.place(place)["state"] == "vacant", "its GPU work is over")
        return words

    def test_each_consumer_receives_each_frame(self):
        for kind, options in (("host", []), ("device", ["--device"])):
            with self.subTest(kind):
                producer = self.start(PRODUCER, *options, "--frames", 50, "--consumers", 2, "frames")
                consumers = [self.start(CONSUMER, *place, "frames") for place in ((), ("--place", 2))]
                self.assertEqual(self.end(producer), f"50 frames of {kind} memory sent to 2\n")
                for consumer in consumers:
                    self.assertEqual(self.end(consumer), "50 frames received, 0 of them once more\n")
                wait_until(lambda: not self.daemon.ask("sessions")["sessions"], "the sessions are gone")
                self.assertEqual(self.daemon.ask("channels"), {"channels": [], "total": 0})

    def test_the_next_consumer_goes_on_where_one_was_killed(self):
        for kind, options in (("host", []), ("device", ["--device"])):
            with self.subTest(kind):
                producer = self.start(PRODUCER, *options, "--frames", FRAMES, "frames")
                words = self.kill_in_between(self.start(CONSUMER, "frames"), 1)
                successor = self.start(CONSUMER, "frames")
                self.assertEqual(self.end(producer), f"{FRAMES} frames of {kind} memory sent to 1\n")
                left = FRAMES - words["received"] + words["held"]
                self.assertEqual(self.end(successor), f"{left} frames received, {words['held']} of them once more\n")

    def test_the_next_producer_goes_on_where_one_was_killed(self):
        consumer, first = self.start(CONSUMER, "frames"), self.start(PRODUCER, "--frames", FRAMES, "frames")
        self.kill_in_between(first, 0)
        sent = self.daemon.ask("channels")["channels"][0]["sent"]
        self.assertEqual(self.end(self.start(PRODUCER, "--frames", 10, "frames")), "10 frames of host memory sent to 1\n")
        output, errors = consumer.communicate(timeout=WAIT_S)
        self.assertEqual((consumer.returncode, output), (0, f"{sent + 10} frames received, 0 of them once more\n"))
        self.assertIn("the producer has died", errors)

    def test_a_channel_for_other_frames_is_not_taken(self):
        self.start(CONSUMER, "frames")
        self.kill_in_between(self.start(PRODUCER, "--frames", FRAMES, "frames"), 0)
        self.assertEqual(self.start(CONSUMER, "--place", 7, "frames").wait(WAIT_S), 1)
        other = self.start(PRODUCER, "--device", "frames")
        self.assertIn("'frames' is a channel for other frames", other.communicate(timeout=WAIT_S)[1])
        self.assertEqual(other.returncode, 1)

    def test_a_wrong_command_line(self):
        for arguments in ((), ("--unknown", "frames"), ("a", "b")):
            for program in (PRODUCER, CONSUMER):
                self.assertEqual(self.start(program, *arguments).wait(WAIT_S), 2)


if __name__ == "__main__":
    unittest.main()
