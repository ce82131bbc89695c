# SPDX-License-Identifier: Apache-2.0
"""Each gate lets sound code pass and finds the fault that is planted for it."""
import importlib.machinery
import importlib.util
import io
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ["GPUPOOL_BUILD"])

loader = importlib.machinery.SourceFileLoader("gate", str(HERE / "gate"))
gate = importlib.util.module_from_spec(importlib.util.spec_from_loader("gate", loader))
loader.exec_module(gate)


def run(name, *arguments):
    return subprocess.run([HERE / "gate", name, "--build", BUILD, *arguments], capture_output=True, text=True, check=False)


class Planted(unittest.TestCase):
    def look(self, name, program):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is not installed")
        sound = run(name, HERE / "planted" / "sound.c")
        self.assertEqual(sound.returncode, 0, sound.stdout + sound.stderr)
        faulty = run(name, HERE / "planted" / f"{name}.c")
        self.assertEqual(faulty.returncode, 1, faulty.stdout + faulty.stderr)
        return faulty.stdout

    def test_analyzer_finds_a_double_free(self):
        self.assertIn("analyzer-double-free", self.look("analyzer", "gcc"))

    def test_tidy_finds_a_lost_fraction(self):
        self.assertIn("bugprone-integer-division", self.look("tidy", "clang-tidy"))

    def test_cppcheck_finds_an_index_out_of_bounds(self):
        self.assertIn("arrayIndexOutOfBounds", self.look("cppcheck", "cppcheck"))

    def test_warnings_end_a_build_without_assertions(self):
        _, words, directory = gate.compile_commands(BUILD)[0]
        command = [word for word in words if word not in ("-O2", "-g")] + ["-O3", "-DNDEBUG"]
        command[command.index("-o") + 1] = os.devnull
        for name, status in (("sound", 0), ("ndebug", 1)):
            command[command.index("-c") + 1] = str(HERE / "planted" / f"{name}.c")
            result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, status, shlex.join(command) + result.stderr)


@unittest.skipIf(shutil.which("abidiff") is None, "abidiff is not installed")
class Abi(unittest.TestCase):
    """The library differs from a baseline that was changed, as a changed library does from the baseline."""

    def differs(self, change):
        text = gate.ABI_BASELINE.read_text()
        changed = change(text)
        self.assertNotEqual(text, changed, "the change changes nothing")
        with tempfile.TemporaryDirectory() as directory:
            baseline = pathlib.Path(directory) / "baseline.xml"
            baseline.write_text(changed)
            result = run("abi", "--baseline", baseline)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("./dev abi --update", result.stdout)
        return result.stdout

    def test_a_function_that_is_gone(self):
        self.assertIn("gpupool_gone", self.differs(lambda text: text.replace(
            "<elf-function-symbols>", "<elf-function-symbols>\n<elf-symbol name='gpupool_gone' version='GPUPOOL_0' "
            "is-default-version='yes' type='func-type' binding='global-binding' visibility='default-visibility' "
            "is-defined='yes'/>", 1)))

    def test_a_function_that_is_new(self):
        self.assertIn("gpupool_trim", self.differs(lambda text: re.sub(
            r"<function-decl name='gpupool_trim'.*?</function-decl>", "",
            re.sub(r"<elf-symbol name='gpupool_trim'[^>]*/>", "", text), flags=re.DOTALL)))

    def test_a_structure_of_another_layout(self):
        def grow(text):
            start = text.index("<class-decl name='gpupool_buffer'")
            end = text.index("</class-decl>", start)
            members = re.sub(r"(size|offset)-in-bits='(\d{3})'", lambda match: f"{match[1]}-in-bits='{int(match[2]) + 64}'",
                             text[start:end])
            return text[:start] + members + text[end:]
        self.assertIn("gpupool_buffer", self.differs(grow))


class Coverage(unittest.TestCase):
    def covered(self, run_lines, all_lines):
        lines = [{"line_number": i + 1, "count": int(i < run_lines), "gcovr/noncode": False} for i in range(all_lines)]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = gate.covered_enough({"files": [{"file": "proto/a.c", "lines": lines}]})
        return status, output.getvalue()

    def test_too_little_fails_and_names_the_lines(self):
        status, output = self.covered(94, 100)
        self.assertEqual(status, 1)
        self.assertIn("proto/a.c: 94.0 %; no test runs the lines 95-100", output)

    def test_enough_passes(self):
        self.assertEqual(self.covered(95, 100)[0], 0)

    def test_nothing_to_count_is_no_success(self):
        with self.assertRaises(gate.CannotLook):
            gate.covered_enough({"files": []})


if __name__ == "__main__":
    unittest.main()
