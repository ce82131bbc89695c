# SPDX-License-Identifier: Apache-2.0
"""Installations in another prefix than the configured one: each file finds the others, also after the tree was moved. And their
removal."""
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import unittest

from test_package import BUILD, CC, CMAKE, HERE, LIB, SANITIZE, VERSION, WAIT_S, gpupool_system, install, run

UNIT = "lib/systemd/system/gpupoold.service"
CONFIG = "etc/gpupool/gpupoold.conf"


def exec_start(unit):
    """The command line of a service."""
    lines = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    assert len(lines) == 1, lines
    return shlex.split(lines[0].partition("=")[2])


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


def uninstall(**environment):
    return subprocess.run([CMAKE, "--build", BUILD, "--target", "uninstall"], check=False, capture_output=True, text=True,
                          timeout=WAIT_S, env={**os.environ, **environment})


class UnitDaemon(gpupool_system.Daemon):
    """The daemon as its unit starts it, on sockets of its own."""

    def __init__(self, unit):
        self.words = exec_start(unit)
        super().__init__()

    def command(self):
        return [*self.words, "--socket", str(self.socket), "--admin-socket", str(self.admin_socket), *self.gpu]


class Folder(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="gpupool-elsewhere-")
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name).resolve()


class Places(Folder):
    def test_no_file_names_the_configured_prefix_and_the_unit_starts_the_daemon(self):
        prefix = self.work / "prefix"
        install(prefix)
        for path in prefix.rglob("*"):
            if path.suffix in (".pc", ".cmake", ".service", ".socket"):
                with self.subTest(path.name):
                    self.assertNotRegex(path.read_text(), "/usr/local/(bin|sbin|lib|include|share|etc)\\b")
        self.assertEqual(exec_start(prefix / UNIT), [f"{prefix}/sbin/gpupoold", "--config", f"{prefix}/{CONFIG}"])
        with UnitDaemon(prefix / UNIT) as daemon:
            self.assertEqual(daemon.ask("ping")["daemon"]["version"], VERSION)
        (prefix / CONFIG).write_text("[daemon]\nno_such_key = 1\n")
        with self.assertRaisesRegex(AssertionError, "gpupoold.conf"):
            UnitDaemon(prefix / UNIT)

    def test_the_folder_of_a_package_is_in_no_file(self):
        """DESTDIR. Under /usr the configuration lies in /etc, elsewhere in the prefix."""
        for prefix, config in (("/opt/gpupool", f"/opt/gpupool/{CONFIG}"), ("/usr/local", f"/usr/local/{CONFIG}"),
                               ("/usr", f"/{CONFIG}")):
            stage = self.work / prefix.strip("/").replace("/", "-")
            with self.subTest(prefix):
                run(CMAKE, "--install", BUILD, "--prefix", prefix, env={**os.environ, "DESTDIR": str(stage)})
                root = stage / prefix.lstrip("/")
                self.assertTrue((stage / config.lstrip("/")).is_file())
                self.assertEqual(exec_start(root / UNIT), [f"{prefix}/sbin/gpupoold", "--config", config])
                for path in (root / UNIT, root / LIB / "pkgconfig/gpupool.pc"):
                    self.assertNotIn(str(self.work), path.read_text())
                names = "/usr" if prefix == "/usr" else "${pcfiledir}/" + os.path.relpath("/", f"/{LIB}/pkgconfig")
                self.assertEqual((root / LIB / "pkgconfig/gpupool.pc").read_text().splitlines()[0], f"prefix={names}")
                manifest = (pathlib.Path(BUILD) / "install_manifest.txt").read_text().splitlines()
                self.assertLessEqual({config, f"{prefix}/{UNIT}"}, set(manifest))


