# SPDX-License-Identifier: Apache-2.0
"""The README's program, commands and configuration are taken from it as they stand, and tried against what is installed
into a temporary prefix; its links, and those of the other pages, lead somewhere."""
import json
import pathlib
import re
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "system"))
import gpupool_system  # noqa: E402
import installed  # noqa: E402
from installed import CMAKE, SOURCE  # noqa: E402

README = (SOURCE / "README.md").read_text()
PAGES = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md")),
         *sorted((SOURCE / "client/examples").glob("*/README.md"))]
PROGRAM_LINES_MAX = 25


def block(language, containing):
    """The one block of that language with that text in it."""
    found = [text for text in installed.blocks(README, language) if containing in text]
    if len(found) != 1:
        raise AssertionError(f"README.md has {len(found)} {language} blocks with {containing!r}")
    return found[0]


class Readme(installed.Installed):
    def example(self, name):
        directory = self.work / name
        directory.mkdir()
        (directory / "example.c").write_text(block("c", "int main("))
        return directory

    def test_the_program_is_short_and_compiles_without_a_warning(self):
        directory = self.example("warnings")
        self.assertLessEqual(len((directory / "example.c").read_text().splitlines()), PROGRAM_LINES_MAX)
        self.shell("cc -std=c11 -Wall -Wextra -Wpedantic -Werror -c example.c $(pkg-config --cflags gpupool)", directory)

    def test_the_program_compiles_and_runs_by_the_commands_shown(self):
        output = self.shell(block("sh", "cc example.c"), self.example("commands"))
        self.assertRegex(output, r"^1048576 bytes of pool \d+\n$")

    def test_the_cmake_project_builds_the_program(self):
        directory = self.example("cmake")
        (directory / "CMakeLists.txt").write_text(block("cmake", "find_package(gpupool"))
        self.shell(f"'{CMAKE}' -S . -B build -G Ninja && '{CMAKE}' --build build", directory)
        output = self.shell("GPUPOOL_SOCKET=private build/example", directory)
        self.assertRegex(output, r"^1048576 bytes of pool \d+\n$")

    def test_the_configuration_has_no_mistakes(self):
        path = self.work / "gpupoold.conf"
        path.write_text(block("ini", "[daemon]"))
        output = self.shell(f"gpupoold --check-config --config '{path}'", self.work)
        self.assertIn("no mistakes", output)

    def test_the_stats_are_asked_by_the_command_shown(self):
        command = block("sh", "python3 -c")
        self.assertIn("/run/gpupool/admin.sock", command)
        with gpupool_system.Daemon("[host]\nlimit = 64MiB\n") as daemon:
            output = self.shell(command.replace("/run/gpupool/admin.sock", str(daemon.admin_socket)), self.work)
            stats = json.loads(output)
            gpupool_system.check_schema(stats, "stats")
            for line in block("sh", "gpupoolctl stats").splitlines():
                self.shell(f"GPUPOOL_ADMIN_SOCKET='{daemon.admin_socket}' {line}", self.work)

    def test_the_command_that_starts_a_daemon_has_options_that_it_knows(self):
        command = block("sh", "gpupoold --socket").strip()
        self.assertIn("no mistakes", self.shell(f"{command} --check-config", self.work))

    def test_each_public_function_is_in_a_manual_page(self):
        names = {name for path in (SOURCE / "client/include/gpupool").glob("*.h")
                 for name in re.findall(r"^GPUPOOL_API [^;(]*?\b(gpupool_\w+)\(", path.read_text(), re.MULTILINE)}
        shown = {name for path in (SOURCE / "docs/man").glob("*.3.scd")
                 for name in re.findall(r"^\*[^;(]*?\b(gpupool_\w+)\(", path.read_text(), re.MULTILINE)}
        self.assertEqual(names - shown, set())

    def test_links_lead_somewhere(self):
        for page in PAGES:
            text = page.read_text()
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if "://" in target:
                    continue
                path, _, anchor = target.partition("#")
                with self.subTest(page=page.name, target=target):
                    self.assertTrue((page.parent / path).exists() if path else True)
                    if not path:
                        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
                        self.assertIn(anchor, [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
                                               for heading in headings])

    def test_files_that_the_architecture_names_exist(self):
        text = (SOURCE / "docs/architecture.md").read_text()
        named = set(re.findall(r"`((?:[\w-]+/)+[\w.-]*)`", text))
        self.assertGreater(len(named), 10)
        for name in sorted(named):
            with self.subTest(name):
                inside = [base / name for base in (SOURCE, SOURCE / "client")]
                self.assertTrue(any(path.exists() for path in inside))


if __name__ == "__main__":
    unittest.main()
