# SPDX-License-Identifier: Apache-2.0
"""The cases of ../workload.h for allocators that are called from Python, where what is given back is what nobody refers to
any more. The figures have the interpreter's part in them, as they have for a program in Python."""
import argparse
import json
import statistics
import time

BATCHES_MAX = 201
BATCH_NS = 100_000
MIX_SMALLEST_BYTES, MIX_LIVE = 512, 1000
MASK = (1 << 64) - 1


def parse(name):
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default=name)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[1 << 20])
    parser.add_argument("--figure-ms", type=int, default=200)
    parser.add_argument("--mix", action="store_true")
    parser.add_argument("--mix-largest", type=int, default=32 << 20)
    parser.add_argument("--mix-steps", type=int, default=100000)
    return parser.parse_args()


def report(case, name, parameters, values):
    print(json.dumps({"case": case, "subject": name, "parameters": parameters, "values": values}), flush=True)


def time_pairs(take, size, pairs):
    start = time.perf_counter_ns()
    for _ in range(pairs):
        memory = take(size)
        del memory
    return time.perf_counter_ns() - start


def warm_pair(options, take, size, settle):
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
    values, end = [], time.perf_counter_ns() + figure_ns
    while len(values) < BATCHES_MAX and (time.perf_counter_ns() < end or len(values) < 5):
        values.append(time_pairs(take, size, pairs) / pairs)
    settle()
    return statistics.median(values)


def warm_pairs(options, take, settle, name="warm_pair"):
    for size in options.sizes:
        report(name, options.name, {"size_bytes": size}, {"ns": round(warm_pair(options, take, size, settle), 2)})


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


def random_mix(options, take, settle, reserved):
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
    times = []
    for _ in range(3):
        start = time.perf_counter_ns()
        for slot, size in steps:
            blocks[slot] = None
            blocks[slot] = take(size)
        times.append((time.perf_counter_ns() - start) / len(steps))
        settle()
    report("mix", options.name, {"live": MIX_LIVE, "largest_bytes": options.mix_largest},
           {"ns": round(statistics.median(times), 2), "peak_live_bytes": peak_live, "peak_reserved_bytes": peak_reserved})
