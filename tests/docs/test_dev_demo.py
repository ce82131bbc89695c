# SPDX-License-Identifier: Apache-2.0
"""./dev demo in a copy of the tree without sources: with a build that the test holds up, and with packages that are missing. The
programs that the demo runs are the built ones. The commands that it ends with work as they are printed."""
import os
import pathlib
import pty
import re
import shutil
import subprocess
import tempfile
import threading
import unittest

SOURCE = pathlib.Path(os.environ["GPUPOOL_SOURCE"])
PROGRAMS = {"client/examples/relay": os.environ["GPUPOOL_RELAY"], "client/examples/pipeline": os.environ["GPUPOOL_PIPELINE"],
            "daemon/gpupoold": os.environ["GPUPOOLD"], "client/ctl/gpupoolctl": os.environ["GPUPOOLCTL"]}
WAIT_S = 120
BEGIN = "[1/2] the beginning"

# The second call is the build: it shows that it has begun, and goes on when the test has opened the gate.
CMAKE = """#!/bin/sh
case "$*" in
*--build*) ;;
*) exit 0 ;;
esac
if [ -e fails ]; then
    seq -f 'line %.0f' 1 100
    exit 1
fi
echo '[1/2] the beginning'
[ ! -p gate ] || read -r word <gate
"""
INSTALLED = "#!/bin/sh\n[ ! -e none ] || [ -e installed ] || exit 1\necho installed\n"
APT = """#!/bin/sh
echo "$@" >>asked
[ ! -e unreachable ] || { echo 'E: unreachable' >&2; exit 100; }
case "$1" in install) touch installed ;; esac
"""
AS_ROOT = '#!/bin/sh\nexec "$@"\n'


class DevDemo(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="gpupool-dev-demo-")
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name) / "tree"
        self.root.mkdir()
        for name in ("dev", "README.md", "CHANGELOG.md"):
            shutil.copy(SOURCE / name, self.root / name)
        tools = self.root / "tools"
        tools.mkdir()
        links = "".join(f"mkdir -p build/demo/{os.path.dirname(name)}\nln -sf {path} build/demo/{name}\n"
                        for name, path in PROGRAMS.items())
        for name, text in (("cmake", CMAKE + links), ("dpkg-query", INSTALLED), ("dpkg", INSTALLED), ("apt-get", APT), ("sudo", AS_ROOT)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        unset = ("GPUPOOL_SOCKET", "GPUPOOL_DAEMON_ARGS", "GPUPOOL_DAEMON")
        self.environment = {**{name: value for name, value in os.environ.items() if name not in unset},
                            "PATH": f"{tools}:{os.environ['PATH']}", "PROGRESS_S": "0.1", "GPUPOOL_SIM_LATENCY": "0"}

    def dev(self, *arguments):
        return subprocess.run(["./dev", *arguments], check=False, capture_output=True, text=True, cwd=self.root,
                              env=self.environment, timeout=WAIT_S)

    def hold_up(self, output_fd):
        """Starts the demo with the output there, and a build that waits for open_gate()."""
        os.mkfifo(self.root / "gate")
        process = subprocess.Popen(["./dev", "demo", "README.md"], cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL,
                                   stdout=output_fd, stderr=output_fd)
        os.close(output_fd)
        watchdog = threading.Timer(WAIT_S, process.kill)
        watchdog.start()
        self.addCleanup(watchdog.cancel)
        return process

    def read(self, fd, end):
        """The output up to a text; or, for None, up to its end."""
        output = b""
        while end is None or end.encode() not in output:
            try:
                more = os.read(fd, 65536)
            except OSError:  # the terminal's other end has closed
                more = b""
            if not more:
                break
            output += more
        if end is not None:
            self.assertIn(end, output.decode())
        return output.decode()

    def end_of(self, process, fd):
        (self.root / "gate").write_text("on\n")
        output = self.read(fd, None)
        os.close(fd)
        self.assertEqual(process.wait(WAIT_S), 0, output)
        return output

    def test_it_shows_that_the_build_goes_on_without_a_terminal(self):
        fd, output_fd = os.pipe()
        process = self.hold_up(output_fd)
        self.assertTrue(self.read(fd, BEGIN + "\n").endswith(f"    {BEGIN}\n"))
        output = self.end_of(process, fd)
        self.assertNotIn("\r", output)
        self.assertEqual(re.findall(r"^(\d)\. ", output, re.MULTILINE), ["1", "2", "3"])

    def test_it_shows_that_the_build_goes_on_in_place_on_a_terminal(self):
        fd, output_fd = pty.openpty()
        process = self.hold_up(output_fd)
        self.read(fd, f"\r\x1b[K    {BEGIN}")
        output = self.end_of(process, fd)
        self.assertIn("\r\x1b[Krelay: on a SIMULATED GPU", output)

    def test_a_build_that_fails_shows_its_logs_end_and_where_the_whole_is(self):
        (self.root / "fails").touch()
        done = self.dev("demo")
        self.assertEqual(done.returncode, 1)
        self.assertIn("line 100\n", done.stdout)
        self.assertNotIn("line 50\n", done.stdout)
        log = re.search(r"the whole log is (\S+)$", done.stderr, re.MULTILINE)[1]
        self.assertIn("line 1\n", pathlib.Path(log).read_text())

    def test_it_installs_only_what_the_demo_needs(self):
        (self.root / "none").touch()
        done = self.dev("demo", "README.md")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        asked = {word for line in (self.root / "asked").read_text().splitlines() if line.startswith("install")
                 for word in line.split()[1:] if not word.startswith("-")}
        self.assertEqual(asked, {"cmake", "ninja-build", "gcc", "libc6-dev", "pkg-config", "python3", "libuv1-dev", "libcjson-dev",
                                 "libinih-dev", "libsystemd-dev"})
        self.assertIn("installs ten packages", (SOURCE / "README.md").read_text())
        for name in ("installed", "asked"):
            (self.root / name).unlink()
        self.assertEqual(self.dev("setup").returncode, 0)
        self.assertLess(asked | {"g++", "clang", "valgrind", "scdoc", "python3-dev"}, set((self.root / "asked").read_text().split()))

    def test_packages_that_cannot_be_had_are_named(self):
        (self.root / "none").touch()
        (self.root / "unreachable").touch()
        done = self.dev("demo")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^E: unreachable\n.*/build/setup\.log; ")
        self.assertIn("libuv1-dev", done.stderr)

    def test_the_commands_that_it_ends_with_work_as_they_are_printed(self):
        done = self.dev("demo", "README.md")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        commands = re.search(r"^==> .*Next.*\n((?:    .*\n)+)", done.stdout, re.MULTILINE)[1]
        commands = [line.strip().replace("/tmp/", f"{self.root}/") for line in commands.splitlines()]
        start, *rest = commands
        self.assertTrue(start.endswith(" &"))
        self.assertEqual(len(rest), 4)
        admin = re.search(r"--admin-socket (\S+)", start)[1]
        script = "\n".join([start, "trap 'kill %1 2>/dev/null || true' EXIT", f"until [ -S {admin} ]; do kill -0 %1; sleep 0.1; done", *rest])
        done = subprocess.run(["/bin/bash", "-euc", script], check=False, capture_output=True, text=True, cwd=self.root,
                              env=self.environment, timeout=WAIT_S)
        self.assertEqual(done.returncode, 0, f"{script}\n{done.stdout}{done.stderr}")
        self.assertIn("device 0", done.stdout)
        self.assertIn("compared byte by byte: 1 file,", done.stdout)


if __name__ == "__main__":
    unittest.main()
