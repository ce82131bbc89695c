# SPDX-License-Identifier: Apache-2.0
"""The gate of the kinds of segments finds each way to name a kind outside of a table's rows, and nothing in a sound tree."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

GATE = pathlib.Path(__file__).resolve().parent / "kinds"
ROWS = "static const struct row rows[] = {\n    [PROTO_SEGMENT_ONE] = {true},\n    [PROTO_SEGMENT_TWO] = {false},\n};\n"

SOUND = {
    "proto/proto.h": "/* PROTO_SEGMENT_NONE = 0 */\nenum proto_segment_kind {\n"
                     "    PROTO_SEGMENT_ONE = 1, /* { } */\n    PROTO_SEGMENT_TWO = 2,\n};\n",
    "proto/check.c": "case PROTO_SEGMENT_ONE:\n",
    "client/session/segment_kind.c": ROWS,
    "client/session/segment.c": "/* PROTO_SEGMENT_ONE */\nif (segment_kind(segment->kind)->is_mapped)\n",
    "daemon/supply/backing.c": ROWS,
    "daemon/supply/supplier.c": 'log("PROTO_SEGMENT_TWO"); // PROTO_SEGMENT_TWO\nint PROTO_SEGMENT_TWO_BYTES;\n',
    "tests/unit/test_backing.c": "if (kind == PROTO_SEGMENT_ONE)\n",
}
# The file that is planted in the sound tree, its text, and a word of the report.
PLANTED = {
    "a comparison": ("daemon/supply/pools.c", "\nif (kind == PROTO_SEGMENT_ONE)\n", "daemon/supply/pools.c:2: names PROTO_SEGMENT_ONE"),
    "a switch": ("client/session/segment.c", "switch (kind) {\ncase PROTO_SEGMENT_TWO:\n", "segment.c:2: names PROTO_SEGMENT_TWO"),
    "a comparison in a header": ("daemon/core/pool.h", "return kind != PROTO_SEGMENT_ONE;\n", "daemon/core/pool.h:1"),
    "a comparison behind a comment": ("client/api/open.c", "/* of\n * two */ if (PROTO_SEGMENT_ONE == kind)\n", "client/api/open.c:2"),
    "a table of its own": ("daemon/admin/names.c", '[PROTO_SEGMENT_ONE] = {"one"}\n', "daemon/admin/names.c:1"),
    "a comparison beside a table": ("daemon/supply/backing.c", ROWS + "if (kind == PROTO_SEGMENT_ONE)\n", "daemon/supply/backing.c:5"),
    "a kind without a row": ("client/session/segment_kind.c", ROWS.replace("[PROTO_SEGMENT_TWO] = {false},", ""),
                             "client/session/segment_kind.c: there is no row for PROTO_SEGMENT_TWO"),
}
UNREADABLE = {
    "no enumeration": {"proto/proto.h": "enum proto_pool_kind { PROTO_POOL_DEVICE = 1 };\n"},
    "no wire": {"proto/proto.h": None},
    "no table": {"daemon/supply/backing.c": None},
}


class Kinds(unittest.TestCase):
    def look(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                if text is not None:
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    (root / name).write_text(text)
            result = subprocess.run([sys.executable, GATE, "--root", root], capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def test_a_tree_that_asks_the_tables_is_sound(self):
        self.assertEqual(self.look(SOUND), (0, ""))

    def test_each_planted_fault_is_found(self):
        for fault, (name, text, word) in PLANTED.items():
            with self.subTest(fault):
                status, report = self.look(SOUND | {name: text})
                self.assertEqual(status, 1)
                self.assertIn(word, report)

    def test_a_tree_without_kinds_or_tables_cannot_be_looked_at(self):
        for fault, files in UNREADABLE.items():
            with self.subTest(fault):
                self.assertEqual(self.look(SOUND | files)[0], 2)


if __name__ == "__main__":
    unittest.main()
