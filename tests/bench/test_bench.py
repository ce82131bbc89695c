# SPDX-License-Identifier: Apache-2.0
"""The benchmark itself, on the simulated GPU: that it measures what it says, that its results are what their schema says, and
that medians, ratios and bars are computed right. Speed is not asserted here."""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import jsonschema

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "driver"), str(HERE / "peers")]
import bars  # noqa: E402
import bench as bench_module  # noqa: E402
import bursty  # noqa: E402
import cases  # noqa: E402
import program_runs  # noqa: E402, the folder of the workers is on the path from here on
import burst_worker  # noqa: E402
import python_workload  # noqa: E402
import report  # noqa: E402
from results import Results  # noqa: E402

PROGRAMS = os.environ["GPUPOOL_PROGRAMS"].split(":")
WAIT_S = 250
COUNTS = {"allocations", "daemon_requests", "daemon_requests_per_acquire", "over_50_ms", "samples", "slow_samples", "warm_grows",
          "warm_retires", "refused", "retires"}  # that may be 0
OPTIONAL = {"closes", "close_ns", "warm_closes", "warm_close_ns"}  # of daemons that count them
FIGURE = {"ns", "raw_ns", "samples", "slow_samples"}


def check_schema(document):
    jsonschema.Draft202012Validator(json.loads((HERE / "results.schema.json").read_text())).validate(document)


