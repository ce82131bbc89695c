#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of the README, docs/plots/overview.svg: workers, the daemon and the pools. It needs the standard library only.

    tests/bench/pages/picture.py docs/plots/overview.svg

A test draws it again and compares.
"""
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 372
INK, QUIET, PAPER = "#1f2933", "#66727f", "#ffffff"
FREE = "#e6eaee"
WORKERS = (  # name, colour, x
    ("data loader", "#3b7dd8", 20),
    ("trainer", "#d9822b", 235),
    ("inference worker", "#3a9a5b", 450),
)
WORKER_WIDTH = 195
DAEMON = (690, 20, 150, 332)
POOLS = (  # title, x, segments: lists of (share of the segment, workers that hold the block)
    ("device pool: GPU 0", 20, (((0.40, (0,)), (0.20, ()), (0.40, (1,))), ((0.52, (0, 1)), (0.48, ())))),
    ("host pool: NUMA node 0", 345, (((0.25, ()), (0.40, (2,)), (0.35, ())), ((1.0, ()),))),
)
POOL_Y, POOL_WIDTH, POOL_HEIGHT = 222, 305, 130
SEGMENT_HEIGHT = 32


def box(x, y, width, height, fill, stroke, radius=6):
    return (f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="1.5"/>')


def text(x, y, words, size=13, colour=INK, anchor="start", weight="normal"):
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(words)}</text>')


def line(x1, y1, x2, y2, colour, ends="", dashes=""):
    marks = f' marker-end="url(#to-{colour[1:]})"' if "end" in ends else ""
    marks += f' marker-start="url(#to-{colour[1:]})"' if "start" in ends else ""
    marks += f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="1.8"{marks}/>'


def arrow_head(colour):
    return (f'<marker id="to-{colour[1:]}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>')


def block(x, y, width, holders):
    """A block in the colours of the workers that hold it; a shared block has a stripe of each."""
    colours = [WORKERS[holder][1] for holder in holders] or [FREE]
    height = SEGMENT_HEIGHT / len(colours)
    return [f'<rect x="{x:g}" y="{y + i * height:g}" width="{width:g}" height="{height:g}" fill="{colour}"/>'
            for i, colour in enumerate(colours)]


def pool(title, x, segments):
    parts = [box(x, POOL_Y, POOL_WIDTH, POOL_HEIGHT, "#f7f9fb", QUIET), text(x + 12, POOL_Y + POOL_HEIGHT - 11, title, weight="bold")]
    for row, blocks in enumerate(segments):
        y = POOL_Y + 12 + row * (SEGMENT_HEIGHT + 12)
        left, width = x + 12, POOL_WIDTH - 24
        for share, holders in blocks:
            parts += block(left, y, width * share, holders)
            left += width * share
        parts.append(box(x + 12, y, width, SEGMENT_HEIGHT, "none", INK, 2))
    return parts


def draw():
    x, y, width, height = DAEMON
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
             "<title>Workers, the daemon, and the pools that it lends from</title>",
             "<defs>" + "".join(arrow_head(colour) for colour in (INK, *(worker[1] for worker in WORKERS))) + "</defs>",
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>']
    parts += [box(x, y, width, height, "#eef1f5", INK), text(x + width / 2, y + 28, "gpupoold", 16, anchor="middle", weight="bold")]
    for row, words in enumerate(("owns the memory", "counts bytes by user", "takes it back when", "a process dies")):
        parts.append(text(x + width / 2, y + 62 + 19 * row, words, 12, QUIET, "middle"))
    for title, left, segments in POOLS:
        parts += pool(title, left, segments)
    bus = 165
    for name, colour, left in WORKERS:
        parts += [box(left, 20, WORKER_WIDTH, 100, PAPER, colour), text(left + 12, 42, name, 14, weight="bold"),
                  box(left + 12, 56, WORKER_WIDTH - 24, 52, "#f7f9fb", colour, 4),
                  text(left + 22, 77, "libgpupool-client", 12), text(left + 22, 96, "cache of idle memory", 12, QUIET),
                  line(left + 165, 121, left + 165, bus, INK)]
    parts += [line(WORKERS[0][2] + 165, bus, x - 2, bus, INK, "end")]
    for _, colour, left in WORKERS:
        parts.append(line(left + 25, 121, left + 25, POOL_Y + 10, colour, "end"))
    parts += [text(490, bus - 12, "acquire, release:", 12, QUIET), text(490, bus + 17, "messages on a Unix socket", 12, QUIET),
              text(490, bus + 42, "mapped: no copies", 12, WORKERS[2][1]),
              line(x - 2, 300, 652, 300, INK, "end"),
              text(x + width / 2, 290, "allocates segments,", 12, QUIET, "middle"),
              text(x + width / 2, 309, "lends ranges of them", 12, QUIET, "middle"),
              "</svg>"]
    return "\n".join(parts) + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FILE.svg")
    try:
        pathlib.Path(sys.argv[1]).write_text(draw())
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror}")


if __name__ == "__main__":
    main()
