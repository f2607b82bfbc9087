"""Pages of docs/papers: tables, plots as SVG, and the origin of the numbers."""

import json
import math
import os
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DIR = os.path.join(ROOT, "docs", "papers")
KEEPSTONE = os.environ.get("KEEPSTONE", os.path.join(ROOT, "target", "release", "keepstone"))
BENCH = os.environ.get("BENCH", os.path.join(os.path.dirname(KEEPSTONE), "keepstone-bench"))
COLOURS = ["#1b6ca8", "#c1440e", "#2e8540", "#7b3294", "#8c6d1f", "#555555"]


def simulate(*args):
    """Returns what `keepstone simulate memory ARGS --json` prints."""
    command = [KEEPSTONE, "simulate", "memory", *map(str, args), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def bench(scale, *args):
    """Runs `keepstone-bench ARGS`, with less rounds if the scale is above 1; returns the times in
    nanoseconds by case and contender."""
    quick = ["--quick"] if scale > 1 else []
    with tempfile.NamedTemporaryFile(prefix="keepstone-paper-") as saved:
        command = [BENCH, *quick, *map(str, args), "--save", saved.name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()}")
        (outcomes,) = json.load(saved)["section"].values()
    return {outcome["name"]: {timing["name"]: timing["ns_per_op"]["median"]
                              for timing in outcome["timings"]} for outcome in outcomes}


def duration(ns):
    """Returns a time with its unit."""
    for unit, size in [("s", 1e9), ("ms", 1e6), ("µs", 1e3)]:
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def remember_commit():
    """Lets all pages state the commit of now, before the first of them changes the tree."""
    script = '. "$1/scripts/lib/measured.sh"; commit_of "$1"'
    command = ["bash", "-euc", script, "-", ROOT]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    os.environ["MEASURED_COMMIT"] = done.stdout.strip()


def origin(command, *formats):
    """Returns the first paragraph of a page: date, commit, machine, command, formats."""
    script = '. "$1/scripts/lib/measured.sh"; shift; measured "$@"'
    command = ["bash", "-euc", script, "-", ROOT, command, *formats]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def table(head, rows, left=1):
    """Returns a table; columns after the first `left` are aligned to the right."""
    marks = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, marks, *rows]) + "\n"


def paragraph(text):
    """Returns a paragraph in lines of at most 100 columns."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > 100:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line]) + "\n"


def write(name, parts):
    """Writes a page of these parts."""
    os.makedirs(DIR, exist_ok=True)
    with open(os.path.join(DIR, name), "w") as page:
        page.write("\n".join(parts))
    print(f"docs/papers/{name}")


class Axis:
    """Maps values to pixels, on a logarithmic or a linear scale."""

    def __init__(self, values, start, end, is_log):
        self.is_log, self.start, self.end = is_log, start, end
        low, high = min(values), max(values)
        self.low, self.high = (low, high) if is_log else (0, high)

    def at(self, value):
        to = math.log if self.is_log else float
        part = (to(value) - to(self.low)) / ((to(self.high) - to(self.low)) or 1)
        return self.start + part * (self.end - self.start)

    def ticks(self):
        if self.is_log:
            count = 6
            return [self.low * (self.high / self.low) ** (i / (count - 1)) for i in range(count)]
        step = 10 ** math.floor(math.log10(self.high or 1))
        step = next(s for s in (step / 5, step / 2, step, step * 2) if self.high / s <= 8)
        return [step * i for i in range(int(self.high / step) + 1)]


def text(x, y, words, anchor="middle"):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def frame(name, title, x_label, y_label, inside):
    """Writes a plot, and returns its place in a page."""
    style = "font-family:sans-serif;font-size:12px;background:white"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="400" style="{style}">',
        '<rect width="720" height="400" fill="white"/>',
        text(360, 20, title),
        text(360, 392, x_label),
        f'<g transform="translate(14 200) rotate(-90)">{text(0, 0, y_label)}</g>',
        '<path d="M70 40V340H560" fill="none" stroke="black"/>',
        *inside,
        "</svg>",
    ]
    os.makedirs(DIR, exist_ok=True)
    with open(os.path.join(DIR, name), "w") as file:
        file.write("\n".join(parts) + "\n")
    return f"![{title}]({name})\n"


def legend(names):
    for i, name in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        yield f'<rect x="572" y="{48 + 20 * i}" width="10" height="10" fill="{colour}"/>'
        yield text(588, 57 + 20 * i, name, "start")


def lines(name, title, x_label, y_label, series):
    """Plots lines over logarithmic axes: `series` has names and points."""
    points = [point for _, of in series for point in of]
    x = Axis([p[0] for p in points], 70, 560, True)
    y = Axis([p[1] for p in points], 340, 40, True)
    inside = list(legend([name for name, _ in series]))
    inside += [text(x.at(tick), 358, f"{tick:.4g}") for tick in x.ticks()]
    inside += [text(64, y.at(tick) + 4, f"{tick:.3g}", "end") for tick in y.ticks()]
    for i, (_, of) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in of)
        inside.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return frame(name, title, x_label, y_label, inside)


def bars(name, title, y_label, groups, series):
    """Plots groups of bars: `series` has names and a value for each group, or None."""
    values = [value for _, of in series for value in of if value is not None]
    y = Axis(values, 340, 40, False)
    inside = list(legend([name for name, _ in series]))
    inside += [text(64, y.at(tick) + 4, f"{tick:.3g}", "end") for tick in y.ticks()]
    width = 490 / len(groups)
    bar = width * 0.8 / len(series)
    for g, group in enumerate(groups):
        inside.append(text(70 + width * (g + 0.5), 358, group))
        for i, (_, of) in enumerate(series):
            if of[g] is None:
                continue
            left, top = 70 + width * (g + 0.1) + bar * i, y.at(of[g])
            colour = COLOURS[i % len(COLOURS)]
            size = f'width="{bar:.1f}" height="{340 - top:.1f}"'
            inside.append(f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="{colour}"/>')
    return frame(name, title, "", y_label, inside)
