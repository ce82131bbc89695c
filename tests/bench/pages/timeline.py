#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the timeline of a pipeline, from the times that the example `pipeline` measured:

    tests/bench/pages/timeline.py PIPELINE.json [PICTURE.svg]

Without a second argument it draws docs/plots/pipeline.svg, and puts picture and figures into docs/streams.md between its two markers. Needs nothing but Python."""
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
PLOTS, PAGE = DOCS / "plots", DOCS / "streams.md"
BEGIN, END = "<!-- made by tests/bench/pages/timeline.py: begin -->", "<!-- made by tests/bench/pages/timeline.py: end -->"
NAME = "pipeline"
COLOURS = {"copy in": "#1565c0", "compute": "#00695c", "copy out": "#e65100"}
BATCHES_SHOWN = 5  # of one stream with pool memory: the time that these take is drawn of all ways
NS_PER_MS = 1e6

# Pixels.
WIDTH, LEFT, RIGHT, TOP = 860, 70, 12, 44
ROW, BAR, TITLE, GAP, AXIS, LEGEND = 22, 18, 20, 10, 34, 24
NUMBER_MIN = 12  # a bar that is narrower has no room for its batch's number


def shown_ns(document):
    """How much time is drawn: the same for all ways, so that what takes longer is longer."""
    way = next(way for way in document["ways"] if way["streams"] == 1 and way["memory"] == "pool")
    return max(span["end_ns"] for span in way["spans"] if span["batch"] < BATCHES_SHOWN)


def tick_step(limit):
    """A round distance between ticks, so that there are five to twelve."""
    power = 10 ** math.floor(math.log10(limit / 5))
    return next(power * factor for factor in (1, 2, 5, 10) if limit / (power * factor) <= 12)


class Picture:
    def __init__(self, until_ns):
        self.until_ns, self.y, self.parts = until_ns, TOP, []

    def x(self, ns):
        return LEFT + (WIDTH - LEFT - RIGHT) * min(ns, self.until_ns) / self.until_ns

    def text(self, x, y, text, **style):
        style = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(str(text))}</text>')

    def rectangle(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height}" fill="{colour}"/>')

    def line(self, x1, y1, x2, y2, colour):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>')

    def span(self, span, top):
        """A step: a bar, with the batch's number where there is room."""
        begin, end = self.x(span["begin_ns"]), self.x(span["end_ns"])
        width = max(end - begin - 0.5, 0.5)  # what follows at once is seen to be another step
        self.rectangle(begin, top, width, BAR, COLOURS[span["step"]])
        if width >= NUMBER_MIN:
            self.text(begin + width / 2, top + BAR - 5, span["batch"], fill="white", text_anchor="middle", font_size=10)

    def way(self, way):
        """A title, and a row for each stream."""
        done = sum(span["step"] == "copy out" and span["end_ns"] <= self.until_ns for span in way["spans"])
        self.text(LEFT, self.y + TITLE - 6, f"{way['name']}: {done} {'batch' if done == 1 else 'batches'} done in this time",
                  font_weight="bold")
        self.y += TITLE
        for stream in range(way["streams"]):
            self.text(LEFT - 6, self.y + BAR - 5, f"stream {stream}", text_anchor="end")
            for span in way["spans"]:
                if span["stream"] == stream and span["begin_ns"] < self.until_ns:
                    self.span(span, self.y)
            self.y += ROW
        self.y += GAP

    def axis(self):
        self.line(LEFT, self.y, WIDTH - RIGHT, self.y, "#444")
        limit = self.until_ns / NS_PER_MS
        step = tick_step(limit)
        for number in range(int(limit / step) + 1):
            x = self.x(number * step * NS_PER_MS)
            self.line(x, self.y, x, self.y + 4, "#444")
            self.text(x, self.y + 17, f"{number * step:.4g}", text_anchor="middle")
        self.text(WIDTH - RIGHT, self.y + 30, "milliseconds since the run began", text_anchor="end")
        self.y += AXIS

    def legend(self):
        x = LEFT
        for step, colour in COLOURS.items():
            self.rectangle(x, self.y, 12, 12, colour)
            self.text(x + 17, self.y + 10, step)
            x += 90
        self.y += LEGEND

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.y}" viewBox="0 0 {WIDTH} {self.y}" '
                'font-family="DejaVu Sans, Verdana, sans-serif" font-size="11" fill="#222">\n'
                f'<rect width="{WIDTH}" height="{self.y}" fill="white"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def draw(document):
    picture = Picture(shown_ns(document))
    picture.text(LEFT, 24, f"Copy in, compute, copy out: batches of {document['batch_bytes'] / (1 << 20):.4g} MiB on "
                           f"{gpu(document)}", font_size=14)
    for way in document["ways"]:
        picture.way(way)
    picture.axis()
    picture.legend()
    return picture.svg()


def gpu(document):
    return "a simulated GPU, whose times mean nothing" if document["gpu"] == "sim" else document["device"]


def figures(document):
    """The measured times, as tables in Markdown."""
    size_bytes, ways = document["batches"] * document["batch_bytes"], document["ways"]
    lines = [f"{document['batches']} batches of {document['batch_bytes'] / (1 << 20):.4g} MiB on {gpu(document)}; medians of "
             f"{document['rounds']} rounds in one run.", "", "| by itself | time | GB/s |", "|---|---|---|"]
    lines += [f"| {way['name']} | {way['ns'] / NS_PER_MS:.2f} ms | {size_bytes / way['ns']:.1f} |" for way in document["alone"]]
    lines += ["", "| all three steps | time | GB/s | to the first | of the limit |", "|---|---|---|---|---|"]
    lines += [f"| {way['name']} | {way['ns'] / NS_PER_MS:.2f} ms | {size_bytes / way['ns']:.1f} | {ways[0]['ns'] / way['ns']:.2f} "
              f"times as fast | {100 * document['limit_ns'] / way['ns']:.1f} % |" for way in ways]
    return "\n".join(lines)


def page(text, document):
    """The page with these figures in the place of others."""
    before, found, rest = text.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        sys.exit(f"{PAGE.name} has no markers")
    return f"{before}{BEGIN}\n\n{figures(document)}\n\n![Timeline](plots/{NAME}.svg)\n\n{END}{after}"


def read(path):
    """The document in the file, and its picture. A file that cannot be drawn and tabulated is refused."""
    try:
        document = json.loads(pathlib.Path(path).read_text())
        drawn = draw(document)
        figures(document)
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")
    except (ValueError, LookupError, TypeError, StopIteration, ArithmeticError):
        sys.exit(f"{path}: not what `pipeline --json` writes")
    return document, drawn


def main(path, picture=None):
    document, drawn = read(path)
    if picture is not None:
        try:
            pathlib.Path(picture).write_text(drawn)
        except OSError as error:
            sys.exit(f"{picture}: {error.strerror}")
        return
    PAGE.write_text(page(PAGE.read_text(), document))
    PLOTS.mkdir(exist_ok=True)
    (PLOTS / f"{NAME}.svg").write_text(drawn)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
