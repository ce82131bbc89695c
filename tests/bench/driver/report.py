# SPDX-License-Identifier: Apache-2.0
"""A results document as tables in Markdown."""
import cases
import program_runs
from results import Results

UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def bytes_text(value):
    for unit, name in UNITS:
        if value >= unit:
            return f"{value / unit:.4g} {name}"
    return f"{value} B"


def digits(value):
    """Three digits, and never an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ns_text(value):
    for unit, name in TIMES:
        if value >= unit * 10:
            return f"{digits(value / unit)} {name}"
    return f"{digits(value)} ns"


def value_text(name, value):
    if value is None:
        return "–"
    if name == "ns" or name.endswith("_ns"):
        return ns_text(value)
    if name == "bytes" or name.endswith("_bytes"):
        return bytes_text(value)
    if name.startswith("pairs"):
        return f"{digits(value / 1e6)} M/s"
    if name in ("gb_per_s", "GB/s"):
        return f"{value:.2f} GB/s"
    return f"{value:,.0f}" if name == "count" or float(value).is_integer() else f"{value:.3f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def subjects(records):
    return list(dict.fromkeys(record.subject for record in records))


def pivot(results, case, parameter, value, head, parameter_text, **rest):
    """Subjects down, one parameter across, of the records that have the rest."""
    records = results.find(case, **rest)
    columns = sorted({record.parameters[parameter] for record in records})
    rows = []
    for subject in subjects(records):
        cells = [results.median(value, case, subject, **{parameter: column}, **rest) for column in columns]
        rows.append([subject, *(value_text(value, cell) for cell in cells)])
    return table([head, *(parameter_text(column) for column in columns)], rows) if rows else []


def plain(results, case, values, heads):
    """Subjects down, values across."""
    records = results.find(case)
    rows = [[", ".join([record.subject, *(str(value) for value in record.parameters.values() if len(record.parameters) == 1
                                          and isinstance(value, str))]),
             *(value_text(name, record.median(name)) for name in values)] for record in records]
    return table(heads, rows) if rows else []


def scale(results):
    rows = [[f"{record.parameters['sessions']:,}", f"{record.parameters['leases']:,}",
             *(value_text(name, record.median(name)) for name in ("p50_ns", "p99_ns"))] for record in results.find("scale")]
    return table(["sessions", "leases", "p50", "p99"], rows) if rows else []


def mix(results):
    rows = []
    for record in results.find("mix"):
        cells = [record.subject, value_text("ns", record.median("ns")),
                 value_text("bytes", record.median("peak_live_bytes"))]
        for held in ("peak_reserved_bytes", "peak_leased_bytes"):
            ratio = results.ratio(record, held, record, "peak_live_bytes")
            cells.append(f"{value_text('bytes', record.median(held))} ({ratio:.3f})" if ratio else "–")
        rows.append(cells)
    return table(["", "a pair", "peak live", "peak reserved (/ live)", "peak leased (/ live)"], rows) if rows else []


def hand_over(results):
    rows = []
    for record in results.find("hand_over"):
        rows.append([record.subject, value_text("ns", record.median("ns")),
                     value_text("count", record.most("daemon_requests"))])
    return table(["", "a pair", "requests to the daemon, at most"], rows) if rows else []


def accesses(results):
    rows = [[f"{record.subject}: {record.parameters['access']}", value_text("ns", record.median("ns")),
             value_text("raw_ns", record.median("raw_ns")),
             *(value_text("count", record.most(name)) for name in ("allocations", "daemon_requests"))]
            for record in results.find("access")]
    return table(["", "an access", "as it came", "allocations", "requests to the daemon"], rows) if rows else []


def restart(results):
    """Steps down, subjects across."""
    records = results.find("restart")
    names = subjects(records)
    rows = [[step.replace("_", " "), *(value_text("ns", results.median("p50_ns", "restart", name, step=step))
                                            for name in names)]
            for step in dict.fromkeys(record.parameters["step"] for record in records)]
    return table(["", *names], rows) if rows else []


def attach(results):
    """Steps down, kinds of pools across."""
    records = results.find("attach")
    names = subjects(records)
    rows = [[step, *(value_text("ns", results.median("p50_ns", "attach", name, step=step)) for name in names)]
            for step in dict.fromkeys(record.parameters["step"] for record in records)]
    rows += [["segments", *(value_text("count", results.median("segments", "attach", name, step="attach")) for name in names)]] if rows else []
    return table(["", *names], rows) if rows else []


def pipeline(results):
    """Each step by itself, then all together, beside the first way and the slowest step."""
    rows = []
    for percent in dict.fromkeys(record.parameters["compute_percent"] for record in results.find("pipeline")):
        ways = results.find("pipeline", compute_percent=percent)
        steps = results.find("pipeline_step", compute_percent=percent)
        limit = max(record.median("ns") for record in steps if record.parameters["streams"] == 1)
        for record in [*steps, *ways]:
            is_way, time = record.case == "pipeline", record.median("ns")
            rows.append([f"{percent} %", record.subject, value_text("ns", time), value_text("gb_per_s", record.median("gb_per_s")),
                         f"{ways[0].median('ns') / time:.2f}" if is_way else "–", f"{limit / time:.1%}" if is_way else "–"])
    heads = ["compute, of a copy's time", "", "time", "speed", "times as fast as pageable", "of the slowest step's"]
    return table(heads, rows) if rows else []


def staging(results, parameter, text):
    """Directions down, one parameter across."""
    records = results.find(f"staging_{parameter}")
    columns = list(dict.fromkeys(record.parameters[parameter] for record in records))
    rows = [[direction, *(value_text("gb_per_s", results.median("gb_per_s", f"staging_{parameter}", cases.GPUPOOL, direction=direction,
                                                                **{parameter: column})) for column in columns)]
            for direction in dict.fromkeys(record.parameters["direction"] for record in records)]
    return table(["", *(text(column) for column in columns)], rows) if rows else []


def to_own(results, record, name):
    """A program's figure, and how it is to PyTorch's own."""
    text = value_text(name, record.median(name))
    own = results.one(record.case, program_runs.OWN, **record.parameters)
    ratio = results.ratio(record, name, own, name) if record.subject != program_runs.OWN else None
    return f"{text} ({ratio:.3f})" if ratio else text


def program_table(results):
    """Programs one after another, allocators down."""
    rows = []
    for record in results.find("program"):
        counts = ["–" if name not in record.values else value_text("count", record.total(name))
                  for name in ("grows", "retires", "closes")]
        rows.append([record.parameters["program"].replace("_", " "), record.subject, to_own(results, record, "ns"),
                     to_own(results, record, "mean_ns"), to_own(results, record, "peak_reserved_bytes"), *counts])
    rows.sort(key=lambda row: row[0])
    heads = ["program", "allocator", "median step (/ PyTorch)", "mean step (/ PyTorch)", "peak reserved (/ PyTorch)",
             "segments made", "given back", "mappings closed"]
    return table(heads, rows) if rows else []


def empty_tensor(results):
    rows = [[record.subject, to_own(results, record, "ns")] for record in results.find("torch_empty")]
    return table(["", "a tensor (/ PyTorch)"], rows) if rows else []


def worst_ratio(ratios):
    """Of the program where it is worst."""
    ratios = [ratio for ratio in ratios if ratio is not None]
    return value_text("ratio", max(ratios)) if ratios else "–"


def bursty_beside(results, records, name):
    """To the native program's bursts beside each of them."""
    return worst_ratio(results.ratio(record, name, record, f"native_{name}") for record in records)


