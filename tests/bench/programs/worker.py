#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one program under one allocator, a round at a time, so that rounds of several processes can take turns.

    worker.py PROGRAM ALLOCATOR [LIBRARY]

ALLOCATOR: own (PyTorch's own, as the environment sets it, also under a preloaded library), mempool or lean (functions of
LIBRARY, libgpupool-torch.so), or empty (the plug-in LIBRARY, which allocates nothing). Prints a JSON object when it is
ready, then one for each line "SEED STEPS" of standard input: the time of each step, GPU work included, and the most that
PyTorch's allocator reserved so far (null where it cannot say). Ends with its input. Exit status 77: no PyTorch with a GPU.

Each worker runs on the same CORES processors, so that a slow processor slows the programs of all allocators down. One is for
Python, one for PyTorch's backward pass and for the allocator's threads. Without this, rounds of the same program on a virtual
machine took 59 or 99 ms a step."""
import contextlib
import gc
import itertools
import json
import os
import pathlib
import random
import sys
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "client" / "examples")]
import programs  # noqa: E402

CORES = 2


def install(torch, allocator, library):
    """Returns a function that makes the context in which the program allocates."""
    if allocator == "own":
        return contextlib.nullcontext
    if allocator == "empty":
        plugin = torch.cuda.memory.CUDAPluggableAllocator(library, "empty_plugin_malloc", "empty_plugin_free")
        torch.cuda.memory.change_current_allocator(plugin)
        return contextlib.nullcontext
    import torch_allocator
    if allocator == "lean":
        torch_allocator.use_gpupool(library)
        return contextlib.nullcontext
    pool = torch_allocator.pool(library)
    return lambda: torch.cuda.use_mem_pool(pool)


def run_round(torch, program, seed, count):
    """The nanoseconds of each step. The garbage collector runs between rounds and not within them."""
    times = []
    torch.manual_seed(seed)
    steps = program.steps(random.Random(seed))
    gc.disable()
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in itertools.islice(steps, count):
        torch.cuda.synchronize()
        now = time.perf_counter_ns()
        times.append(now - start)
        start = now
    steps.close()
    gc.enable()
    gc.collect()
    return times


def answer(**values):
    print(json.dumps(values), flush=True)


def main(name, allocator, library=None):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-CORES:])
    try:
        import torch
    except ImportError as error:
        print(f"no PyTorch: {error}", file=sys.stderr)
        return 77
    if not torch.cuda.is_available():
        print("no PyTorch with a GPU", file=sys.stderr)
        return 77
    context = install(torch, allocator, library)
    with context():
        program = {**programs.PROGRAMS, **programs.PAIRS}[name](torch)
        torch.cuda.synchronize()
    answer(ready=True, torch=torch.__version__, steps_max=program.STEPS_MAX)
    for line in sys.stdin:
        seed, count = map(int, line.split())
        with context():
            times = run_round(torch, program, seed, count)
        # A pluggable allocator has no statistics.
        reserved = None if allocator in ("lean", "empty") else torch.cuda.max_memory_reserved()
        answer(step_ns=times, torch_peak_reserved_bytes=reserved)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
