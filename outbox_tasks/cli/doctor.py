"""`outbox-tasks doctor`: what is wrong, why it matters and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.text import Text

from outbox_tasks.cli.shared.output import answer, cell, console, json_option, wants_json
from outbox_tasks.cli.shared.store import installed
from outbox_tasks.errors import ConfigurationError, SettingsFileError
from outbox_tasks.operating.doctor import CODES, Examination, examine, refused
from outbox_tasks.settings import Settings
from outbox_tasks.text import printable

STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


@click.command()
@click.option("--only", metavar="CODE", multiple=True, help="Only look for this finding; may be given again.")
@json_option
def doctor(only: tuple[str, ...]) -> None:
    """Look for what is wrong, and say why it matters and what to do about it. Exit code 1 if something is wrong.

    It looks at the database, its tables, open transactions, the broker, the workers, the messages and the destinations.
    It changes nothing, and takes some seconds at most. docs/doctor.md explains each finding by its code.
    """
    for code in only:
        if code not in CODES:
            raise click.BadParameter(f"there is no finding {code!r}; there are: {', '.join(sorted(CODES))}")
    found = _examined(only)
    answer(_plain(found))
    if not wants_json():
        _show(found)
    raise SystemExit(not found.healthy)


def _examined(only: tuple[str, ...]) -> Examination:
    try:
        app, settings = installed() or (None, Settings())
        return examine(settings, app, only)
    except (ConfigurationError, SettingsFileError) as reason:
        return refused(reason)


def _plain(found: Examination) -> dict[str, Any]:
    parts = found.parts
    return {
        "healthy": found.healthy,
        "findings": [{"subject": part.subject, **asdict(finding)} for part in parts for finding in part.findings],
        "in_order": [{"subject": part.subject, "fact": fact} for part in parts for fact in part.in_order],
        "not_looked_at": [part.subject for part in parts if part.skipped],
    }


def _show(found: Examination) -> None:
    """By subject: each finding with its remedy, then a few words on what is in order."""
    out = console()

    def say(text: Text, indent: int, first: str = "") -> None:
        for line in text.wrap(out, out.width - indent):
            line.rstrip()
            out.print(Text(first or " " * indent).append_text(line))
            first = ""

    for part in found.parts:
        out.print(Text(part.subject, "bold"))
        for finding in part.findings:
            heading = Text.assemble((finding.severity, STYLES[finding.severity]), " ", (finding.code, "bold"))
            say(heading, 2)
            say(cell(finding.fact), 4)
            say(cell(finding.cause, "dim"), 4)
            for line in finding.remedy.splitlines():
                say(Text(printable(line), "green"), 6, "    → ")
        if part.in_order:
            say(cell("In order: " + "; ".join(part.in_order) + "."), 2)
        if part.skipped:
            say(Text("The rest could not be looked at.", "dim"), 2)
        out.print()
    out.print(found.summary)
