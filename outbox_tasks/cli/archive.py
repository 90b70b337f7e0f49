"""The commands that keep it small: housekeeping, and the archive as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from outbox_tasks.cli.common import echo_json, json_option, open_store, progress_console, say
from outbox_tasks.cli.texts import many

if TYPE_CHECKING:
    from outbox_tasks.operating.archive.export import Day, Told


@click.command(short_help="Do the housekeeping that beat asks for every hour.")
@json_option
def maintain(as_json: bool) -> None:
    """Do the housekeeping that beat asks for every hour, until nothing is left to do.

    Makes the archive's next partitions, exports and drops its old days, forgets old inbox marks, counts and acts. Exit
    code 1 if a day that was to be dropped is still there, or anything else has failed.
    """
    from outbox_tasks.operating import retention
    from outbox_tasks.telemetry.counters import Counters

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
    kept = {str(day): why for day, why in done.trimmed.kept.items()}
    if as_json:
        found = {"partitions": made, "marks": forgotten, "dropped": sorted(dropped), "kept": kept}
        echo_json({**found, "failed": done.failed})
    else:
        say(f"Made {many(made, 'partition')}, forgot {many(forgotten, 'mark')}, dropped {many(len(dropped), 'day')}.")
        for day, why in kept.items():
            say(f"{day} is still there: {why}", err=True)
        for what in done.failed:
            say(what, err=True)
    raise SystemExit(bool(kept or done.failed))


@click.command()
@click.option("--day", type=click.DateTime(["%Y-%m-%d"]), help="This day (UTC); without it, all that are over.")
@click.option("--to", "url", metavar="URL", help="Where to, instead of archive_export: a URL as it takes them.")
@json_option
def export(day: datetime | None, url: str | None, as_json: bool) -> None:
    """Write days of the archive to files, without dropping them.

    What has been written and verified before is not written again.
    """
    from outbox_tasks.operating import retention

    with open_store() as store:
        settings = store.settings if url is None else store.settings.replace(archive_export=url)
        if settings.archive_export is None:
            raise click.UsageError("Where to? Give --to, or set OUTBOX_ARCHIVE_EXPORT.")
        with _progress(as_json) as told:
            parts = retention.export_days(store, settings.archive_export, day.date() if day else None, told)
    if as_json:
        echo_json({"parts": [asdict(part) for part in parts]})
        return
    for part in parts:
        done = "" if part.written else ", there already"
        say(f"{part.file}: {many(part.rows, 'row')}, {many(part.bytes, 'byte')}, verified{done}")
    if not parts:
        say("There are no rows to export." if day is None else f"There are no rows of {day:%Y-%m-%d}.")


@contextmanager
def _progress(silent: bool) -> Iterator[Callable[[Day], Told]]:
    """A line for each day."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console(), disable=silent, transient=True) as progress:

        def begun(day: Day) -> Told:
            task = progress.add_task(str(day.day), total=None)
            return lambda done, total: progress.update(task, advance=done, total=total)

        yield begun
