# SPDX-License-Identifier: Apache-2.0
"""The gate of the language finds each forbidden pattern in each kind of file, and nothing in plain text. Code, strings and headings
that ask a question are no hits. A listed file that is clean is one."""
import importlib.machinery
import importlib.util
import io
import pathlib
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
loader = importlib.machinery.SourceFileLoader("language", str(HERE / "language"))
language = importlib.util.module_from_spec(importlib.util.spec_from_loader("language", loader))
loader.exec_module(language)

# How each kind of file says a sentence.
KINDS = {
    "a.c": '/* {} */\nint a = 1;\nchar *s = "Who waits // Nobody";\n',
    "b.h": "// {}\nint b;\n",
    "member.h": "struct s {{\n    int member; /**< {} */\n}};\n",
    "c.cc": "/**\n * First words.\n *\n * {}\n */\nint c;\n",
    "d.cu": "int d; // {}\n",
    "e.py": '"""First words. {}"""\nE = "Nobody waits."\n',
    "f.py": "def f():\n    # {}\n    return '# Nobody waits.'\n",
    "g.cmake": 'set(g "Nobody waits.") # {}\n',
    "CMakeLists.txt": "# {}\nproject(h)\n",
    "i.sh": "# {}\necho 'Nobody waits.'\n",
    "program": "#!/bin/sh\n# {}\n",
    "script": "#!/usr/bin/env python3\n# {}\n",
    "j.md": "# Heading\n\nFirst words.\n\n{}\n\n```c\n/* Nobody waits. */\n```\n",
    "list.md": "- {}\n- `Nobody`\n",
    "table.md": "| word | meaning |\n|---|---|\n| pool | {} |\n",
    "k.3.scd": "k(3)\n\n# NAME\n\nk - first words\n\n# DESCRIPTION\n\n{}\n\n```\nNobody waits.\n```\n",
    "option.1.scd": "option(1)\n\n*--all*\n\t{}\n",
}
SUBJECTS = {
    "Who asks for more waits.": "who as subject",
    "The pool is full. Who asks for more waits.": "who as subject",
    "The pool is full; who asks for more waits.": "who as subject",
    "What is free can be lent.": "what as subject",
    "The pool grows; what is free can be lent.": "what as subject",
    "Whoever asks for more waits.": "whoever",
    "The memory goes to whoever waits.": "whoever",
    "Nobody waits for a word.": "nobody as subject",
    "This is the range that nobody has.": "nobody as subject",
    "That which is free can be lent.": "that which",
}
HANGING = {
    "The same for the host.": "begins with The same",
    "/ The same for the host.": "begins with The same",
    "… and for the host.": "begins with an ellipsis",
    "... and for the host.": "begins with an ellipsis",
}
PAGES = (".md", ".scd")
PLAIN = "The request waits until the pool has room. It says who holds the memory, and what it needs: the same size."


class Language(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="gpupool-language-")
        self.addCleanup(self.directory.cleanup)
        self.root = pathlib.Path(self.directory.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def look(self):
        output = io.StringIO()
        return language.look(language.files_of(self.root), output), output.getvalue()

    def test_each_pattern_is_found_in_each_kind_of_file(self):
        for name, form in KINDS.items():
            for sentence, pattern in SUBJECTS.items():
                with self.subTest(name=name, sentence=sentence):
                    hits = language.hits_of(self.write(name, form.format(sentence)))
                    self.assertEqual([hit[1] for hit in hits], [pattern])

    def test_a_contract_that_hangs_on_another_is_found_in_each_kind_of_comment(self):
        for name, form in KINDS.items():
            if name.endswith(PAGES) or name == "e.py":
                continue
            for sentence, pattern in HANGING.items():
                with self.subTest(name=name, sentence=sentence):
                    hits = language.hits_of(self.write(name, form.format(sentence)))
                    self.assertEqual([hit[1] for hit in hits], [pattern])

    def test_plain_text_is_clean(self):
        for name, form in KINDS.items():
            with self.subTest(name=name):
                self.assertEqual(language.hits_of(self.write(name, form.format(PLAIN))), [])

    def test_a_heading_may_ask_a_question(self):
        self.assertEqual(language.hits_of(self.write("a.md", "## What is promised?\n\n## Who may connect\n")), [])
        self.assertEqual(language.hits_of(self.write("a.3.scd", "# WHO MAY CONNECT\n\n## What is served\n")), [])
        self.assertEqual(len(language.hits_of(self.write("b.md", "## Whoever asks\n"))), 1)

    def test_a_hit_has_its_file_and_line(self):
        self.write("folder/a.c", "int a;\n\n/* Nobody waits. */\n")
        self.assertEqual(self.look(), (1, "folder/a.c:3: nobody as subject: Nobody waits.\n"))

    def test_builds_and_planted_faults_are_no_text_of_the_project(self):
        for name in ("build/a.c", "build-other/a.c", "gates/planted/a.c", ".git/a.c"):
            self.write(name, "/* Nobody waits. */\n")
        self.assertEqual(self.look(), (0, ""))

    def test_a_file_that_cannot_be_read_as_text_is_no_success(self):
        path = self.root / "a.c"
        path.write_bytes(b"/* \xff */")
        with self.assertRaises(language.CannotLook):
            language.hits_of(path)

    def test_the_program_says_by_its_status_what_it_found(self):
        self.write("a.c", "/* Nobody waits. */\n")
        command = [HERE / "language", "--root", self.root]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((found.returncode, found.stderr), (1, ""))
        (self.root / "a.c").unlink()
        self.assertEqual(subprocess.run(command, capture_output=True, check=False).returncode, 0)
        missing = subprocess.run([*command, self.root / "missing.c"], capture_output=True, check=False)
        self.assertEqual(missing.returncode, 2)


if __name__ == "__main__":
    unittest.main()
