# SPDX-License-Identifier: Apache-2.0
"""The installed package: the files, the library's names, and programs in C and C++ that are built against it."""
import fnmatch
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "system"))
import gpupool_system  # noqa: E402

BUILD, SOURCE = os.environ["GPUPOOL_BUILD"], os.environ["GPUPOOL_SOURCE"]
VERSION = os.environ["GPUPOOL_VERSION"]
MAJOR_SO = "0"
LIB, CMAKE = os.environ["GPUPOOL_LIBDIR"], os.environ["GPUPOOL_CMAKE"]
CC, CXX = os.environ["GPUPOOL_CC"], os.environ.get("GPUPOOL_CXX") or "c++"
SANITIZE = [f"-fsanitize={os.environ['GPUPOOL_SANITIZE']}"] if os.environ.get("GPUPOOL_SANITIZE") else []
CXX_WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Wold-style-cast",
                "-Wnon-virtual-dtor", "-Werror")
WAIT_S = 300

FILES = {
    "bin/gpupoolctl", "bin/gpupool-exporter", "sbin/gpupoold", "etc/gpupool/gpupoold.conf", "include/gpupool/gpupool.h",
    "include/gpupool/channel.h", "include/gpupool/channel.hpp", "include/gpupool/fence.h", "include/gpupool/hooks.h", "include/gpupool/names.h", "include/gpupool/names.hpp", "include/gpupool/pair.h", "include/gpupool/staging.h", "include/gpupool/synced.h",
    "include/gpupool/client_name.hpp", "include/gpupool/gpupool.hpp", "include/gpupool/result.hpp", "include/gpupool/rmm.hpp", "include/gpupool/tensorrt.hpp", "include/gpupool/thrust.hpp",
    f"{LIB}/libgpupool-client.a", f"{LIB}/libgpupool-client.so", f"{LIB}/libgpupool-client.so.{MAJOR_SO}",
    f"{LIB}/libgpupool-client.so.{VERSION}", f"{LIB}/libgpupool-torch.so",
    f"{LIB}/libgpupool-hooks.so", f"{LIB}/libgpupool-hooks.so.{MAJOR_SO}", f"{LIB}/libgpupool-hooks.so.{VERSION}",
    f"{LIB}/libgpupool-audit.so", f"{LIB}/libgpupool-preload.so", f"{LIB}/libgpupool-sim.so.{MAJOR_SO}", f"{LIB}/libgpupool-sim.so.{VERSION}", f"{LIB}/pkgconfig/gpupool.pc",
    f"{LIB}/cmake/gpupool/gpupool-config.cmake", f"{LIB}/cmake/gpupool/gpupool-config-version.cmake",
    f"{LIB}/cmake/gpupool/gpupool-targets.cmake",
    f"{LIB}/cmake/gpupool/gpupool-targets-{os.environ['GPUPOOL_CONFIG'].lower()}.cmake",
    "lib/systemd/system/gpupoold.service", "lib/systemd/system/gpupool-exporter.service", "lib/systemd/system/gpupoold.socket",
    "lib/systemd/system/gpupoold-admin.socket", "lib/sysusers.d/gpupool.conf", "lib/tmpfiles.d/gpupool.conf",
    *(f"share/gpupool/schema/{path.name}" for path in gpupool_system.SCHEMAS.glob("*.json")),
    "share/gpupool/gpupool.rules.yml", "share/gpupool/gpupool.dashboard.json",
    "share/bash-completion/completions/gpupoolctl", "share/zsh/site-functions/_gpupoolctl", "share/fish/vendor_completions.d/gpupoolctl.fish",
}
MANUAL_PAGES = {"share/man/man1/gpupoolctl.1", "share/man/man3/gpupool.3", "share/man/man3/gpupool_channel.3", "share/man/man3/gpupool_fence.3",
                "share/man/man3/gpupool_hooks.3", "share/man/man3/gpupool_names.3",
                "share/man/man3/gpupool_pair.3", "share/man/man3/gpupool_synced.3", "share/man/man3/gpupool_upload.3",
                "share/man/man5/gpupoold.conf.5", "share/man/man8/gpupoold.8", "share/man/man8/gpupool-exporter.8"}
