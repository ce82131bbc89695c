# SPDX-License-Identifier: Apache-2.0
"""Programs under several allocators. Each allocator has a process. All processes of a program live at the same time, and one of
them works at a time, so that rounds take turns at the cost of one start each. A process that uses gpupool has a daemon of its
own, so that the pool's figures are that program's.

The first round of a process is not counted. After it, every round of a program has the same number of steps, as many as take
PyTorch's own allocator about bench.program_seconds."""
import contextlib
import pathlib
import statistics
import sys
import threading

from bench import Absent, Failed, say
from conversation import Conversation
from daemon import DaemonError

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "programs"
sys.path.insert(0, str(FOLDER))
import programs  # noqa: E402

OWN, EXPANDABLE = "PyTorch", "PyTorch, expandable segments"
PRELOAD, MEMPOOL, LEAN = "gpupool, preloaded", "gpupool, MemPool", "gpupool, lean"
EMPTY, NO_MEMORY = "a plug-in that does nothing", "no memory"
START_S, ROUND_S = 120, 120
WATCH_S = 0.01
STEPS_MIN = 8
TORCH_LIBRARY, PRELOAD_LIBRARY, EMPTY_LIBRARY = "libgpupool-torch.so", "libgpupool-preload.so", "libempty-plugin.so"
LINKER = {"LD_PRELOAD": PRELOAD_LIBRARY, "LD_AUDIT": "libgpupool-audit.so"}  # as gpupoolctl run sets them
POOL_COUNTERS = ("grows", "retires", "closes", "close_ns")  # of a daemon's stats, as far as it has them
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", *LINKER)


def preloaded(bench):
    """The variables of the dynamic linker that `gpupoolctl run` sets. It cannot start a process here: it wants the daemon first."""
    return {variable: str(bench.library(library)) for variable, library in LINKER.items()}


class Allocator:
    """How a process gets an allocator: the worker's word for it, a library, settings; whether the memory is a pool's."""

    def __init__(self, word, library=None, settings=None, preloads=False, pooled=False):
        self.word, self.library, self.settings = word, library, settings or {}
        self.preloads, self.pooled = preloads, pooled