class Run(unittest.TestCase):
    """One quick run, looked at from several sides."""

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="gpupool-bench-test-")
        folders = [argument for folder in PROGRAMS for argument in ("--programs", folder)]
        cls.done = subprocess.run([sys.executable, str(HERE / "run"), "--quick", "--gpu", "sim", "--date", "2001-02-03", "--out",
                                   cls.directory.name, *folders], check=False, capture_output=True, text=True, timeout=WAIT_S)
        out = pathlib.Path(cls.directory.name)
        path = out / "results.json"
        if cls.done.returncode != 0 or not path.exists():
            raise AssertionError(cls.done.stdout + cls.done.stderr)
        cls.text = path.read_text()
        cls.document = json.loads(cls.text)
        cls.markdown = (out / "results.md").read_text()
        cls.results = Results.from_document(cls.document)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def test_the_results_are_what_the_schema_says(self):
        check_schema(self.document)
        self.assertEqual((self.document["date"], self.document["gpu"], self.document["quick"]), ("2001-02-03", "sim", True))
        self.assertEqual(self.document["failed"], [])

    def test_no_path_of_this_machine_is_in_the_results(self):
        for path in (self.directory.name, *PROGRAMS, str(HERE)):
            self.assertNotIn(path, self.text)

    def test_every_case_of_ours_brings_its_figures(self):
        for case, subject, names in (
                ("warm_pair", cases.GPUPOOL, FIGURE),
                ("mix", cases.GPUPOOL, {*FIGURE, "peak_live_bytes", "peak_reserved_bytes", "peak_leased_bytes"}),
                ("threads", cases.GPUPOOL, {"pairs_per_s"}),
                ("hand_over", cases.GPUPOOL, {"ns", "daemon_requests"}),
                ("warm_pair", cases.POINTER, FIGURE),
                ("mix", cases.POINTER, {*FIGURE, "peak_live_bytes", "peak_reserved_bytes", "peak_leased_bytes"}),
                ("hand_over", cases.RING, {"ns"}),
                ("access", cases.PAIR, {*FIGURE, "allocations", "daemon_requests"}),
                ("access", cases.ARRAY, {*FIGURE, "allocations", "daemon_requests"}),
                ("calibration", "C", {"ns"}),
                ("pinned_warm_pair", cases.GPUPOOL, FIGURE),
                ("pinned_warm_pair", cases.ON_STREAM, FIGURE),
                ("trace", cases.GPUPOOL, {"ns", "first_ns", "p999_ns", "peak_live_bytes", "peak_reserved_bytes", "peak_leased_bytes",
                                          "warm_reserved_bytes", "warm_grows", "warm_retires"}),
                ("trace", cases.TORCH_RECORDED, {"peak_live_bytes", "peak_reserved_bytes"}),
                ("packing", cases.GPUPOOL, {"ns", "first_ns", "p999_ns", "peak_live_bytes", "warm_reserved_bytes", "warm_grows",
                                            "warm_retires"}),
                *(("share", name, {"p50_ns", "p99_ns"}) for name in ("socket", "same", "new", "reuse")),
                *(("attach", name, {"p50_ns", "p99_ns", "segments"}) for name in ("ipc", "vmm")),
                ("growth", "growing_acquire", {"p50_ns", "p99_ns", "p999_ns", "max_ns"}),
                ("growth_time", cases.GPUPOOL, {"ns"}),
                ("busy", cases.ALONE, {"p50_ns", "p99_ns", "max_ns"}),
                ("busy", cases.BUSY, {"p50_ns", "p99_ns", "max_ns"}),
                ("rows", cases.GPUPOOL, {"p50_ns", "max_ns", "launch_max_ns"}),
                ("busy_acquire", cases.GPUPOOL, {"ns", "grows", "retires"}),
                ("limit", cases.GPUPOOL, {"p50_ns", "p99_ns", "p999_ns", "max_ns", "refused"}),
                ("limit", cases.UNCACHED, {"p50_ns", "p99_ns", "p999_ns", "max_ns", "refused"}),
                *(("starvation", subject, {"p50_ns", "p99_ns", "p999_ns", "max_ns", "over_50_ms", "daemon_requests_per_acquire"})
                  for subject in (cases.GPUPOOL, cases.UNCACHED)),
                ("staging", cases.GPUPOOL, {"gb_per_s"}),
                ("staging", cases.STREAMING, {"gb_per_s"}),
                ("staging_size_bytes", cases.GPUPOOL, {"gb_per_s"}),
                ("staging_threads", cases.GPUPOOL, {"gb_per_s"}),
                ("staging_chunk_bytes", cases.GPUPOOL, {"gb_per_s"}),
                ("scale", cases.GPUPOOL, {"p50_ns", "p99_ns"}),
                ("hostile", "quiet", {"p50_ns", "p99_ns"}),
                ("hostile", "questions", {"p50_ns", "p99_ns"}),
                ("pipeline", "1 stream, pageable memory", {"ns", "gb_per_s"}),
                ("pipeline", "1 stream, pool memory", {"ns", "gb_per_s"}),
                ("pipeline", "4 streams, pool memory", {"ns", "gb_per_s"}),
                ("pipeline_step", "compute", {"ns", "gb_per_s"}),
                ("round_trip", "raw_round_trip", {"p50_ns", "p99_ns"}),
                ("round_trip", "device_acquire", {"p50_ns", "p99_ns"})):
            with self.subTest(case=case, subject=subject):
                found = self.results.find(case, subject)
                self.assertNotEqual(found, [])
                for record in found:
                    self.assertEqual(set(record.values) - OPTIONAL, names)
                    self.assertTrue(all(record.median(name) > 0 for name in names - COUNTS))

    def test_a_restarted_worker_says_where_its_time_went(self):
        steps = {record.parameters["step"]: record for record in self.results.find("restart", cases.GPUPOOL)}
        self.assertLessEqual({"start", "context", "connect", "pool", "host", "device", "share", "process_start_to_ready"}, set(steps))
        self.assertGreater(steps["process_start_to_ready"].median("p50_ns"), steps["host"].median("p50_ns"))

    def test_what_needs_a_gpu_is_said_to_be_absent(self):
        absent = {entry["subject"] for entry in self.document["absent"]}
        self.assertLessEqual({cases.CUDA_MALLOC, cases.CUDA_MALLOC_ASYNC, cases.TORCH, cases.CUPY}, absent)

    def test_what_is_reserved_holds_what_is_leased_and_that_what_is_live(self):
        record = self.results.one("mix", cases.GPUPOOL)
        self.assertLessEqual(record.median("peak_live_bytes"), record.median("peak_leased_bytes"))
        self.assertLessEqual(record.median("peak_leased_bytes"), record.median("peak_reserved_bytes"))

    def test_a_simulation_is_called_one_and_its_times_are_held_to_no_bar(self):
        self.assertIn("simulation", self.done.stderr)
        self.assertIn("Absolute times mean nothing", self.markdown)
        for bar in self.document["bars"]:
            if bar["unit"] != "count":
                self.assertEqual(bar["state"], bars.NOT_MEASURABLE)

    def test_a_warm_hand_over_asks_the_daemon_nothing(self):
        bar, = (bar for bar in self.document["bars"] if bar["unit"] == "count" and bar["what"].startswith("taken by one thread"))
        # The shorter the run, the more of it is warming up, and on a busy machine that takes longer.
        self.assertLess(bar["measured"], 20)

    def test_warm_accesses_allocate_nothing_and_ask_nobody(self):
        found = [bar for bar in self.document["bars"] if bar["unit"] == "count" and bar["what"].startswith("pair or")]
        self.assertEqual([(bar["measured"], bar["state"]) for bar in found], [(0, bars.MET)] * 2)

    def test_the_tables_show_every_case(self):
        for title in ("What is to be reached", "Warm pair, by size", "Random mix", "Samples that were set aside", "Threads", "Round trips",
                      "Copy in, compute, copy out"):
            self.assertIn(f"### {title}", self.markdown)


class Export(unittest.TestCase):
    """The kind of the device pools."""

    @staticmethod
    def run_bench(out, *options):
        folders = [argument for folder in PROGRAMS for argument in ("--programs", folder)]
        return subprocess.run([sys.executable, str(HERE / "run"), "--quick", "--gpu", "sim", "--only", "round trips", "--out", out,
                               *folders, *options], check=False, capture_output=True, text=True, timeout=WAIT_S)

    def test_daemons_have_pools_of_the_kind(self):
        for kind in ("ipc", "vmm"):
            bench = bench_module.Bench(Results(), PROGRAMS, None, "sim", True, sys.executable, export=kind)
            self.addCleanup(bench.close)
            with bench.daemon("[device]\nlimit = 8MiB\n") as daemon:
                exports = [(pool["export"], pool["limit_bytes"]) for pool in daemon.stats()["pools"] if pool["kind"] == "device"]
            self.assertEqual(exports, [(kind, 8 << 20)])
            bench.private_daemons("[host]\nlow_water = 0\n")
            self.assertIn(f"export = {kind}\n", (bench.work / "private.conf").read_text())

    def test_the_results_say_the_kind_and_are_not_mixed_with_those_of_the_other(self):
        with tempfile.TemporaryDirectory(prefix="gpupool-bench-test-") as out:
            results = pathlib.Path(out) / "results.json"
            done = self.run_bench(out, "--export", "vmm")
            self.assertEqual(done.returncode, 0, done.stderr)
            document = json.loads(results.read_text())
            check_schema(document)
            self.assertEqual(document["export"], "vmm")
            self.assertIn("device pools with export = vmm", (pathlib.Path(out) / "results.md").read_text())
            mixed = self.run_bench(out, "--export", "ipc", "--with", str(results))
            self.assertNotEqual(mixed.returncode, 0)
            self.assertIn("another kind", mixed.stderr)


