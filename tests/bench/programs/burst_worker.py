#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One of several programs that share a GPU: it waits for a line on its standard input, works for a burst, and waits again.

    burst_worker.py PROGRAM WAY FIRST_PROCESSOR [LIBRARY]

WAY: own (the framework's own allocator, also under a preloaded library), or, with PyTorch, lean or mempool (functions of LIBRARY,
libgpupool-torch.so). With mempool the weights lie in a pool of their own, and each burst in another one, which is deleted after it.
Each line is a JSON object that names an action, and is answered by one:

    start    environment         the variables are set, and the program is made
    burst    seed, steps, seconds     that many steps, fewer where they take longer than the seconds
    take     size_bytes, filler_bytes     an allocation of that size, and its end; twice, beside another one
    empty                        the framework gives back what it keeps
    memory                       what the framework's allocator says; null where it cannot

A step that fails is counted, and the burst goes on with the next one. A burst's answer has a digest of what each step computed, null
where the step failed or the program tells nothing. The framework is imported before the first answer, which comes without a question.
The process stands in read() between two actions. Exit status 77: the framework is not there, or has no GPU."""
import contextlib
import gc
import itertools
import json
import os
import random
import sys
import time

import frameworks  # the folder of this file is the first on the path
import programs
import worker

CORES = 2      # as for the programs: one for Python, one for the backward pass and the allocator's threads
TEXT_MAX = 300
FAILURES_MAX = 8  # texts that are told of one burst


class Program:
    def __init__(self, framework, name, way, library):
        self.framework, self.way, self.library = framework, way, library
        kind = programs.BURSTS[name]
        if way == "mempool":
            import torch_allocator
            self.new_pool = lambda: torch_allocator.pool(library)
            self.weights_pool = self.new_pool()
        else:
            if way != "own":
                worker.install(framework.module, way, library)
            self.weights_pool = None
        framework.seed(0)  # the same weights in each process
        with self.inside(self.weights_pool), framework.weights_of(kind):
            self.program = kind(framework.module)
            framework.synchronize()
        gc.collect()
        framework.empty_cache()
        if way == "own":
            framework.reset_peaks()

    def inside(self, pool):
        return self.framework.module.cuda.use_mem_pool(pool) if pool else contextlib.nullcontext()

    def burst(self, seed, steps, seconds):
        """The garbage collector runs after the burst and not within it."""
        gc.disable()
        pool = self.new_pool() if self.way == "mempool" else None
        with self.inside(pool):
            found = self.run(random.Random(seed), seed, steps, time.monotonic() + seconds)
        del pool
        gc.enable()
        gc.collect()
        return found

    def run(self, rng, seed, count, deadline):
        framework, times, texts, digests, failed = self.framework, [], [], [], 0
        framework.seed(seed)
        steps = self.program.steps(rng)
        framework.synchronize()
        for _ in range(count):
            if time.monotonic() >= deadline and times:
                break
            told = None
            start = time.perf_counter_ns()
            try:
                told = next(steps)
                framework.synchronize()
            except framework.FAILURES as error:
                failed += 1
                if len(texts) < FAILURES_MAX:
                    texts.append(f"{type(error).__name__}: {error}"[:TEXT_MAX])
                told = None
                del error
                steps = self.program.steps(rng)
            times.append(time.perf_counter_ns() - start)
            framework.observe()
            digests.append(None if told is None else framework.digest(told))
            del told
        steps.close()
        return {"step_ns": times, "failures": failed, "texts": texts, "digests": digests}

    def take(self, size_bytes, filler_bytes):
        """How long an allocation takes that needs idle memory of others, and how long the same one when that memory is free. The filler
        has the free memory of the pool meanwhile."""
        framework, times, failed = self.framework, [], None
        framework.empty_cache()
        make, make_filler = framework.maker(size_bytes), framework.maker(filler_bytes)
        pool = self.new_pool() if self.way == "mempool" else None
        start = time.perf_counter_ns()
        try:
            with self.inside(pool):
                filler = make_filler() if filler_bytes else None
                for _ in range(2):
                    framework.synchronize()
                    start = time.perf_counter_ns()
                    taken = make()
                    times.append(time.perf_counter_ns() - start)
                    del taken
                    framework.empty_cache()
        except framework.FAILURES as error:
            failed = f"{type(error).__name__}: {error}"[:TEXT_MAX]
            times.append(time.perf_counter_ns() - start)
        filler = pool = None
        framework.empty_cache()
        return {"failed": failed, "take_ns": times}

    def empty(self):
        self.framework.empty_cache()
        return {}

    def memory(self):
        if self.way == "lean":  # a pluggable allocator has no statistics
            return {name: None for name in ("allocated", "reserved", "peak_allocated", "peak_reserved")}
        return self.framework.memory(self.program)


def lines():
    """Of standard input, without a buffer that reads ahead."""
    return itertools.takewhile(bool, iter(sys.stdin.readline, None))


def main(name, way, first_processor, library=None):
    processors = sorted(os.sched_getaffinity(0))
    first = int(first_processor) % len(processors)
    os.sched_setaffinity(0, (processors + processors)[first:first + CORES])
    kind = frameworks.of(programs.BURSTS[name])
    try:
        framework = kind()
    except ImportError as error:
        print(f"no {kind.NAME}: {error}", file=sys.stderr)
        return 77
    worker.answer(imported=framework.module.__version__)
    program = None
    for line in lines():
        wanted = json.loads(line)
        action = wanted.pop("action")
        if action != "start":
            worker.answer(**getattr(program, action)(**wanted))
            continue
        os.environ.update(wanted["environment"])
        if not framework.has_gpu():
            print(f"no {kind.NAME} with a GPU", file=sys.stderr)
            return 77
        start = time.perf_counter_ns()
        program = Program(framework, name, way, library)
        worker.answer(ready_ns=time.perf_counter_ns() - start, **program.memory())
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
