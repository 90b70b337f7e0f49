"""What people have been told of, and whether they can be told."""

from __future__ import annotations

from typing import Any

import click

from outbox_tasks.cli.common import console, echo_json, json_option, open_store, say


@click.command(short_help="List what people have been told of.")
@click.option("--test", is_flag=True, help="Post a test to the alert_webhook, and say what it answers.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="So many at most.")
@json_option
def alerts(test: bool, limit: int, as_json: bool) -> None:
    """List what people have been told of, what is still going on first. Exit code 1 if there is any of that."""
    if test:
        _test(as_json)
        return
    from outbox_tasks.telemetry.alerts import webhook
    from outbox_tasks.telemetry.alerts.board import Board

    with open_store() as store:
        rows = Board(store).known(limit)
    found = [{**webhook.described(row, store.settings.source), "told_at": row.told_at} for row in rows]
    going_on = any(row.over_at is None for row in rows)
    if as_json:
        echo_json({"alerts": found})
    elif found:
        console().print(_table(rows))
    else:
        say("There has been nothing to tell.")
    raise SystemExit(going_on)


def _test(as_json: bool) -> None:
    from outbox_tasks.errors import ConfigurationError
    from outbox_tasks.redaction import redacted
    from outbox_tasks.settings import Settings
    from outbox_tasks.telemetry.alerts import webhook

    settings = Settings()
    if settings.alert_webhook is None:
        rule = "there is nowhere to post a test to; set OUTBOX_ALERT_WEBHOOK, for example https://hooks.example.com/…"
        raise ConfigurationError(setting="alert_webhook", value=None, rule=rule)
    webhook.check(settings)
    answer = webhook.post(settings.alert_webhook, webhook.test(settings.source))
    if as_json:
        echo_json({"posted": redacted(settings.alert_webhook), "answer": answer})
    else:
        say(f"{redacted(settings.alert_webhook)} has taken the test: {answer}.")


def _table(rows: list[Any]) -> Any:
    from rich.table import Table

    from outbox_tasks.cli.texts import cell
    from outbox_tasks.telemetry.alerts import webhook

    table = Table("state", "kind", "since", "last", "times", "what")
    for row in rows:
        state = cell("over", "green") if row.over_at else cell("open", "red")
        since, last = (f"{time:%Y-%m-%d %H:%M}" for time in (row.first_at, row.last_at))
        table.add_row(state, cell(row.kind), since, last, f"{row.count:,}", cell(webhook.text(row)))
    return table