class Figures(unittest.TestCase):
    @staticmethod
    def results(rows):
        results = Results()
        for repetition, case, subject, parameters, values in rows:
            results.add(repetition, case, subject, parameters, values)
        return results

    def test_ratios_are_taken_within_a_repetition(self):
        # The machine was ten times slower in the second repetition: of no account.
        results = self.results([(0, "mix", cases.GPUPOOL, {}, {"ns": 10}), (0, "mix", cases.TORCH, {}, {"ns": 100}),
                                (1, "mix", cases.GPUPOOL, {}, {"ns": 100}), (1, "mix", cases.TORCH, {}, {"ns": 1000}),
                                (2, "mix", cases.TORCH, {}, {"ns": 7})])
        self.assertAlmostEqual(bars.mix_to_torch("ns")(results), 0.1)

    def test_a_value_that_a_repetition_did_not_bring_is_null(self):
        results = self.results([(0, "mix", "a", {}, {"ns": 1}), (2, "mix", "a", {}, {"ns": 3}), (2, "mix", "b", {}, {"ns": 5})])
        document = results.document(date="2001-02-03", quick=False, gpu="cuda", bars=bars.check(results, "cuda", False),
                                    versions={"gpupoold": "0"},
                                    machine={"processor": "", "cores": 1, "memory_bytes": 1, "kernel": "", "system": "",
                                             "gpu": "a GPU", "gpus": 1, "driver": "1", "gpu_memory_bytes": 1})
        check_schema(document)
        self.assertEqual([row["values"]["ns"] for row in document["records"]], [[1, None, 3], [None, None, 5]])
        self.assertEqual(document["records"][0]["medians"], {"ns": 2})
        self.assertEqual(Results.from_document(document).document()["records"], document["records"])
        self.assertIn("a GPU", report.markdown(document))

    def test_why_something_failed_names_no_folders(self):
        results = Results()
        results.add_failed("mix", "a", "x.cpp does not compile: /home/me/src/x.cpp:3: no such file: /opt/lib64/y.h\n")
        self.assertEqual(results.failed[0]["why"], "x.cpp does not compile: x.cpp:3: no such file: y.h")

    def state(self, what, rows, gpu="cuda", quick=False):
        return next(bar["state"] for bar in bars.check(self.results(rows), gpu, quick) if bar["what"].startswith(what))

    def test_every_bar_has_a_name_of_its_own(self):
        names = [bar.what for bar in bars.BARS]
        self.assertEqual(len(names), len(set(names)))

    def test_a_bar_is_met_up_to_its_limit_by_the_slowest_size(self):
        rows = [(0, "warm_pair", cases.GPUPOOL, {"size_bytes": 512}, {"ns": 3}),
                (0, "warm_pair", cases.GPUPOOL, {"size_bytes": 1024}, {"ns": 25})]
        self.assertEqual(self.state("warm pair, one thread", rows), bars.MET)
        rows.append((0, "warm_pair", cases.GPUPOOL, {"size_bytes": 2048}, {"ns": 25.1}))
        self.assertEqual(self.state("warm pair, one thread", rows), bars.NOT_MET)
        self.assertEqual(self.state("warm pair, one thread", rows, gpu="sim"), bars.NOT_MEASURABLE)
        self.assertEqual(self.state("warm pair, one thread", rows, quick=True), bars.NOT_MEASURABLE)
        self.assertEqual(self.state("warm pair, one thread", []), bars.NOT_MEASURABLE)

    def test_threads_have_to_reach_at_least_their_bar(self):
        rows = [(0, "threads", cases.GPUPOOL, {"threads": 1}, {"pairs_per_s": 20e6}),
                (0, "threads", cases.GPUPOOL, {"threads": 8}, {"pairs_per_s": 119e6})]
        self.assertEqual(self.state("8 threads", rows), bars.MET)
        bar = [bar for bar in bars.check(self.results(rows), "cuda", False) if bar["bar"] == "≥ 6"]
        self.assertEqual([(found["state"], round(found["measured"], 2)) for found in bar], [(bars.NOT_MET, 5.95)])

    def test_a_bar_shows_what_it_would_be_with_the_slow_samples(self):
        rows = [(0, "warm_pair", cases.GPUPOOL, {"size_bytes": 512}, {"ns": 20, "raw_ns": 30})]
        found = {bar["what"]: bar for bar in bars.check(self.results(rows), "cuda", False)}["warm pair, one thread, the slowest size"]
        self.assertEqual((found["measured"], found["raw"], found["state"]), (20, 30, bars.MET))

    def test_a_message_in_any_repetition_counts(self):
        rows = [(repetition, "hand_over", cases.GPUPOOL, {}, {"daemon_requests": count}) for repetition, count in enumerate((0, 2, 0))]
        self.assertEqual(self.state("taken by one thread, given back by another: requests", rows), bars.NOT_MET)
        self.assertEqual(self.state("taken by one thread, given back by another: requests", rows[:1]), bars.MET)

    def test_traces_are_judged_by_the_worst(self):
        def rows(ours, replayed):
            return [(0, "trace", subject, {"trace": trace}, {"peak_live_bytes": 100, "peak_reserved_bytes": reserved})
                    for trace, subject, reserved in (("a", cases.GPUPOOL, 105), ("a", cases.TORCH_RECORDED, 120),
                                                     ("b", cases.GPUPOOL, ours), ("b", cases.TORCH_RECORDED, 110), *replayed)]
        for ours, replayed, worst in ((110, [], bars.MET), (114, [], bars.NOT_MET),
                                      (114, [("b", cases.TORCH, 115)], bars.MET)):
            states = [bar["state"] for bar in bars.check(self.results(rows(ours, replayed)), "sim", False)
                      if bar["what"].startswith("traces: ") and bar["state"] != bars.NOT_MEASURABLE]
            self.assertEqual(states, [worst])

    def test_traces_are_judged_by_the_passes_after_the_first(self):
        def rows(ns, p999):
            for subject, values in ((cases.GPUPOOL, {"ns": ns, "p999_ns": p999, "first_ns": 1e9}),
                                    (cases.TORCH, {"ns": 100, "p999_ns": 1000, "first_ns": 1})):
                yield 0, "trace", subject, {"trace": "a"}, {**values, "warm_reserved_bytes": 100}
        for ns, p999, operation, tail in ((50, 1000, bars.MET, bars.MET), (51, 1001, bars.NOT_MET, bars.NOT_MET)):
            found = list(rows(ns, p999))
            self.assertEqual(self.state("traces, passes two to five: an operation", found), operation)
            self.assertEqual(self.state("traces, passes two to five: p99.9", found), tail)
            self.assertEqual(self.state("traces, passes two to five: peak reserved", found), bars.MET)

    def test_pools_that_move_memory_are_judged_by_expandable_segments(self):
        def rows(ns, reserved):
            for trace, live in (("a", 100), ("b", 200)):
                for subject, values in ((cases.GPUPOOL, {"ns": ns, "p999_ns": 10, "warm_reserved_bytes": reserved * live / 100}),
                                        (program_runs.EXPANDABLE, {"ns": 100, "p999_ns": 10, "warm_reserved_bytes": live * 1.03})):
                    yield 0, "trace", subject, {"trace": trace}, {**values, "peak_live_bytes": live}
        for ns, reserved, operation, memory, mean in ((60, 104, bars.MET, bars.MET, bars.MET),
                                                      (61, 106, bars.NOT_MET, bars.NOT_MET, bars.NOT_MET)):
            found = self.results(rows(ns, reserved))
            for export, expected in (("vmm", [operation, bars.MET, memory, mean]), ("ipc", 4 * [bars.NOT_MEASURABLE])):
                states = [bar["state"] for bar in bars.check(found, "cuda", False, export)
                          if bar["what"].startswith("traces, ") and ("expandable" in bar["what"] or "on average" in bar["what"])]
                self.assertEqual(states, expected)

    def test_hard_packing_is_judged_by_the_median_and_the_worst_seed(self):
        def rows(*ours):
            for seed, ns in enumerate(ours):
                for subject, value in ((cases.GPUPOOL, ns), (program_runs.EXPANDABLE, 100)):
                    yield 0, "packing", subject, {"trace": f"packing_{seed}"}, {"ns": value, "p999_ns": value, "warm_reserved_bytes": value}
        for ours, median, worst in (((90, 100, 120), bars.MET, bars.MET), ((90, 101, 120), bars.NOT_MET, bars.MET),
                                    ((90, 100, 121), bars.MET, bars.NOT_MET)):
            states = {bar["what"]: bar["state"] for bar in bars.check(self.results(rows(*ours)), "cuda", False, "vmm")}
            operation = "hard packing, passes two to five: an operation to that of expandable segments, the {} seed"
            self.assertEqual((states[operation.format("median")], states[operation.format("worst")]), (median, worst))
            self.assertEqual(states["hard packing, passes two to five: p99.9 of an operation to that of expandable segments, the median seed"],
                             bars.MET)

    def test_programs_are_judged_by_the_worst_of_them(self):
        def rows(second, reserved):
            for program, ns, peak in (("a", 100, 10), ("b", second, reserved)):
                yield 0, "program", program_runs.OWN, {"program": program}, {"ns": 100, "peak_reserved_bytes": 10}
                yield 0, "program", program_runs.LEAN, {"program": program}, {"ns": ns, "peak_reserved_bytes": peak}
        lean = f"programs, {program_runs.LEAN}: median step"
        for second, reserved, median, peak in ((102, 10, bars.MET, bars.MET), (103, 11, bars.NOT_MET, bars.NOT_MET)):
            found = list(rows(second, reserved))
            self.assertEqual(self.state(lean, found), median)
            self.assertEqual(self.state(lean.replace("median step", "peak reserved"), found), peak)
        self.assertEqual(self.state(lean, []), bars.NOT_MEASURABLE)

    def test_the_interface_for_plug_ins_is_not_counted_against_the_lean_allocator(self):
        def rows(lean):
            return [(0, "torch_empty", subject, {"size_bytes": 4096}, {"ns": ns})
                    for subject, ns in ((program_runs.OWN, 20), (program_runs.NO_MEMORY, 10), (program_runs.EMPTY, 25),
                                        (program_runs.LEAN, lean))]
        self.assertEqual(self.state("torch.empty() of 4 KiB, gpupool, lean", rows(35)), bars.MET)
        self.assertEqual(self.state("torch.empty() of 4 KiB, gpupool, lean", rows(36)), bars.NOT_MET)

    def test_another_runs_records_are_added_where_this_one_has_none(self):
        here = self.results([(0, "mix", "a", {}, {"ns": 1})])
        other = self.results([(0, "mix", "a", {}, {"ns": 7}), (1, "mix", "b", {}, {"ns": 3})])
        merged = here.with_others([other.document()])
        self.assertEqual((merged.median("ns", "mix", "a"), merged.median("ns", "mix", "b"), merged.repetitions), (1, 3, 2))

    def test_runs_that_are_joined_keep_ratios_within_each(self):
        first = self.results([(0, "mix", "a", {}, {"ns": 1}), (1, "mix", "a", {}, {"ns": 3}), (0, "mix", "b", {}, {"ns": 2})])
        second = self.results([(0, "mix", "a", {}, {"ns": 10}), (0, "mix", "c", {}, {"ns": 50})])
        joined = Results.joined([first.document(), second.document()])
        ratios = [joined.ratio(joined.one("mix", subject), "ns", joined.one("mix", "a"), "ns") for subject in "bc"]
        self.assertEqual((ratios, joined.repetitions, joined.one("mix", "c").values["ns"]), ([2, 5], 3, [None, None, 50]))

    def test_a_pipeline_is_judged_by_pageable_memory_and_by_its_slowest_step(self):
        def rows(pageable, overlapped, percent=cases.SIMILAR):
            for case, subject, streams, ns in (("pipeline", "1 stream, pageable memory", 1, pageable),
                                               ("pipeline", "1 stream, pool memory", 1, 250),
                                               ("pipeline", "4 streams, pool memory", 4, overlapped),
                                               ("pipeline_step", "copy in", 1, 80), ("pipeline_step", "compute", 1, 90),
                                               ("pipeline_step", "copy in and copy out, 4 streams", 4, 95)):
                yield 0, case, subject, {"compute_percent": percent, "batch_bytes": 1, "streams": streams}, {"ns": ns}
        for pageable, overlapped, to_pageable, to_limit in ((180, 100, bars.MET, bars.MET), (179, 100, bars.NOT_MET, bars.MET),
                                                            (200, 101, bars.MET, bars.NOT_MET)):
            found = list(rows(pageable, overlapped))
            self.assertEqual(self.state("pipeline on several streams, times", found), to_pageable)
            self.assertEqual(self.state("pipeline on several streams, of what", found), to_limit)
        self.assertEqual(self.state("pipeline on several streams, of what", list(rows(180, 100, percent=100))), bars.NOT_MEASURABLE)

    def test_staging_is_judged_by_the_drivers_own_copy_in_the_same_direction(self):
        rows = [(0, "staging", subject, {"direction": direction, "size_bytes": 1}, {"gb_per_s": speed})
                for subject, direction, speed in ((cases.GPUPOOL, "upload", 25), (cases.CUDA_PAGEABLE, "upload", 10),
                                                  (cases.GPUPOOL, "download", 20), (cases.CUDA_PAGEABLE, "download", 10))]
        self.assertEqual(self.state("upload of 1 GiB", rows), bars.MET)
        self.assertEqual(self.state("download of 1 GiB", rows), bars.NOT_MET)

    def test_copies_are_judged_by_the_slower_direction(self):
        rows = [(0, "copies", subject, {"direction": direction}, {"gb_per_s": speed})
                for subject, direction, speed in ((cases.GPUPOOL, "host_to_device", 100), (cases.CUDA_MALLOC_HOST, "host_to_device", 90),
                                                  (cases.GPUPOOL, "device_to_host", 89), (cases.CUDA_MALLOC_HOST, "device_to_host", 90))]
        self.assertEqual(self.state("copies", rows), bars.NOT_MET)


