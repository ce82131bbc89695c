# SPDX-License-Identifier: Apache-2.0
"""The gate of the names finds each kind of name that is gone, with its file and line, and nothing in a tree that has all of them. It
looks at what git tracks, and walks a tree that is no checkout."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
GATE = HERE / "names"
WAIT_S = 60

SOUND = {
    "daemon/core/pool.h": "/* A pool: pool_serve() (pool.c) serves struct request, up to PASSES_MAX of them. */\nstruct request;\n#define PASSES_MAX 16\n",
    "daemon/core/pool.c": '#include "daemon/core/pool.h"\n// As core_acquire() says.\nint pool_serve(void) { return getenv("GPUPOOL_SOCKET") != 0; }\n',
    "daemon/core/core.c": 'static const char *const keys[] = {"limit", "close_ns", "low_water"};\nint core_acquire(void);\n',
    "daemon/main.c": 'static const struct option options[] = {{"admin-socket", 1, 0, 0}};\nint main(void) { return 0; }\n',
    "dev": "#!/bin/sh\ncase $1 in\n    soak) ;;\nesac\n",
    "client/ctl/main.c": 'static const char *const commands[] = {"stats", "json"};\n',
    "tests/unit/test_heap.c": "int heap_is_valid(void);\n",
    "tests/unit/CMakeLists.txt": "gpupool_unit_test(heap_histories) # heap_is_valid() after each step\n",
    "docs/page.md": "# A page\n\n## Two words\n\n`pool_serve()` (`daemon/core/pool.c`), `core.c`, `limit = 1GiB`, `close_ns`, GPUPOOL_SOCKET,\n"
                    "`unit/heap`, `unit/heap_histories`, `daemon --admin-socket PATH`, `docker --rm`, `./dev soak`, `gpupoolctl --json stats`, [the words](#two-words),\n"
                    "[the words again](page.md#two-words), [a site](https://example.org/no_such_name.c#no).\n\n"
                    "```c\nint of_the_example(void);\n```\n",
    "docs/man/daemon.8.scd": "daemon(8)\n\n# OPTIONS\n\n*--admin-socket* _PATH_\n\tWhere. See *low_water* and _limit_.\n\n*limit* = _SIZE_\n\tBytes.\n",
    "README.md": "The documentation is in [docs/page.md](docs/page.md).\n",
}
# Each fault with the file that it is planted in, the text, and the report.
PLANTED = {
    "a function in a page": ("docs/a.md", "\nThe request comes by `pool_take()`.\n", "docs/a.md:2: no function pool_take()"),
    "a function without the marks of code": ("docs/a.md", "The request comes by pool_take().\n", "docs/a.md:1: no function pool_take()"),
    "a function in a manual page": ("docs/man/a.3.scd", "a(3)\n\nAs *pool_take*().\n", "docs/man/a.3.scd:3: no function pool_take()"),
    "a name in a manual page": ("docs/man/a.3.scd", "a(3)\n\nOr _pool_take_.\n", "docs/man/a.3.scd:3: no name pool_take"),
    "a function in a header's comment": ("daemon/a.h", "int a;\n/* First words,\n * then pool_take(). */\n", "daemon/a.h:3: no function pool_take()"),
    "a function in a line comment": ("daemon/a.c", "int a; // as pool_take()\n", "daemon/a.c:1: no function pool_take()"),
    "a function in a docstring": ("tests/a.py", '"""First words.\n\nAs pool_take().\n"""\n', "tests/a.py:3: no function pool_take()"),
    "a function in a comment of CMake": ("tests/a.cmake", "\n# As pool_take().\n", "tests/a.cmake:2: no function pool_take()"),
    "a function in another file": ("docs/a.md", "`core_acquire()` (`daemon/core/pool.c`)\n", "docs/a.md:1: no core_acquire in daemon/core/pool.c"),
    "a function in another file, over two lines": ("docs/a.md", "\nFirst `core_acquire()`\n(`pool.c`).\n", "docs/a.md:2: no core_acquire in pool.c"),
    "a function of another file in a comment": ("daemon/a.h", "/* As core_acquire()\n * (pool.c). */\n", "daemon/a.h:1: no core_acquire in pool.c"),
    "a table in another file": ("docs/a.md", "A row of `keys[]` in `main.c`.\n", "docs/a.md:1: no keys in main.c"),
    "a file": ("docs/a.md", "See `daemon/core/lane.c`.\n", "docs/a.md:1: no file daemon/core/lane.c"),
    "a file without its folder": ("daemon/a.c", "/* The rule is lane.h's. */\n", "daemon/a.c:1: no file lane.h"),
    "a folder": ("docs/a.md", "All of `daemon/lanes`.\n", "docs/a.md:1: no folder daemon/lanes"),
    "a link": ("docs/a.md", "See [it](lane.md).\n", "docs/a.md:1: no page or heading lane.md"),
    "a heading": ("docs/a.md", "See [it](page.md#three-words).\n", "docs/a.md:1: no page or heading page.md#three-words"),
    "a constant": ("daemon/a.h", "/* At most LANES_MAX. */\n", "daemon/a.h:1: no constant LANES_MAX"),
    "a variable of the environment": ("docs/a.md", "Set `GPUPOOL_LANES=1`.\n", "docs/a.md:1: no constant GPUPOOL_LANES"),
    "a type": ("daemon/a.h", "/* Owned by struct lane. */\n", "daemon/a.h:1: no type struct lane"),
    "an option of a page": ("docs/a.md", "`gpupoold --lanes 3`\n", "docs/a.md:1: no option --lanes"),
    "an option in an example": ("docs/a.md", "```sh\nsudo gpupoold --lanes 3\n```\n", "docs/a.md:2: no option --lanes"),
    "an option of a manual page": ("docs/man/a.8.scd", "a(8)\n\n*--lanes* _N_\n\tHow many.\n", "docs/man/a.8.scd:3: no option --lanes"),
    "a key of a manual page": ("docs/man/a.5.scd", "a(5)\n\n*lanes* = _N_\n\tHow many.\n", "docs/man/a.5.scd:3: no key lanes = "),
    "a key in a page": ("docs/a.md", "With `lanes = 4` there are four.\n", "docs/a.md:1: no key `lanes = "),
    "a member of the stats": ("docs/a.md", "`lane_bytes` says.\n", "docs/a.md:1: no name lane_bytes"),
    "a member at the end of a sentence": ("docs/a.md", "It is in lane_bytes.\n", "docs/a.md:1: no name lane_bytes"),
    "a member of a schema": ("docs/schema/a.json", '{\n"lane_bytes": {}\n}\n', "docs/schema/a.json:2: no name lane_bytes"),
    "a manual page": ("docs/a.md", "See `gpupool_lanes(3)`.\n", "docs/a.md:1: no manual page gpupool_lanes(3)"),
    "a name of the package": ("docs/a.md", "With gpupool.torch.lanes it is.\n", "docs/a.md:1: no name gpupool.torch.lanes"),
    "a setting of the build": ("docs/a.md", "`cmake -DGPUPOOL_LANES=ON`\n", "docs/a.md:1: no constant GPUPOOL_LANES"),
    "a command": ("docs/a.md", "`gpupoolctl --json lanes` shows it.\n", "docs/a.md:1: no command gpupoolctl --json lanes"),
    "a command behind an option with a value": ("docs/a.md", "```\ngpupoolctl --admin-socket /tmp/a lanes\n```\n",
                                                "docs/a.md:2: no command gpupoolctl --admin-socket /tmp/a lanes"),
    "a command of ./dev": ("docs/a.md", "`./dev lanes`\n", "docs/a.md:1: no command ./dev lanes"),
    "a test": ("docs/a.md", "`unit/lanes` checks it.\n", "docs/a.md:1: no test unit/lanes"),
}


class Names(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="gpupool-names-")
        self.addCleanup(directory.cleanup)
        self.root, self.allowed = pathlib.Path(directory.name) / "tree", pathlib.Path(directory.name) / "names_allowed"
        self.root.mkdir()
        self.allowed.write_text("")

    def write(self, files):
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def look(self):
        done = subprocess.run([sys.executable, GATE, "--root", self.root, "--allowed", self.allowed], capture_output=True, text=True,
                              check=False, timeout=WAIT_S)
        return done.returncode, done.stdout + done.stderr

    def test_a_tree_that_has_all_names_is_sound(self):
        self.write(SOUND)
        self.assertEqual(self.look(), (0, ""))

    def test_each_planted_name_is_found_with_its_line(self):
        for fault, (name, text, report) in PLANTED.items():
            with self.subTest(fault):
                self.write({**SOUND, name: text})
                status, output = self.look()
                (self.root / name).unlink()
                self.assertEqual(status, 1, output)
                self.assertEqual([line[:len(report)] for line in output.splitlines()], [report], output)

    def test_a_name_is_gone_when_its_code_is(self):
        self.write({**SOUND, "daemon/core/core.c": "/* core_acquire() was here. */\n"})
        status, output = self.look()
        self.assertEqual(status, 1)
        self.assertIn("daemon/core/pool.c:2: no function core_acquire()\n", output)
        self.assertIn("docs/page.md:5: no name close_ns\n", output)

    def test_names_of_others_are_allowed_by_the_list(self):
        self.write({**SOUND, "docs/a.md": "`cudaMallocAsync()`, NVML_ERROR_UNKNOWN\n"})
        self.allowed.write_text("# CUDA's.\ncudaMallocAsync NVML_*\n")
        self.assertEqual(self.look(), (0, ""))

        self.allowed.write_text("# CUDA's.\ncudaMallocAsync NVML_*\n# Ours.\npool_serve\n")
        self.assertEqual(self.look(), (1, "names_allowed:4: pool_serve is missing nowhere, and need not be allowed\n"))

    def test_files_that_git_does_not_track_are_not_looked_at(self):
        self.write(SOUND)
        git = ["git", "-C", self.root, "-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run([*git, "init", "--quiet"], check=True)
        subprocess.run([*git, "add", "--all"], check=True)
        self.write({"docs/a.md": "`pool_take()`\n", "daemon/a.c": "int of_nobody(void);\n"})
        self.assertEqual(self.look(), (0, ""))
        subprocess.run([*git, "add", "docs/a.md"], check=True)
        self.assertEqual(self.look(), (1, "docs/a.md:1: no function pool_take()\n"))
        (self.root / "docs/a.md").unlink()  # tracked, and gone
        self.assertEqual(self.look(), (0, ""))

    def test_an_unpacked_archive_is_walked_without_its_builds(self):
        self.write({**SOUND, "build/a.md": "`pool_take()`\n", ".cache/a.md": "`pool_take()`\n"})
        self.assertEqual(self.look(), (0, ""))

    def test_a_tree_without_files_cannot_be_looked_at(self):
        self.assertEqual(self.look()[0], 2)


if __name__ == "__main__":
    unittest.main()
