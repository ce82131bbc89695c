# SPDX-License-Identifier: Apache-2.0
"""A machine for tests: a systemd of its own as PID 1, in namespaces of its own (mounts, processes, control groups, network).

    machine = Machine()                     # raises NotPossible where that cannot be
    self.addCleanup(machine.close)
    machine.add_unit("mine.service", "[Service]\\nExecStart=/usr/bin/sleep 60\\n")
    machine.systemctl("start", "mine")

It has this machine's /usr, which it cannot write, and nothing else of it: /etc and /opt/test are folders of the test, which it fills
as it likes (etc, programs), the rest is empty. systemd sees the units in /etc/systemd/system alone. There is no journal and no
D-Bus daemon: log_text() has what systemd says, and a unit says where its own output goes.

With GPUPOOL_MACHINE_USR in the environment it has that folder instead of /usr, of a system with another systemd and the libraries that
programs of this machine need.

Nothing of it outlives close(), which kills PID 1: the kernel then ends all its processes and mounts. When the test's process is
killed, the kernel kills PID 1 as well. A killed test leaves an empty control group, which the next Machine removes, and a folder with
temporary files.
"""
import contextlib
import itertools
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

from gpupool_system import SOURCE, WAIT_S, wait_until

SYSTEMD = "/lib/systemd/systemd"
NEEDED = ("unshare", "nsenter", "setpriv", "systemctl", "systemd-sysusers", "systemd-tmpfiles")
PREFIX = "gpupool-machine-"
# From systemd's own units: those that other units need in any case.
TARGETS = ("sysinit.target", "basic.target", "sockets.target", "shutdown.target")
# As far as this, a failure means that namespaces are not possible here.
IS_SET_UP = "the machine is set up"
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
USR = os.environ.get("GPUPOOL_MACHINE_USR", "/usr")

# $1: the folder of the test, $2: the control group, which has the machine's processes alone. The first process tells its number outside.
ENTERS = 'set -eu; read -r pid rest </proc/self/stat; echo "pid $pid"; echo 0 >"$2/cgroup.procs"; exec unshare -C sh -c "$3" machine "$1"'
# $1: the folder of the test. The file systems that systemd wants; /proc/sys stays as it is, but for the length of sockets' queues, which
# a systemd without namespaces sets. systemd's messages go through a FIFO in the place of the kernel's log.
BOOTS = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1/root"
cd "$1/root"
mkdir usr etc proc sys run tmp dev var root opt opt/test old
mount --bind USR usr
mount -o remount,bind,ro usr
for link in bin sbin lib lib32 lib64 libx32; do
    [ ! -e usr/$link ] || ln -s usr/$link $link
done
chmod 1777 tmp
ln -s /run var/run
mount --bind "$1/etc" etc
mount --bind "$1/programs" opt/test
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
[ ! -e proc/sys/net/unix/max_dgram_qlen ] || echo 512 >proc/sys/net/unix/max_dgram_qlen
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
    touch dev/$name
    mount --bind /dev/$name dev/$name
done
mkdir dev/shm
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s /proc/self/fd dev/fd
mkfifo -m 600 dev/kmsg
pivot_root . old
cd /
umount -l old
rmdir old
exec 3<>/dev/kmsg
cat <&3 3<&- &
exec 3<&-
echo IS_SET_UP
exec env -i container=other SYSTEMD_UNIT_PATH=/etc/systemd/system PATH SYSTEMD --system --log-target=kmsg --unit=machine.target
""".replace("IS_SET_UP", IS_SET_UP).replace("SYSTEMD --system", SYSTEMD + " --system").replace(" PATH ", f" {PATH} ").replace(" USR ", f" {shlex.quote(USR)} ")


class NotPossible(Exception):
    """There can be no machine here. The text tells why."""


def control_group():
    """The folder of this process's control group, of version 2."""
    own = re.search(r"^0::(/.*)$", pathlib.Path("/proc/self/cgroup").read_text(), re.M)
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        fields, kind = line.split(" - ")[0].split(), line.split(" - ")[1].split()[0]
        if own is not None and kind == "cgroup2":
            folder = pathlib.Path(fields[4]) / os.path.relpath(own[1], fields[3])
            if folder.is_dir() and os.access(folder, os.W_OK):
                return folder.resolve()
    raise NotPossible("no control group of version 2 that can be written")