def bursty_two(results, records):
    """To the native programs, which worked before all others."""
    return worst_ratio(results.ratio(record, "ns", results.one("bursty", program_runs.OWN, phase="two",
                                                               program=record.parameters["program"]), "ns") for record in records)


def bursty_subject(subject):
    """Not all native programs are PyTorch's."""
    return "native" if subject == program_runs.OWN else subject


def different_text(records):
    """Of the steps that tell what they computed."""
    compared, different = (sum(record.total(name) for record in records) for name in ("compared", "different"))
    return f"{different:,} of {compared:,}" if compared else "–"


def bursty(results):
    """Configurations down."""
    rows = []
    found = [(record.subject, *(record.parameters[name] for name in ("export", "limit"))) for record in results.find("bursty")]
    for subject, export, limit in dict.fromkeys(found):
        phases = {phase: results.find("bursty", subject, export=export, limit=limit, phase=phase)
                  for phase in ("cold", "one", "two", "all")}
        pool = results.one("bursty_pool", subject, export=export, limit=limit)
        idle = results.one("bursty_idle", subject, export=export, limit=limit)
        every = [record for records in phases.values() for record in records]
        warm = [record for phase in ("one", "two", "all") for record in phases[phase]]

        def pooled(*names):
            return [value_text(name, pool.median(name)) if pool and name in pool.values else "–" for name in names]

        def told(records, name):
            return " + ".join(value_text("count", sum(record.total(name) for record in records[phase])) for phase in records)

        rows.append([bursty_subject(subject), export, limit, *pooled("limit_bytes", "gpu_peak_bytes"),
                     bursty_beside(results, phases["one"], "ns"), bursty_beside(results, phases["one"], "first_ns"),
                     bursty_two(results, phases["two"]),
                     value_text("ns", max((record.most("worst_ns") for record in warm), default=None)),
                     value_text("count", sum(record.total("slow_steps") for record in warm)), told(phases, "failures"),
                     value_text("count", sum(record.total("steps") for record in every)), different_text(every),
                     value_text("ns", idle.median("ns")) if idle else "–", *pooled("closes", "timeouts")])
    heads = ["allocator", "pool", "limit", "", "the GPU's memory", "median step, one at a time (/ native)",
             "first step after another's burst (/ native without a cache)", "median step, two at a time (/ native)", "longest step",
             "steps over 1 s", "failed: cold + one + two + all", "of steps", "other results than natively",
             "idle memory of a process in read()", "mappings closed", "requests timed out"]
    return table(heads, rows) if rows else []


