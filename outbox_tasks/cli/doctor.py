"""`outbox-tasks doctor`: what is wrong, why it matters and what to do; and whom it was told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Group
from rich.text import Text

from outbox_tasks.cli.shared.output import answer, cell, json_option
from outbox_tasks.cli.shared.problems_shown import for_programs, shown
from outbox_tasks.cli.shared.store import installed, open_store, relay_settings
from outbox_tasks.errors import ConfigurationError, SettingsFileError
from outbox_tasks.operating.problems import CODES, Examination, examine, refused
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry.alerts import as_json, body, known, post, sentence
from outbox_tasks.text import moment, redacted


@click.command()
@click.option("--only", metavar="CODE", multiple=True, help="Only look for this problem; may be given again.")
@click.option("--alerts", is_flag=True, help="List the problems that people were told of, the open ones first.")
@click.option("--test-alert", is_flag=True, help="Post a test to alert_webhook, and print its answer.")
@json_option
def doctor(only: tuple[str, ...], alerts: bool, test_alert: bool) -> None:
    """Look at everything, and say what is wrong, why it matters and what to do about it. Exit code 1 if something is.

    It looks at the database, its tables, open transactions, the broker, the workers, the messages and the destinations.
    It changes nothing, and takes some seconds at most. docs/doctor.md explains each problem by its code.
    """
    if sum(map(bool, (only, alerts, test_alert))) > 1:
        raise click.UsageError("--only, --alerts and --test-alert exclude one another")
    if test_alert:
        _test_alert()
        return
    healthy = _list_alerts() if alerts else _examine(only)
    raise SystemExit(not healthy)


def _examine(only: tuple[str, ...]) -> bool:
    """Show the problems. Returns whether there are none."""
    for code in only:
        if code not in CODES:
            raise click.BadParameter(f"there is no problem {code!r}; there are: {', '.join(sorted(CODES))}")
    try:
        app, settings = installed() or (None, Settings())
        examination = examine(settings, app, deep=True, only=only)
    except (ConfigurationError, SettingsFileError) as reason:
        examination = refused(reason)
    facts = {
        "healthy": examination.quiet,
        "problems": for_programs(examination),
        "in_order": examination.in_order,
        "not_looked_at": examination.skipped,
    }
    answer(facts, _shown(examination))
    return examination.quiet


def _shown(examination: Examination) -> Group:
    """The problems, then a few words on what is in order."""
    lines = [*shown(examination.problems, causes=True)]
    parts = [cell(f"{subject}: {'; '.join(facts)}.", "dim") for subject, facts in examination.in_order.items()]
    if parts:
        lines += [Text(), Text("In order", "bold"), *parts]
    if examination.skipped:
        lines += [Text(), Text(f"Not all could be looked at of: {', '.join(examination.skipped)}.", "dim")]
    return Group(*lines, Text(), Text(examination.summary))


def _list_alerts() -> bool:
    """Show what people were told. Returns whether all of it is over."""
    with open_store() as store:
        rows = known(store, 50)
    answer({"alerts": [as_json(row) for row in rows]}, _alert_lines(rows) if rows else "There was no alert.")
    return all(row.over_at is not None for row in rows)


def _alert_lines(rows: Sequence[Any]) -> Group:
    """Each alert: what, since when, and whether it is over."""
    lines: list[Text] = []
    for row in rows:
        end = f", over {moment(row.over_at)}" if row.over_at else ""
        lines.append(Text(sentence(as_json(row)), "green" if row.over_at else "red"))
        lines.append(Text(f"  since {moment(row.since)}{end}", "dim"))
    return Group(*lines)


def _test_alert() -> None:
    settings = relay_settings()
    if settings.alert_webhook is None:
        rule = "a test needs an address; set OUTBOX_ALERT_WEBHOOK, for example to https://hooks.example.com/…"
        raise ConfigurationError(setting="alert_webhook", value=None, rule=rule)
    test = {**body([], settings.source), "text": f"A test: the alerts of outbox_tasks arrive here [{settings.source}]"}
    status, place = post(settings.alert_webhook, test), redacted(settings.alert_webhook)
    answer({"posted": place, "answer": status}, f"{place} accepted the test: {status}.")
