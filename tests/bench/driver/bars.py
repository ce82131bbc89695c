# SPDX-License-Identifier: Apache-2.0
"""The bars that gpupool means to reach, and whether a run shows that it does. Bars of time are for a GPU: on the simulation they are not
measurable, and the figures are shown for what they are worth. Counts and ratios to a socket's round trip hold anywhere."""
import statistics

import cases
import program_runs

MIB = 1 << 20
MET, NOT_MET, NOT_MEASURABLE = "met", "not met", "not measurable here"


def at_most(limit):
    return (lambda value: value <= limit), limit


def at_least(limit):
    return (lambda value: value >= limit), limit


class Bar:
    """One condition: value(results) returns what to compare, or None where the run has nothing to say; raw(results) the same of
    the samples as they came, where slow ones are repeated. export: the kind of the device pools that it is asked of."""

    def __init__(self, what, text, test, value, unit, anywhere=False, raw=None, export=None):
        self.what, self.text, (self.test, self.limit) = what, text, test
        self.value, self.unit, self.anywhere, self.raw, self.export = value, unit, anywhere, raw, export

    def check(self, results, gpu, quick, export):
        value = self.value(results) if self.export in (None, export) else None
        if value is None:
            state = NOT_MEASURABLE
        elif (gpu != "cuda" or quick) and not (self.anywhere and (not quick or self.unit == "count")):
            state = NOT_MEASURABLE
        else:
            state = MET if self.test(value) else NOT_MET
        return {"what": self.what, "bar": self.text, "limit": self.limit, "measured": value,
                "raw": self.raw(results) if self.raw else None, "unit": self.unit, "state": state}


def largest(values):
    values = [value for value in values if value is not None]
    return max(values) if values else None


def worst_pair(case, subject, name="ns"):
    """Nanoseconds at the size that is slowest."""
    return lambda results: largest(record.median(name) for record in results.find(case, subject))


def worst_pair_to_torch(name):
    return lambda results: largest(
        results.ratio(record, name, results.one("warm_pair", cases.TORCH, **record.parameters), name)
        for record in results.find("warm_pair", cases.GPUPOOL))


def mix_to_torch(name):
    return lambda results: results.ratio(results.one("mix", cases.GPUPOOL), name, results.one("mix", cases.TORCH), name)


def peak(results, subject, held):
    """The peak of what is held over peak live on the random mix."""
    record = results.one("mix", subject)
    return results.ratio(record, held, record, "peak_live_bytes")


def peak_to_torch(held):
    def ratio(results):
        ours = peak(results, cases.GPUPOOL, held)
        theirs = peak(results, cases.TORCH, "peak_reserved_bytes")
        return ours / theirs if ours and theirs else None
    return ratio


def threads_together(count):
    return lambda results: results.median("pairs_per_s", "threads", cases.GPUPOOL, threads=count)


def threads_scaling(results):
    return results.ratio(results.one("threads", cases.GPUPOOL, threads=8), "pairs_per_s",
                         results.one("threads", cases.GPUPOOL, threads=1), "pairs_per_s")


def hand_over_ns(results):
    return largest(record.median("ns") for record in results.find("hand_over", cases.GPUPOOL))


def hand_over_requests(results):
    """In the repetition with the most."""
    return largest(record.most("daemon_requests") for record in results.find("hand_over", cases.GPUPOOL))


def slowest_access(name):
    """To pairs and arrays, of all kinds."""
    return lambda results: largest(record.median(name) for record in results.find("access"))


def access_count(name):
    """Of the kind and the repetition with the most."""
    return lambda results: largest(record.most(name) for record in results.find("access"))


def round_trip(name):
    """The dearer of device and host pool, to the raw round trip's median."""
    def value(results):
        raw = results.one("round_trip", "raw_round_trip")
        return largest(results.ratio(results.one("round_trip", f"{kind}_acquire"), name, raw, "p50_ns")
                       for kind in ("device", "host"))
    return value


def many_to_one(results):
    """The most sessions and leases to the fewest: the records are in that order."""
    records = results.find("scale", cases.GPUPOOL)
    return results.ratio(records[-1], "p50_ns", records[0], "p50_ns") if records else None


def worst_attack_to_quiet(results):
    quiet = results.one("hostile", "quiet")
    return largest(results.ratio(record, "p99_ns", quiet, "p99_ns") for record in results.find("hostile")
                   if not record.subject.startswith("quiet"))


def crowd_to_nobody(value):
    """The segments are counted: the records of both are of one run."""
    return lambda results: largest(results.ratio(record, value, results.one("crowd", "nobody", **record.parameters), value)
                                   for record in results.find("crowd", "a crowd"))