def bursty_programs(results):
    """Programs and configurations down, phases across."""
    rows = []
    records = results.find("bursty", phase="one")
    for record in sorted(records, key=lambda record: record.parameters["program"]):
        same = {phase: results.one("bursty", record.subject, **{**record.parameters, "phase": phase})
                for phase in ("cold", "one", "two", "all")}
        rows.append([record.parameters["program"], bursty_subject(record.subject),
                     *(record.parameters[name] for name in ("export", "limit")),
                     *(value_text("ns", same[phase].median(name)) if same[phase] else "–"
                       for phase, name in (("one", "ns"), ("one", "native_ns"), ("one", "first_ns"), ("one", "native_first_ns"),
                                           ("one", "worst_ns"), ("cold", "first_ns"), ("two", "ns"), ("all", "ns"), ("all", "worst_ns")))])
    heads = ["program", "allocator", "pool", "limit", "median step", "native beside it", "first step after another's burst",
             "native without a cache", "longest step", "very first step", "two at a time", "all at once", "longest"]
    return table(heads, rows) if rows else []


def bursty_needs(results):
    rows = [[record.parameters["program"], *(value_text("bytes", record.median(name))
                                             for name in ("weights_bytes", "live_bytes", "reserved_bytes"))]
            for record in results.find("bursty_need")]
    return table(["program", "weights", "peak live", "peak reserved"], rows) if rows else []


def traces(results):
    rows = []
    for record in results.find("trace"):
        cells = [record.parameters["trace"], record.subject, value_text("bytes", record.median("peak_live_bytes"))]
        for name in ("peak_reserved_bytes", "peak_leased_bytes"):
            ratio = results.ratio(record, name, record, "peak_live_bytes")
            cells.append(f"{value_text('bytes', record.median(name))} ({ratio:.3f})" if ratio else "–")
        rows.append(cells)
    rows.sort(key=lambda row: row[0])
    heads = ["trace", "", "peak live", "peak reserved (/ live)", "peak leased (/ live)"]
    return table(heads, rows) if rows else []


def trace_passes(results, case):
    rows = []
    for record in results.find(case):
        if "first_ns" not in record.values:
            continue
        cells = [value_text(name, record.median(name)) for name in ("first_ns", "ns", "p999_ns")]
        ratio = results.ratio(record, "warm_reserved_bytes", record, "peak_live_bytes")
        reserved = value_text("bytes", record.median("warm_reserved_bytes")) + (f" ({ratio:.3f})" if ratio else "")
        counts = [value_text("count", record.median(name)) for name in ("warm_grows", "warm_retires", "warm_closes")]
        rows.append([record.parameters["trace"], record.subject, *cells, reserved, *counts])
    rows.sort(key=lambda row: row[0])
    heads = ["trace", "", "an operation, first pass", "later", "p99.9 later", "peak reserved later (/ live)", "segments made later",
             "given back", "mappings closed"]
    return table(heads, rows) if rows else []


