#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Remakes docs/benchmarks.md's figures from a run of ./dev bench:

    tests/bench/pages/plots.py RESULTS.json

It draws docs/plots/*.svg from the results, and puts the tables and the plots into docs/benchmarks.md between its two markers. The
results themselves are not kept: the page says by which commit they were measured. The tables of bursty workers come behind it, by
tests/bench/pages/bursty.py. Needs matplotlib (Debian: python3-matplotlib)."""
import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
sys.dont_write_bytecode = True
sys.path.insert(0, str(DOCS.parent / "tests" / "bench" / "driver"))
import cases  # noqa: E402
import report  # noqa: E402
import timeline  # noqa: E402
from results import Results  # noqa: E402

PLOTS, PAGE = DOCS / "plots", DOCS / "benchmarks.md"
OF_OTHERS = (timeline.NAME, "overview")  # pictures there that tests/bench/pages/timeline.py and tests/bench/pages/picture.py draw
BEGIN, END = "<!-- made by tests/bench/pages/plots.py: begin -->", "<!-- made by tests/bench/pages/plots.py: end -->"

# Equal input gives equal bytes: no date, no random names. Text stays text.
matplotlib.rcParams.update({"svg.hashsalt": "gpupool", "svg.fonttype": "none", "font.size": 10, "axes.grid": True,
                            "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
                            "figure.constrained_layout.use": True})
OURS, THEIRS = ["#00695c", "#26a69a", "#80cbc4"], ["#e65100", "#5e35b1", "#757575", "#c62828", "#1565c0", "#9e9d24"]


def colours(subjects):
    """Ours in shades of one colour, others each in another: the same in every plot."""
    subjects = list(dict.fromkeys(subjects))
    ours = [subject for subject in subjects if subject.startswith("gpupool")]
    theirs = [subject for subject in subjects if subject not in ours]
    return {**{subject: OURS[i % len(OURS)] for i, subject in enumerate(ours)},
            **{subject: THEIRS[i % len(THEIRS)] for i, subject in enumerate(theirs)}}


def save(figure, name):
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)
    return name


def lines(results, palette, case, parameter, value, name, labels, parameter_text=str, scale=1.0):
    """A line a subject over a parameter; nothing where the run has no such case."""
    records = results.find(case)
    if not records:
        return None
    figure, axes = pyplot.subplots(figsize=(7.2, 4))
    for subject in report.subjects(records):
        points = sorted((record.parameters[parameter], record.median(value) * scale)
                        for record in results.find(case, subject) if record.median(value) is not None)
        axes.plot(*zip(*points), marker="o", markersize=4, label=subject, color=palette[subject])
    ticks = sorted({record.parameters[parameter] for record in records})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [parameter_text(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda number, _: f"{number:g}"))
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.tick_params(axis="x", labelsize=8)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return save(figure, name)


def bars(rows, palette, name, label, logarithmic=False, limit=None):
    """Horizontal bars from top to bottom: (text, subject, value); a line where a limit is."""
    rows = [row for row in rows if row[2] is not None]
    if not rows:
        return None
    figure, axes = pyplot.subplots(figsize=(7.2, 0.8 + 0.3 * len(rows)))
    drawn = axes.barh(range(len(rows)), [value for _, _, value in rows], color=[palette[subject] for _, subject, _ in rows])
    axes.bar_label(drawn, [f" {report.digits(value)}" for _, _, value in rows], fontsize=8)
    axes.set_yticks(range(len(rows)), [text for text, _, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)
    if logarithmic:
        axes.set_xscale("log")
    if limit is not None:
        axes.axvline(limit, color="black", linewidth=1, linestyle=":")
    axes.set_xlabel(label)
    return save(figure, name)


def rows(results, case, value, scale=1.0):
    """A bar for each subject of a case."""
    return [(record.subject, record.subject, record.median(value) and record.median(value) * scale)
            for record in results.find(case)]


def held(results, case):
    """A bar for each record: peak reserved over peak live."""
    return [(", ".join([*map(str, record.parameters.values())][:1] * (case == "trace") + [record.subject]), record.subject,
             results.ratio(record, "peak_reserved_bytes", record, "peak_live_bytes")) for record in results.find(case)]


def acquires(results):
    """The times of acquires that ask the daemon, beside the raw round trip."""
    names = {"raw_round_trip": "raw round trip", "device_acquire": "acquire, device pool", "host_acquire": "acquire, host pool"}
    found = [(names[record.subject], cases.GPUPOOL if "acquire" in record.subject else record.subject,
              record.median("p50_ns") / 1e3) for record in results.find("round_trip") if record.subject in names]
    return found + [(f"acquire, {record.parameters['sessions']:,} sessions, {record.parameters['leases']:,} leases",
                     record.subject, record.median("p50_ns") / 1e3) for record in results.find("scale")]


def restarts(results):
    steps = ("host", "device", "process_start_to_ready")
    return [(f"{step.replace('_', ' ')}, {record.subject}", record.subject, record.median("p50_ns") / 1e6)
            for step in steps for record in results.find("restart", step=step)]


def draw(results):
    """The plots of what the run has: (file's name, what it shows)."""
    size, pair = "size of the buffer", "nanoseconds a pair"
    palette = colours(record.subject for record in results.records.values())
    made = [
        (lines(results, palette, "warm_pair", "size_bytes", "ns", "warm-pair", (size, pair), report.bytes_text),
         "Warm pair by size"),
        (lines(results, palette, "pinned_warm_pair", "size_bytes", "ns", "pinned-pair", (size, pair), report.bytes_text),
         "Warm pinned pair by size"),
        (lines(results, palette, "threads", "threads", "pairs_per_s", "threads",
               ("threads", "million pairs a second, together"), scale=1e-6), "Pairs a second of threads together"),
        (bars(rows(results, "mix", "ns"), palette, "mix", pair, logarithmic=True), "Random mix, 1,000 live"),
        (bars(held(results, "mix"), palette, "mix-memory", "peak reserved / peak live", limit=1), "Memory of the random mix"),
        (bars(held(results, "trace"), palette, "traces", "peak reserved / peak live", limit=1), "Memory of recorded programs"),
        (bars(rows(results, "hand_over", "ns"), palette, "hand-over", pair, logarithmic=True),
         "Taken by one thread, given back by another"),
        (bars(acquires(results), palette, "acquire", "microseconds, p50"), "Acquires that ask the daemon"),
        (bars(restarts(results), palette, "restart", "milliseconds", logarithmic=True), "A worker that starts anew"),
    ]
    return [(name, title) for name, title in made if name]


def main(path):
    document = json.loads(pathlib.Path(path).read_text())
    before, found, rest = PAGE.read_text().partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        sys.exit(f"{PAGE.name} has no markers")
    for old in PLOTS.glob("*.svg"):
        if old.stem not in OF_OTHERS:
            old.unlink()
    plots = draw(Results.from_document(document))
    images = "\n\n".join(f"![{title}](plots/{name}.svg)" for name, title in plots)
    PAGE.write_text(f"{before}{BEGIN}\n\n{report.markdown(document)}\n### Plots\n\n{images}\n\n{END}{after}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
