"""`outbox-tasks maintain`, `export` and `purge`: what is kept, and what goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import date, datetime, timedelta

import click

from outbox_tasks.archive.export import Part
from outbox_tasks.cli.shared.acts import do
from outbox_tasks.cli.shared.options import ActOptions, Duration, act_options, as_filter
from outbox_tasks.cli.shared.output import answer, json_option, remark, say, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating import retention
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.operating.messages.preview import Choice
from outbox_tasks.relay.store import Store
from outbox_tasks.telemetry.counters import Counters
from outbox_tasks.text import many


@click.command()
@json_option
def maintain() -> None:
    """Do the housekeeping that beat asks for every hour, until nothing is left to do.

    It makes the archive's next partitions, exports and drops its old days, and deletes old inbox marks, counts and
    audit entries. Exit code 1 if it could not drop an old day, or if anything else failed.
    """
    dropped: set[str] = set()
    made = forgotten = 0
    with open_store() as store:
        while True:
            done = retention.maintain(store)
            made, forgotten = made + done.made, forgotten + done.forgotten
            dropped |= {str(day) for day in done.trimmed.dropped}
            if not done.more:
                break
        counters = Counters(lambda: store)
        counters.ran("maintain")
        counters.close()
    kept = done.trimmed.kept
    left = {str(day): why for day, why in kept.items()}
    found = {"partitions": made, "marks": forgotten, "dropped": sorted(dropped), "kept": left, "failed": done.failed}
    counts = many(made, "partition"), many(forgotten, "mark"), many(len(dropped), "day")
    answer(found, "Made {}, forgot {}, dropped {}.".format(*counts))
    remark(*_still_there(kept), *done.failed)
    raise SystemExit(bool(kept or done.failed))


@click.command()
@click.option(
    "--day", type=click.DateTime(["%Y-%m-%d"]), help="Only this day (UTC). Without it: all days that are over."
)
@click.option("--to", "url", metavar="URL", help="Write there, and not to archive_export.")
@json_option
def export(day: datetime | None, url: str | None) -> None:
    """Write days of the archive to files, without dropping them.

    It skips files that it has written and verified before.
    """
    with open_store() as store:
        settings = store.settings if url is None else store.settings.replace(archive_export=url)
        if settings.archive_export is None:
            raise click.UsageError("Where to? Give --to, or set OUTBOX_ARCHIVE_EXPORT.")
        parts = retention.export_days(store, settings.archive_export, day.date() if day else None, _say)
    none = "There are no rows to export." if day is None else f"There are no rows of {day:%Y-%m-%d}."
    answer({"parts": [asdict(part) for part in parts]}, None if parts else none)


def _say(part: Part) -> None:
    """A line for each day, as soon as it is there."""
    if not wants_json():
        there = "" if part.written else ", there already"
        say(f"{part.file}: {many(part.rows, 'row')}, {many(part.bytes, 'byte')}, verified{there}")


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
    remark(*_still_there(trimmed.kept))
    raise SystemExit(bool(trimmed.kept))


def _still_there(kept: dict[date, str]) -> Iterator[str]:
    return (f"{day} is still there: {why}" for day, why in kept.items())
