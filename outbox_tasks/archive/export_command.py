"""`outbox-tasks export`: write days of the archive to files."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import click

from outbox_tasks.archive.export import Part, export_days
from outbox_tasks.cli.shared.output import answer, json_option, say, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.text import many


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
        parts = export_days(store, settings.archive_export, day.date() if day else None, _say)
    none = "There are no rows to export." if day is None else f"There are no rows of {day:%Y-%m-%d}."
    answer({"parts": [asdict(part) for part in parts]}, None if parts else none)


def _say(part: Part) -> None:
    """A line for each day, as soon as it is there."""
    if not wants_json():
        there = "" if part.written else ", there already"
        say(f"{part.file}: {many(part.rows, 'row')}, {many(part.bytes, 'byte')}, verified{there}")