def sizes(results, case, *names):
    """The sizes of a case, for its title."""
    found = results.find(case)
    return [bytes_text(found[0].parameters[name]) if found else "" for name in names]


BURSTY_BARS = "bursty workers"  # which their bars begin with: these stand beside their tables


def bars(document, of_bursty=False):
    rows = [[bar["what"], bar["bar"], value_text(bar["unit"], bar["measured"]),
             value_text(bar["unit"], bar.get("raw")) if bar.get("raw") is not None else "", bar["state"]]
            for bar in document["bars"] if bar["what"].startswith(BURSTY_BARS) == of_bursty and not
            (of_bursty and bar["measured"] is None)]
    return table(["", "bar", "measured", "as it came", "state"], rows) if rows else []


def slow(results):
    """How many samples were set aside, because the processor itself was slow; and the figures that were not saved by it."""
    rows = []
    for case in dict.fromkeys(record.case for record in results.records.values()):
        for subject in subjects(results.find(case)):
            records = [record for record in results.find(case, subject) if "slow_samples" in record.values]
            if not records:
                continue
            accepted, aside = (sum(record.total(name) for record in records) for name in ("samples", "slow_samples"))
            figures = [taken for record in records for taken in record.values["samples"] if taken is not None]
            rows.append([case.replace("_", " "), subject, f"{accepted:,}", f"{aside:,}", f"{aside / (accepted + aside):.0%}",
                         f"{figures.count(0)} of {len(figures)}"])
    heads = ["", "", "samples", "set aside", "of all", "figures as they came"]
    return table(heads, rows) if rows else []


def machine(document):
    found, versions = document["machine"], document["versions"]
    gpu = "simulated GPU" if document["gpu"] == "sim" else found.get("gpu") or "no GPU"
    parts = [document["date"], gpu, found.get("driver") and f"driver {found['driver']}",
             f"{found['cores']} cores ({found['processor']})", f"{bytes_text(found['memory_bytes'])} of memory",
             found["kernel"], found["system"], document.get("export") and f"device pools with export = {document['export']}",
             *(f"{name} {version}" for name, version in versions.items())]
    return ", ".join(part for part in parts if part) + "."


def bursty_sections(document):
    """Title and lines of each, the machine first: they may be of a run of their own."""
    results = Results.from_document(document)
    table_lines = bursty(results)
    if not table_lines:
        return []
    return [("Bursty workers on one pool", [machine(document), "", *table_lines]),
            ("What bursty workers are to reach", bars(document, of_bursty=True)),
            ("What each of them needs alone", bursty_needs(results)), ("The steps of each of them", bursty_programs(results))]