def growth_to_quiet(results):
    return results.ratio(results.one("growth", "growing_acquire"), "p99_ns", results.one("growth", "quiet_acquire"), "p99_ns")


def restart_to_runtime(results):
    return results.ratio(results.one("restart", cases.GPUPOOL, step="host"), "p50_ns",
                         results.one("restart", cases.RUNTIME, step="host"), "p50_ns")


def staging_to_cuda(direction):
    return lambda results: results.ratio(results.one("staging", cases.GPUPOOL, direction=direction), "gb_per_s",
                                         results.one("staging", cases.CUDA_PAGEABLE, direction=direction), "gb_per_s")


def slowest_copy(results):
    ratios = [results.ratio(record, "gb_per_s", results.one("copies", cases.CUDA_MALLOC_HOST, **record.parameters), "gb_per_s")
              for record in results.find("copies", cases.GPUPOOL)]
    ratios = [ratio for ratio in ratios if ratio is not None]
    return min(ratios) if ratios else None


def pipeline_ways(results):
    """Nanoseconds on one stream with pageable memory, and on several with pool memory."""
    found = results.find("pipeline", compute_percent=cases.SIMILAR)
    pageable = [record.median("ns") for record in found if "pageable" in record.subject]
    overlapped = [record.median("ns") for record in found if record.parameters["streams"] > 1]
    return (pageable[0], overlapped[0]) if pageable and overlapped else (None, None)


def pipeline_to_pageable(results):
    """How many times as fast several streams with pool memory are as one with pageable memory."""
    pageable, overlapped = pipeline_ways(results)
    return pageable / overlapped if overlapped else None


def pipeline_to_limit(results):
    """The share of the slowest step by itself in the time on several streams."""
    _, overlapped = pipeline_ways(results)
    limit = largest(record.median("ns") for record in results.find("pipeline_step", compute_percent=cases.SIMILAR, streams=1))
    return limit / overlapped if limit and overlapped else None


def traces(results, name, reduce):
    """Of each trace: peak reserved (or leased by the client) over peak live, beside PyTorch's, replayed here or else when
    recorded."""
    rows = []
    for record in results.find("trace", cases.GPUPOOL):
        torch = (results.one("trace", cases.TORCH, **record.parameters)
                 or results.one("trace", cases.TORCH_RECORDED, **record.parameters))
        ours = results.ratio(record, name, record, "peak_live_bytes")
        theirs = results.ratio(torch, "peak_reserved_bytes", torch, "peak_live_bytes")
        if ours and theirs:
            rows.append((ours, theirs))
    return reduce(rows) if rows else None


def traces_to_torch(name):
    return lambda results: traces(results, name, lambda rows: max(ours / theirs for ours, theirs in rows))


def limit_to_uncached(name):
    return lambda results: results.ratio(results.one("limit", cases.GPUPOOL), name, results.one("limit", cases.UNCACHED), name)


def starvation_to_uncached(results):
    """The shape that is the worst."""
    return largest(results.ratio(record, "p999_ns", results.one("starvation", cases.UNCACHED, **record.parameters), "p999_ns")
                   for record in results.find("starvation", cases.GPUPOOL))


def starvation_beyond_uncached(results):
    """The longest acquire, less the longest one without a cache."""
    found = [(record, results.one("starvation", cases.UNCACHED, **record.parameters))
             for record in results.find("starvation", cases.GPUPOOL)]
    return largest(max(0, record.most("max_ns") - other.most("max_ns")) for record, other in found if other)


def busy_launch(results):
    record = results.one("busy", cases.BUSY)
    return record.most("max_ns") if record else None


def trace_passes_to(subject, name):
    """Of the passes after the first, round by round, the trace where it is worst to another allocator."""
    return lambda results: largest(
        results.ratio(record, name, results.one("trace", subject, **record.parameters), name)
        for record in results.find("trace", cases.GPUPOOL))


def trace_passes_mean(results):
    """Peak reserved to peak live in the passes after the first, on average over the traces."""
    ratios = [results.ratio(record, "warm_reserved_bytes", record, "peak_live_bytes")
              for record in results.find("trace", cases.GPUPOOL)]
    ratios = [ratio for ratio in ratios if ratio is not None]
    return statistics.fmean(ratios) if ratios else None


def trace_passes_count(name):
    return lambda results: largest(record.most(name) for record in results.find("trace", cases.GPUPOOL) if name in record.values)


