#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the tables of a run of tests/bench/bursty into docs/benchmarks.md, behind those of the PyTorch programs:

    docs/bursty.py RESULTS.json

It keeps the results as docs/plots/bursty.json."""
import json
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(DOCS.parent / "tests" / "bench" / "driver"))
import report  # noqa: E402

PAGE, KEPT = DOCS / "benchmarks.md", DOCS / "plots" / "bursty.json"
NEXT = "### torch.empty()"  # the title behind them


def main(path):
    document = json.loads(pathlib.Path(path).read_text())
    sections = [(title, lines) for title, lines in report.bursty_sections(document) if lines]
    if not sections:
        sys.exit(f"{path} has no bursty workers")
    text = PAGE.read_text()
    before, found, rest = text.partition(NEXT)
    if not found:
        sys.exit(f"{PAGE.name} has no title {NEXT}")
    before = before.partition(f"### {sections[0][0]}\n")[0]
    made = "".join("\n".join([f"### {title}", "", *lines, "", ""]) for title, lines in sections)
    PAGE.write_text(f"{before}{made}{found}{rest}")
    KEPT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
