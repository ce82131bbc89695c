# SPDX-License-Identifier: Apache-2.0
"""The measurements: one function a case, and at the end the list CASES in the order of their turns. Short cases are measured in
each round of the run, longer ones in every third, the longest once. A case that measures gpupool starts a daemon of its own, so
that the pools hold only what the case itself made."""
import contextlib
import json
import resource
import sys

import bursty
import program_runs
from bench import GIB, MIB, PEERS, PROGRAM_S, SIM_MEMORY, TRACES, Absent, Failed
from conversation import Conversation
from daemon import Daemon

sys.path.insert(0, str(TRACES))
import packing  # noqa: E402

GPUPOOL, POINTER, ON_STREAM = "gpupool", "gpupool, pointers", "gpupool, on a stream"
CUDA_MALLOC, CUDA_MALLOC_ASYNC, CUDA_MALLOC_HOST = "cudaMalloc", "cudaMallocAsync", "cudaMallocHost"
TORCH, TORCH_PYTHON, CUPY = "PyTorch", "PyTorch, from Python", "CuPy, from Python"
TORCH_RECORDED = "PyTorch, when recorded"
RUNTIME = "cudaMallocHost and cudaMalloc"
TORCH_PAIRS, TORCH_PINNED = ("torch_pairs.cpp",), ("torch_pairs.cpp", "-DTORCH_PINNED")
TORCH_REPLAY = ("torch_replay.cpp",)
RING = "the ring alone"
UNCACHED = "gpupool, without a cache"
BUSY, ALONE = "another process wants idle memory", "alone"
CUDA_PAGEABLE, STREAMING = "cudaMemcpy, pageable", "gpupool, stores past the caches"
# The C library's memcpy() stores past the caches from this size on.
STREAMING_STORES = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x10000"}
PAIR, ARRAY = "pair", "array"
TRACE_SUBJECTS = [GPUPOOL, TORCH, program_runs.EXPANDABLE]

# As a machine with large models would be set up: few, large segments.
LARGE_STEPS = "[host]\nlimit = 8GiB\nstep = 1GiB\n[device]\nstep = 1GiB\n"
# Nothing is made ahead of demand: what a pool has reserved, its client made it reserve.
ON_DEMAND = "[host]\nlow_water = 0\n[device]\nlow_water = 0\n"
# The batches of a pipeline lie in host memory: a few GiB.
PIPELINE_POOLS = "[host]\nlimit = 8GiB\nstep = 1GiB\n[device]\nstep = 1GiB\n"
SIMILAR = 120  # how long a pipeline computes, in percent of a copy: as its own default

# How often a case has its turn: in each round, in the first of each repetition, once in the run.
EACH_ROUND, REPEATED, ONCE = "each round", "repeated", "once"


class Case:
    def __init__(self, name, subject, function, turns=REPEATED, needs_gpu=False, peer=None):
        self.name, self.subject, self.function = name, subject, function
        self.turns = turns          # how often
        self.needs_gpu = needs_gpu  # a real one
        self.peer = peer            # what has to be compiled for it: source, options…


# --- gpupool ----------------------------------------------------------------------------------------------------------

def gpupool_pairs(bench, subject, name, *options, config=""):
    """The program gpupool_pairs under a daemon of its own. The number of questions to the daemon between the marks of the
    hand-over is a value of it."""
    asked = {}

    def on_mark(mark):
        asked[mark] = daemon.requests()
        return asked[mark]

    with bench.daemon(config) as daemon:
        rows = bench.run([bench.program("gpupool_pairs"), "--subject", subject, "--name", name, "--marks", *bench.calibration(),
                          *options], daemon.environment(bench.inside), on_mark=on_mark)
    for row in rows:
        if row["case"] == "hand_over" and row["subject"] == name and asked:
            row["values"]["daemon_requests"] = asked["hand_over ends"] - asked["hand_over begins"]
    bench.add_rows(rows)


def buffers(bench):
    gpupool_pairs(bench, "buffer", GPUPOOL, *bench.thoroughness.options())


def buffers_threads(bench):
    gpupool_pairs(bench, "buffer", GPUPOOL, "--cases", "threads,hand_over", *bench.thoroughness.thread_options())


def buffers_mix(bench):
    gpupool_pairs(bench, "buffer", GPUPOOL, "--cases", "mix", *bench.thoroughness.mix_options(), config=ON_DEMAND)


