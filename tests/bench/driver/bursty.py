# SPDX-License-Identifier: Apache-2.0
"""Bursty workers: several programs on one GPU, each of which waits for a line, works for a burst and waits again. First they do so
natively and without a limit. The need of the largest of them there, times a factor, is then the limit of a pool that they share, for
each way to gpupool and each kind of device pool.

The phases of a configuration:

    cold   each program's first bursts, one program after another. Only failures and the very first step count
    one    one at a time: each step, and the first step after another program's burst
           each burst stands beside two of the native program, see Native.beside()
    read   a program that has idle memory stands in read(), and another one takes that memory
    two    two at a time
    all    all at once, for some seconds

The processes of several configurations start and import their frameworks at the same time, while nothing is measured. They use the GPU
when their turn comes. The native programs stay until the end. Between their bursts they have no idle memory. A program whose framework
is not there is left out. The results of a step are compared with those of the same step of the native program."""
import contextlib
import ctypes
import itertools
import json
import statistics
import threading
import time

from bench import EXPORTS, MIB, SIM_MEMORY, Absent, Failed, say
from conversation import Conversation
from daemon import Daemon, DaemonError
from program_runs import FOLDER, LEAN, MEMPOOL, OWN, PRELOAD, SETTINGS, TORCH_LIBRARY, preloaded, programs

WAYS = {"native": OWN, "run": PRELOAD, "mempool": MEMPOOL, "lean": LEAN}
WORDS = {OWN: "own", PRELOAD: "own", MEMPOOL: "mempool", LEAN: "lean"}  # as burst_worker.py has them
WORKERS = ("inference", "training", "generation", "inference")
LIMITS = ("1.2", "1.5", "2", "live")
LIVE, LIVE_FACTOR = "live", 1.5  # the limit for all at once: of what is live together
SLOW_NS = 10**9
MIX = {"workers": programs.MIX, "limits": ("1.5",), "ways": ("run",), "passes": 2, "steps": 8, "all_seconds": 1, "burst_seconds": 4}
STARTED_TOGETHER = 5            # configurations: their processes import the frameworks on all processors at once
START_S, ANSWER_S = 120, 30     # ANSWER_S: beyond the seconds that a burst may take
READS = 4
READ_PART, ROOM_SHARE = 1 / 8, 0.95
READ_SHARE = 0.75  # of the pool without all weights: a part of the rest is the ends of segments, and what libraries keep
SAMPLE_S = 0.02
LIMIT_UNIT = 2 * MIB
ALIGNMENT = 2 * MIB
COUNTERS = ("grows", "retires", "closes", "close_ns", "failures", "timeouts")


class Plan:
    """How much is done in a configuration."""

    def __init__(self, workers=WORKERS, limits=LIMITS, kinds=("ipc", "vmm"), ways=tuple(WAYS), passes=3, steps=16, all_s=4.0,
                 burst_s=10.0, seconds=float("inf")):
        self.workers, self.limits, self.kinds, self.ways = workers, limits, kinds, ways
        self.passes, self.steps = passes, steps
        self.all_s = all_s      # how long the phase with all at once lasts
        self.burst_s = burst_s  # a burst that takes longer ends before its steps are done
        self.deadline = time.monotonic() + seconds  # no burst begins later
        self.versions = {}  # of the frameworks, once the workers have started

    def configurations(self):
        yield OWN, None, None
        for limit, kind, way in itertools.product(self.limits, self.kinds, self.ways):
            if way != "native":
                yield WAYS[way], kind, limit


class Late(Exception):
    """The time is over."""


class GpuMemory:
    """The memory of the first GPU that is in use by all processes, as the driver says. None without a driver."""

    def __init__(self):
        class Info(ctypes.Structure):
            _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

        self.info, self.device = Info(), ctypes.c_void_p()
        self.is_foreign = threading.Lock()  # held while programs that are not watched use the GPU
        self.library = None
        with contextlib.suppress(OSError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)) == 0:
                self.library = library

    def used(self):
        if self.library is None or self.library.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(self.info)) != 0:
            return None
        return self.info.used

    @contextlib.contextmanager
    def watched(self):
        """Yields a dictionary, which has the peak when the block is over: above what was in use before."""
        found, end = {}, threading.Event()
        before = self.used()
        if before is None:
            yield found
            return
        peak = [before]

        def watch():
            while not end.wait(SAMPLE_S):
                with self.is_foreign:
                    peak.append(max(peak.pop(), self.used() or 0))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            end.set()
            thread.join()
            found["gpu_peak_bytes"] = max(peak[0] - before, 0)


