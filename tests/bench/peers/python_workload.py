# SPDX-License-Identifier: Apache-2.0
"""The cases of ../workload.h for allocators that are called from Python, where a block is given back when nothing refers to
it any more. The figures have the interpreter's part in them, as they have for a program in Python."""
import argparse
import json
import os
import statistics
import time

SAMPLES_MAX, SAMPLES_FEW = 201, 5
BATCH_NS = 100_000
CALIBRATION_ROUNDS, CALIBRATION_SLOW, CALIBRATION_SCANS = 150, 1.2, 8
CALIBRATION_HOP_NS, CALIBRATION_REPEAT = 2_000_000, 3
MIX_SMALLEST_BYTES, MIX_LIVE, MIX_PASSES = 512, 1000, 5
MASK = (1 << 64) - 1


def parse(name):
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default=name)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[1 << 20])
    parser.add_argument("--figure-ms", type=int, default=200)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--mix", action="store_true")
    parser.add_argument("--mix-largest", type=int, default=32 << 20)
    parser.add_argument("--mix-steps", type=int, default=100000)
    parser.add_argument("--calibration-ns", type=float, default=0)
    return parser.parse_args()


def report(case, name, parameters, values):
    print(json.dumps({"case": case, "subject": name, "parameters": parameters, "values": values}), flush=True)


class Calibration:
    """Whether the processor was itself slow when something was measured: ../calibration.h, with work of the interpreter's. Made
    from the best that is known of the run; best_ns is then the best that is known."""

    def __init__(self, best_ns):
        self.best_ns = best_ns or float("inf")
        for _ in os.sched_getaffinity(0):
            for _ in range(CALIBRATION_SCANS):
                self.time()
            self.hop()

    def time(self):
        start = time.perf_counter_ns()
        value = 1
        for _ in range(CALIBRATION_ROUNDS):
            value = (value * 5 + 1) & 0xffffffff
        spent = time.perf_counter_ns() - start
        self.best_ns = min(self.best_ns, spent)
        return spent

    def is_slow(self, spent_ns):
        return spent_ns > CALIBRATION_SLOW * self.best_ns

    @staticmethod
    def hop():
        """On to another processor."""
        allowed = sorted(os.sched_getaffinity(0))
        with open("/proc/thread-self/stat", encoding="ascii", errors="replace") as file:
            now = int(file.read().rpartition(")")[2].split()[36])
        os.sched_setaffinity(0, {next((cpu for cpu in allowed if cpu > now), allowed[0])})
        os.sched_setaffinity(0, allowed)

    def search(self, until_ns):
        while True:
            self.hop()
            self.time()
            if not self.is_slow(self.time()) or time.perf_counter_ns() >= until_ns:
                return

    def figure(self, for_ns, least, sample):
        """The values of a figure: figure_take() of ../calibration.h, step by step."""
        start, values, speeds, before = time.perf_counter_ns(), [], [], self.time()

        def take(before):
            values.append(sample())
            after = self.time()
            speeds.append(max(before, after))
            return after

        while len(values) < SAMPLES_MAX and (len(values) < least or time.perf_counter_ns() - start < for_ns):
            before = take(before)
        wanted, now = len(values), time.perf_counter_ns()
        end = now + CALIBRATION_REPEAT * (now - start)
        while (len(values) < 3 * wanted and sum(not self.is_slow(speed) for speed in speeds) < wanted
               and time.perf_counter_ns() < end):
            if self.is_slow(speeds[-1]):
                self.search(end)
                hop = time.perf_counter_ns()
                while time.perf_counter_ns() - hop < CALIBRATION_HOP_NS:
                    sample()
                before = self.time()
            before = take(before)
        accepted = [value for value, speed in zip(values, speeds) if not self.is_slow(speed)]
        raw, slow = statistics.median(values[:wanted]), len(values) - len(accepted)
        if len(accepted) < min(SAMPLES_FEW, wanted):
            accepted = []
        return {"ns": round(statistics.median(accepted) if accepted else raw, 2), "raw_ns": round(raw, 2),
                "samples": len(accepted), "slow_samples": slow}

    def report(self):
        print(json.dumps({"calibration": "Python", "best_ns": self.best_ns}), flush=True)


def time_pairs(take, size, pairs):
    start = time.perf_counter_ns()
    for _ in range(pairs):
        memory = take(size)
        del memory
    return time.perf_counter_ns() - start


def warm_pair(options, calibration, take, size, settle):
    figure_ns = options.figure_ms * 1_000_000
    time_pairs(take, size, 2)
    pairs, end = 1, time.perf_counter_ns() + figure_ns // 10
    while True:
        spent, warm = time_pairs(take, size, pairs), pairs
        if time.perf_counter_ns() >= end:
            break
        pairs *= 2
    pairs = max(1, BATCH_NS * warm // max(1, spent))
    settle()
    figure = calibration.figure(figure_ns, SAMPLES_FEW, lambda: time_pairs(take, size, pairs) / pairs)
    settle()
    return figure


def warm_pairs(options, calibration, take, settle, name="warm_pair"):
    for size in options.sizes:
        report(name, options.name, {"size_bytes": size}, warm_pair(options, calibration, take, size, settle))


class Random:
    """xorshift64, as in ../workload.h."""

    def __init__(self, state):
        self.state = state

    def __call__(self):
        self.state ^= self.state << 13 & MASK
        self.state ^= self.state >> 7
        self.state ^= self.state << 17 & MASK
        return self.state


def mix_size(options, random):
    powers = (options.mix_largest // MIX_SMALLEST_BYTES).bit_length() - 1
    base = MIX_SMALLEST_BYTES << random() % powers
    return base + random() % base


def random_mix(options, calibration, take, settle, reserved):
    random = Random(2463534242)
    steps = []
    for _ in range(options.mix_steps):
        size = mix_size(options, random)
        steps.append((random() % MIX_LIVE, size))
    random = Random(88172645463325252)
    blocks, sizes = [], []
    live = peak_live = peak_reserved = 0
    for _ in range(MIX_LIVE):
        sizes.append(mix_size(options, random))
        blocks.append(take(sizes[-1]))
        live += sizes[-1]
    peak_live = live
    for slot, size in steps:
        blocks[slot] = None
        blocks[slot] = take(size)
        live += size - sizes[slot]
        sizes[slot] = size
        peak_live = max(peak_live, live)
        peak_reserved = max(peak_reserved, reserved())
    settle()

    def one_pass():
        start = time.perf_counter_ns()
        for slot, size in steps:
            blocks[slot] = None
            blocks[slot] = take(size)
        spent = time.perf_counter_ns() - start
        settle()
        return spent / len(steps)

    report("mix", options.name, {"live": MIX_LIVE, "largest_bytes": options.mix_largest},
           {**calibration.figure(0, MIX_PASSES, one_pass), "peak_live_bytes": peak_live, "peak_reserved_bytes": peak_reserved})
