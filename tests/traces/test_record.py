#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recorder, without PyTorch: a memory history as PyTorch lists it becomes the trace that it means."""
import contextlib
import io
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import record  # noqa: E402
import trace_file  # noqa: E402

STREAM, SIDE = 0, 94_000_123_456_789  # as cudaStream_t shows in a history
FIRST, SECOND, THIRD = 0x7F0000000000, 0x7F0000000200, 0x7F0000200000


def event(action, addr=0, size=0, stream=STREAM):
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1}


HISTORY = [
    event("segment_alloc", FIRST, 2 << 20),
    event("alloc", FIRST, 300),
    event("alloc", SECOND, 512),
    event("free_requested", FIRST, 300),
    event("free_completed", FIRST, 300),
    event("segment_alloc", THIRD, 20 << 20, SIDE),
    event("alloc", THIRD, 4_000_001, SIDE),
    event("free_requested", THIRD, 4_000_001, SIDE),  # another stream still uses it
    event("alloc", FIRST, 100),
    event("free_completed", THIRD, 4_000_001, SIDE),
    event("segment_free", THIRD, 20 << 20, SIDE),
    {"action": "oom", "device_free": 17, "size": 1 << 40, "stream": STREAM},
    event("snapshot"),
]


class Conversion(unittest.TestCase):
    def test_a_history_becomes_allocations_and_frees(self):
        trace = trace_file.convert(HISTORY)
        self.assertEqual("".join(trace.lines), "a 0 300 0\na 1 512 0\nf 0\na 0 4000001 1\na 2 100 0\nf 0\n")
        self.assertEqual((trace.allocations, len(trace.streams)), (4, 2))
        self.assertEqual((trace.unknown_frees, trace.lost_frees), (0, 0))

    def test_memory_is_live_until_no_stream_uses_it(self):
        self.assertEqual(trace_file.convert(HISTORY).peak_live_bytes, 512 + 4_000_001 + 100)

    def test_segments_add_up_to_what_was_reserved(self):
        self.assertEqual(trace_file.convert(HISTORY).peak_segment_bytes, 22 << 20)

    def test_a_history_that_begins_late_is_said_to(self):
        trace = trace_file.convert(HISTORY[2:])
        self.assertEqual(trace.unknown_frees, 1)
        trace = trace_file.convert([HISTORY[1], HISTORY[1]])
        self.assertEqual(trace.lost_frees, 1)
        self.assertEqual(trace.lines, ["a 0 300 0\n", "f 0\n", "a 0 300 0\n"])

    def test_what_is_written_is_read(self):
        trace = trace_file.convert(HISTORY)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x.trace.gz")
            self.assertEqual(trace_file.write(path, {"program": "a: b"}, trace.lines), os.path.getsize(path))
            facts, events = trace_file.read(path)
        self.assertEqual(facts, {"program": "a: b"})
        self.assertEqual(events[3:], [("a", 0, 4_000_001, 1), ("a", 2, 100, 0), ("f", 0)])


class FalseTorch(types.ModuleType):
    """As much of PyTorch as the recorder itself asks for."""

    def __init__(self, history):
        super().__init__("torch")
        self.__version__ = "2.11.0"
        self.version = types.SimpleNamespace(cuda="13.0")
        self.manual_seed = lambda seed: None
        self.began = []
        memory = types.SimpleNamespace(
            _record_memory_history=lambda *arguments, **options: self.began.append((arguments, options)),
            _snapshot=lambda: {"segments": [], "device_traces": [history]})
        self.cuda = types.SimpleNamespace(
            init=lambda: None, synchronize=lambda: None, memory=memory, current_device=lambda: 0,
            get_device_name=lambda: "a GPU", memory_stats=lambda: {}, max_memory_reserved=lambda: 22 << 20,
            max_memory_allocated=lambda: 5_000_000)


class Recording(unittest.TestCase):
    def record(self, program):
        output = io.StringIO()
        with tempfile.TemporaryDirectory() as directory, \
                mock.patch.dict(sys.modules, {"torch": FalseTorch(HISTORY)}), \
                mock.patch.dict(record.PROGRAMS, {"program": program}), \
                contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            record.record("program", directory)
            facts, events = trace_file.read(os.path.join(directory, "program.trace.gz"))
        return facts, events, output.getvalue()

    def test_a_program_leaves_its_trace_and_what_pytorch_needed(self):
        def program(torch, rng):
            """Computes
            something."""
            self.assertEqual(len(torch.began), 1)
            return "3 steps"

        facts, events, output = self.record(program)
        self.assertEqual(facts["torch_peak_reserved_bytes"], str(22 << 20))
        self.assertEqual(facts["peak_live_bytes"], str(512 + 4_000_001 + 100))
        self.assertEqual(facts["about"], "Computes something. 3 steps.")
        self.assertEqual(len(events), 6)
        self.assertIn("ratio 5.7", output)
        self.assertNotIn("NOTE", output)

    def test_a_program_that_fails_leaves_what_it_did_until_then(self):
        def program(torch, rng):
            """Fails."""
            raise RuntimeError("no")

        facts, events, _ = self.record(program)
        self.assertEqual(facts["about"], "Fails. ended early.")
        self.assertEqual(len(events), 6)


if __name__ == "__main__":
    unittest.main()
