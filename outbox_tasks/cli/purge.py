"""`outbox-tasks purge`: delete old messages for good."""

from __future__ import annotations

from datetime import timedelta

import click

from outbox_tasks.cli.shared.acts import do
from outbox_tasks.cli.shared.options import ActOptions, Duration, act_options, as_filter
from outbox_tasks.cli.shared.output import answer, say, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating import retention
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.operating.messages.preview import Choice
from outbox_tasks.relay.store import Store
from outbox_tasks.text import many


@click.command()
@click.option(
    "--older-than", type=Duration(), required=True, metavar="TIME", help="Sent, or dead, for longer than this: 30d."
)
@click.option("--dead", is_flag=True, help="Delete dead letters, not days of the archive.")
@click.option("--destination", metavar="NAME", help="With --dead: only messages to this destination.")
@act_options
def purge(older_than: float, dead: bool, destination: str | None, options: ActOptions) -> None:
    """Delete old messages for good: whole days of the archive, or dead letters.

    With `archive_export` set, a day is exported first. Retention deletes old days by itself: see `archive_retention`.
    """
    if destination is not None and not dead:
        raise click.UsageError("--destination goes with --dead: the archive is kept by days")
    with open_store() as store:
        if dead:
            choice = Choice("purge", as_filter(("dead",), None, destination=destination))
            do(store, choice, options, lambda now: now - timedelta(seconds=older_than))
        else:
            _purge_archive(store, timedelta(seconds=older_than), options)


def _purge_archive(store: Store, older_than: timedelta, options: ActOptions) -> None:
    days = retention.days_before(store, older_than)
    if not wants_json():
        older = f"{many(len(days), 'day')} of the archive {'is' if len(days) == 1 else 'are'} wholly older"
        say(f"{older}: {', '.join(map(str, days))}" if days else "No day of the archive is wholly older.")
    if not options.agreed({"days": days}, "Delete them?", empty=not days):
        return
    operator = Operator(store, options.who, options.why)
    with operator.audited("purge", {"older_than": older_than.total_seconds()}) as facts:
        trimmed = retention.drop_days(store, older_than)
        facts |= {
            "days": [str(day) for day in trimmed.dropped],
            "kept": {str(day): why for day, why in trimmed.kept.items()},
        }
    answer(facts, f"{many(len(trimmed.dropped), 'day')} deleted.")
    if not wants_json():
        for day, why in trimmed.kept.items():
            say(f"{day} is still there: {why}", err=True)
    raise SystemExit(bool(trimmed.kept))
