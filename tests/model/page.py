"""Writes the generated parts of tables.md, and the table of moves in docs/architecture.md."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from lab.moves import TABLE
from tests.model import runs
from tests.model.base import Kind, Step
from tests.model.found import Found
from tests.model.run_search import RunSearch
from tests.model.space import Space
from tests.model.state import Row, Rows

PAGE = Path(__file__).parents[2] / "docs" / "model.md"
MAP = PAGE.with_name("architecture.md")
TABLES = Path(__file__).with_name("tables.md")

Edges = dict[tuple[str, Kind], dict[tuple[str, str], None]]
"""For each step what it makes of a row: from which state to which."""


def edges(space: Space) -> Edges:
    """What a space that was searched knows of its steps."""
    found: Edges = defaultdict(dict)
    for before, step in space.worked_out():
        for change in _changes(before, step):
            found[_told(step), step.kind][change] = None
    return found


def _told(step: Step) -> str:
    what = step.what.removesuffix(", and the broker keeps the task").removesuffix(" in one bundle")
    return what.format("a message")


def _changes(before: Rows, step: Step) -> Iterable[tuple[str, str]]:
    for n in step.messages:
        yield state_of(before[n]), state_of(step.rows[n])


PLACES = {
    "unwritten": "none",
    "rolled back": "none",
    "open": "not committed",
    "sent": "archived",
    "discarded": "archived",
}


def state_of(row: Row) -> str:
    """As docs/architecture.md calls it; whether its time has come, too."""
    if row.place != "pending":
        return PLACES.get(row.place, row.place)
    name = "begun" if row.begun else "leased" if row.leased else "pending" if row.due else "waiting"
    return f"{name}, run out" if row.leased and row.due else name


def run_edges(search: RunSearch) -> Edges:
    """The same of a search of the runs."""
    found: Edges = defaultdict(dict)
    for (what, kind), changes in search.edges.items():
        told = what.removesuffix(", and the broker delivers the copy again").format("a task")
        for before, after in changes:
            found[told, kind][run_state_of(before), run_state_of(after)] = None
    return found


def run_state_of(row: runs.Row) -> str:
    """As docs/architecture.md calls it."""
    if row.place != "pending":
        return "archived" if row.place in runs.OVER else row.place
    if row.handed:
        name = "running" if row.begun else "handed over"
    elif row.lease:
        name = "begun" if row.begun else "leased"
    else:
        return "pending" if row.due else "waiting"
    return f"{name}, run out" if row.due else name


def variant_line(name: str, found: Found) -> str:
    return f"| {name} | {found.states:,} | {found.steps:,} |"


def bug_line(name: str, found: Found) -> str:
    return f"| {name} | {found.broken} | {len(found.trace)} |"


def step_lines(found: Edges) -> list[str]:
    """The table of transitions. A step that leaves all rows as they are has a dash."""
    lines = []
    for (what, kind), changes in found.items():
        moves = sorted({f"{one} → {other}" for one, other in changes if one != other})
        lines.append(f"| {what} | {kind} | {'; '.join(moves) or '–'} |")
    return sorted(lines)


def move_lines() -> list[str]:
    """All that a message may do."""
    return [
        f"| {each.name} | {_places(each.before)} → {'; '.join(each.after)} | {each.condition} | {each.verbs} |"
        for each in TABLE
    ]


def _places(places: tuple[str, ...]) -> str:
    """Places, and whether it matters that their leases have run out."""
    found: dict[str, None] = {}
    for place in places:
        name = place.removesuffix(", run out")
        whole = name == place and f"{name}, run out" not in places
        if whole and name in ("leased", "begun", "handed over", "running"):
            found[f"{name}, in time"] = None
        else:
            found[name if name in places else place] = None
    return "; ".join(found)


def write(part: str, lines: Iterable[str], page: Path = TABLES) -> None:
    """Put these lines in the place of that part of a page."""
    text = page.read_text(encoding="utf-8")
    pattern = rf"(<!-- {part}:[^\n]*-->\n(?:\|[^\n]*\n){{2}}).*?(\n?<!-- end -->)"
    body = "".join(f"{line}\n" for line in lines)
    page.write_text(
        re.sub(pattern, lambda found: found[1] + body + "<!-- end -->", text, flags=re.DOTALL), encoding="utf-8"
    )


def part(name: str, page: Path = TABLES) -> list[str]:
    """The lines of that part of a page."""
    shown = page.read_text(encoding="utf-8")
    return shown.partition(f"<!-- {name}:")[2].partition("<!-- end -->")[0].splitlines()[3:]
