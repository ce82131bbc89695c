#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The traces that are hard to pack: they are traces, near their ceiling, and the same each time."""
import hashlib
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import packing  # noqa: E402
import trace_file  # noqa: E402


class Traces(unittest.TestCase):
    def test_each_is_near_its_ceiling_and_never_above(self):
        for seed, shape in packing.SHAPES.items():
            with self.subTest(seed):
                live, live_bytes, near, allocations, most = {}, 0, 0, 0, 0
                for event in packing.events(seed):
                    if event[0] == "f":
                        live_bytes -= live.pop(event[1])
                        continue
                    _, slot, size, stream = event
                    self.assertNotIn(slot, live)
                    self.assertEqual(size % 512, 0)
                    self.assertTrue(shape.low_mib - 1 <= size / packing.MIB <= shape.high_mib)
                    self.assertIn(stream, range(shape.streams))
                    live[slot] = size
                    live_bytes += size
                    allocations += 1
                    most = max(most, len(live))
                    near += live_bytes > 0.8 * shape.ceiling_mib * packing.MIB
                    self.assertLessEqual(live_bytes, shape.ceiling_mib * packing.MIB)
                self.assertEqual(allocations, packing.ALLOCATIONS)
                self.assertGreater(near, allocations // 2)
                self.assertGreater(most, 80)

    def test_a_seed_makes_the_same_trace_on_every_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            path = packing.write(folder, packing.QUICK_SEED)
            with open(path, "rb") as file:
                first = file.read()
            facts, events = trace_file.read(path)
            packing.write(folder, packing.QUICK_SEED)
            with open(path, "rb") as file:
                self.assertEqual(file.read(), first)
        self.assertEqual(facts["program"], f"packing_{packing.QUICK_SEED}")
        self.assertEqual(hashlib.sha256(repr(events).encode()).hexdigest()[:16], "ff859851ecac0f9b")


if __name__ == "__main__":
    unittest.main()