class Programs(unittest.TestCase):
    """The driver of programs, with a PyTorch that is none and the simulated GPU."""

    def setUp(self):
        plugins = [folder for path in PROGRAMS for folder in (path, pathlib.Path(path).parents[1] / "client" / "plugins")]
        self.bench = bench_module.Bench(Results(), PROGRAMS, None, "sim", True, sys.executable, plugins)
        self.bench.outside["PYTHONPATH"] = str(HERE / "false_torch")
        self.bench.program_rounds = 3
        self.addCleanup(self.bench.close)

    def test_tensors_are_measured_under_every_allocator_that_was_built(self):
        program_runs.run_pairs(self.bench)
        self.assertEqual(self.bench.results.failed, [])
        absent = {entry["subject"] for entry in self.bench.results.absent}
        self.assertLessEqual(absent, {program_runs.PRELOAD})
        for subject in {*program_runs.PAIR_SUBJECTS, program_runs.NO_MEMORY} - absent:
            record = self.bench.results.one("torch_empty", subject)
            self.assertEqual(len(record.values["ns"]), 3)
            self.assertGreater(record.median("ns"), 0)

    def test_a_program_shows_its_steps_and_what_was_reserved_for_it(self):
        subjects = (program_runs.OWN, program_runs.MEMPOOL, program_runs.LEAN)
        program_runs.take_turns(
            self.bench, "program", [(subject, "empty_tensor", subject) for subject in subjects],
            lambda turn, subject, values: self.bench.results.add(turn, "program", subject, {"program": "p"}, values))
        self.assertEqual((self.bench.results.failed, self.bench.results.absent), ([], []))
        for subject in subjects:
            record = self.bench.results.one("program", subject)
            self.assertEqual(record.values["steps"], [program_runs.STEPS_MIN] * 3)
            self.assertGreaterEqual(record.median("peak_reserved_bytes"), program_runs.programs.EmptyTensor.BYTES)
        lean = self.bench.results.one("program", program_runs.LEAN)
        self.assertEqual(lean.total("grows"), 0)  # warm
        self.assertNotIn("torch_peak_reserved_bytes", lean.values)

    def test_what_cannot_start_does_not_keep_others_from_it(self):
        with contextlib.redirect_stderr(io.StringIO()):
            program_runs.take_turns(self.bench, "program", [(program_runs.OWN, "empty_tensor", program_runs.OWN),
                                                            (program_runs.LEAN, "no such program", program_runs.LEAN)],
                                    lambda *_: None)
        self.assertEqual([entry["subject"] for entry in self.bench.results.failed], [program_runs.LEAN])

    def test_without_pytorch_programs_are_absent(self):
        self.bench.outside["PYTHONPATH"] = ""
        with unittest.mock.patch.object(self.bench, "python", "/usr/bin/python3"), self.assertRaises(bench_module.Absent):
            program_runs.run_program(self.bench, "resnet_inference")