# Each function has a page of its own, which leads to the one that documents it.
FUNCTION_PAGES = {f"share/man/man3/{name}.3" for page in pathlib.Path(SOURCE).glob("docs/man/*.3.scd")
                 for name in re.findall(r"^\*[^;(]*?\b(gpupool_[a-z_]+)\(", page.read_text(), re.MULTILINE)} - MANUAL_PAGES
if os.environ["GPUPOOL_MAN"] == "ON":
    FILES |= MANUAL_PAGES | FUNCTION_PAGES


def run(*command, **keywords):
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True, timeout=WAIT_S,
                          **keywords)
    if done.returncode != 0:
        raise AssertionError(f"{shlex.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def install(prefix):
    return run(CMAKE, "--install", BUILD, "--prefix", prefix)


class Checkout(unittest.TestCase):
    def test_a_build_without_options_has_no_tests_and_goes_on_after_warnings(self):
        with tempfile.TemporaryDirectory(prefix="gpupool-checkout-") as folder:
            run(CMAKE, "-S", SOURCE, "-B", folder, f"-DCMAKE_C_COMPILER={CC}", "-DCMAKE_C_FLAGS=-Wunused-macros")
            cache = (pathlib.Path(folder) / "CMakeCache.txt").read_text()
            self.assertIn("CMAKE_BUILD_TYPE:STRING=RelWithDebInfo\n", cache)
            self.assertFalse((pathlib.Path(folder) / "tests").exists())
            self.assertFalse((pathlib.Path(folder) / "CTestTestfile.cmake").exists())
            done = run(CMAKE, "--build", folder, "--target", "gpupool-proto", env={**os.environ, "VERBOSE": "1"})
            self.assertNotIn("-Werror", done)


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="gpupool-package-")
        cls.work = pathlib.Path(cls.directory.name)
        cls.prefix = cls.work / "prefix"
        install(cls.prefix)
        gpupool_system.DAEMON = str(cls.prefix / "sbin/gpupoold")
        gpupool_system.CTL = str(cls.prefix / "bin/gpupoolctl")
        cls.daemon = gpupool_system.Daemon("[host]\nlimit = 256MiB\n")

    @classmethod
    def tearDownClass(cls):
        try:
            cls.daemon.close()
        finally:
            cls.directory.cleanup()

    def run_installed(self, *command, environment=None):
        """Runs a program with the installed library, by default against the installed daemon."""
        return run(*command, env={**os.environ, "GPUPOOL_SOCKET": str(self.daemon.socket), "GPUPOOL_SIM_LATENCY": "0",
                                  "LD_LIBRARY_PATH": str(self.prefix / LIB), **(environment or {})})

    def check_program(self, program):
        """It runs against the installed daemon, and leaves nothing leased."""
        self.assertEqual(self.run_installed(program), f"gpupool {VERSION}: 65536 bytes there and back\n")
        pools = self.daemon.ask("pools")["pools"]
        self.assertEqual(sum(pool["leased_bytes"] for pool in pools), 0)
        self.assertGreater(sum(pool["acquires"] for pool in pools), 0)

    def test_the_files_are_those_that_belong_there(self):
        found = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if not path.is_dir()}
        self.assertEqual(found, FILES)

    def test_no_file_names_the_build_tree(self):
        for path in self.prefix.rglob("*"):
            if path.suffix in (".pc", ".cmake", ".service", ".socket", ".conf", ".json", ".h", ".hpp"):
                text = path.read_text()
                with self.subTest(str(path.relative_to(self.prefix))):
                    self.assertNotIn(BUILD, text)
                    self.assertIsNone(re.search(r"@(?!PACKAGE_INIT@)[A-Z][A-Z_]+@", text))

    def test_what_an_operator_changed_is_kept(self):
        config = self.prefix / "etc/gpupool/gpupoold.conf"
        config.write_text("[host]\nlimit = 1GiB\n")
        install(self.prefix)
        self.assertEqual(config.read_text(), "[host]\nlimit = 1GiB\n")

    def test_gpupoolctl_finds_the_preload_library_that_was_installed_with_it(self):
        done = self.run_installed(self.prefix / "bin/gpupoolctl", "run", "sh", "-c", 'echo "$LD_PRELOAD"',
                                  environment={"LD_LIBRARY_PATH": ""})
        self.assertEqual(done, f"{(self.prefix / LIB).resolve()}/libgpupool-preload.so\n")

    def test_the_shared_library_has_its_soname_and_its_link(self):
        library = self.prefix / LIB / "libgpupool-client.so"
        self.assertIn(f"[libgpupool-client.so.{MAJOR_SO}]", run("readelf", "-d", library))
        self.assertTrue(library.is_symlink())
        self.assertEqual(library.resolve().name, f"libgpupool-client.so.{VERSION}")

    @unittest.skipIf(SANITIZE, "a sanitizer's runtime has to be there from the start")
    def test_a_program_that_runs_can_load_the_library(self):
        """As plug-ins and bindings do: no static thread-local storage is left then."""
        library = self.prefix / LIB / "libgpupool-client.so"
        self.assertNotIn("STATIC_TLS", run("readelf", "-d", library))
        script = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).gpupool_version"
        run(sys.executable, "-c", script, library)

    def test_the_libraries_show_the_public_names_and_no_others(self):
        def declared(paths):
            return set(re.findall(r"GPUPOOL_API[^;(]*?\b(gpupool_\w+)\(", "".join(path.read_text() for path in paths)))

        hooks = self.prefix / "include/gpupool/hooks.h"
        public = declared(path for path in hooks.parent.glob("*.h") if path != hooks)
        self.assertGreater(len(public), 15)

        def names(*command):
            symbols = [line.split() for line in run(*command).splitlines()]
            return {words[-1].split("@")[0] for words in symbols if len(words) == 3 and words[1] in "TDBRVWi"}

        shared = names("nm", "-D", "--defined-only", self.prefix / LIB / "libgpupool-client.so")
        self.assertEqual(shared, public)
        self.assertEqual(names("nm", "-D", "--defined-only", self.prefix / LIB / "libgpupool-hooks.so"), declared([hooks]))
        if not SANITIZE:
            static = names("nm", "-g", "--defined-only", self.prefix / LIB / "libgpupool-client.a")
            internal = {name for name in static if name.startswith("gpupool_internal_")}
            self.assertEqual(static - internal, public)
            table = [line.split() for line in run("readelf", "-sW", self.prefix / LIB / "libgpupool-client.a").splitlines()]
            shown = {words[-1] for words in table if len(words) >= 8 and words[5] == "DEFAULT" and words[6] != "UND"}
            self.assertEqual(internal & shown, set())

    @unittest.skipIf(SANITIZE, "the archive has the objects as they are")
    def test_a_static_program_links_only_the_objects_that_it_uses(self):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.prefix / LIB / "pkgconfig")}
        flags = shlex.split(run("pkg-config", "--cflags", "--static", "--libs", "gpupool", env=environment))
        flags = ["-l:libgpupool-client.a" if word == "-lgpupool-client" else word for word in flags]
        objects = {"pair": "gpupool_pair_init", "synced": "gpupool_synced_create", "staging": "gpupool_upload"}
        for used in (None, *objects):
            with self.subTest(used=used):
                source, program = self.work / "objects.c", self.work / f"objects-{used}"
                call = f"(void *)(uintptr_t){objects[used]}" if used else "0"
                source.write_text("#include <stdint.h>\n#include <gpupool/gpupool.h>\n#include <gpupool/pair.h>\n"
                                  "#include <gpupool/staging.h>\n#include <gpupool/synced.h>\n"
                                  f"int main(void) {{ gpupool_close(0); return {call} == (void *)1; }}\n")
                run(CC, source, "-o", program, *flags)
                linked = run("nm", program)
                found = {name for name, function in objects.items() if re.search(rf"\b{function}$", linked, re.MULTILINE)}
                self.assertEqual(found, {used} - {None})
                self.assertEqual("copy_workers" in linked, used == "staging")

    def test_programs_are_built_by_pkg_config(self):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.prefix / LIB / "pkgconfig")}

        def flags(*options):
            return shlex.split(run("pkg-config", *options, "gpupool", env=environment))

        self.assertEqual(flags("--modversion"), [VERSION])
        cplusplus = self.work / "program.cc"
        shutil.copy(HERE / "program.c", cplusplus)
        for compiler, source, standard in ((CC, HERE / "program.c", "-std=c11"), (CXX, cplusplus, "-std=c++17")):
            for static in (False, True):
                with self.subTest(compiler=compiler, static=static):
                    program = self.work / f"pkg-config-{source.suffix[1:]}-{static}"
                    libraries = flags("--static", "--libs") if static else flags("--libs")
                    if static:  # by -lgpupool-client the linker would take the shared one that lies beside it
                        libraries = ["-l:libgpupool-client.a" if word == "-lgpupool-client" else word
                                     for word in libraries]
                    run(compiler, standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", *SANITIZE, *flags("--cflags"),
                        source, "-o", program, *libraries)
                    needed = run("readelf", "-d", program)
                    self.assertEqual("libgpupool-client" in needed, not static)
                    self.check_program(program)

    def test_programs_are_built_by_cmake(self):
        source, build = self.work / "consumer", self.work / "consumer-build"
        source.mkdir()
        shutil.copy(HERE / "program.c", source / "program.c")
        shutil.copy(HERE / "program.c", source / "program.cc")
        for name in ("hooks.cc", "cplusplus.h"):
            shutil.copy(HERE / name, source / name)
        text = (HERE / "project.cmake.in").read_text()
        (source / "CMakeLists.txt").write_text(text.replace("@version@", VERSION.rpartition(".")[0]))
        run(CMAKE, "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_C_COMPILER={CC}", f"-DCMAKE_CXX_COMPILER={CXX}", f"-DCMAKE_C_FLAGS={' '.join(SANITIZE)}",
            f"-DCMAKE_CXX_FLAGS={' '.join(SANITIZE)}")
        run(CMAKE, "--build", build)
        for program in ("shared_c", "shared_cc", "static_c", "static_cc"):
            with self.subTest(program):
                self.check_program(build / program)
        self.assertEqual(self.run_installed(build / "hooks"), "hooks in C++\n")

    def test_a_stream_that_is_left_out_in_cplusplus_is_the_documented_one(self):
        """Every call whose last parameter is a stream, in place of which stands a function that looks at it. A pair's calls that
        may give memory back mean all streams, the others the per-thread one."""
        headers = sorted(path for path in (self.prefix / "include/gpupool").glob("*.h") if path.name != "hooks.h")
        text = re.sub(r"/\*.*?\*/", "", "".join(path.read_text() for path in headers), flags=re.DOTALL)
        found = re.findall(r"GPUPOOL_API\s+([^;()]*?)(gpupool_\w+)\(([^;()]*?),?\s*void \*stream( GPUPOOL_(?:PAIR_)?STREAM_OPTIONAL)?\s*\);",
                           text)
        of_all = {f"gpupool_pair_{verb}" for verb in ("clear", "clear_host", "clear_device", "grow_host", "grow_device",
                                                      "adopt_host", "adopt_device")}
        calls = {name: (kind.strip(), parameters) for kind, name, parameters, optional in found
                 if name not in ("gpupool_stream_destroy",)}  # where there is nothing to leave out
        self.assertEqual([name for _, name, _, optional in found if not optional], ["gpupool_stream_destroy"])
        self.assertLessEqual({"gpupool_release", "gpupool_shrink", "gpupool_alloc", "gpupool_free", "gpupool_copy",
                              "gpupool_set", "gpupool_stream_synchronize", "gpupool_pair_clear", "gpupool_synced_device", "gpupool_upload", "gpupool_fence_record",
                              "gpupool_fence_wait"}, set(calls))
        lines = [f"#include <gpupool/{path.name}>" for path in headers] + ["#include <cstdio>", "static int wrong, seen;"]
        self.assertLessEqual(of_all, set(calls))
        for name, (kind, parameters) in calls.items():
            means = "GPUPOOL_PAIR_ALL_STREAMS" if name in of_all else "GPUPOOL_PER_THREAD"
            lines.append(f'extern "C" {kind} {name}({parameters}, void *stream) {{ wrong += stream != {means}; '
                         "seen++; return {}; }")
        lines.append("int main() {")
        for name, (_, parameters) in calls.items():
            lines.append(f"    (void){name}({', '.join('{}' for _ in parameters.split(','))});")
        lines.append('    std::printf("%d wrong of %d\\n", wrong, seen);\n}\n')
        source, program = self.work / "left-out.cc", self.work / "left-out"
        source.write_text("\n".join(lines))
        run(CXX, "-std=c++17", "-Wall", "-Werror", "-Wno-unused-parameter", *SANITIZE, f"-I{self.prefix / 'include'}", source,
            "-o", program)
        self.assertEqual(run(program), f"0 wrong of {len(calls)}\n")

    def test_the_allocator_for_pytorch_serves_a_program_like_it(self):
        program = self.work / "torch-like"
        run(CXX, "-std=c++17", "-Wall", "-Wextra", "-Werror", *SANITIZE, f"-I{self.prefix / 'include'}",
            HERE / "torch_like.cc", "-o", program, f"-L{self.prefix / LIB}", "-lgpupool-client", "-ldl")
        self.assertEqual(self.run_installed(program, self.prefix / LIB / "libgpupool-torch.so"), "as PyTorch does\n")

    @unittest.skipIf(SANITIZE, "a sanitizer's runtime has to be there from the start")
    def test_the_allocator_for_pytorch_finds_the_client_library(self):
        """Whatever the loader's paths are."""
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        run(sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1]).gpupool_torch_malloc",
            self.prefix / LIB / "libgpupool-torch.so", env=environment)

    def test_the_hooks_serve_a_program_in_cplusplus(self):
        """The client library is found whatever the loader's paths are."""
        program = self.work / "hooks"
        run(CXX, "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wold-style-cast", "-Wshadow", "-Werror", *SANITIZE,
            f"-I{self.prefix / 'include'}", HERE / "hooks.cc", "-o", program, f"-L{self.prefix / LIB}", "-lgpupool-hooks",
            "-lgpupool-client")
        self.assertEqual(self.run_installed(program), "hooks in C++\n")
        self.assertEqual(sum(pool["leased_bytes"] for pool in self.daemon.ask("pools")["pools"]), 0)

    def test_another_major_version_is_not_taken(self):
        source = self.work / "future"
        source.mkdir()
        (source / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(future LANGUAGES C)\n"
                                               "find_package(gpupool 1.0 REQUIRED)\n")
        with self.assertRaises(AssertionError):
            run(CMAKE, "-S", source, "-B", self.work / "future-build", f"-DCMAKE_PREFIX_PATH={self.prefix}")

    def test_daemon_and_tool_run_from_where_they_are(self):
        self.assertEqual(run(self.prefix / "bin/gpupoolctl", "--version"), f"gpupoolctl {VERSION}\n")
        done = gpupool_system.ctl("stats", socket_path=self.daemon.admin_socket)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"gpupoold {VERSION}", done.stdout)

    def test_the_manual_pages_examples_work(self):
        """Those that are programs are run, the others compiled."""
        for path in (gpupool_system.SOURCE / "docs/man").glob("*.3.scd"):
            with self.subTest(path.name):
                text = re.search(r"# EXAMPLE\n\n```\n(.*?)```", path.read_text(), re.DOTALL).group(1)
                example, program = self.work / f"{path.stem}.c", self.work / f"{path.stem}.example"
                example.write_text(text.replace("\\\\", "\\"))
                is_program = "int main(" in text
                libraries = [f"-L{self.prefix / LIB}", "-lgpupool-client"] if is_program else ["-c"]
                run(CC, "-Wall", "-Wextra", "-Werror", *SANITIZE, f"-I{self.prefix / 'include'}", example, "-o", program,
                    *libraries)
                if is_program:
                    self.run_installed(program)
        self.daemon.ask("unpublish", name="starts")  # the example of gpupool_names(3) keeps it

    def test_the_memory_objects_serve_programs_in_cplusplus(self):
        for name in ("fences", "pairs", "staging", "synced"):
            with self.subTest(name):
                program = self.work / name
                run(CXX, "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Wold-style-cast", "-Wshadow", "-Werror", *SANITIZE,
                    f"-I{self.prefix / 'include'}", HERE / f"{name}.cc", "-o", program, f"-L{self.prefix / LIB}",
                    "-lgpupool-client")
                self.assertEqual(self.run_installed(program), f"{name} in C++\n")
                self.assertEqual(sum(pool["leased_bytes"] for pool in self.daemon.ask("pools")["pools"]), 0)

    def cplusplus_compilers(self):
        """Of the build and, where no sanitizer's runtime has to fit, of both kinds, which ./dev setup installs. Each once, also where it
        has several names."""
        found = {name: shutil.which(name) for name in ((CXX,) if SANITIZE else (CXX, "g++", "clang++"))}
        self.assertNotIn(None, found.values(), found)
        return {os.path.realpath(path): path for path in found.values()}.values()

    def test_the_objects_in_cplusplus_give_back_by_themselves(self):
        """With exceptions, and with results alone in a program that has no exceptions and no run-time type information."""
        programs = {"raii": ("objects in C++\n", []), "names": ("names in C++\n", []), "channels": ("channels in C++\n", []), "results": ("results in C++\n", ["-fno-exceptions", "-fno-rtti"])}
        standards = ("c++17", "c++20")
        for number, compiler in enumerate(self.cplusplus_compilers()):
            # Each compiler and each standard; all pairs of them in a full run.
            for standard in standards if SANITIZE or os.environ.get("GPUPOOL_TEST_FULL") else (standards[number % 2],):
                for name, (output, options) in programs.items():
                    with self.subTest(compiler=compiler, standard=standard, name=name):
                        program = self.work / f"{name}-{pathlib.Path(compiler).name}-{standard}"
                        run(compiler, f"-std={standard}", "-O1", *CXX_WARNINGS, *SANITIZE, *options, f"-I{self.prefix / 'include'}",
                            HERE / f"{name}.cc", "-o", program, f"-L{self.prefix / LIB}", "-lgpupool-client", "-pthread")
                        self.assertEqual(self.run_installed(program), output)
                        self.assertEqual(sum(pool["leased_bytes"] for pool in self.daemon.ask("pools")["pools"]), 0)

    def test_misuse_does_not_compile(self):
        """A result that is not looked at, a copy, and a stream that ends before what keeps its name."""
        lines = {"": True, "client.try_trim();": False, "gpupool::client copy = client;": False,
                 "gpupool::buffer a, b; b = a;": False, "gpupool::parcel a, b(a);": False,
                 "gpupool::buffer a; gpupool::stream s; a.use_on(s);": True,
                 "gpupool::buffer a; a.use_on(gpupool::stream::create(client));": False}
        for line, compiles in lines.items():
            with self.subTest(line):
                source = self.work / "wrong.cc"
                source.write_text("#include <gpupool/gpupool.hpp>\nvoid wrong(gpupool::client &client) {\n"
                                  f"    static_cast<void>(client);\n    {line}\n}}\n")
                done = subprocess.run([CXX, "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", f"-I{self.prefix / 'include'}", source],
                                      check=False, capture_output=True, text=True, timeout=WAIT_S)
                self.assertEqual(done.returncode == 0, compiles, done.stderr)

    def test_a_program_can_bring_the_installed_daemon_along(self):
        program = self.work / "private"
        run(CC, "-Wall", "-Werror", *SANITIZE, f"-I{self.prefix / 'include'}", HERE / "program.c", "-o", program,
            f"-L{self.prefix / LIB}", "-lgpupool-client")
        own = {"GPUPOOL_SOCKET": "private", "GPUPOOL_DAEMON": str(self.prefix / "sbin/gpupoold"),
               "GPUPOOL_DAEMON_ARGS": "--gpu sim --sim-memory 1GiB"}
        self.assertIn("there and back", self.run_installed(program, environment=own))

    @unittest.skipUnless(os.environ["GPUPOOL_MAN"] == "ON", "built without manual pages")
    def test_the_manual_pages_are_manual_pages(self):
        for page in MANUAL_PAGES:
            with self.subTest(page):
                name, section = page.rsplit("/", 1)[1].rsplit(".", 1)
                text = (self.prefix / page).read_text()
                self.assertIn(f'.TH "{name}" "{section}"', text)
                self.assertIn('.SH NAME', text)


