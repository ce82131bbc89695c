# SPDX-License-Identifier: Apache-2.0
"""gpupoolctl top: as text, and as the screens of a terminal."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from gpupool_system import CTL, WAIT_S, Daemon, ctl, holding

try:
    import pyte  # Debian's python3-pyte: a terminal that programs can look at
except ImportError:
    pyte = None

HAS_CURSES = "built without ncurses" not in ctl("top").stderr


class Terminal:
    """gpupoolctl top in a terminal of its own."""

    def __init__(self, daemon, *arguments, rows=24, columns=80):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        variables = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.master = master
        self.process = subprocess.Popen([CTL, f"--admin-socket={daemon.admin_socket}", "top", "--interval=100ms", *arguments],
                                        stdin=slave, stdout=slave, stderr=slave, env=variables, start_new_session=True)
        os.close(slave)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    def text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    def see(self, pattern):
        """Waits until the screen shows it."""
        end = time.monotonic() + WAIT_S
        while not re.search(pattern, self.text(), re.MULTILINE):
            if time.monotonic() > end:
                raise AssertionError(f"{pattern} does not come on:\n{self.text()}")
            if select.select([self.master], [], [], 0.05)[0]:
                self.stream.feed(os.read(self.master, 65536))
        return self.text()

    def press(self, keys):
        os.write(self.master, keys)


class Plain(unittest.TestCase):
    def test_one_screen_as_text(self):
        with Daemon() as daemon, holding(daemon, GPUPOOL_CLIENT_NAME="worker 7") as holder:
            result = ctl("top", "--once", socket_path=daemon.admin_socket)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertRegex(result.stdout, r"(?m)^  1 gpu 0   \[\|#? +\] +\d+ MiB of \S+ MiB")
            self.assertRegex(result.stdout, rf"(?m)^ *{holder.pid} .* worker 7$")
            self.assertEqual([line for line in result.stdout.splitlines() if len(line) > 80], [])
            self.assertNotIn("\033", result.stdout)

    def test_filters(self):
        with Daemon() as daemon, holding(daemon, GPUPOOL_CLIENT_NAME="worker 7") as holder:
            for options, is_shown in (([f"--pid={holder.pid}"], True), ([f"--pid={holder.pid + 1}"], False), (["--pool=1"], True), (["--pool=2"], False),
                                      ([f"--user={os.getuid()}"], True), ([f"--user={os.getuid() + 1}"], False)):
                result = ctl("top", "--once", *options, socket_path=daemon.admin_socket)
                self.assertEqual(re.search(rf"(?m)^ *{holder.pid} .*worker 7$", result.stdout) is not None, is_shown, options)

    def test_batch_goes_on_until_it_is_interrupted(self):
        with Daemon() as daemon, subprocess.Popen([CTL, f"--admin-socket={daemon.admin_socket}", "top", "--batch", "--interval=100ms"],
                                                  stdout=subprocess.PIPE, text=True, encoding="utf-8") as batch:
            heads = 0
            while heads < 3:
                heads += batch.stdout.readline().startswith("gpupoold ")
            batch.send_signal(signal.SIGTERM)

    def test_without_a_daemon_or_a_terminal(self):
        with Daemon(start=False) as daemon:
            result = ctl("top", "--once", "--timeout=1s", socket_path=daemon.admin_socket)
            self.assertEqual(result.returncode, 3)
            self.assertIn("does not answer", result.stdout)
            result = ctl("top", socket_path=daemon.admin_socket)
            self.assertEqual(result.returncode, 2)
            self.assertIn("add --once or --batch", result.stderr)
            self.assertIn("--interval: '1ms' is no time from 100ms to 1min", ctl("top", "--interval=1ms").stderr)


@unittest.skipIf(pyte is None or not HAS_CURSES, "there is no python3-pyte, or no ncurses")
class Screens(unittest.TestCase):
    def test_keys_change_the_screen(self):
        with Daemon() as daemon, holding(daemon, GPUPOOL_CLIENT_NAME="first one"), holding(daemon, GPUPOOL_CLIENT_NAME="second one"):
            with Terminal(daemon) as terminal:
                terminal.see("first one$")
                terminal.see("second one$")
                terminal.see("^F1 help")
                terminal.press(b"/second\n")
                terminal.see("/second")
                self.assertNotIn("first one", terminal.text())
                terminal.press(b"/\n")
                terminal.see("first one$")
                terminal.press(b"?")
                terminal.see("hide or show a column")
                terminal.press(b"2")
                terminal.see("second one$")
                self.assertNotIn("USER", terminal.text())
                terminal.press(b"p")
                terminal.see("  pool 1$")
                terminal.press(b"ppp")  # the third pool is the last one
                terminal.see("^  3 host")
                terminal.press(b" ")
                terminal.see("  paused")
                terminal.press(b"q")
                self.assertEqual(terminal.process.wait(WAIT_S), 0)

    def test_a_daemon_that_goes_and_comes(self):
        with Daemon() as daemon, Terminal(daemon, "--timeout=1s") as terminal:
            terminal.see("^gpupoold .* 0 sessions")
            daemon.stop()
            terminal.see("does not answer")
            daemon.start()
            terminal.see("^gpupoold .* 0 sessions")
            terminal.press(b"q")
            self.assertEqual(terminal.process.wait(WAIT_S), 0)

    def test_small_terminals(self):
        with Daemon() as daemon, holding(daemon):
            for rows, columns in ((1, 80), (3, 20), (6, 2), (24, 200)):
                with Terminal(daemon, rows=rows, columns=columns) as terminal:
                    terminal.see(r"\S")
                    terminal.press(b"?<>RWTPMup+- ")
                    terminal.press(b"q")
                    while terminal.process.poll() is None:
                        if select.select([terminal.master], [], [], 0.05)[0]:
                            try:
                                os.read(terminal.master, 65536)
                            except OSError:  # it has ended
                                break
                    self.assertEqual(terminal.process.wait(WAIT_S), 0)


if __name__ == "__main__":
    unittest.main()
