"""The table of moves in docs/architecture.md, and how the model's places are called there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from lab.moves import NOWHERE, TABLE
from tests.model.pipe.hop_state import Db

MODEL = Path(__file__).parents[2] / "docs" / "model.md"
MAP = MODEL.with_name("architecture.md")
LATE = ", run out"


def place(db: Db, number: int) -> str:
    """Where a message of the model is, in the words of `lab/moves.py`."""
    for lease in db.leases:
        if number in lease.numbers:
            return ("begun" if lease.begun else "leased") + (LATE if lease.over else "")
    where = db.rows[number].place
    return NOWHERE if where == "none" else where


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
        name = place.removesuffix(LATE)
        whole = name == place and f"{name}{LATE}" not in places
        if whole and name in ("leased", "begun", "handed over", "running"):
            found[f"{name}, in time"] = None
        else:
            found[name if name in places else place] = None
    return "; ".join(found)


def write(part: str, lines: Iterable[str], page: Path) -> None:
    """Put these lines in the place of that part of a page."""
    text = page.read_text(encoding="utf-8")
    pattern = rf"(<!-- {part}:[^\n]*-->\n(?:\|[^\n]*\n){{2}}).*?(\n?<!-- end -->)"
    body = "".join(f"{line}\n" for line in lines)
    page.write_text(
        re.sub(pattern, lambda found: found[1] + body + "<!-- end -->", text, flags=re.DOTALL), encoding="utf-8"
    )


def part(name: str, page: Path) -> list[str]:
    """The lines of that part of a page."""
    shown = page.read_text(encoding="utf-8")
    return shown.partition(f"<!-- {name}:")[2].partition("<!-- end -->")[0].splitlines()[3:]