def packing_to(reduce, name):
    """Of the traces that are hard to pack, in the passes after the first, to expandable segments."""
    def value(results):
        ratios = [results.ratio(record, name, results.one("packing", program_runs.EXPANDABLE, **record.parameters), name)
                  for record in results.find("packing", cases.GPUPOOL)]
        ratios = [ratio for ratio in ratios if ratio is not None]
        return reduce(ratios) if ratios else None
    return value


def program_to_own(subject, name):
    """A subject's figure to PyTorch's own, round by round; of the program where that is worst."""
    return lambda results: largest(
        results.ratio(record, name, results.one("program", program_runs.OWN, **record.parameters), name)
        for record in results.find("program", subject))


def program_closes(subject):
    """Mappings that a program closed in a counted round, at most."""
    return lambda results: largest(record.most("closes") for record in results.find("program", subject)
                                   if "closes" in record.values)


def empty_tensor_to_own(subject):
    return lambda results: results.ratio(results.one("torch_empty", subject), "ns",
                                         results.one("torch_empty", program_runs.OWN), "ns")


def lean_less_the_interface(results):
    """A tensor with the lean allocator, less what PyTorch's interface for plug-ins takes, to a tensor with PyTorch's own. The
    cost of the interface is that of a plug-in that does nothing, less that of a tensor without memory."""
    names = (program_runs.LEAN, program_runs.EMPTY, program_runs.NO_MEMORY, program_runs.OWN)
    columns = [record.values["ns"] if record else [] for record in (results.one("torch_empty", name) for name in names)]
    ratios = [(lean - (empty - nothing)) / own for lean, empty, nothing, own in zip(*columns)
              if None not in (lean, empty, nothing, own)]
    return statistics.median(ratios) if ratios else None


def program_bars():
    for subject in (program_runs.PRELOAD, program_runs.LEAN):
        yield Bar(f"programs, {subject}: median step to PyTorch's own, the worst program", "≤ 1.02", at_most(1.02),
                  program_to_own(subject, "ns"), "ratio")
        yield Bar(f"programs, {subject}: peak reserved to PyTorch's own, the worst program", "≤ 1.00", at_most(1),
                  program_to_own(subject, "peak_reserved_bytes"), "ratio")
        yield Bar(f"programs, {subject}: mappings closed in a round", "0", at_most(0), program_closes(subject), "count")


def vmm_trace_bars():
    """PyTorch's expandable segments are the peer of pools that can move memory."""
    for text, name, limit in (("an operation", "ns", 0.6), ("p99.9 of an operation", "p999_ns", 1),
                              ("peak reserved", "warm_reserved_bytes", 1.02)):
        yield Bar(f"traces, passes two to five: {text} to that of expandable segments, the worst trace", f"≤ {limit}",
                  at_most(limit), trace_passes_to(program_runs.EXPANDABLE, name), "ratio", export="vmm")
    yield Bar("traces, passes two to five: peak reserved / peak live, on average", "≤ 1.04", at_most(1.04), trace_passes_mean,
              "ratio", export="vmm")
    for text, name, median, worst in (("an operation", "ns", 1, 1.2), ("p99.9 of an operation", "p999_ns", 2, None),
                                      ("peak reserved", "warm_reserved_bytes", 1, 1.05)):
        for which, limit, reduce in (("median", median, statistics.median), ("worst", worst, max)):
            if limit:
                yield Bar(f"hard packing, passes two to five: {text} to that of expandable segments, the {which} seed", f"≤ {limit}",
                          at_most(limit), packing_to(reduce, name), "ratio", export="vmm")


# --- bursty workers: the worst of the kinds of pools that were measured ---

BURSTY_LIMIT = "1.5"


def bursty_count(subject, name, limit, *phases):
    """Of all programs; None unless each phase was measured. Requests for idle memory are failures, too."""
    def value(results):
        found = [results.find("bursty", subject, limit=limit, phase=phase) for phase in phases]
        if not all(found):
            return None
        idle = results.find("bursty_idle", subject, limit=limit) if name == "failures" else []
        return sum(record.total(name) for records in [*found, idle] for record in records)
    return value


def bursty_different(subject):
    """None where no program tells what it computes."""
    def value(results):
        found = [record for record in results.find("bursty", subject, limit=BURSTY_LIMIT) if "different" in record.values]
        return sum(record.total("different") for record in found) if found else None
    return value


def bursty_to_native(subject, name):
    """Of the program and the kind where that is worst, each burst to those of the native program beside it."""
    return lambda results: largest(results.ratio(record, name, record, f"native_{name}")
                                   for record in results.find("bursty", subject, limit=BURSTY_LIMIT, phase="one"))


