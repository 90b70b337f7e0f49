"""`outbox-tasks alerts`: the alerts that people were sent, and a test of the webhook."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from outbox_tasks.cli.shared.options import limit_option
from outbox_tasks.cli.shared.output import answer, json_option
from outbox_tasks.cli.shared.store import open_store, relay_settings
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.telemetry.alerts import webhook
from outbox_tasks.telemetry.alerts.table import AlertTable
from outbox_tasks.text import many, moment, one_line, redacted


@click.command()
@click.option("--test", is_flag=True, help="Post a test to alert_webhook, and print its answer.")
@limit_option(50)
@json_option
def alerts(test: bool, limit: int) -> None:
    """List the alerts that people were sent, open ones first. Exit code 1 if one is open."""
    if test:
        _test()
        return
    with open_store() as store:
        rows = AlertTable(store).known(limit)
    found = [{**webhook.as_json(row, store.settings.source), "told_at": row.told_at} for row in rows]
    answer({"alerts": found}, _listed(rows) if rows else "There was no alert.")
    raise SystemExit(any(row.over_at is None for row in rows))


def _test() -> None:
    settings = relay_settings()
    if settings.alert_webhook is None:
        rule = "a test needs an address; set OUTBOX_ALERT_WEBHOOK, for example to https://hooks.example.com/…"
        raise ConfigurationError(setting="alert_webhook", value=None, rule=rule)
    webhook.check(settings)
    said, place = webhook.post(settings.alert_webhook, webhook.test(settings.source)), redacted(settings.alert_webhook)
    answer({"posted": place, "answer": said}, f"{place} accepted the test: {said}.")


def _listed(rows: list[Any]) -> RenderableType:
    """Each alert: its state and how often it happened, when, and what."""
    lines: list[Text] = []
    for row in rows:
        line = Text("over" if row.over_at else "open", "green" if row.over_at else "red")
        line.append(f"  {row.kind}  {many(row.count, 'time')}", "bold")
        lines += [
            line,
            Text(f"  since {moment(row.first_at)}, last {moment(row.last_at)}", "dim"),
            Text(f"  {one_line(webhook.text(row, listed=True))}"),
        ]
    return Group(*lines)
