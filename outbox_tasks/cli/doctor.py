"""`outbox-tasks doctor`: what is wrong, why it matters and what to do."""

from __future__ import annotations

import click
from rich.console import Group
from rich.text import Text

from outbox_tasks.cli.shared.output import answer, cell, json_option
from outbox_tasks.cli.shared.problems_shown import for_programs, shown
from outbox_tasks.cli.shared.store import installed
from outbox_tasks.errors import ConfigurationError, SettingsFileError
from outbox_tasks.operating.problems import CODES, Examination, examine, refused
from outbox_tasks.settings import Settings


@click.command()
@click.option("--only", metavar="CODE", multiple=True, help="Only look for this problem; may be given again.")
@json_option
def doctor(only: tuple[str, ...]) -> None:
    """Look at everything, and say what is wrong, why it matters and what to do about it. Exit code 1 if something is.

    It looks at the database, its tables, open transactions, the broker, the workers, the messages and the destinations.
    It changes nothing, and takes some seconds at most. docs/doctor.md explains each problem by its code.
    """
    for code in only:
        if code not in CODES:
            raise click.BadParameter(f"there is no problem {code!r}; there are: {', '.join(sorted(CODES))}")
    examination = _examined(only)
    answer(
        {
            "healthy": examination.quiet,
            "problems": for_programs(examination),
            "in_order": examination.in_order,
            "not_looked_at": examination.skipped,
        },
        _shown(examination),
    )
    raise SystemExit(not examination.quiet)


def _examined(only: tuple[str, ...]) -> Examination:
    try:
        app, settings = installed() or (None, Settings())
        return examine(settings, app, deep=True, only=only)
    except (ConfigurationError, SettingsFileError) as reason:
        return refused(reason)


def _shown(examination: Examination) -> Group:
    """The problems, then a few words on what is in order."""
    lines = [*shown(examination.problems, causes=True)]
    parts = [cell(f"{subject}: {'; '.join(facts)}.", "dim") for subject, facts in examination.in_order.items()]
    if parts:
        lines += [Text(), Text("In order", "bold"), *parts]
    if examination.skipped:
        lines += [Text(), Text(f"Not all could be looked at of: {', '.join(examination.skipped)}.", "dim")]
    return Group(*lines, Text(), Text(examination.summary))
