# SPDX-License-Identifier: Apache-2.0
"""The gate of the layers finds each kind of include line that it forbids, and nothing in a tree that keeps the order."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

GATE = pathlib.Path(__file__).resolve().parent / "layers"

SOUND = {
    "base/list.h": "#include <stdint.h>\n",
    "proto/proto.h": '#include "base/list.h"\n',
    "gpu/gpu.h": '#include "base/list.h"\n',
    "client/include/gpupool/gpupool.h": "",
    "client/include/gpupool/pair.h": "#include <gpupool/gpupool.h>\n",
    "client/session/session.h": '#include "client/session/fence.h"\n#include "proto/proto.h"\n',
    "client/session/fence.h": "struct session;\n",
    "client/session/fence.c": '#include "client/session/fence.h"\n#include "client/session/session.h"\n',
    "client/cache/cache.h": '#include "client/session/session.h"\n',
    "client/api/client.h": '#include "client/cache/cache.h"\n',
    "client/objects/pair.c": '#include <gpupool/pair.h>\n#include "client/api/client.h"\n',
    "client/ctl/main.c": '#include "client/session/session.h"\n',
    "daemon/core/core.h": '#include "proto/proto.h"\n',
    "daemon/main.c": '#include "daemon/core/core.h"\n#include "gpu/gpu.h"\n',
}
# The file that is planted in the sound tree, its text, and a word of the report.
PLANTED = {
    "a session that names the cache": ("client/session/lease.c", '#include "client/cache/cache.h"\n', "client/session/lease.c:1"),
    "a cache that names the client": ("client/cache/miss.c", '\n#include "client/api/client.h"\n', "client/cache/miss.c:2"),
    "a base that names the wire": ("base/clock.c", '#  include "proto/proto.h"\n', "base/clock.c:1"),
    "an interface that names an object": ("client/api/open.c", '#include "client/objects/pair.h"\n', "client/objects/pair.h"),
    "a tool that names the preload library": ("client/ctl/run.c", '#include "client/preload/lending.h"\n', "client/preload/lending.h"),
    "a daemon that names the client": ("daemon/loop.c", '#include "client/session/session.h"\n', "client/session/session.h"),
    "a client that names the daemon": ("client/api/open.c", '#include "daemon/core/core.h"\n', "daemon/core/core.h"),
    "a core that names the shell": ("daemon/core/request.c", '#include "daemon/loop.h"\n', "daemon/loop.h"),
    "a name by the file's own folder": ("client/session/page.c", '#include "../cache/cache.h"\n', "page.c"),
    "a circle": ("client/session/fence.h", '#include "client/session/session.h"\n', "a circle: "),
    "a folder without a layer": ("client/misc/misc.c", "", "no place in the table"),
}
EXTRA = {"client/objects/pair.h": "", "client/preload/lending.h": "", "daemon/loop.h": ""}


class Layers(unittest.TestCase):
    def look(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            result = subprocess.run([sys.executable, GATE, "--root", root], capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def test_a_tree_that_keeps_the_order_is_sound(self):
        self.assertEqual(self.look(SOUND | EXTRA), (0, ""))

    def test_each_planted_fault_is_found(self):
        for fault, (name, text, word) in PLANTED.items():
            with self.subTest(fault):
                status, report = self.look(SOUND | EXTRA | {name: text})
                self.assertEqual(status, 1)
                self.assertIn(word, report)

    def test_a_tree_without_sources_cannot_be_looked_at(self):
        self.assertEqual(self.look({"README.md": ""})[0], 2)


if __name__ == "__main__":
    unittest.main()