class Worker:
    def __init__(self, bench, name, number, subject):
        self.name, self.number = name, number
        self.framework = programs.frameworks.of(programs.BURSTS[name])
        environment = {name: value for name, value in bench.outside.items() if name not in SETTINGS}
        environment.update(self.framework.SETTINGS)
        command = [bench.python, str(FOLDER / "burst_worker.py"), name, WORDS[subject], str(2 * number)]
        if subject == PRELOAD:
            environment.update(preloaded(bench))
        elif subject != OWN:
            if self.framework.NAME != "PyTorch":
                raise Absent(f"{self.framework.NAME} has no allocator of the kind")
            command.append(str(bench.library(TORCH_LIBRARY)))
        self.conversation = Conversation(command, environment)

    def tell(self, action, **values):
        self.conversation.tell(json.dumps({"action": action, **values}))

    def answer(self, limit_s=ANSWER_S):
        try:
            return self.conversation.answer(limit_s)
        except Failed as error:
            raise Failed(f"{self.name}: {error}") from error

    def ask(self, action, limit_s=ANSWER_S, **values):
        self.tell(action, **values)
        return self.answer(limit_s)


def aligned(size):
    return int(size) // ALIGNMENT * ALIGNMENT


def answers(bench, workers, limit_s):
    """Each worker with its answer. A worker without its framework is left out, with a line, and those behind it get other numbers."""
    found, why = [], ""
    for worker in workers:
        try:
            found.append((worker, worker.answer(limit_s)))
            worker.number = len(found) - 1
        except Absent as error:
            why = str(error)
            if not any(entry["subject"] == worker.name for entry in bench.results.absent):
                say(f"bursty: without {worker.name}: {why}")
            bench.results.add_absent("bursty", worker.name, why)
    if not found:
        raise Absent(why)
    return found


