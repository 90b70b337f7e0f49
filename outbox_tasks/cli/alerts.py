"""`outbox-tasks alerts`: the problems that people were told of, and a test of the webhook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from outbox_tasks.cli.shared.options import limit_option
from outbox_tasks.cli.shared.output import answer, json_option
from outbox_tasks.cli.shared.store import open_store, relay_settings
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.telemetry.alerts import as_json, body, check, known, post, sentence
from outbox_tasks.text import moment, redacted


@click.command()
@click.option("--test", is_flag=True, help="Post a test to alert_webhook, and print its answer.")
@limit_option(50)
@json_option
def alerts(test: bool, limit: int) -> None:
    """List the problems that people were told of, open ones first. Exit code 1 if one is open."""
    if test:
        _test()
        return
    with open_store() as store:
        rows = known(store, limit)
    answer({"alerts": [as_json(row) for row in rows]}, _listed(rows) if rows else "There was no alert.")
    raise SystemExit(any(row.over_at is None for row in rows))


def _test() -> None:
    settings = relay_settings()
    if settings.alert_webhook is None:
        rule = "a test needs an address; set OUTBOX_ALERT_WEBHOOK, for example to https://hooks.example.com/…"
        raise ConfigurationError(setting="alert_webhook", value=None, rule=rule)
    check(settings)
    test = {**body([], settings.source), "text": f"A test: the alerts of outbox_tasks arrive here [{settings.source}]"}
    status, place = post(settings.alert_webhook, test), redacted(settings.alert_webhook)
    answer({"posted": place, "answer": status}, f"{place} accepted the test: {status}.")


def _listed(rows: Sequence[Any]) -> RenderableType:
    """Each alert: what, since when, and whether it is over."""
    lines: list[Text] = []
    for row in rows:
        end = f", over {moment(row.over_at)}" if row.over_at else ""
        lines += [
            Text(sentence(as_json(row)), "green" if row.over_at else "red"),
            Text(f"  since {moment(row.since)}{end}", "dim"),
        ]
    return Group(*lines)