def buffers_pinned(bench):
    gpupool_pairs(bench, "buffer", GPUPOOL, "--memory", "pinned", *bench.thoroughness.options(pinned=True))


def buffers_pinned_on_stream(bench):
    gpupool_pairs(bench, "buffer_on_stream", ON_STREAM, "--memory", "pinned", *bench.thoroughness.options(pinned=True))


def pointers(bench):
    gpupool_pairs(bench, "pointer", POINTER, *bench.thoroughness.options())


def pointers_threads(bench):
    gpupool_pairs(bench, "pointer", POINTER, "--cases", "threads,hand_over", *bench.thoroughness.thread_options())


def pointers_mix(bench):
    gpupool_pairs(bench, "pointer", POINTER, "--cases", "mix", *bench.thoroughness.mix_options(), config=ON_DEMAND)


def ring(bench):
    gpupool_pairs(bench, "buffer", RING, "--cases", "ring", *bench.thoroughness.thread_options())


def accesses(bench):
    """Pairs and synchronised arrays that are warm. The number of questions to the daemon between a figure's marks is a value of it."""
    asked = []
    with bench.daemon(LARGE_STEPS if bench.has_gpu else "") as daemon:
        rows = bench.run([bench.program("accesses"), "--marks", *bench.calibration(), "--figure-ms", bench.thoroughness.figure_ms,
                          "--bound", MIB if bench.quick else 64 * MIB],
                         daemon.environment(bench.inside), on_mark=lambda mark: asked.append(daemon.requests()))
    for row, begins, ends in zip(rows, asked[0::2], asked[1::2]):
        row["values"]["daemon_requests"] = ends - begins
    bench.add_rows(rows)


# --- the CUDA runtime's allocators ------------------------------------------------------------------------------------

def cuda_pairs(bench, subject, *options):
    bench.add_rows(bench.run([bench.program("cuda_pairs"), "--subject", subject, *bench.calibration(), *options], bench.outside))


def cuda_malloc(bench):
    cuda_pairs(bench, CUDA_MALLOC, *bench.thoroughness.options())


def cuda_malloc_async(bench):
    cuda_pairs(bench, CUDA_MALLOC_ASYNC, *bench.thoroughness.options())


def cuda_malloc_async_rest(bench):
    cuda_pairs(bench, CUDA_MALLOC_ASYNC, "--cases", "mix,threads,hand_over", *bench.thoroughness.mix_options(),
               *bench.thoroughness.thread_options())


def cuda_malloc_host(bench):
    cuda_pairs(bench, CUDA_MALLOC_HOST, "--memory", "pinned", *bench.thoroughness.options(pinned=True))


# --- PyTorch, CuPy ----------------------------------------------------------------------------------------------------

def torch_pairs(bench, peer, subject, *options):
    bench.add_rows(bench.run([bench.peer(peer), "--subject", subject, "--name", TORCH, *bench.calibration(), *options],
                             bench.outside))


def torch(bench):
    torch_pairs(bench, TORCH_PAIRS, "device", *bench.thoroughness.options())


def torch_rest(bench):
    torch_pairs(bench, TORCH_PAIRS, "device", "--cases", "mix,threads,hand_over", *bench.thoroughness.mix_options(),
                *bench.thoroughness.thread_options())


def torch_pinned(bench):
    torch_pairs(bench, TORCH_PINNED, "pinned", "--memory", "pinned", *bench.thoroughness.options(pinned=True))


def python_peer(bench, name, script, *options):
    bench.add_rows(bench.run([bench.python, PEERS / script, "--name", name, *bench.calibration("Python"), *options],
                             bench.outside))


def torch_pinned_python(bench):
    python_peer(bench, TORCH_PYTHON, "torch_pinned.py", *bench.thoroughness.options(pinned=True))


def cupy(bench):
    python_peer(bench, CUPY, "cupy_pairs.py", "--warm", "--mix", *bench.thoroughness.options(),
                *bench.thoroughness.mix_options())


# --- the daemon: round trips, first times, copies ---------------------------------------------------------------------

def round_trips(bench):
    output = bench.work / "round_trip.json"
    with bench.daemon("" if bench.quick else LARGE_STEPS) as daemon:
        bench.run([bench.program("round_trip"), "--json", output, "--rounds", bench.thoroughness.round_trips],
                  daemon.environment(bench.inside))
    for name, time in json.loads(output.read_text())["times"].items():
        bench.add("round_trip", name, {}, {"p50_ns": time["p50_ns"], "p99_ns": time["p99_ns"]})