def bursty_idle(subject, kind):
    return lambda results: largest(record.most("ns") for record in results.find("bursty_idle", subject, limit=BURSTY_LIMIT,
                                                                                export=kind))


def bursty_bars():
    for subject in (program_runs.PRELOAD, program_runs.LEAN):
        what = f"bursty workers, {subject}, 1.5 times the largest:"
        yield Bar(f"{what} steps and requests that failed", "0", at_most(0),
                  bursty_count(subject, "failures", BURSTY_LIMIT, "cold", "one", "two"), "count")
        yield Bar(f"{what} steps over 1 s", "0", at_most(0), bursty_count(subject, "slow_steps", BURSTY_LIMIT, "one", "two"), "count")
        yield Bar(f"{what} steps with other results than the native ones", "0", at_most(0), bursty_different(subject), "count")
        yield Bar(f"{what} median step to the native one, the worst program", "≤ 1.05", at_most(1.05),
                  bursty_to_native(subject, "ns"), "ratio")
        yield Bar(f"{what} first step after another program's burst, to the native one that makes its memory, the worst program",
                  "≤ 1", at_most(1), bursty_to_native(subject, "first_ns"), "ratio")
        yield Bar(f"bursty workers, {subject}, all at once, 1.5 times what is live together: steps that failed", "0", at_most(0),
                  bursty_count(subject, "failures", "live", "all"), "count")
        for kind, text, limit in (("vmm", "20 ms", 20e6), ("ipc", "50 ms", 50e6)):
            yield Bar(f"{what} idle memory of a process in read(), until it serves another one, {kind}", f"≤ {text}", at_most(limit),
                      bursty_idle(subject, kind), "ns")


BURSTY = list(bursty_bars())

