"""How commands show problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from outbox_tasks.cli.shared.output import cell, indented
from outbox_tasks.operating.problems import Examination, Problem, Severity
from outbox_tasks.text import one_line, printable

if TYPE_CHECKING:
    from rich.padding import Padding
    from rich.text import Text

SIGNS = {Severity.ERROR: ("✗", "bold red"), Severity.WARNING: ("!", "yellow"), Severity.NOTE: ("i", "cyan")}


def for_programs(examination: Examination) -> list[dict[str, Any]]:
    return [asdict(problem) for problem in examination.problems]


def facts(examination: Examination) -> str:
    """One line for each problem, and below it one for each that follows from it."""
    lines = []
    for root in examination.problems:
        lines.append(f"{SIGNS[root.severity][0]} {one_line(root.fact)}")
        lines += [f"  so: {one_line(problem.fact)}" for problem in root.follows]
    return "\n".join(lines) or "✓ in order"


def shown(problems: Iterable[Problem], *, causes: bool) -> Iterator[Padding | Text]:
    """The problems with what to do about each. `causes`: also where they come from, as the doctor says."""
    from rich.text import Text

    for root in problems:
        sign, style = SIGNS[root.severity]
        heading = Text.assemble((f"{sign} ", style), cell(root.fact, style))
        yield heading.append(f"  [{root.code}]", "dim") if causes else heading
        if causes:
            yield indented(cell(root.cause, "dim"), 4)
        for line in root.remedy.splitlines():
            yield indented(Text.assemble(("→ ", "green"), (printable(line), "green")), 4)
        for problem in root.follows:
            yield indented(Text.assemble(("so: ", "dim"), cell(problem.fact, "dim")), 4)