def markdown(document):
    results = Results.from_document(document)
    sections = []
    if document["gpu"] != "cuda":
        sections.append(["**This is a simulation: no GPU was there. Absolute times mean nothing; they show that the "
                         "benchmark works.**"])
    if document["quick"]:
        sections.append(["**A quick run: too short for figures.**"])
    sections.append([f"{machine(document)} Medians over the rounds of one run, {document['repetitions']} of them, in which the "
                     "subjects take turns: what is short is measured in each, what is longer in every third, what takes "
                     "longest once. *As it came*: with the samples during which the processor itself was slow."])

    def section(title, lines):
        if lines:
            sections.append([f"### {title}", "", *lines])

    section("PyTorch programs", program_table(results))
    for title, lines in bursty_sections(document):
        section(title, lines)
    section("torch.empty() of 4 KiB on a GPU, and its end", empty_tensor(results))
    section("What is to be reached", bars(document))
    section("Warm pair, by size", pivot(results, "warm_pair", "size_bytes", "ns", "", bytes_text))
    section("Warm pinned pair, by size", pivot(results, "pinned_warm_pair", "size_bytes", "ns", "", bytes_text))
    section("Warm pair, by size, as it came", pivot(results, "warm_pair", "size_bytes", "raw_ns", "", bytes_text))
    section("Warm pinned pair, by size, as it came", pivot(results, "pinned_warm_pair", "size_bytes", "raw_ns", "", bytes_text))
    section("Samples that were set aside and repeated, as the processor was slow", slow(results))
    section("Random mix, 1,000 live", mix(results))
    section("Threads, a stream each: pairs of all together",
            pivot(results, "threads", "threads", "pairs_per_s", "threads", str))
    section("Taken by one thread, given back by another", hand_over(results))
    bound, = sizes(results, "access", "bound_bytes")
    section(f"Pairs and synchronised arrays, of varying sizes up to {bound}", accesses(results))
    section("Round trips and first times", plain(results, "round_trip", ["p50_ns", "p99_ns"], ["", "p50", "p99"]))
    section("What real programs allocated, replayed once", traces(results))
    section("The same, replayed five times in one client", trace_passes(results, "trace"))
    section("Traces that are hard to pack, replayed five times in one client", trace_passes(results, "packing"))
    section("Acquire, by the sessions and leases that there are", scale(results))
    grown, = sizes(results, "growth", "grown_bytes")
    section(f"Others' round trips while {grown} of host memory are made",
            plain(results, "growth", ["p50_ns", "p99_ns", "p999_ns", "max_ns"], ["", "p50", "p99", "p99.9", "longest"]))
    section("Acquire by 8 threads that want 457 of the 512 MiB of a host pool",
            plain(results, "limit", ["p50_ns", "p99_ns", "p999_ns", "max_ns", "refused"], ["", "p50", "p99", "p99.9", "longest", "refused"]))
    section("Acquire by threads that hold one buffer each, of sizes up to a share of a pool of 512 MiB",
            plain(results, "starvation", ["p50_ns", "p99_ns", "p999_ns", "max_ns", "over_50_ms", "daemon_requests_per_acquire"],
                  ["", "p50", "p99", "p99.9", "longest", "over 50 ms", "messages an acquire"]))
    section("Launches in a process with kernels of 100 ms",
            plain(results, "busy", ["p50_ns", "p99_ns", "max_ns"], ["", "p50", "p99", "longest"]))
    section("The other process's acquire of that idle memory",
            plain(results, "busy_acquire", ["ns", "grows", "retires", "closes"], ["", "acquire", "segments made", "given back", "mappings closed"]))
    section("A buffer out of scattered pieces of 32 MiB, beside a kernel of 100 ms",
            plain(results, "rows", ["p50_ns", "max_ns", "launch_max_ns"], ["", "p50", "longest", "longest launch meanwhile"]))
    section("A pair beside a crowd", plain(results, "crowd", ["p50_ns", "p99_ns"], ["", "p50", "p99"]))
    section("Acquire beside hostile clients", plain(results, "hostile", ["p50_ns", "p99_ns"], ["", "p50", "p99"]))
    section("A buffer to another process and an answer back", plain(results, "share", ["p50_ns", "p99_ns"], ["", "p50", "p99"]))
    attached, = sizes(results, "attach", "size_bytes")
    section(f"{attached} by a token, in a fresh process with a context", attach(results))
    section(f"Making the {grown} meanwhile", plain(results, "growth_time", ["ns"], ["", "time"]))
    host, device = sizes(results, "restart", "host_bytes", "device_bytes")
    section(f"A worker starts anew and has {host} pinned and {device} of device memory", restart(results))
    section("Copies", plain(results, "copies", ["gb_per_s"], ["", "speed"]))
    section("Copy in, compute, copy out", pipeline(results))
    staged, = sizes(results, "staging", "size_bytes")
    section(f"{staged} of ordinary memory to a device and back", pivot(results, "staging", "direction", "gb_per_s", "", str))
    section("The same, by the threads that copy", staging(results, "threads", str))
    section("The same, by the chunks' size", staging(results, "chunk_bytes", bytes_text))
    for direction in ("upload", "download"):
        section(f"Ordinary memory, {direction} by size",
                pivot(results, "staging_size_bytes", "size_bytes", "gb_per_s", "", bytes_text, direction=direction))
    section("1 GiB of pinned memory", plain(results, "pin", ["ns"], ["", "time"]))
    section("Not measured", [f"- {entry['case']}, {entry['subject']}: {entry['why'].splitlines()[-1]}"
                             for entry in [*document["absent"], *document["failed"]] if entry["why"]])
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"