class Packages(unittest.TestCase):
    """The lists of files of Debian's and Fedora's packages, beside what is installed. The packages themselves: ./dev package try."""

    def installed(self, lib, units):
        for file in FILES | MANUAL_PAGES:
            if not re.match("lib/(systemd|sysusers.d|tmpfiles.d)/", file):
                file = re.sub(f"^{re.escape(LIB)}/", f"{lib}/", file)
            yield f"/{file}" if file.startswith("etc/") else file.replace("lib/systemd/system", units) if file.startswith("lib/systemd") else f"/usr/{file}"

    def owners(self, file, lists):
        return [package for package, patterns in lists.items() if any(fnmatch.fnmatch(file, pattern) or fnmatch.fnmatch(file, pattern + "/*") for pattern in patterns)]

    def check(self, lists, files):
        for file in files:
            with self.subTest(file):
                self.assertEqual(len(self.owners(file, lists)), 1)

    def test_each_file_is_in_one_package_of_debian(self):
        lists = {path.stem: ["/" + line for line in path.read_text().split()] for path in (pathlib.Path(SOURCE) / "packaging/debian").glob("*.install")}
        self.assertEqual(set(lists), set(re.findall(r"^Package: (.*)", (pathlib.Path(SOURCE) / "packaging/debian/control").read_text(), re.MULTILINE)))
        self.check(lists, self.installed("lib/x86_64-linux-gnu", "/lib/systemd/system"))

    def test_each_file_is_in_one_package_of_fedora(self):
        text = (pathlib.Path(SOURCE) / "packaging/gpupool.spec").read_text()
        places = {"_sysconfdir": "/etc", "_sbindir": "/usr/sbin", "_bindir": "/usr/bin", "_libdir": "/usr/lib64", "_includedir": "/usr/include", "_datadir": "/usr/share",
                  "_mandir": "/usr/share/man", "_unitdir": "/usr/lib/systemd/system", "_sysusersdir": "/usr/lib/sysusers.d", "_tmpfilesdir": "/usr/lib/tmpfiles.d"}
        lists = {}
        for name, body in re.findall(r"^%files (.*)\n((?:[%/].*\n)+?)(?=\n)", text, re.MULTILINE):
            lists[name] = [re.sub(r"%\{(\w+)\}", lambda place: places.get(place[1], "?"), line.split()[-1]) for line in body.splitlines()]
        self.assertEqual(len(lists), 6)
        self.check(lists, self.installed("lib64", "/usr/lib/systemd/system"))
        self.assertIn(f"Version:        {VERSION}\n", text)
        self.assertIn(f"gpupool ({VERSION})", (pathlib.Path(SOURCE) / "packaging/debian/changelog").read_text())


if __name__ == "__main__":
    unittest.main()