class Bursty(unittest.TestCase):
    """Workers that share a pool, with a PyTorch and a CuPy that are none and the simulated GPU."""

    def make_bench(self, *frameworks):
        parts = [pathlib.Path(path).parents[1] / "client" for path in PROGRAMS]
        folders = [folder for path, part in zip(PROGRAMS, parts) for folder in (path, part / "plugins", part / "preload")]
        bench = bench_module.Bench(Results(), PROGRAMS, None, "sim", True, sys.executable, folders)
        self.addCleanup(bench.close)
        bench.outside["PYTHONPATH"] = ":".join(str(HERE / framework) for framework in frameworks)
        return bench

    def run_plan(self, *options):
        bench = self.make_bench("false_torch")
        plan = bursty.Plan(("buffers", "buffers"), *options, passes=2, steps=3, all_s=0.1)
        with contextlib.redirect_stderr(io.StringIO()):
            bursty.run(bench, plan)
        self.assertEqual((bench.results.failed, bench.results.absent), ([], []))
        return bench.results

    def run_mix(self, workers, *frameworks):
        """Natively. Returns the results, and the lines that were said."""
        bench = self.make_bench(*frameworks)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            bursty.run(bench, bursty.Plan(workers, ("1.5",), ("ipc",), ("native",), passes=2, steps=3, all_s=0.1))
        self.assertEqual(bench.results.failed, [])
        return bench.results, said.getvalue()

    def test_programs_of_several_frameworks_share_a_pool_and_have_the_same_results_again(self):
        results, _ = self.run_mix(("buffers", "cupy_buffers"), "false_torch", "false_cupy")
        self.assertEqual(results.absent, [])
        self.assertEqual({record.parameters["program"] for record in results.find("bursty_need")}, {"buffers 1", "cupy_buffers 2"})
        need, = results.find("bursty_need", program="cupy_buffers 2")
        self.assertGreater(need.median("reserved_bytes"), need.median("weights_bytes"))
        for phase, bursts in (("one", 2), ("two", 1)):
            record = results.one("bursty", program_runs.OWN, phase=phase, program="cupy_buffers 2")
            self.assertEqual((record.values["compared"], record.values["different"]), ([3] * bursts, [0] * bursts))
            silent = results.one("bursty", program_runs.OWN, phase=phase, program="buffers 1")
            self.assertNotIn("compared", silent.values)
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(bursty.faults(results), 0)

    def test_a_program_without_its_framework_is_left_out_with_one_line(self):
        results, said = self.run_mix(("cupy_buffers", "buffers"), "false_torch")
        self.assertEqual([entry["subject"] for entry in results.absent], ["cupy_buffers"])
        self.assertEqual(said.count("bursty: without cupy_buffers: no CuPy: "), 1)
        self.assertEqual({record.parameters["program"] for record in results.find("bursty")}, {"buffers 1"})

    def test_another_result_is_counted_up_to_a_step_that_failed(self):
        native, worker = bursty.Native(None), types.SimpleNamespace(number=0)
        for digests, is_native, expected in (([1, 2], True, (0, 0)), ([1, 2, 3], True, (2, 0)), ([1, 2, 3, 4], False, (3, 0)),
                                             ([1, 7, None, 8], False, (2, 1)), ([None, None], False, (0, 0)), ([1, 2, 3], False, (3, 0))):
            found = native.compare(worker, 5, digests, is_native)
            self.assertEqual((found["compared"], found["different"]), expected)
        self.assertEqual(native.compare(worker, 6, [1], False), {"compared": 0, "different": 0})

    def test_faults_are_failures_slow_steps_of_warm_programs_and_other_results(self):
        rows = [(0, "bursty", program_runs.PRELOAD, {"phase": phase},
                 {"steps": 9, "failures": 0, "slow_steps": 1 if phase == "cold" else slow, "different": different})
                for phase, slow, different in (("cold", 0, 0), ("one", 0, 2), ("two", 3, 0), ("all", 0, 4))]
        rows.append((0, "bursty_idle", program_runs.PRELOAD, {}, {"failures": 10}))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(bursty.faults(Figures.results(rows)), 19)
        self.assertIn("of 36 steps: 10 failed, 3 took over 1 s, 6 had another result", said.getvalue())

    def test_preloaded_programs_have_the_variables_that_gpupoolctl_sets(self):
        bench = self.make_bench()
        tool = next(path for folder in PROGRAMS if (path := pathlib.Path(folder).parents[1] / "client" / "ctl" / "gpupoolctl").exists())
        with bench.daemon() as daemon:
            done = subprocess.run([tool, "run", f"--socket={daemon.socket}", "--", "/usr/bin/env"], check=True, capture_output=True,
                                  text=True, timeout=WAIT_S, env=bench.inside)
        variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("LD_"))
        self.assertEqual(program_runs.preloaded(bench), {name: value for name, value in variables.items() if name not in bench.inside})

    @unittest.skipUnless(importlib.util.find_spec("jax"), "no JAX")
    def test_jax_trains_the_same_in_each_burst(self):
        kind = burst_worker.programs.JaxTraining
        with unittest.mock.patch.multiple(kind, LAYERS=1, WIDTH=32, HEADS=2, LENGTH=16, WORDS=64, BATCHES=(2, 4)):
            program = burst_worker.Program(burst_worker.frameworks.Jax(), "jax", "own", None)
            found = [program.burst(5, 4, WAIT_S) for _ in range(2)]
        self.assertEqual(found[0]["digests"], found[1]["digests"])
        self.assertEqual(len(set(found[0]["digests"])), 4)
        memory = program.memory()
        self.assertGreater(memory["peak_reserved"], 3 * memory["allocated"])
        self.assertEqual((program.take(4096, 8192)["failed"], found[0]["failures"]), (None, 0))

    def test_a_program_that_takes_nothing_from_the_pool_has_failed(self):
        bench = self.make_bench("false_torch")  # without a plug-in its tensors have no memory
        with contextlib.redirect_stderr(io.StringIO()):
            bursty.run(bench, bursty.Plan(("buffers",), ("2",), ("ipc",), ("run",), passes=1, steps=1, all_s=0.1))
        self.assertEqual(["did not use the library" in entry["why"] for entry in bench.results.failed], [True])

    def test_each_configuration_has_its_phases_and_its_pool(self):
        results = self.run_plan(("3",), ("ipc", "vmm"), ("native", "lean"))
        need = max(record.median("reserved_bytes") for record in results.find("bursty_need"))
        self.assertGreater(need, bursty.MIB)
        for subject, export, limit in ((program_runs.OWN, "none", "none"), (program_runs.LEAN, "ipc", "3"), (program_runs.LEAN, "vmm", "3")):
            rest = {"export": export, "limit": limit}
            with self.subTest(subject=subject, export=export):
                for phase, bursts, steps in (("cold", 1, 6), ("one", 2, 3), ("two", 1, 3)):
                    for program in ("buffers 1", "buffers 2"):
                        record = results.one("bursty", subject, phase=phase, program=program, **rest)
                        self.assertEqual((record.values["steps"], record.total("failures")), ([steps] * bursts, 0))
                self.assertEqual(len(results.find("bursty", subject, phase="all", **rest)), 2)
                beside = [record.values.get("native_first_ns") for record in results.find("bursty", subject, phase="one", **rest)]
                if subject == program_runs.OWN:
                    self.assertEqual(beside, [None, None])
                    continue
                self.assertEqual([len(values) for values in beside], [2, 2])
                pool = results.one("bursty_pool", subject, **rest)
                self.assertAlmostEqual(pool.median("limit_bytes"), 3 * need, delta=bursty.LIMIT_UNIT)
                self.assertLessEqual(pool.median("peak_reserved_bytes"), pool.median("limit_bytes"))
                idle = results.one("bursty_idle", subject, **rest)
                self.assertEqual((len(idle.values["ns"]), idle.total("failures")), (bursty.READS, 0))
                self.assertLess(idle.most("bytes"), pool.median("limit_bytes"))
        described = {"date": "2001-02-03", "quick": True, "gpu": "sim", "versions": {"gpupoold": "0"}, "bars": bars.check(results, "sim", True),
                     "machine": {"processor": "", "cores": 1, "memory_bytes": 1, "kernel": "", "system": "", "gpu": None, "gpus": 0,
                                 "driver": None, "gpu_memory_bytes": None}}
        document = results.document(**described)
        check_schema(document)
        self.assertIn("### Bursty workers on one pool", report.markdown(document))

    def test_a_step_that_fails_is_counted_and_the_burst_goes_on(self):
        class Failing:
            def steps(self, rng):
                while True:
                    if rng.random() < 0.5:
                        raise RuntimeError("out of memory")
                    yield 1

        worker = burst_worker.Program.__new__(burst_worker.Program)
        worker.program = Failing()
        worker.framework = types.SimpleNamespace(FAILURES=(RuntimeError,), seed=lambda seed: None, synchronize=lambda: None,
                                                 observe=lambda: None, digest=lambda told: told)
        found = worker.run(random.Random(7), 7, 100, float("inf"))
        texts = found["texts"]
        self.assertEqual((len(found["step_ns"]), len(texts), texts[0]), (100, burst_worker.FAILURES_MAX, "RuntimeError: out of memory"))
        self.assertTrue(25 < found["failures"] < 75)
        self.assertEqual(found["digests"].count(None), found["failures"])
        found = worker.run(random.Random(7), 7, 100, 0)  # its time is over: one step all the same
        self.assertEqual(len(found["step_ns"]), 1)

    def test_no_burst_begins_when_the_time_is_over(self):
        bench = bench_module.Bench(Results(), PROGRAMS, None, "sim", True, sys.executable)
        self.addCleanup(bench.close)
        bench.outside["PYTHONPATH"] = str(HERE / "false_torch")
        with contextlib.redirect_stderr(io.StringIO()):
            bursty.run(bench, bursty.Plan(("buffers",), ("2",), ("ipc",), ("run",), seconds=0))
        self.assertEqual(bench.results.find("bursty"), [])
        self.assertIn(program_runs.OWN, {entry["subject"] for entry in bench.results.absent})

    def test_bursty_workers_are_judged_by_the_worst_program_and_by_all_failures(self):
        def rows(step_ns, first_ns, failures):
            for program in ("a", "b"):
                place = {"program": program, "export": "vmm", "limit": "1.5"}
                for phase in ("cold", "one", "two"):
                    values = {"ns": 100 if program == "a" else step_ns, "first_ns": first_ns, "slow_steps": 0,
                              "failures": failures if (program, phase) == ("b", "two") else 0}
                    beside = {"native_ns": 100, "native_first_ns": 200} if phase == "one" else {}
                    yield 0, "bursty", program_runs.LEAN, {**place, "phase": phase}, {**values, **beside}

        def states(*measured):
            results = Figures.results(rows(*measured))
            checked = [bar for bar in bars.check(results, "cuda", False) if "lean, 1.5" in bar["what"]]
            return [bar["state"] for bar in checked if bar["state"] != bars.NOT_MEASURABLE]

        self.assertEqual(states(105, 200, 0), [bars.MET] * 4)
        without_two = Figures.results(row for row in rows(105, 200, 0) if row[3]["phase"] != "two")
        self.assertEqual([bar["state"] for bar in bars.check(without_two, "cuda", False) if "lean, 1.5" in bar["what"]][:2],
                         [bars.NOT_MEASURABLE] * 2)
        self.assertEqual(states(106, 201, 1), [bars.NOT_MET, bars.MET, bars.NOT_MET, bars.NOT_MET])


