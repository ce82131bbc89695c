# SPDX-License-Identifier: Apache-2.0
"""The systemd units, as configured."""
import configparser
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["GPUPOOL_SOURCE"])
UNITS = pathlib.Path(os.environ["GPUPOOL_UNITS"])
SYSTEM_UNITS = pathlib.Path("/usr/lib/systemd/system")
NAMES = ("gpupoold.service", "gpupool-exporter.service", "gpupoold.socket", "gpupoold-admin.socket")
# Ten is no protection at all, in systemd-analyze's tenths.
EXPOSURE_LIMIT = 15
# Keys of systemd 254 and 258, which older ones ignore.
NEW_KEYS = ("FileDescriptorStorePreserve", "AcceptFileDescriptors")


def read_unit(name):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNITS / name)
    return unit


class Units(unittest.TestCase):
    def verify(self, directory, change=""):
        """Verifies the units in a root of their own, with the system's units around them and a program to start. (The unit
        names the installed daemon, which need not be there when tests run.)"""
        root = pathlib.Path(directory)
        units = root / "usr/lib/systemd/system"
        shutil.copytree(SYSTEM_UNITS, units, symlinks=True)
        for name in NAMES:
            shutil.copy(UNITS / name, units)
        with open(units / "gpupoold.service", "a", encoding="utf-8") as service:
            service.write(change)
        for program in (*(read_unit(name)["Service"]["ExecStart"].split()[0] for name in NAMES[:2]), "/bin/kill"):
            path = root / program.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy("/bin/true", path)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", f"--root={root}", *NAMES], check=False,
                              capture_output=True, text=True, timeout=120)
        said = done.stdout + done.stderr
        said = "".join(line for line in said.splitlines(keepends=True)
                       if not ("Unknown key" in line and any(key in line for key in NEW_KEYS)))
        return done.returncode, said

    def test_systemd_has_nothing_to_say_about_the_units(self):
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(self.verify(directory), (0, ""))

    def test_systemd_would_say_something_about_a_mistake(self):
        with tempfile.TemporaryDirectory() as directory:
            _, said = self.verify(directory, "[Service]\nNoNewPrivilege=yes\n")
            self.assertIn("NoNewPrivilege", said)

    def exposure(self, path):
        return subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager",
                               f"--threshold={EXPOSURE_LIMIT}", str(path)], check=False, capture_output=True, text=True,
                              timeout=120)

    def test_the_services_are_exposed_to_at_most_1_5(self):
        for name in NAMES[:2]:
            done = self.exposure(UNITS / name)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("Overall exposure level", done.stdout)

    def test_the_measure_of_exposure_can_fail(self):
        with tempfile.TemporaryDirectory() as directory:
            open_service = pathlib.Path(directory) / "gpupoold.service"
            open_service.write_text("[Service]\nExecStart=/bin/true\n", encoding="utf-8")
            self.assertNotEqual(self.exposure(open_service).returncode, 0)

    def test_the_sockets_are_those_that_daemon_and_tools_expect(self):
        data, admin = read_unit("gpupoold.socket")["Socket"], read_unit("gpupoold-admin.socket")["Socket"]
        self.assertEqual(data["ListenSequentialPacket"], "/run/gpupool/gpupool.sock")
        self.assertEqual((data["FileDescriptorName"], data["SocketMode"], data["SocketGroup"]),
                         ("data", "0660", "gpupool"))
        self.assertEqual(admin["ListenStream"], "/run/gpupool-admin/admin.sock")
        self.assertEqual((admin["FileDescriptorName"], admin["SocketMode"], admin["Service"]),
                         ("admin", "0666", "gpupoold.service"))
        self.assertEqual((data["AcceptFileDescriptors"], admin["AcceptFileDescriptors"]), ("no", "no"))

    def test_the_daemon_is_started_again_at_once_and_its_descriptors_are_kept(self):
        unit = read_unit("gpupoold.service")
        service = unit["Service"]
        self.assertEqual(unit["Unit"]["StartLimitIntervalSec"], "0")
        self.assertEqual((service["Restart"], service["RestartSec"], service["RestartForceExitStatus"]), ("on-failure", "100ms", "75"))
        self.assertNotIn("RestartSteps", service)  # the pause would grow with each restart since the unit's start
        self.assertNotIn("RestartPreventExitStatus", service)
        self.assertEqual(service["FileDescriptorStorePreserve"], "yes")
        slots = re.search(r"#define STORE_SLOTS +(\d+)u", (SOURCE / "daemon/loop/store.h").read_text())[1]
        self.assertEqual(service["FileDescriptorStoreMax"], slots)
        # systemd 252 does not say how many it stores.
        self.assertEqual(re.findall(r"^Environment=FDSTORE=(.*)$", (UNITS / "gpupoold.service").read_text(), re.M), [slots])
        self.assertEqual(service["NotifyAccess"], "main")

    def test_clients_keep_their_uids_and_names(self):
        service = read_unit("gpupoold.service")["Service"]
        self.assertNotIn("PrivateUsers", service)
        self.assertEqual((service["ProtectProc"], service["ProcSubset"]), ("default", "all"))


class SystemFiles(unittest.TestCase):
    def test_the_user_and_the_directory_can_be_made(self):
        source = SOURCE / "systemd"
        with tempfile.TemporaryDirectory() as directory:
            users = pathlib.Path(directory) / "etc"
            users.mkdir()
            subprocess.run(["systemd-sysusers", f"--root={directory}", str(source / "sysusers.conf")], check=True,
                           capture_output=True, timeout=120)
            self.assertIn("\ngpupool:", "\n" + (users / "passwd").read_text())
            self.assertIn("\ngpupool:", "\n" + (users / "group").read_text())
            subprocess.run(["systemd-tmpfiles", "--create", f"--root={directory}", str(source / "tmpfiles.conf")],
                           check=True, capture_output=True, timeout=120)
            for name in ("run/gpupool", "run/gpupool-admin"):
                self.assertEqual((pathlib.Path(directory) / name).stat().st_mode & 0o7777, 0o755)


if __name__ == "__main__":
    unittest.main()
