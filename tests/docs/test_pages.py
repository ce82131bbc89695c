# SPDX-License-Identifier: Apache-2.0
"""Pages that list something list all of it: docs/functions.md the public functions, docs/troubleshooting.md the errors, and the
installed manual pages each function. The picture of the README is the one that its script draws."""
import fnmatch
import importlib.util
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import installed  # noqa: E402
from installed import SOURCE  # noqa: E402

HEADERS = {path.name: path.read_text() for path in sorted((SOURCE / "client/include/gpupool").glob("*.h"))}
MANUAL = {path.name.removesuffix(".3.scd"): path.read_text() for path in (SOURCE / "docs/man").glob("*.3.scd")}


# Inline functions that macros and templates of the headers are made of: programs do not call them.
INSIDE = {"gpupool_pair_host_elements", "gpupool_pair_device_elements", "gpupool_synced_host_memory", "gpupool_synced_device_memory"}


def exported_by(header):
    """The functions of a header that the library has."""
    return re.findall(r"^GPUPOOL_API [^;(]*?\b(gpupool_\w+)\(", HEADERS[header], re.MULTILINE)


def functions_of(header):
    """The public functions of a header, those that the header itself has included."""
    inline = re.findall(r"^static inline [^;(]*?\b(gpupool_\w+)\(", HEADERS[header], re.MULTILINE)
    return exported_by(header) + [name for name in inline if name not in INSIDE]


def prototypes_of(page):
    """The functions with a prototype on a manual page."""
    return re.findall(r"^\*[^;(]*?\b(gpupool_\w+)\(", MANUAL[page], re.MULTILINE)


class Functions(unittest.TestCase):
    def setUp(self):
        self.page = (SOURCE / "docs/functions.md").read_text()
        self.rows = re.findall(r"^\| `(gpupool_\w+)` \| (.+) \| `(gpupool\w*)\(3\)` \|$", self.page, re.MULTILINE)

    def test_the_table_has_each_public_function_once(self):
        public = [name for header in HEADERS for name in functions_of(header)]
        self.assertGreater(len(public), 50)
        self.assertEqual(sorted(row[0] for row in self.rows), sorted(public))

    def test_the_library_exports_each_of_them(self):
        exported = re.search(r"global:(.*?)local:", (SOURCE / "client/gpupool.map").read_text(), re.DOTALL)[1].replace(";", " ").split()
        for name, _, _ in self.rows:
            self.assertTrue(any(fnmatch.fnmatchcase(name, pattern) for pattern in exported), name)

    def test_each_stands_below_its_header(self):
        for part in re.split(r"^## ", self.page, flags=re.MULTILINE)[1:]:
            header = re.search(r"\[`<gpupool/(\w+\.h)>`\]", part)[1]
            names = re.findall(r"^\| `(gpupool_\w+)`", part, re.MULTILINE)
            self.assertLessEqual(set(names), set(functions_of(header)))

    def test_each_names_the_page_that_documents_it(self):
        for name, _, page in self.rows:
            with self.subTest(name):
                self.assertIn(name, prototypes_of(page))


class Manual(installed.Installed):
    def setUp(self):
        self.folder = self.prefix / "share/man/man3"
        if not self.folder.exists():
            self.skipTest("this build has no manual pages")

    def test_each_public_function_has_a_page_that_documents_it(self):
        for header in HEADERS:
            for name in functions_of(header):
                with self.subTest(name):
                    text = (self.folder / f"{name}.3").read_text()
                    include = re.fullmatch(r"\.so man3/(\w+)\.3\n", text)
                    page = include[1] if include else name
                    self.assertIn(name, prototypes_of(page))
                    self.assertTrue((self.folder / f"{page}.3").exists())

    @unittest.skipIf(shutil.which("man") is None, "man is not installed")
    def test_man_shows_the_page_of_a_function(self):
        done = subprocess.run(["man", "-M", self.prefix / "share/man", "gpupool_acquire"], check=False, capture_output=True, text=True,
                              timeout=installed.WAIT_S, env={**self.environment, "MANPAGER": "cat", "LC_ALL": "C"})
        if "minimized" in done.stdout:
            self.skipTest("this system has no manual pages")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("pinned host memory from the pools", done.stdout)


class Troubleshooting(unittest.TestCase):
    def test_each_error_has_a_section_in_the_order_of_the_header(self):
        page = (SOURCE / "docs/troubleshooting.md").read_text()
        errors = re.findall(r"^ +(GPUPOOL_E_\w+) = -", HEADERS["gpupool.h"], re.MULTILINE)
        self.assertGreater(len(errors), 15)
        self.assertEqual(re.findall(r"^## (GPUPOOL_E_\w+)$", page, re.MULTILINE), errors)

    def test_the_manual_page_has_the_same_errors(self):
        errors = re.findall(r"^ +(GPUPOOL_E_\w+) = -", HEADERS["gpupool.h"], re.MULTILINE)
        section = MANUAL["gpupool"].partition("# ERRORS\n")[2].partition("\n# ")[0]
        self.assertEqual(re.findall(r"^\*(GPUPOOL_E_\w+)\*$", section, re.MULTILINE), errors)


class Picture(unittest.TestCase):
    def test_the_picture_is_the_one_that_its_script_draws(self):
        spec = importlib.util.spec_from_file_location("picture", SOURCE / "tests/bench/pages/picture.py")
        picture = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(picture)
        self.assertEqual((SOURCE / "docs/plots/overview.svg").read_text(), picture.draw(),
                         "draw it again: tests/bench/pages/picture.py docs/plots/overview.svg")


if __name__ == "__main__":
    unittest.main()