def remove_control_group(folder):
    """Returns whether it is gone: one with processes stays."""
    for inner, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(inner)
    return not folder.exists()


def remove_old_control_groups(parent):
    for folder in parent.glob(PREFIX + "*"):
        if not pathlib.Path("/proc", folder.name.removeprefix(PREFIX).split("-")[0]).exists():
            remove_control_group(folder)


class Machine:
    numbers = itertools.count()

    def __init__(self):
        if os.geteuid() != 0:
            raise NotPossible("namespaces and control groups take root")
        missing = [name for name in (*NEEDED, SYSTEMD) if shutil.which(name) is None]
        if missing:
            raise NotPossible("not installed: " + ", ".join(missing))
        parent = control_group()
        remove_old_control_groups(parent)
        self.group = parent / f"{PREFIX}{os.getpid()}-{next(self.numbers)}"
        self.directory = tempfile.TemporaryDirectory(prefix=PREFIX)
        self.folder = pathlib.Path(self.directory.name)
        self.etc, self.programs, self.log = self.folder / "etc", self.folder / "programs", self.folder / "log"
        self.units = self.etc / "systemd/system"
        self.process, self.pid = None, 0
        try:
            self._fill()
            self._boot()
        except BaseException:
            self.close()
            raise

    def _fill(self):
        self.folder.chmod(0o755)
        for folder in (self.folder / "root", self.units, self.programs):
            folder.mkdir(parents=True)
        for name in TARGETS:
            shutil.copy(f"/usr/lib/systemd/system/{name}", self.units)
        (self.units / "machine.target").write_text("[Unit]\nRequires=sysinit.target\nAfter=sysinit.target\n")
        (self.etc / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
        (self.etc / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n")
        (self.etc / "group").write_text("root:x:0:\nnogroup:x:65534:\n")

    def _boot(self):
        try:
            self.group.mkdir()
        except OSError as error:
            raise NotPossible(f"no control group can be made: {error}") from error
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", "-m", "-p", "-u", "-i", "-n", "-f", "--kill-child", "sh", "-c", ENTERS, "machine",
                 str(self.folder), str(self.group), BOOTS], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: IS_SET_UP in self.log_text() or self.process.poll() is not None, "the machine's file systems are made")
        if IS_SET_UP not in self.log_text():
            raise NotPossible("no namespaces: " + self.log_text().strip())
        self.pid = int(re.search(r"^pid (\d+)$", self.log_text(), re.M)[1])
        try:
            wait_until(lambda: self.systemctl("is-active", "machine.target", check=False).returncode == 0, "systemd is up")
        except AssertionError as error:
            raise AssertionError(f"{error}; it said:\n{self.log_text()}") from error

    def close(self):
        """Ends all of it. Fails if something is left."""
        if self.process is not None:
            if self.pid > 0:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            else:
                self.process.kill()  # its child with it
            self.process.wait(WAIT_S)
            self.process = None
        end = time.monotonic() + WAIT_S
        while self.group.exists() and not remove_control_group(self.group):
            if time.monotonic() > end:
                raise AssertionError(f"the control group {self.group} has processes still")
            time.sleep(0.01)
        self.directory.cleanup()

    def log_text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    # --- files on the machine ---

    def add_unit(self, name, text):
        """The text of a unit, or of a drop-in (NAME.d/ANY.conf). systemd does not look before daemon-reload, if it knows the unit already."""
        path = self.units / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def add_program(self, path, name=None):
        """Copies a program, or a library, to /opt/test. Returns its path in the machine. A file that is there is replaced in one step."""
        name = name or pathlib.Path(path).name
        shutil.copy(path, self.programs / "fresh")
        (self.programs / "fresh").replace(self.programs / name)
        return f"/opt/test/{name}"

    def add_users(self, path):
        """The users of a file of systemd-sysusers."""
        subprocess.run(["systemd-sysusers", f"--root={self.folder}", str(path)], check=True, capture_output=True, timeout=WAIT_S)

    def add_folders(self, path):
        """The folders of a file of systemd-tmpfiles."""
        (self.etc / "tmpfiles.d").mkdir(exist_ok=True)
        shutil.copy(path, self.etc / "tmpfiles.d/test.conf")
        self.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/test.conf")

    # --- what happens in it ---

    def path(self, path):
        """Where a file of the machine is for processes outside."""
        return pathlib.Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def command(self, *words, **variables):
        """The words of a command that runs in the machine, as root, with these variables in its environment."""
        return ["nsenter", "-t", str(self.pid), "-m", "-p", "-C", "-u", "-i", "-n", "env", "-i", PATH,
                *(f"{name}={value}" for name, value in variables.items()), *map(str, words)]

    def run(self, *words, check=True, **variables):
        done = subprocess.run(self.command(*words, **variables), check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S)
        if check and done.returncode != 0:
            raise AssertionError(f"{words} ended with {done.returncode}: {done.stderr}\n{self.log_text()}")
        return done

    def systemctl(self, *words, check=True):
        return self.run("systemctl", "--no-pager", *words, check=check)

    def show(self, unit, *properties):
        """The values of properties, as text; "": this systemd does not know it."""
        lines = self.systemctl("show", "--property", ",".join(properties), unit).stdout.splitlines()
        values = dict(line.split("=", 1) for line in lines)
        found = [values.get(name, "") for name in properties]
        return found if len(found) > 1 else found[0]

    def version(self):
        return int(self.run("systemctl", "--version").stdout.split()[1])

    def outer_pid(self, inner):
        """The number that one of its processes has outside."""
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                numbers = re.search(r"^NSpid:\s*(.*)$", (folder / "status").read_text(), re.M)[1].split()
                if int(numbers[-1]) == inner and os.readlink(folder / "ns/pid") == os.readlink(f"/proc/{self.pid}/ns/pid"):
                    return int(folder.name)
        raise ProcessLookupError(f"the machine has no process {inner}")

    def end(self, inner, number=signal.SIGKILL):
        """Sends one of its processes a signal that ends it, and waits for its end."""
        pid = self.outer_pid(inner)
        end = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(end, number)
            if not select.select([end], [], [], WAIT_S)[0]:
                raise AssertionError(f"process {inner} does not end:\n{self.log_text()}")
        finally:
            os.close(end)

    @contextlib.contextmanager
    def stopped(self):
        """Meanwhile systemd does nothing: what ends is not started again."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def add_gpupool(self, units, programs, config, options=""):
        """The daemon's units as they are installed, with the programs (by their names in the machine), on simulated GPUs."""
        for name in ("gpupoold.service", "gpupoold.socket", "gpupoold-admin.socket"):
            shutil.copy(pathlib.Path(units) / name, self.units)
        for name, path in programs.items():
            self.add_program(path, name)
        self.add_users(SOURCE / "systemd/sysusers.conf")
        self.add_folders(SOURCE / "systemd/tmpfiles.conf")
        (self.etc / "gpupool").mkdir()
        (self.etc / "gpupool/gpupoold.conf").write_text(config)
        # The simulated GPUs keep a file beside the socket.
        self.add_unit("gpupoold.service.d/test.conf",
                      "[Service]\nExecStart=\n"
                      f"ExecStart=/opt/test/gpupoold --config /etc/gpupool/gpupoold.conf --gpu sim --sim-gpus 2 --sim-memory 1GiB {options}\n"
                      "Environment=LD_LIBRARY_PATH=/opt/test GPUPOOL_SIM_LATENCY=0\n"
                      "ReadWritePaths=/run/gpupool\nStandardOutput=null\nStandardError=append:/run/gpupoold.log\n")