def host_memory(bench):
    output = bench.work / "host_memory.json"
    with bench.daemon(LARGE_STEPS) as daemon:
        bench.run([bench.program("host_memory"), "--json", output], daemon.environment(bench.inside))
    found = json.loads(output.read_text())
    for subject, key in ((GPUPOOL, "pool"), (CUDA_MALLOC_HOST, "cudaMallocHost")):
        for direction in ("host_to_device", "device_to_host"):
            bench.add("copies", subject, {"direction": direction}, {"gb_per_s": found[f"{direction}_gbps"][key]})
        bench.add("pin", subject, {"size_bytes": GIB}, {"ns": found["pin_1_GiB_ns"][key]})


# --- a worker that starts anew, a pool that grows ----------------------------------------------------------------------

def real_or_not(bench, real, simulated, quick):
    """A size for the machine: the simulation's memory is this machine's own."""
    return quick if bench.quick else real if bench.has_gpu else simulated


def restart(bench):
    output = bench.work / "restart.json"
    host, device = real_or_not(bench, (4 * GIB, 16 * GIB), (GIB, GIB), (MIB * 32, MIB * 32))
    with bench.daemon("[host]\nlimit = 8GiB\nlow_water = 0\n[device]\nlow_water = 0\n") as daemon:
        bench.run([bench.program("restart"), "--json", output, "--host", host, "--device", device,
                   "--rounds", 1 if bench.quick else 5], daemon.environment(bench.inside))
    found = json.loads(output.read_text())
    for subject, key in ((GPUPOOL, "pools"), (RUNTIME, "runtime")):
        for step, time in found.get(key, {}).items():
            bench.add("restart", subject, {"step": step, "host_bytes": host, "device_bytes": device}, {"p50_ns": time["p50_ns"]})


def growth(bench):
    output = bench.work / "growth.json"
    grown = real_or_not(bench, 8 * GIB, GIB, MIB * 128)
    with bench.daemon("[host]\nlimit = 10GiB\nlow_water = 0\n") as daemon:
        bench.run([bench.program("growth"), "--json", output, "--grow", grown, "--seconds", 1 if bench.quick else 3],
                  daemon.environment(bench.inside))
    found = json.loads(output.read_text())
    for name, time in found["times"].items():
        bench.add("growth", name, {"grown_bytes": grown}, {"p50_ns": time["p50_ns"], "p99_ns": time["p99_ns"],
                                                           "p999_ns": time["p999_ns"], "max_ns": time["max_ns"]})
    bench.add("growth_time", GPUPOOL, {"grown_bytes": grown}, {"ns": found["growth_ns"]})


def limit(bench):
    """Threads that want nearly all of a host pool, with the cache and without, in turns."""
    output = bench.work / "limit.json"
    with bench.daemon(f"[host]\nlimit = {64 if bench.quick else 512}MiB\n") as daemon:
        bench.run([bench.program("limit"), "--json", output, *(["--milliseconds", 300, "--rounds", 1] if bench.quick else [])],
                  daemon.environment(bench.inside))
    for key, time in json.loads(output.read_text())["times"].items():
        bench.add("limit", {"cached": GPUPOOL, "uncached": UNCACHED}[key], {"threads": 8},
                  {name: time[name] for name in ("p50_ns", "p99_ns", "p999_ns", "max_ns", "refused")})


STARVING = {"two": (256, "host"), "eight": (64, "host"), "many": (64, "host"), "halves": (256, "host"), "processes": (64, "host"),
            "streams": (64, "device")}  # by shape: segments of so many MiB