ALLOCATORS = {
    OWN: Allocator("own"),
    EXPANDABLE: Allocator("own", settings={"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
    PRELOAD: Allocator("own", PRELOAD_LIBRARY, preloads=True, pooled=True),
    MEMPOOL: Allocator("mempool", TORCH_LIBRARY, pooled=True),
    LEAN: Allocator("lean", TORCH_LIBRARY, pooled=True),
    EMPTY: Allocator("empty", EMPTY_LIBRARY),
}
PROGRAM_SUBJECTS = (OWN, EXPANDABLE, PRELOAD, MEMPOOL, LEAN)
PAIR_SUBJECTS = (OWN, PRELOAD, MEMPOOL, LEAN, EMPTY)


class Pool:
    """The device pool of a daemon, watched while a round runs. Its reserved bytes change only when it makes a segment or gives one
    back. Without either in a round, the peak is exact. Otherwise a peak that is shorter than WATCH_S may be missed."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.peak_bytes = 0
        self.now = self.look()

    def look(self):
        found = next(pool for pool in self.daemon.stats()["pools"] if pool["kind"] == "device")
        self.peak_bytes = max(self.peak_bytes, found.get("peak_reserved_bytes", 0), found["reserved_bytes"])
        return found

    @contextlib.contextmanager
    def watched(self):
        """Yields a dictionary. When the block is over, it has the changes of the pool's counters and the peak."""
        found, end = {}, threading.Event()
        before = self.look()

        def watch():
            while not end.wait(WATCH_S):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            end.set()
            thread.join()
        after = self.look()
        for name in POOL_COUNTERS:
            if name in after:
                found[name] = after[name] - before[name]
        found["peak_reserved_bytes"] = self.peak_bytes


class Process:
    """A worker under an allocator, and its daemon. Close it."""

    def __init__(self, bench, program, subject):
        allocator = ALLOCATORS[subject]
        library = str(bench.library(allocator.library)) if allocator.library else None
        self.exits = contextlib.ExitStack()
        with contextlib.ExitStack() as failed:
            failed.callback(self.exits.close)
            environment = {name: value for name, value in bench.outside.items() if name not in SETTINGS}
            environment.update(allocator.settings)
            self.pool = None
            if allocator.pooled:
                daemon = self.exits.enter_context(bench.daemon())
                environment = daemon.environment(environment)
                self.pool = Pool(daemon)
            if allocator.preloads:
                environment.update(preloaded(bench))
            command = [bench.python, str(FOLDER / "worker.py"), program, allocator.word,
                       *([library] if library and not allocator.preloads else [])]
            self.worker = Conversation(command, environment)
            failed.pop_all()

    def round(self, seed, steps):
        with self.pool.watched() if self.pool else contextlib.nullcontext({}) as pool:
            found = self.worker.ask(f"{seed} {steps}", ROUND_S)
        if self.pool and self.pool.peak_bytes == 0:
            raise Failed("nothing came from the pool: the program did not use the library")
        times = found["step_ns"]
        values = {"ns": statistics.median(times), "mean_ns": statistics.fmean(times), "worst_ns": max(times),
                  "steps": len(times), **pool}
        if found["torch_peak_reserved_bytes"] is not None:
            values["torch_peak_reserved_bytes"] = found["torch_peak_reserved_bytes"]
            # Beside a MemPool PyTorch has memory of its own.
            values["peak_reserved_bytes"] = max(pool.get("peak_reserved_bytes", 0), found["torch_peak_reserved_bytes"])
        return values

    def close(self):
        self.worker.close()
        self.exits.close()


def start(bench, wanted, case):
    """Processes by subject, for (subject, program, allocator) each; those that cannot start are noted as absent or failed."""
    processes, running = {}, {}
    with contextlib.ExitStack() as failed:
        for subject, program, allocator in wanted:
            try:
                processes[subject] = Process(bench, program, allocator)
                failed.callback(processes[subject].close)
            except Absent as error:
                bench.results.add_absent(case, subject, str(error))
        for subject, process in processes.items():  # they start at the same time
            try:
                running[subject] = (process, process.worker.answer(START_S))
            except (Absent, Failed) as error:
                note(bench, case, subject, error)
                process.close()
        failed.pop_all()
    return running


def note(bench, case, subject, error):
    if isinstance(error, Absent):
        bench.results.add_absent(case, subject, str(error))
    else:
        bench.results.add_failed(case, subject, str(error))
        say(f"FAILED {case}, {subject}: {error}")


def take_turns(bench, case, wanted, add):
    """Rounds of all that is wanted; add(round, subject, values) for each that counts."""
    running = start(bench, wanted, case)
    try:
        if OWN not in running:
            raise Absent("PyTorch's own allocator cannot be measured, so there is nothing to compare with")
        steps = min(ready["steps_max"] for _, ready in running.values())
        if bench.quick:
            steps = STEPS_MIN
        for turn in range(bench.program_rounds + 1):
            order = list(running)
            order = order[turn % len(order):] + order[:turn % len(order)]  # no subject always follows the same one
            for subject in order:
                try:
                    values = running[subject][0].round(1 + turn, steps)
                except (Absent, Failed, DaemonError, OSError) as error:
                    note(bench, case, subject, error if isinstance(error, Absent) else Failed(str(error)))
                    with contextlib.suppress(DaemonError):
                        running.pop(subject)[0].close()
                    continue
                if subject == OWN:
                    own_ns = values["mean_ns"]
                if turn > 0:
                    add(turn - 1, subject, values)
            if turn == 0:
                steps = max(STEPS_MIN, min(steps, int(bench.program_seconds * 1e9 / own_ns)))
    finally:
        for process, _ in running.values():
            try:
                process.close()
            except DaemonError as error:
                bench.results.add_failed(case, "its daemon", str(error))


def run_program(bench, program):
    take_turns(bench, "program", [(subject, program, subject) for subject in PROGRAM_SUBJECTS],
               lambda turn, subject, values: bench.results.add(turn, "program", subject, {"program": program}, values))


def run_pairs(bench):
    """torch.empty() and its end, also with 0 bytes: that is the cost of a tensor without its memory."""
    pairs, size = programs.EmptyTensor.PAIRS, programs.EmptyTensor.BYTES

    def add(turn, subject, values):
        bench.results.add(turn, "torch_empty", subject, {"size_bytes": size},
                          {"ns": values["ns"] / pairs, "mean_ns": values["mean_ns"] / pairs})

    take_turns(bench, "torch_empty", [*((subject, "empty_tensor", subject) for subject in PAIR_SUBJECTS),
                                      (NO_MEMORY, "no_tensor", OWN)], add)

