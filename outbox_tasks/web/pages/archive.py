"""The archive: its days, how large they are, how long they are kept and where they are exported to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date
from typing import Any

from outbox_tasks.operating.archive import statements
from outbox_tasks.operating.archive.partitions import day_of
from outbox_tasks.text import redacted, shell_line
from outbox_tasks.web import overview
from outbox_tasks.web.http import Response
from outbox_tasks.web.visit import Visit

SHOWN, KEPT = 100, 10.0
"""Partitions that are shown, and seconds for which a look at them is kept."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A table of the archive."""

    name: str
    day: date | None
    """None: it has rows of several days."""
    state: str
    bytes: int
    """With its indexes."""


def archive(visit: Visit) -> Response:
    """How large the archive is, and what becomes of it."""
    found = visit.look("archive", lambda: _read(visit), seconds=KEPT)
    settings = visit.settings
    return visit.show(
        "archive.html",
        found=overview.look_at(visit),
        partitions=found[:SHOWN],
        more=len(found) - SHOWN,
        bytes=sum(one.bytes for one in found),
        export=settings.archive_export and redacted(settings.archive_export),
        settings=settings,
        commands=[
            shell_line("export", *(() if settings.archive_export else ("--to", "s3://bucket/outbox"))),
            shell_line("purge", "--older-than", "30d", "--why", "…"),
        ],
    )


def _read(visit: Visit) -> list[Partition]:
    """The tables of the archive: those of no day first, then the latest day."""
    found = [_partition(row) for row in visit.store.rows(statements.partitions(visit.store.tables), {})]
    return sorted(found, key=lambda one: (one.day is None, one.day or date.min), reverse=True)


def _partition(row: Any) -> Partition:
    day = day_of(row.name, row.since, row.until)
    state = "made ahead" if day and day > row.now.astimezone(UTC).date() else "kept" if row.attached else "detached"
    if row.name == statements.DEFAULT:
        state = "for days without one of their own"
    elif row.name.startswith(statements.GONE):
        state = "about to be dropped"
    elif row.name.startswith(statements.REST):
        state = "its rows are moved back"
    return Partition(row.name, day, state, row.bytes)