class Moved(Folder):
    def setUp(self):
        super().setUp()
        install(self.work / "first")
        self.tree = self.work / "moved"
        shutil.move(self.work / "first", self.tree)
        for name in ("DAEMON", "CTL"):
            self.addCleanup(setattr, gpupool_system, name, getattr(gpupool_system, name))
        gpupool_system.DAEMON, gpupool_system.CTL = str(self.tree / "sbin/gpupoold"), str(self.tree / "bin/gpupoolctl")

    def check_program(self, program, **environment):
        with gpupool_system.Daemon("[host]\nlimit = 256MiB\n") as daemon:
            variables = {**os.environ, "GPUPOOL_SOCKET": str(daemon.socket), "GPUPOOL_SIM_LATENCY": "0",
                         "LD_LIBRARY_PATH": str(self.tree / LIB)}
            self.assertEqual(run(program, env={**variables, **environment}), f"gpupool {VERSION}: 65536 bytes there and back\n")

    def test_pkg_config_names_the_moved_tree(self):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.tree / LIB / "pkgconfig")}
        flags = shlex.split(run("pkg-config", "--cflags", "--libs", "gpupool", env=environment))
        for flag in flags:
            if flag[:2] in ("-I", "-L"):
                self.assertTrue(pathlib.Path(flag[2:]).resolve().is_relative_to(self.tree), flag)
        self.assertIn("-lgpupool-client", flags)
        program = self.work / "program"
        run(CC, "-std=c11", "-Werror", *SANITIZE, HERE / "program.c", "-o", program, *flags)
        self.check_program(program)

    def test_cmake_finds_the_moved_tree(self):
        source, build = self.work / "consumer", self.work / "build"
        source.mkdir()
        shutil.copy(HERE / "program.c", source / "program.c")
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(consumer LANGUAGES C)\n"
            f"find_package(gpupool {VERSION.rpartition('.')[0]} REQUIRED)\nadd_executable(program program.c)\n"
            "target_link_libraries(program PRIVATE gpupool::client)\n")
        run(CMAKE, "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.tree}", f"-DCMAKE_C_COMPILER={CC}",
            f"-DCMAKE_C_FLAGS={' '.join(SANITIZE)}")
        run(CMAKE, "--build", build)
        self.check_program(build / "program")

    def test_the_daemon_reads_the_configuration_beside_it(self):
        daemon, config = self.tree / "sbin/gpupoold", self.tree / CONFIG
        self.assertIn(f"(default {config}, if it is there)", run(daemon, "--help"))
        self.assertEqual(run(daemon, "--check-config", "--gpu", "none"), f"{config}: no mistakes\n")
        config.write_text("[daemon]\nno_such_key = 1\n")
        done = subprocess.run([daemon, "--check-config"], check=False, capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"{config}", done.stderr)
        config.unlink()
        self.assertEqual(run(daemon, "--check-config", "--gpu", "none"), "defaults: no mistakes\n")

    def test_the_library_brings_the_daemon_beside_it_along(self):
        program = self.work / "private"
        run(CC, *SANITIZE, f"-I{self.tree / 'include'}", HERE / "program.c", "-o", program, f"-L{self.tree / LIB}",
            "-lgpupool-client")
        own = {name: value for name, value in os.environ.items() if name != "GPUPOOL_DAEMON"}
        done = run(program, env={**own, "GPUPOOL_SOCKET": "private", "GPUPOOL_DAEMON_ARGS": "--gpu sim --sim-memory 1GiB",
                                 "PATH": "/nonexistent", "LD_LIBRARY_PATH": str(self.tree / LIB)})
        self.assertIn("there and back", done)

    def test_gpupoolctl_finds_the_preload_library_beside_it(self):
        with gpupool_system.Daemon() as daemon:
            done = run(gpupool_system.CTL, "run", "sh", "-c", 'echo "$LD_PRELOAD"',
                       env={**os.environ, "GPUPOOL_SOCKET": str(daemon.socket)})
        self.assertEqual(done, f"{self.tree / LIB}/libgpupool-preload.so\n")


class Removal(Folder):
    def test_what_was_installed_goes_and_what_others_put_there_stays(self):
        prefix = self.work / "prefix"
        install(prefix)
        (prefix / "include/gpupool/mine.h").write_text("")
        (prefix / "bin/mine").write_text("")
        done = uninstall()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(files_below(prefix), {"include/gpupool/mine.h", "bin/mine"})
        self.assertEqual([path for path in prefix.rglob("gpupool")], [prefix / "include/gpupool"])
        done = uninstall()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("There is nothing to remove", done.stdout + done.stderr)

    def test_a_relative_prefix_is_removed_too(self):
        run(CMAKE, "--install", BUILD, "--prefix", "prefix", cwd=self.work)
        self.assertEqual(exec_start(self.work / "prefix" / UNIT)[0], f"{self.work}/prefix/sbin/gpupoold")
        self.assertEqual(uninstall().returncode, 0)
        self.assertEqual(files_below(self.work), set())

    def test_a_configuration_that_was_edited_stays_also_after_an_upgrade(self):
        prefix = self.work / "prefix"
        install(prefix)
        (prefix / CONFIG).write_text("[host]\nlimit = 1GiB\n")
        self.assertIn("Kept: ", install(prefix))  # the upgrade
        done = uninstall()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"Kept, because it was edited: {prefix / CONFIG}", done.stdout)
        self.assertEqual(files_below(prefix), {CONFIG})

    def test_a_configuration_that_was_not_edited_goes_also_after_an_upgrade(self):
        stage = self.work / "stage"
        for _ in range(2):
            run(CMAKE, "--install", BUILD, "--prefix", "/usr", env={**os.environ, "DESTDIR": str(stage)})
        self.assertTrue((stage / CONFIG).is_file())
        self.assertEqual(uninstall(DESTDIR=str(stage)).returncode, 0)
        self.assertEqual(files_below(stage), set())

    @unittest.skipIf(os.geteuid() == 0, "root may remove everything")
    def test_a_file_that_may_not_be_removed_is_named(self):
        prefix = self.work / "prefix"
        install(prefix)
        folder = prefix / "bin"
        folder.chmod(0o555)
        self.addCleanup(folder.chmod, 0o755)
        done = uninstall()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"{folder}/gpupoolctl", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