class Native:
    """The programs without a limit: what they need, and their steps beside those of another configuration."""

    def __init__(self, memory):
        self.weights, self.live, self.reserved, self.workers = [], [], [], []
        self.memory = memory
        self.digests = {}  # of the steps, by the worker's number and the seed

    def idle(self, workers):
        """These are the programs. From now on they have no idle memory but in beside()."""
        self.workers = workers
        for worker in workers:
            worker.ask("empty")

    def beside(self, number, burst, seed):
        """The first step of a program that has to make its memory, and the median step of a second burst, which has it."""
        worker = self.workers[number]
        with self.memory.is_foreign:
            first, = burst([worker], seed)
            warm, = burst([worker], seed)
            worker.ask("empty")
        return {"native_first_ns": first["step_ns"][0], "native_ns": statistics.median(warm["step_ns"])}

    def compare(self, worker, seed, digests, is_native):
        """Counts the steps whose results are known, and those of them that have other results. A step that failed ends the comparison:
        the state of those behind it is another. The native program's longest burst of a seed is what is known."""
        known = self.digests.get((worker.number, seed), [])
        same = list(itertools.takewhile(lambda pair: None not in pair, zip(known, digests)))
        if is_native and len(digests) > len(known):
            self.digests[worker.number, seed] = digests
        return {"compared": len(same), "different": sum(a != b for a, b in same)}

    def limit_bytes(self, factor):
        need = LIVE_FACTOR * sum(self.live) if factor == LIVE else float(factor) * max(self.reserved)
        return -(-int(need) // LIMIT_UNIT) * LIMIT_UNIT


class Configuration:
    """The workers of one, and their pool."""

    def __init__(self, bench, plan, subject, kind, limit, workers, native, memory):
        self.bench, self.plan, self.subject, self.workers, self.native = bench, plan, subject, workers, native
        self.memory = memory
        self.parameters = {"limit": limit or "none", "export": kind or "none"}
        self.daemon, self.limit_bytes = None, None
        self.begin, self.marks = time.monotonic(), []

    def mark(self, phase):
        """The time of a phase, for the log."""
        self.marks.append(f"{phase} {time.monotonic() - self.begin:.1f} s")

    def add(self, turn, case, values, **parameters):
        self.bench.results.add(turn, case, self.subject, {**self.parameters, **parameters}, values)

    def run(self):
        with contextlib.ExitStack() as exits:
            used = exits.enter_context(self.memory.watched())
            environment = {}
            if self.subject != OWN:
                self.limit_bytes = self.native.limit_bytes(self.parameters["limit"])
                text = f"[device]\nlimit = {self.limit_bytes // MIB}MiB\n" + EXPORTS[self.parameters["export"]].read_text()
                self.daemon = exits.enter_context(Daemon(self.bench.program("gpupoold"), self.bench.inside, self.bench.gpu, text,
                                                         SIM_MEMORY))
                environment = self.daemon.environment({})
                self.wait_for_pool()
            if self.subject != OWN:
                exits.callback(self.end, self.workers)  # before the daemon's
            for worker in self.workers:
                worker.tell("start", environment=environment)
            started = answers(self.bench, self.workers, START_S)
            self.workers = [worker for worker, _ in started]
            if self.subject == OWN:
                self.native.weights = [found["allocated"] for _, found in started]
            self.mark("start")
            before = self.pool()
            try:
                for phase in (self.cold, self.one, self.read, self.two, self.all):
                    phase()
                    self.mark(phase.__name__)
            finally:
                self.measure_pool(before)
            if self.subject == OWN:
                self.native.idle(self.workers)
        if used:
            self.add(0, "bursty_pool", used)

    @staticmethod
    def end(workers):
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.conversation.process.stdin.close()
        for worker in workers:
            worker.conversation.close()

    def wait_for_pool(self):
        """The daemon serves before its GPU is ready, and a MemPool waits for no more than 0.2 s."""
        end = time.monotonic() + START_S
        while self.pool()["state"] == "starting":
            if time.monotonic() > end:
                raise Failed("the device pool does not start")
            time.sleep(SAMPLE_S)

    def pool(self):
        if self.daemon is None:
            return None
        return next(pool for pool in self.daemon.stats()["pools"] if pool["kind"] == "device")

    def measure_pool(self, before):
        if before is None:
            return
        after = self.pool()
        values = {name: after[name] - before[name] for name in COUNTERS if name in after}
        self.add(0, "bursty_pool", {**values, "limit_bytes": self.limit_bytes, "peak_reserved_bytes": after["reserved_peak_bytes"]})

    def check_use(self):
        """The weights of each program lie in the pool."""
        if self.daemon is None:
            return
        pool = self.pool()["id"]
        users = {session["pid"] for session in self.daemon.stats()["sessions"]
                 if any(part["id"] == pool and part["leased_bytes"] for part in session["pools"] or [])}
        if others := [worker.name for worker in self.workers if worker.conversation.process.pid not in users]:
            raise Failed(f"nothing of {', '.join(others)} came from the pool: the programs did not use the library")

    def burst(self, workers, seed, steps=None, seconds=None):
        """At the same time; their answers."""
        if time.monotonic() > self.plan.deadline:
            raise Late
        seconds = seconds or self.plan.burst_s
        for worker in workers:
            worker.tell("burst", seed=1000 * worker.number + seed, steps=steps or self.plan.steps, seconds=seconds)
        found = [worker.answer(seconds + ANSWER_S) for worker in workers]
        return [{**answer, **self.native.compare(worker, seed, answer["digests"], self.subject == OWN)}
                for worker, answer in zip(workers, found)]

    def count(self, turn, phase, worker, found, **values):
        times = found["step_ns"]
        for text in found["texts"][:1]:
            say(f"  {self.title()}, {phase}, {worker.name}: {text}")
        if found["compared"]:
            values.update({name: found[name] for name in ("compared", "different")})
        self.add(turn, "bursty", {"ns": statistics.median(times), "worst_ns": max(times), "steps": len(times),
                                  "slow_steps": sum(time_ns > SLOW_NS for time_ns in times), "failures": found["failures"],
                                  **values}, phase=phase, program=f"{worker.name} {worker.number + 1}")

    def cold(self):
        """The shapes of all passes, so that each kernel is loaded and each library has what it keeps."""
        for worker in self.workers:
            bursts = [self.burst([worker], seed)[0] for seed in range(self.plan.passes)]
            found = {name: sum((burst[name] for burst in bursts), type(bursts[0][name])())
                     for name in ("step_ns", "failures", "texts", "compared", "different")}
            self.count(0, "cold", worker, found, first_ns=bursts[0]["step_ns"][0])
        self.check_use()

    def one(self):
        for seed in range(self.plan.passes):
            for worker in self.workers:
                beside = self.native.beside(worker.number, self.burst, seed) if self.subject != OWN else {}
                found, = self.burst([worker], seed)
                self.count(seed, "one", worker, found, first_ns=found["step_ns"][0], **beside)
        for worker in self.workers if self.subject == OWN else []:
            memory = worker.ask("memory")
            self.native.live.append(memory["peak_allocated"])
            self.native.reserved.append(memory["peak_reserved"])
            self.add(0, "bursty_need", {"live_bytes": memory["peak_allocated"], "reserved_bytes": memory["peak_reserved"],
                                        "weights_bytes": self.native.weights[worker.number]},
                     program=f"{worker.name} {worker.number + 1}")

    def read(self):
        """Idle memory of the others serves one program's request. The program has taken the free memory before, as far as the others'
        idle memory is more than the request."""
        if self.subject == OWN or len(self.workers) < 2:
            return
        most = int(READ_SHARE * (self.limit_bytes - sum(self.native.weights)))
        wanted = aligned(READ_PART * most)
        for turn in range(READS):
            holder, taker = (self.workers[number % len(self.workers)] for number in (turn, turn + 1))
            taker.ask("empty")
            self.burst([holder], turn % self.plan.passes)
            room = max(self.limit_bytes - self.pool()["leased_bytes"], 0)
            found = taker.ask("take", size_bytes=wanted, filler_bytes=aligned(min(ROOM_SHARE * room, most - wanted)))
            if found["failed"]:
                say(f"  {self.title()}, idle memory: {found['failed']}")
            values = {"ns": found["take_ns"][0], "bytes": wanted, "room_bytes": room, "failures": 1 if found["failed"] else 0}
            if len(found["take_ns"]) > 1:
                values["again_ns"] = found["take_ns"][1]
            self.add(turn, "bursty_idle", values)

    def two(self):
        pairs = [(worker, self.workers[(worker.number + 1) % len(self.workers)]) for worker in self.workers]
        for turn, pair in enumerate(pairs if len(self.workers) > 2 else pairs[:1] if len(self.workers) == 2 else []):
            for worker, found in zip(pair, self.burst(pair, turn % self.plan.passes)):
                self.count(turn, "two", worker, found)

    def all(self):
        for worker, found in zip(self.workers, self.burst(self.workers, 0, steps=10**6, seconds=self.plan.all_s)):
            self.count(0, "all", worker, found)

    def title(self):
        return self.subject if self.subject == OWN else \
            f"{self.subject}, {self.parameters['export']}, limit {self.parameters['limit']}"


def start(bench, plan, configurations, exits_of, exits):
    """The processes of these configurations, which import their frameworks at the same time. exits ends them, or exits_of[subject]."""
    started = []
    for subject, kind, limit in configurations:
        try:
            workers = []
            for number, name in enumerate(plan.workers):
                workers.append(Worker(bench, name, number, subject))
                exits_of.get(subject, exits).callback(workers[-1].conversation.close)
            started.append((subject, kind, limit, workers))
        except Absent as error:
            bench.results.add_absent("bursty", subject, str(error))
    for *_, workers in started:
        found = answers(bench, workers, START_S)
        workers[:] = [worker for worker, _ in found]
        plan.versions.update({worker.framework.NAME: answer["imported"] for worker, answer in found})
    return started


def run(bench, plan=None, on_done=lambda: None):
    """Raises Absent where no program's framework has a GPU. on_done() is called after each configuration."""
    plan = plan or Plan(kinds=(bench.export,))
    memory = GpuMemory()
    native = Native(memory)
    configurations = list(plan.configurations())
    with contextlib.ExitStack() as native_exits:
        for first in range(0, len(configurations), STARTED_TOGETHER):
            with contextlib.ExitStack() as exits:
                for subject, kind, limit, workers in start(bench, plan, configurations[first:first + STARTED_TOGETHER],
                                                           {OWN: native_exits}, exits):
                    measure(Configuration(bench, plan, subject, kind, limit, workers, native, memory))
                    on_done()


def measure(configuration):
    bench, plan = configuration.bench, configuration.plan
    try:
        if configuration.begin > plan.deadline:
            raise Late
        configuration.run()
    except Late:
        bench.results.add_absent("bursty", configuration.title(), "the time was over before it was measured, or in it")
    except (Failed, DaemonError, OSError) as error:
        bench.results.add_failed("bursty", configuration.title(), str(error))
        say(f"FAILED bursty, {configuration.title()}: {error}")
        if configuration.subject == OWN:
            raise Failed("without the native programs there is nothing to compare with") from error
    configuration.mark("end")
    say(f"bursty: {configuration.title()}: {', '.join(configuration.marks)}")


def faults(results):
    """How many steps and requests failed, how many steps took too long with warm programs, how many had another result."""
    warm = [record for phase in ("one", "two") for record in results.find("bursty", phase=phase)]
    every = results.find("bursty")
    found = {"failed": [record.total("failures") for record in [*every, *results.find("bursty_idle")]],
             "took over 1 s": [record.total("slow_steps") for record in warm],
             "had another result": [record.total("different") for record in every]}
    say(f"bursty: of {sum(record.total('steps') for record in every)} steps: "
        + ", ".join(f"{sum(counts)} {what}" for what, counts in found.items()))
    return sum(map(sum, found.values()))
