"""Writes the figures that were kept into docs/performance.md, with what each bench measures, and the plot."""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

from bench.machine import sentence
from bench.report import NAMES, Figures, Report

HERE = Path(__file__).parent
PAGE, PLOT = HERE.parent / "docs/performance.md", HERE.parent / "docs/images/performance.svg"
BEGIN, END = "<!-- Written by `python -m bench page`: -->\n", "<!-- until here -->\n"

WIDTH, BAR, GAP, LEFT, RIGHT, TOP = 760, 22, 14, 230, 170, 44


def write() -> list[str]:
    """Write the page and the plot. Returns the benches of which no figures were kept."""
    PAGE.write_text(page(PAGE.read_text()))
    if (report := Report.read("yardsticks")) is not None:
        PLOT.write_text(plot(report.figures[0]))
    return [name for name in NAMES if Report.read(name) is None]


def page(text: str) -> str:
    """The page with the sections written anew."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    kept = {name: Report.read(name) for name in NAMES}
    sections = [section(name, report) for name, report in kept.items() if report is not None]
    others = ", ".join(f"`{name}`" for name, report in kept.items() if report is None)
    said = "`python -m bench --help` says what each measures."
    without = f"### Without figures\n\n{others}: {said}\n\n" if others else ""
    return f"{before}{BEGIN}\n{''.join(sections)}{without}{END}{after}"


def explained(name: str) -> str:
    """What a bench measures, in the words of its file."""
    return str(ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())))


def section(name: str, report: Report) -> str:
    """What a bench measures, and what it found."""
    parts = [f"### {name}", explained(name)]
    if name == "yardsticks":
        parts.append("![Messages a second: the relay between its yardsticks](images/performance.svg)")
    parts += map(table, report.figures)
    said = {option: value for option, value in report.options.items() if value not in (None, "")}
    said.pop("against", None)  # where the other release lay on that machine
    options = " ".join(f"{option}={value}" for option, value in said.items())
    parts.append(f"{report.at[:10]}, release {report.version}, {options}. {sentence(report.machine)}")
    return "\n\n".join(parts) + "\n\n"


def table(figures: Figures) -> str:
    """A table in Markdown."""
    lines = [[figures.title, *figures.columns], ["---", *["---:"] * len(figures.columns)], *figures.lines()]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\n{figures.note}" if figures.note else text


def plot(figures: Figures) -> str:
    """Bars of messages a second, with a line from the lowest to the highest round, as SVG."""
    most = max(max(row["rounds"]) for row in figures.rows.values())
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + len(figures.rows) * (BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        '<text x="12" y="24" font-size="15" font-weight="bold">Messages a second</text>',
        f'<text x="{LEFT}" y="24" fill="#666">median of the rounds; the line: lowest to highest</text>',
    ]
    for number, (name, row) in enumerate(figures.rows.items()):
        top = TOP + number * (BAR + GAP)
        middle, end = top + BAR / 2, LEFT + row["messages/s"] * scale
        low, high = (LEFT + value * scale for value in (min(row["rounds"]), max(row["rounds"])))
        colour = "#2a78b5" if name.startswith("relay") else "#b8bec6"
        said = f"{row['messages/s']:,}/s, {row['CPU µs each']:,} µs CPU"
        parts += [
            f'<text x="{LEFT - 8}" y="{middle + 5}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{end - LEFT:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 5}v10M{high:.1f} {middle - 5}v10"'
            ' stroke="#222"/>',
            f'<text x="{max(end, high) + 8:.1f}" y="{middle + 5}">{said}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
