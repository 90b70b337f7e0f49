"""`outbox-tasks maintain`, `export` and `purge`: what is kept, and what goes."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import click

from outbox_tasks.archive.export import Part
from outbox_tasks.cli.shared.output import answer, json_option, remark, say, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating import retention
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
    remark(*(f"{day} is still there: {why}" for day, why in kept.items()), *done.failed)
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
