"""The archive: its days, how large they are, how long they are kept and where they are exported to."""

from __future__ import annotations

from starlette.responses import Response

from outbox_tasks.operating.days import days
from outbox_tasks.text import redacted, shell_line
from outbox_tasks.web import overview
from outbox_tasks.web.visit import ROWS_SHOWN, Visit


def archive(visit: Visit) -> Response:
    """How large the archive is, and what becomes of it."""
    kept = visit.look("archive", lambda: days(visit.store)[::-1], seconds=10.0)
    settings = visit.settings
    return visit.show(
        "archive.html",
        outbox=overview.status_of(visit),
        days=kept[:ROWS_SHOWN],
        days_left_out=len(kept) - ROWS_SHOWN,
        bytes=sum(day.bytes for day in kept),
        export=settings.archive_export and redacted(settings.archive_export),
        settings=settings,
        command=shell_line("export", *(() if settings.archive_export else ("--to", "s3://bucket/outbox"))),
    )
