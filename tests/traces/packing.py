#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes traces that are hard to pack: `packing.py FOLDER [SEED…]` writes a trace for each seed.

Sizes are drawn evenly on a logarithmic scale, lifetimes have a heavy tail, and the live bytes are near a ceiling all the
time: a buffer that does not fit below it ends others first, those that would end next or any. So dozens to thousands of
buffers overlap at random, and what becomes free seldom has the size that is wanted next. The seeds differ in sizes,
ceiling, lifetimes and streams. A seed makes the same trace on every machine.
"""
import heapq
import math
import os
import random
import sys
import typing

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import trace_file  # noqa: E402

MIB = 1 << 20
ALLOCATIONS = 8_000


class Shape(typing.NamedTuple):
    low_mib: float
    high_mib: float
    ceiling_mib: int
    exponent: float  # of the lifetimes' Pareto distribution: the lower, the heavier its tail
    ends_any: bool   # below the ceiling any buffer makes room, not the one that would end next
    streams: int = 1


SHAPES = {
    1: Shape(1, 500, 36_000, 1.1, False),
    2: Shape(1, 128, 24_000, 1.1, False),
    3: Shape(2, 64, 12_000, 1.3, True),
    4: Shape(1, 500, 30_000, 0.7, True),
    5: Shape(4, 500, 40_000, 1.5, False),
    6: Shape(1, 500, 8_000, 1.5, True),
    7: Shape(1, 500, 16_000, 1.2, False, 4),
    8: Shape(1, 500, 20_000, 0.9, True, 2),
}
QUICK_SEED = 3  # the one that takes the least time


def events(seed):
    """Yields ("a", slot, bytes, stream) and ("f", slot)."""
    shape = SHAPES[seed]
    draw = random.Random(seed).random
    ratio = shape.high_mib / shape.low_mib
    typical = shape.ceiling_mib / ((shape.high_mib - shape.low_mib) / math.log(ratio))  # so many are live
    live_bytes, slots, spare, ends = 0, 0, [], []
    for now in range(ALLOCATIONS):
        size = int(shape.low_mib * MIB * ratio ** draw()) // 512 * 512
        end = now + typical / 2 * (1 - draw()) ** (-1 / shape.exponent)
        while ends and (ends[0][0] <= now or live_bytes + size > shape.ceiling_mib * MIB):
            if shape.ends_any and ends[0][0] > now:
                chosen = int(draw() * len(ends))
                ends[0], ends[chosen] = (-1, *ends[chosen][1:]), ends[0]
                heapq.heapify(ends)
            _, slot, ended = heapq.heappop(ends)
            live_bytes -= ended
            spare.append(slot)
            yield ("f", slot)
        if spare:
            slot = spare.pop()
        else:
            slot, slots = slots, slots + 1
        heapq.heappush(ends, (end, slot, size))
        live_bytes += size
        yield ("a", slot, size, int(draw() * shape.streams))


def write(folder, seed):
    """Writes a seed's trace. Returns its path."""
    lines = [" ".join(map(str, event)) + "\n" for event in events(seed)]
    path = os.path.join(folder, f"packing_{seed}.trace.gz")
    trace_file.write(path, {"program": f"packing_{seed}"}, lines)
    return path


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for number in [int(word) for word in sys.argv[2:]] or sorted(SHAPES):
        print(write(sys.argv[1], number))