BARS = [
    *program_bars(),
    *BURSTY,
    Bar(f"torch.empty() of 4 KiB, {program_runs.PRELOAD}: to PyTorch's own", "≤ 1.02", at_most(1.02),
        empty_tensor_to_own(program_runs.PRELOAD), "ratio"),
    Bar(f"torch.empty() of 4 KiB, {program_runs.LEAN}: less the interface for plug-ins, to PyTorch's own", "≤ 1.00", at_most(1),
        lean_less_the_interface, "ratio"),
    Bar("warm pair, one thread, the slowest size", "≤ 25 ns", at_most(25), worst_pair("warm_pair", cases.GPUPOOL), "ns",
        raw=worst_pair("warm_pair", cases.GPUPOOL, "raw_ns")),
    Bar("warm pair, to PyTorch's caching allocator, the worst size", "≤ 1/10", at_most(0.1), worst_pair_to_torch("ns"), "ratio",
        raw=worst_pair_to_torch("raw_ns")),
    Bar("warm pair of pointers, the slowest size", "≤ 40 ns", at_most(40), worst_pair("warm_pair", cases.POINTER), "ns",
        raw=worst_pair("warm_pair", cases.POINTER, "raw_ns")),
    Bar("random mix, 1,000 live, to PyTorch's", "≤ 1/4", at_most(0.25), mix_to_torch("ns"), "ratio", raw=mix_to_torch("raw_ns")),
    Bar("random mix: peak reserved by the pool / peak live, to PyTorch's", "≤ 1", at_most(1),
        peak_to_torch("peak_reserved_bytes"), "ratio"),
    Bar("random mix: peak leased by the client / peak live, to PyTorch's", "≤ 1", at_most(1),
        peak_to_torch("peak_leased_bytes"), "ratio"),
    Bar("taken by one thread, given back by another", "≤ 150 ns", at_most(150), hand_over_ns, "ns"),
    Bar("taken by one thread, given back by another: requests to the daemon once warm", "0", at_most(0),
        hand_over_requests, "count", anywhere=True),
    Bar("8 threads with a stream each, together", "≥ 100 M pairs/s", at_least(100e6), threads_together(8), "pairs/s"),
    Bar("8 threads with a stream each, to one thread", "≥ 6", at_least(6), threads_scaling, "ratio"),
    Bar("warm pinned pair, the slowest size", "≤ 25 ns", at_most(25), worst_pair("pinned_warm_pair", cases.GPUPOOL), "ns",
        raw=worst_pair("pinned_warm_pair", cases.GPUPOOL, "raw_ns")),
    Bar("pair or synchronised array, sizes that vary up to a bound, the slowest kind of access once warm", "≤ 30 ns", at_most(30),
        slowest_access("ns"), "ns", raw=slowest_access("raw_ns")),
    Bar("pair or synchronised array once warm: allocations", "0", at_most(0), access_count("allocations"), "count", anywhere=True),
    Bar("pair or synchronised array once warm: requests to the daemon", "0", at_most(0), access_count("daemon_requests"), "count",
        anywhere=True),
    Bar("cold acquire, p50, to the raw round trip's p50", "≤ 1.3", at_most(1.3), round_trip("p50_ns"), "ratio", anywhere=True),
    Bar("cold acquire, p99, to the raw round trip's p50", "≤ 3", at_most(3), round_trip("p99_ns"), "ratio", anywhere=True),
    Bar("acquire with 1,000 sessions and 100,000 leases, p50, to one session's", "≤ 1.5", at_most(1.5), many_to_one, "ratio",
        anywhere=True),
    Bar("acquire while 8 GiB of host memory are made for another, p99 to quiet p99", "≤ 3", at_most(3), growth_to_quiet,
        "ratio"),
    Bar("acquire beside the worst attack, p99 to quiet p99", "≤ 2", at_most(2), worst_attack_to_quiet, "ratio"),
    Bar("a pair beside 16 users with 60,000 segments that wait for more, p50 to that beside nobody", "≤ 1.2", at_most(1.2),
        crowd_to_nobody("p50_ns"), "ratio"),
    Bar("a pair beside 16 users with 60,000 segments that wait for more, p99 to that beside nobody", "≤ 1.2", at_most(1.2),
        crowd_to_nobody("p99_ns"), "ratio"),
    Bar("8 threads that want 457 of 512 MiB, p99.9 of an acquire to that without a cache", "≤ 1", at_most(1),
        limit_to_uncached("p999_ns"), "ratio"),
    Bar("8 threads that want 457 of 512 MiB, the longest acquire to that without a cache", "≤ 1", at_most(1),
        limit_to_uncached("max_ns"), "ratio"),
    Bar("threads with one buffer each, of sizes up to a share of the pool, p99.9 of an acquire to that without a cache, the worst shape",
        "≤ 1.1", at_most(1.1), starvation_to_uncached, "ratio"),
    Bar("the same, the longest acquire, beyond the longest without a cache", "≤ 3 ms: two hold times and 1 ms", at_most(3e6),
        starvation_beyond_uncached, "ns"),
    Bar("the longest launch beside kernels of 100 ms, while another process wants idle memory", "≤ 1 ms", at_most(1e6), busy_launch,
        "ns"),
    Bar("a worker's restart, 4 GiB pinned, to cudaMallocHost's", "≤ 1/10", at_most(0.1), restart_to_runtime, "ratio"),
    Bar("traces: peak reserved by the pool / peak live, the worst to PyTorch's", "≤ 1", at_most(1),
        traces_to_torch("peak_reserved_bytes"), "ratio", anywhere=True),
    Bar("traces: peak leased by the client / peak live, the worst to PyTorch's", "≤ 1", at_most(1),
        traces_to_torch("peak_leased_bytes"), "ratio", anywhere=True),
    Bar("traces, passes two to five: an operation to PyTorch's, the worst trace", "≤ 0.5", at_most(0.5),
        trace_passes_to(cases.TORCH, "ns"), "ratio"),
    Bar("traces, passes two to five: p99.9 of an operation to PyTorch's, the worst trace", "≤ 1", at_most(1),
        trace_passes_to(cases.TORCH, "p999_ns"), "ratio"),
    Bar("traces, passes two to five: peak reserved to PyTorch's, the worst trace", "≤ 1.02", at_most(1.02),
        trace_passes_to(cases.TORCH, "warm_reserved_bytes"), "ratio"),
    *vmm_trace_bars(),
    Bar("traces, passes two to five: mappings closed", "0", at_most(0), trace_passes_count("warm_closes"), "count"),
    Bar("pipeline on several streams, times as fast as one stream with pageable memory", "≥ 1.8", at_least(1.8),
        pipeline_to_pageable, "ratio"),
    Bar("pipeline on several streams, of what the slowest of its steps allows", "≥ 0.90", at_least(0.9), pipeline_to_limit,
        "ratio"),
    Bar("copies, the slower direction, to cudaMallocHost's", "≥ 0.99", at_least(0.99), slowest_copy, "ratio"),
    Bar("upload of 1 GiB of ordinary memory, to cudaMemcpy's", "≥ 2.5", at_least(2.5), staging_to_cuda("upload"), "ratio"),
    Bar("download of 1 GiB to ordinary memory, to cudaMemcpy's", "≥ 2.5", at_least(2.5), staging_to_cuda("download"), "ratio"),
]


def check(results, gpu, quick, export="ipc"):
    return [bar.check(results, gpu, quick, export) for bar in BARS]
