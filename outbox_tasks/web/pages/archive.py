"""The archive: its days, how large they are, how long they are kept and where they are exported to."""

from __future__ import annotations

from starlette.responses import Response

from outbox_tasks.archive.days import days
from outbox_tasks.text import redacted, shell_line
from outbox_tasks.web import overview
from outbox_tasks.web.visit import Visit

SHOWN, KEPT = 100, 10.0
"""Days that are shown, and seconds for which a look at them is kept."""


def archive(visit: Visit) -> Response:
    """How large the archive is, and what becomes of it."""
    found = visit.look("archive", lambda: days(visit.store)[::-1], seconds=KEPT)
    settings = visit.settings
    return visit.show(
        "archive.html",
        found=overview.look_at(visit),
        days=found[:SHOWN],
        more=len(found) - SHOWN,
        bytes=sum(one.bytes for one in found),
        export=settings.archive_export and redacted(settings.archive_export),
        settings=settings,
        commands=[
            shell_line("export", *(() if settings.archive_export else ("--to", "s3://bucket/outbox"))),
        ],
    )
