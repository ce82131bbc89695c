#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the tables of tests/bench/bursty into docs/benchmarks.md, behind those of the PyTorch programs:

    tests/bench/pages/bursty.py RESULTS.json…

Several files are runs on one machine, with other limits, kinds or allocators, each beside native programs of its own. tests/bench/pages/plots.py
takes the tables away: this is for after it."""
import json
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
sys.dont_write_bytecode = True
sys.path.insert(0, str(DOCS.parent / "tests" / "bench" / "driver"))
import bars  # noqa: E402
import report  # noqa: E402
from results import Results  # noqa: E402

PAGE = DOCS / "benchmarks.md"
NEXT = "### torch.empty()"  # the title behind them


def join(documents):
    if len(documents) == 1:
        return documents[0]
    results, described = Results.joined(documents), documents[0]
    return results.document(**{name: described[name] for name in ("date", "quick", "gpu", "machine", "versions")},
                            bars=[bar.check(results, described["gpu"], described["quick"], None) for bar in bars.BURSTY])


def main(paths):
    document = join([json.loads(pathlib.Path(path).read_text()) for path in paths])
    sections = [(title, lines) for title, lines in report.bursty_sections(document) if lines]
    if not sections:
        sys.exit("there are no bursty workers in these results")
    text = PAGE.read_text()
    before, found, rest = text.partition(NEXT)
    if not found:
        sys.exit(f"{PAGE.name} has no title {NEXT}")
    before = before.partition(f"### {sections[0][0]}\n")[0]
    made = "".join("\n".join([f"### {title}", "", *lines, "", ""]) for title, lines in sections)
    PAGE.write_text(f"{before}{made}{found}{rest}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
