# SPDX-License-Identifier: Apache-2.0
"""The program, the commands and the configuration of README.md and docs/install.md are taken from the pages as they stand, and tried
against an installation in a temporary prefix. The links of all pages lead somewhere."""
import json
import pathlib
import re
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "system"))
import gpupool_system  # noqa: E402
import installed  # noqa: E402
from installed import CMAKE, SOURCE  # noqa: E402

README = (SOURCE / "README.md").read_text()
INSTALL = (SOURCE / "docs/install.md").read_text()
PAGES = [*sorted(SOURCE.glob("*.md")), *sorted((SOURCE / "docs").glob("*.md")),
         *sorted((SOURCE / "client/examples").glob("*/README.md"))]
README_LINES_MAX = 150
PROGRAM_LINES_MAX = 25


def block(language, containing, page=README):
    """The one block of a page in that language with that text in it."""
    found = [text for text in installed.blocks(page, language) if containing in text]
    if len(found) != 1:
        raise AssertionError(f"the page has {len(found)} {language} blocks with {containing!r}")
    return found[0]


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]


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

    def test_the_path_from_the_program_to_the_stats_works_as_it_stands(self):
        """The commands of the README in their order, with sockets in a folder of the test."""
        directory = self.example("path")
        begin, rest = (block("sh", text).replace("/tmp/", f"{directory}/") for text in ("gpupoold --socket", "cc example.c"))
        self.assertTrue(begin.endswith("&\n"))
        environment = {**self.environment, "GPUPOOL_SIM_LATENCY": "0"}
        with subprocess.Popen(["/bin/sh", "-c", "exec " + begin.removesuffix("&\n")], cwd=directory, env=environment,
                              stderr=subprocess.DEVNULL) as daemon:
            try:
                end = time.monotonic() + installed.WAIT_S
                while not (directory / "gpupool-admin.sock").exists():
                    self.assertIsNone(daemon.poll())
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.01)
                output = self.shell(rest, directory)
            finally:
                daemon.terminate()
        self.assertEqual(daemon.returncode, 0)
        self.assertRegex(output, r"^1048576 bytes of pool \d+\n")
        self.assertIn("device 0", output)
        self.assertIn("host, node", output)

    def test_the_program_runs_with_a_private_daemon(self):
        output = self.shell(block("sh", "cc example.c", INSTALL) + "GPUPOOL_SOCKET=private ./example\n", self.example("private"))
        self.assertRegex(output, r"^1048576 bytes of pool \d+\n$")

    def test_both_pages_install_by_the_same_commands(self):
        self.assertEqual(block("sh", "cmake -B"), block("sh", "cmake -B", INSTALL))

    def test_the_readme_is_short(self):
        self.assertLessEqual(len(README.splitlines()), README_LINES_MAX)

    def test_the_cmake_project_builds_the_program(self):
        directory = self.example("cmake")
        (directory / "CMakeLists.txt").write_text(block("cmake", "find_package(gpupool", INSTALL))
        self.shell(f"'{CMAKE}' -S . -B build -G Ninja && '{CMAKE}' --build build", directory)
        output = self.shell("GPUPOOL_SOCKET=private build/example", directory)
        self.assertRegex(output, r"^1048576 bytes of pool \d+\n$")

    def test_the_configuration_has_no_mistakes(self):
        path = self.work / "gpupoold.conf"
        path.write_text(block("ini", "[daemon]", INSTALL))
        output = self.shell(f"gpupoold --check-config --config '{path}'", self.work)
        self.assertIn("no mistakes", output)

    def test_the_stats_are_asked_by_the_command_shown(self):
        command = block("sh", "python3 -c", INSTALL)
        self.assertIn("/run/gpupool-admin/admin.sock", command)
        with gpupool_system.Daemon("[host]\nlimit = 64MiB\n") as daemon:
            output = self.shell(command.replace("/run/gpupool-admin/admin.sock", str(daemon.admin_socket)), self.work)
            stats = json.loads(output)
            gpupool_system.check_schema(stats, "stats")
            for line in block("sh", "gpupoolctl stats --json", INSTALL).splitlines():
                self.shell(f"GPUPOOL_ADMIN_SOCKET='{daemon.admin_socket}' {line}", self.work)

    def test_the_command_that_starts_a_daemon_has_options_that_it_knows(self):
        command = block("sh", "gpupoold --socket", INSTALL).strip()
        self.assertIn("no mistakes", self.shell(f"{command} --check-config", self.work))

    def test_links_lead_somewhere(self):
        for page in PAGES:
            text = page.read_text()
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if "://" in target:
                    continue
                path, _, anchor = target.partition("#")
                with self.subTest(page=page.name, target=target):
                    there = page.parent / path if path else page
                    self.assertTrue(there.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(there.read_text()))

    def test_files_that_the_developers_pages_name_exist(self):
        """A file is named with its path or without. A folder is named with a slash at its end."""
        tracked = [path.relative_to(SOURCE) for top in ("base", "client", "daemon", "docs", "gpu", "heap", "proto", "systemd", "tests")
                   for path in (SOURCE / top).rglob("*")]
        names = {path.name for path in tracked}
        for page in ("docs/architecture.md", "CONTRIBUTING.md", "SECURITY.md"):
            text = (SOURCE / page).read_text()
            paths = set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:c|h|py|in|map)|(?:[\w-]+/)+)`", text))
            for path in sorted(paths):
                with self.subTest(page=page, path=path):
                    self.assertTrue((SOURCE / path).exists())
            for name in sorted(set(re.findall(r"`([\w-]+\.(?:c|h|py))`", text))):
                with self.subTest(page=page, name=name):
                    self.assertIn(name, names)


if __name__ == "__main__":
    unittest.main()