class SlowProcessor(python_workload.Calibration):
    """Processors of which one is as slow as said; the thread begins on the first."""

    def __init__(self, factors):
        self.factors, self.cpu, self.hops = factors, 0, 0
        self.best_ns = 1000

    def time(self):
        return 1000 * self.factors[self.cpu]

    def hop(self):
        self.cpu = (self.cpu + 1) % len(self.factors)
        self.hops += 1

    def sample(self):
        return 20 * self.factors[self.cpu]


class Calibrations(unittest.TestCase):
    def test_samples_of_a_quiet_processor_stay_as_they_came(self):
        processor = SlowProcessor([1, 9])
        self.assertEqual(processor.figure(0, 7, processor.sample), {"ns": 20, "raw_ns": 20, "samples": 7, "slow_samples": 0})
        self.assertEqual(processor.hops, 0)

    def test_samples_of_a_slow_processor_are_repeated_on_another(self):
        processor = SlowProcessor([1.7, 1.7, 1])
        with unittest.mock.patch.multiple(python_workload, CALIBRATION_HOP_NS=0, CALIBRATION_REPEAT=10**9):
            found = processor.figure(0, 7, processor.sample)
        self.assertEqual(found, {"ns": 20, "raw_ns": 34, "samples": 7, "slow_samples": 7})
        self.assertEqual(processor.hops, 2)

    def test_where_all_processors_are_slow_the_figure_is_as_it_came(self):
        processor = SlowProcessor([1.7, 1.6])
        with unittest.mock.patch.multiple(python_workload, CALIBRATION_REPEAT=0):
            found = processor.figure(0, 7, processor.sample)
        self.assertEqual((found["ns"], found["raw_ns"], found["samples"]), (34, 34, 0))


if __name__ == "__main__":
    unittest.main()