def starve(bench, shape, step_mib, kind):
    """Threads that hold one buffer each, of sizes up to a share of the pool, with the cache and without, in turns."""
    asked, output = [], bench.work / "starvation.json"
    limit_mib, step_mib = (64, step_mib // 8) if bench.quick else (512, step_mib)

    def on_mark(_):
        asked.append(daemon.requests())
        return asked[-1]

    with bench.daemon(f"[{kind}]\nlimit = {limit_mib}MiB\nstep = {step_mib}MiB\nreserve = {limit_mib}MiB\n") as daemon:
        bench.run([bench.program("starvation"), "--json", output, "--shape", shape, "--marks",
                   *(["--milliseconds", 100, "--runs", 1] if bench.quick else [])], daemon.environment(bench.inside), on_mark=on_mark)
    turns = [after - before for before, after in zip(asked, asked[1:])]
    for first, (key, time) in enumerate(json.loads(output.read_text())["times"].items()):
        bench.add("starvation", {"cached": GPUPOOL, "uncached": UNCACHED}[key], {"shape": shape},
                  {**{name: time[name] for name in ("p50_ns", "p99_ns", "p999_ns", "max_ns", "over_50_ms")},
                   "daemon_requests_per_acquire": sum(turns[first::2]) / time["all"]})


def starvation(bench):
    for shape, (step_mib, kind) in STARVING.items():
        starve(bench, shape, step_mib, kind)


def busy(bench):
    """The longest launch in a process with long kernels, while another process asks for memory that is idle in the first."""
    output = bench.work / "busy.json"
    options = ["--rounds", 1, "--milliseconds", 5] if bench.quick else []
    with bench.daemon("[device]\nlimit = 4GiB\nlow_water = 0\n") as daemon:
        bench.run([bench.program("busy" if bench.has_gpu else "busy_sim"), "--json", output, *options],
                  daemon.environment(bench.inside))
        pool = next(pool for pool in daemon.stats()["pools"] if pool["kind"] == "device")
    found = json.loads(output.read_text())
    for key, time in found["launches"].items():
        bench.add("busy", {"alone": ALONE, "wanted": BUSY}[key], {}, {name: time[name] for name in ("p50_ns", "p99_ns", "max_ns")})
    counters = {name: pool[name] for name in program_runs.POOL_COUNTERS if name in pool}
    bench.add("busy_acquire", GPUPOOL, {"size_bytes": found["wanted_bytes"]}, {"ns": found["acquire_ns"], **counters})


def rows(bench):
    """An acquire that only scattered memory serves, beside a kernel of 100 ms."""
    output = bench.work / "rows.json"
    options = ["--rounds", 1, "--milliseconds", 5, "--want", "256MiB"] if bench.quick else []
    with bench.daemon(f"[device]\nlimit = {576 if bench.quick else 2112}MiB\nlow_water = 0\n") as daemon:
        bench.run([bench.program("rows" if bench.has_gpu else "rows_sim"), "--json", output, *options],
                  daemon.environment(bench.inside))
    found = json.loads(output.read_text())
    if "refused" in found:
        raise Absent("the pool refuses the buffer: what is free lies in segments that are also in use")
    bench.add("rows", GPUPOOL, {"size_bytes": found["want_bytes"]},
              {name: found[name] for name in ("p50_ns", "max_ns", "launch_max_ns")})


def share(bench):
    """A buffer to another process and an answer back, in stream order."""
    output = bench.work / "share.json"
    with bench.daemon() as daemon:
        bench.run([bench.program("share"), "--json", output, "--rounds", 20 if bench.quick else 2000], daemon.environment(bench.inside))
    found = json.loads(output.read_text())
    for name, time in found["times"].items():
        bench.add("share", name, {"size_bytes": found["size_bytes"]}, {"p50_ns": time["p50_ns"], "p99_ns": time["p99_ns"]})


def attach(bench):
    """A large buffer attached by a token in a fresh process with a context, for each kind of device pool."""
    output = bench.work / "attach.json"
    for kind in ("ipc", "vmm"):
        config = f"[device]\nexport = {kind}\nlimit = 12GiB\n"
        with Daemon(bench.program("gpupoold"), bench.inside, bench.gpu, config, SIM_MEMORY) as daemon:
            bench.run([bench.program("attach"), "--json", output, "--rounds", 1 if bench.quick else 10], daemon.environment(bench.inside))
            pool = next(pool for pool in daemon.stats()["pools"] if pool["kind"] == "device")
        found = json.loads(output.read_text())
        for name, time in found["times"].items():
            bench.add("attach", kind, {"size_bytes": found["size_bytes"], "step": name},
                      {"p50_ns": time["p50_ns"], "p99_ns": time["p99_ns"], "segments": pool["segments"]})


def hostile(bench):
    output = bench.work / "hostile.json"
    with bench.daemon("[host]\nlow_water = 0\n") as daemon:
        bench.run([bench.program("hostile"), "--json", output, "--milliseconds", 50 if bench.quick else 2000],
                  daemon.environment(bench.inside))
    for name, time in json.loads(output.read_text())["times"].items():
        bench.add("hostile", name, {}, {"p50_ns": time["p50_ns"], "p99_ns": time["p99_ns"]})


CROWD_SEGMENTS, CROWD_USERS = 60000, 16
DESCRIPTORS_BESIDE = 1000  # sockets, and what the daemon has open


def crowd(bench):
    """A pair beside users with many segments, of whom each has requests for segments wait, and in quiet, in turns."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    segments = 200 if bench.quick else min(CROWD_SEGMENTS, descriptors - DESCRIPTORS_BESIDE)
    limit_mib = 2 * segments + 8 * CROWD_USERS + 2
    config = f"[host]\nlow_water = 0\n[device]\nexport = vmm\nlimit = {limit_mib}MiB\n"
    before, output = resource.getrlimit(resource.RLIMIT_NOFILE), bench.work / "crowd.json"
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    try:
        with contextlib.ExitStack() as daemons:
            full, quiet = (daemons.enter_context(Daemon(bench.program("gpupoold"), bench.inside, bench.gpu, config, f"{limit_mib + 1024}MiB"))
                           for _ in range(2))
            bench.run([bench.program("crowd"), "--json", output, "--milliseconds", 50 if bench.quick else 8000],
                      {**full.environment(bench.inside), "GPUPOOL_QUIET_SOCKET": str(quiet.socket)})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    found = json.loads(output.read_text())
    for name, time in found["times"].items():
        bench.add("crowd", name, {"segments": found["segments"]}, {"p50_ns": time["p50_ns"], "p99_ns": time["p99_ns"]})


# --- streams ----------------------------------------------------------------------------------------------------------

def pipeline(bench, compute_percent):
    """Copy in, compute, copy out: ways through all three steps, and each step by itself. On a GPU the program's own sizes."""
    output = bench.work / "pipeline.json"
    sizes = ["--batches", 6, "--batch-kib", 64, "--rounds", 1] if bench.quick else []
    bench.run([bench.program("pipeline"), "--json", output, "--compute", compute_percent, *sizes],
              bench.private_daemons("" if bench.quick else PIPELINE_POOLS))
    found = json.loads(output.read_text())
    parameters = {"compute_percent": compute_percent, "batch_bytes": found["batch_bytes"]}
    moved = found["batches"] * found["batch_bytes"]
    for case, ways in (("pipeline", found["ways"]), ("pipeline_step", found["alone"])):
        for way in ways:
            bench.add(case, way["name"], {**parameters, "streams": way["streams"]},
                      {"ns": way["ns"], "gb_per_s": moved / way["ns"]})


def pipeline_of_similar_steps(bench):
    pipeline(bench, SIMILAR)


def pipeline_of_equal_steps(bench):
    pipeline(bench, 100)


# --- ordinary memory to a device and back -------------------------------------------------------------------------------

def staging_run(bench, name, environment, *options):
    size = real_or_not(bench, GIB, MIB * 256, MIB * 8)
    with bench.daemon("" if bench.quick else LARGE_STEPS) as daemon:
        return bench.run([bench.program("staging"), "--name", name, "--size", size, "--rounds", 2 if bench.quick else 7, *options],
                         {**daemon.environment(bench.inside), **environment})


def staging(bench):
    options = (["--threads", "1,2", "--chunks", "256KiB", "--sizes", "4KiB,2MiB"] if bench.quick else
               ["--threads", "1,2,4,8,12", "--chunks", "512KiB,1MiB,2MiB,4MiB,8MiB",
                "--sizes", "4KiB,64KiB,512KiB,1MiB,2MiB,4MiB,16MiB,64MiB,256MiB"])
    bench.add_rows(staging_run(bench, GPUPOOL, {}, *options))


def staging_streaming(bench):
    bench.add_rows([row for row in staging_run(bench, STREAMING, STREAMING_STORES) if row["subject"] == STREAMING])


# --- traces of real programs ------------------------------------------------------------------------------------------

def traces(bench):
    """The smallest first."""
    found = sorted(TRACES.glob("*.trace.gz"), key=lambda path: path.stat().st_size)
    if not found:
        raise Absent("there are no traces")
    return found[:bench.thoroughness.traces]


def replay(bench):
    """Once with a look at the pool after each step, in private daemons."""
    output = bench.work / "replay.json"
    bench.run([bench.program("replay"), "--json", output, "--passes", 0, *traces(bench)], bench.private_daemons(ON_DEMAND),
              timeout_s=300)
    for row in json.loads(output.read_text())["traces"]:
        live = {"peak_live_bytes": row["peak_live_bytes"]}
        bench.add("trace", GPUPOOL, {"trace": row["trace"]},
                  {**live, "peak_reserved_bytes": row["pool_reserved_bytes"], "peak_leased_bytes": row["peak_leased_bytes"]})
        if row["torch_peak_reserved_bytes"] > 0:
            bench.add("trace", TORCH_RECORDED, {"trace": row["trace"]},
                      {**live, "peak_reserved_bytes": row["torch_peak_reserved_bytes"]})


def passes(row):
    """The times of the first pass and of the later ones, and the peak of the reserved bytes in the later ones."""
    return {"ns": row["warm_ns"], "first_ns": row["first_ns"], "p999_ns": row["warm_p999_ns"],
            "warm_reserved_bytes": row["warm_reserved_bytes"], "peak_live_bytes": row["peak_live_bytes"]}


def replay_passes(bench, path):
    """In passes, in a daemon of its own, whose counters tell how often the pool grew and shrank after the first pass."""
    output, pools = bench.work / "replay.json", []

    def on_mark(_):
        pools.append(next(pool for pool in daemon.stats()["pools"] if pool["kind"] == "device"))

    with bench.daemon(ON_DEMAND) as daemon:
        bench.run([bench.program("replay"), "--json", output, "--watch", 0, "--passes", 2 if bench.quick else 5, "--marks", path],
                  daemon.environment(bench.inside), on_mark=on_mark)
    row, = json.loads(output.read_text())["traces"]
    first, last = pools
    return row["trace"], {**passes(row),
                          **{f"warm_{name}": last[name] - first[name] for name in program_runs.POOL_COUNTERS if name in last}}


def torch_passes(process):
    def function(_, path):
        row = process.ask(path, PROGRAM_S)
        return row["trace"], {"peak_reserved_bytes": row["torch_peak_reserved_bytes"], **passes(row)}
    return function


def trace_subject(bench, exits, case, subject):
    """A function that replays a trace in passes; None: it cannot be had. A process of PyTorch's ends with exits."""
    if subject == GPUPOOL:
        return replay_passes
    try:
        if not bench.has_gpu:
            raise Absent("needs a GPU")
        process = Conversation([bench.peer(TORCH_REPLAY)], {**bench.outside, **program_runs.ALLOCATORS[subject].settings})
    except (Absent, Failed) as error:
        program_runs.note(bench, case, subject, error)
        return None
    exits.callback(process.close)
    return torch_passes(process)


def replay_in_turns(bench):
    """The subjects take turns at each trace, and none always follows the same one: a machine's speed changes within minutes."""
    with contextlib.ExitStack() as exits:
        subjects = [(subject, trace_subject(bench, exits, "traces, in passes", subject)) for subject in TRACE_SUBJECTS]
        subjects = [(subject, function) for subject, function in subjects if function]
        for turn in range(bench.trace_rounds):
            for number, path in enumerate(traces(bench)):
                first = (turn + number) % len(subjects)
                for subject, function in subjects[first:] + subjects[:first]:
                    trace, values = function(bench, path)
                    bench.results.add(turn, "trace", subject, {"trace": trace}, values)


def pack(bench):
    """Traces that are hard to pack, of which tests/traces/packing.py makes one for each seed. Live buffers take up to half of a GPU's
    memory, so each allocator has the GPU to itself."""
    seeds = [packing.QUICK_SEED] if bench.quick else sorted(packing.SHAPES)
    subjects = [subject for subject in TRACE_SUBJECTS if subject == GPUPOOL or bench.has_gpu]
    for number, seed in enumerate(seeds):
        path = packing.write(bench.work, seed)
        first = number % len(subjects)
        for subject in subjects[first:] + subjects[:first]:
            with contextlib.ExitStack() as exits:
                function = trace_subject(bench, exits, "packing", subject)
                if function:
                    trace, values = function(bench, path)
                    bench.add("packing", subject, {"trace": trace}, values)


def scale(bench):
    """Sessions need descriptors, in the program and in the daemon."""
    output = bench.work / "scale.json"
    sessions, leases, pairs = (12, 120, 100) if bench.quick else (1000, 100000, 10000)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with bench.daemon("[host]\nlimit = 2GiB\n") as daemon:
        bench.run([bench.program("scale"), "--json", output, "--sessions", sessions, "--leases", leases, "--pairs", pairs,
                   "--rounds", 1 if bench.quick else 3], daemon.environment(bench.inside))
    for step in json.loads(output.read_text())["steps"]:
        bench.add("scale", GPUPOOL, {"sessions": step["sessions"], "leases": step["leases"]},
                  {"p50_ns": step["acquire"]["p50_ns"], "p99_ns": step["acquire"]["p99_ns"]})


# --- programs ---------------------------------------------------------------------------------------------------------

def program(name):
    return lambda bench: program_runs.run_program(bench, name)


CASES = [
    *(Case("programs", name, program(name), ONCE, needs_gpu=True) for name in program_runs.programs.PROGRAMS),
    Case("bursty workers", "on one pool", bursty.run, ONCE, needs_gpu=True),
    Case("torch.empty", "4 KiB", program_runs.run_pairs, ONCE, needs_gpu=True),
    Case("warm pairs", GPUPOOL, buffers, EACH_ROUND),
    Case("warm pairs", TORCH, torch, EACH_ROUND, needs_gpu=True, peer=TORCH_PAIRS),
    Case("warm pairs", POINTER, pointers, EACH_ROUND),
    Case("warm pairs", CUDA_MALLOC_ASYNC, cuda_malloc_async, EACH_ROUND, needs_gpu=True),
    Case("pinned pairs", GPUPOOL, buffers_pinned, EACH_ROUND),
    Case("pinned pairs", TORCH, torch_pinned, EACH_ROUND, needs_gpu=True, peer=TORCH_PINNED),
    Case("threads", GPUPOOL, buffers_threads),
    Case("threads", POINTER, pointers_threads),
    Case("mix, threads", CUDA_MALLOC_ASYNC, cuda_malloc_async_rest, needs_gpu=True),
    Case("mix, threads", TORCH, torch_rest, needs_gpu=True, peer=TORCH_PAIRS),
    Case("mix", GPUPOOL, buffers_mix),
    Case("mix", POINTER, pointers_mix),
    Case("pairs", CUPY, cupy, needs_gpu=True),
    Case("pairs", CUDA_MALLOC, cuda_malloc, needs_gpu=True),
    Case("pinned pairs", ON_STREAM, buffers_pinned_on_stream),
    Case("pinned pairs", TORCH_PYTHON, torch_pinned_python, needs_gpu=True),
    Case("pinned pairs", CUDA_MALLOC_HOST, cuda_malloc_host, needs_gpu=True),
    Case("hand-over", RING, ring),
    Case("accesses", GPUPOOL, accesses),
    Case("round trips", GPUPOOL, round_trips, ONCE),
    Case("traces", GPUPOOL, replay, ONCE),
    Case("traces", "in passes", replay_in_turns, ONCE, peer=TORCH_REPLAY),
    Case("packing", "in passes", pack, ONCE, peer=TORCH_REPLAY),
    Case("scale", GPUPOOL, scale, ONCE),
    Case("growth", GPUPOOL, growth, ONCE),
    Case("limit", GPUPOOL, limit, ONCE),
    Case("starvation", GPUPOOL, starvation, ONCE),
    Case("hostile", GPUPOOL, hostile, ONCE),
    Case("crowd", GPUPOOL, crowd, ONCE),
    Case("share", GPUPOOL, share, ONCE),
    Case("attach", GPUPOOL, attach, ONCE),
    Case("busy", GPUPOOL, busy, ONCE),
    Case("rows", GPUPOOL, rows, ONCE),
    Case("restart", GPUPOOL, restart, ONCE),
    Case("pipeline", "similar steps", pipeline_of_similar_steps, ONCE),
    Case("pipeline", "equal steps", pipeline_of_equal_steps, ONCE),
    Case("staging", GPUPOOL, staging, ONCE),
    Case("staging", STREAMING, staging_streaming, ONCE),
    Case("copies", GPUPOOL, host_memory, ONCE, needs_gpu=True),
]


def run_case(case, bench):
    if case.needs_gpu and not bench.has_gpu:
        raise Absent("needs a GPU")
    case.function(bench)
