"""`outbox-tasks export`: the archive as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from outbox_tasks.cli.shared.output import answer, console, json_option, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating import retention
from outbox_tasks.operating.archive.days import Day
from outbox_tasks.operating.archive.export import Progress as RowProgress
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
        with _progress() as progress:
            parts = retention.export_days(store, settings.archive_export, day.date() if day else None, progress)
    lines = [
        f"{part.file}: {many(part.rows, 'row')}, {many(part.bytes, 'byte')}, verified"
        + ("" if part.written else ", there already")
        for part in parts
    ]
    none = "There are no rows to export." if day is None else f"There are no rows of {day:%Y-%m-%d}."
    answer({"parts": [asdict(part) for part in parts]}, "\n".join(lines) or none)


@contextmanager
def _progress() -> Iterator[Callable[[Day], RowProgress]]:
    """A line for each day."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), disable=wants_json(), transient=True) as progress:

        def begun(day: Day) -> RowProgress:
            task = progress.add_task(str(day.date), total=None)
            return lambda done, total: progress.update(task, advance=done, total=total)

        yield begun
