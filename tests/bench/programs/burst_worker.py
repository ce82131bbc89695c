#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One of several programs that share a GPU: it waits for a line on its standard input, works for a burst, and waits again.

    burst_worker.py PROGRAM WAY FIRST_PROCESSOR [LIBRARY]

WAY: own (PyTorch's own allocator, also under a preloaded library), lean, or mempool (functions of LIBRARY, libgpupool-torch.so).
With mempool the weights lie in a pool of their own, and each burst in another one, which is deleted after it. Each line is a JSON
object that names an action, and is answered by one:

    start    environment         the variables are set, and the program is made
    burst    seed, steps, seconds     that many steps, fewer where they take longer than the seconds
    take     size_bytes, filler_bytes     a tensor of that size, and its end; twice, beside another tensor
    empty                        torch.cuda.empty_cache()
    memory                       what PyTorch's allocator says; null where it cannot

A step that fails is counted, and the burst goes on with the next one. PyTorch is imported before the first answer, which comes
without a question. The process stands in read() between two actions. Exit status 77: no PyTorch with a GPU."""
import contextlib
import gc
import itertools
import json
import os
import random
import sys
import time

import programs  # the folder of this file is the first on the path
import worker

CORES = 2      # as for the programs: one for Python, one for the backward pass and the allocator's threads
TEXT_MAX = 300
FAILURES_MAX = 8  # texts that are told of one burst


class Program:
    def __init__(self, torch, name, way, library):
        self.torch, self.way, self.library = torch, way, library
        self.plugin = None
        if way == "mempool":
            import torch_allocator
            self.new_pool = lambda: torch_allocator.pool(library)
            self.weights_pool = self.new_pool()
        else:
            worker.install(torch, way, library)
            self.weights_pool = None
        with self.inside(self.weights_pool):
            self.program = self.made(programs.BURSTS[name])
            torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        if way == "own":
            torch.cuda.reset_peak_memory_stats()

    def made(self, kind):
        """On the GPU and in the type of its weights from the start: a copy on the processor would take long, one in single
        precision would be the program's peak."""
        torch = self.torch
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, kind.DTYPE))
        try:
            with torch.device(programs.DEVICE):
                return kind(torch)
        finally:
            torch.set_default_dtype(before)

    def inside(self, pool):
        return self.torch.cuda.use_mem_pool(pool) if pool else contextlib.nullcontext()

    def burst(self, seed, steps, seconds):
        """The garbage collector runs after the burst and not within it."""
        gc.disable()
        pool = self.new_pool() if self.way == "mempool" else None
        with self.inside(pool):
            times, failures, count = self.run(random.Random(seed), seed, steps, time.monotonic() + seconds)
        del pool
        gc.enable()
        gc.collect()
        return {"step_ns": times, "failures": count, "texts": failures}

    def run(self, rng, seed, count, deadline):
        torch, times, texts, failed = self.torch, [], [], 0
        torch.manual_seed(seed)
        steps = self.program.steps(rng)
        torch.cuda.synchronize()
        for _ in range(count):
            if time.monotonic() >= deadline and times:
                break
            start = time.perf_counter_ns()
            try:
                next(steps)
                torch.cuda.synchronize()
            except RuntimeError as error:  # OutOfMemoryError is one
                failed += 1
                if len(texts) < FAILURES_MAX:
                    texts.append(f"{type(error).__name__}: {error}"[:TEXT_MAX])
                del error
                steps = self.program.steps(rng)
            times.append(time.perf_counter_ns() - start)
        steps.close()
        return times, texts, failed

    def take(self, size_bytes, filler_bytes):
        """How long a tensor takes that needs idle memory of others, and how long the same one when that memory is free. The filler
        has the free memory of the pool meanwhile."""
        torch, times, failed, start = self.torch, [], None, time.perf_counter_ns()
        torch.cuda.empty_cache()
        pool = self.new_pool() if self.way == "mempool" else None
        try:
            with self.inside(pool):
                filler = torch.empty(filler_bytes, dtype=torch.uint8, device=programs.DEVICE) if filler_bytes else None
                for _ in range(2):
                    torch.cuda.synchronize()
                    start = time.perf_counter_ns()
                    tensor = torch.empty(size_bytes, dtype=torch.uint8, device=programs.DEVICE)
                    times.append(time.perf_counter_ns() - start)
                    del tensor
                    torch.cuda.empty_cache()
        except RuntimeError as error:
            failed = f"{type(error).__name__}: {error}"[:TEXT_MAX]
            times.append(time.perf_counter_ns() - start)
        filler = pool = None
        torch.cuda.empty_cache()
        return {"failed": failed, "take_ns": times}

    def empty(self):
        self.torch.cuda.empty_cache()
        return {}

    def memory(self):
        if self.way == "lean":  # a pluggable allocator has no statistics
            return {name: None for name in ("allocated", "reserved", "peak_allocated", "peak_reserved")}
        cuda = self.torch.cuda
        return {"allocated": cuda.memory_allocated(), "reserved": cuda.memory_reserved(),
                "peak_allocated": cuda.max_memory_allocated(), "peak_reserved": cuda.max_memory_reserved()}


def lines():
    """Of standard input, without a buffer that reads ahead."""
    return itertools.takewhile(bool, iter(sys.stdin.readline, None))


def main(name, way, first_processor, library=None):
    processors = sorted(os.sched_getaffinity(0))
    first = int(first_processor) % len(processors)
    os.sched_setaffinity(0, (processors + processors)[first:first + CORES])
    try:
        import torch
    except ImportError as error:
        print(f"no PyTorch: {error}", file=sys.stderr)
        return 77
    worker.answer(imported=torch.__version__)
    program = None
    for line in lines():
        wanted = json.loads(line)
        action = wanted.pop("action")
        if action != "start":
            worker.answer(**getattr(program, action)(**wanted))
            continue
        os.environ.update(wanted["environment"])
        if not torch.cuda.is_available():
            print("no PyTorch with a GPU", file=sys.stderr)
            return 77
        start = time.perf_counter_ns()
        program = Program(torch, name, way, library)
        worker.answer(ready_ns=time.perf_counter_ns() - start, **program.memory())
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
