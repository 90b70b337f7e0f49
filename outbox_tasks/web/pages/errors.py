"""What the dead letters died of: by destination and code, and in groups of one error each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.find import COUNTED_AT_MOST, DEAD, GROUPS_AT_MOST, Filter, Lookup
from outbox_tasks.operating.messages.paging import read_page
from outbox_tasks.web import overview
from outbox_tasks.web.visit import Visit

SIZE, LAST = 50, 20
"""Rows on a page, and messages of a group that are shown."""

TYPES = 3
"""Event types of a row that are named."""


def errors(visit: Visit) -> Response:
    """What the dead letters died of, by destination and code, the most first; with both, the groups of these."""
    wanted = filters.asked(visit.query)
    found, complete = visit.look(f"errors {wanted.destination}", lambda: Lookup(visit.store).groups(wanted.destination))
    folds = _folded(found, wanted.code)
    inside = wanted.destination is not None and wanted.code is not None
    rows: list[Any] = [group for fold in folds for group in fold["groups"]] if inside else folds
    page = _page(visit.ask("page"), len(rows))

    def at(number: int) -> str:
        return visit.url("/errors", destination=wanted.destination, error=wanted.code, page=number)

    return visit.show(
        "errors.html",
        rows=rows[page * SIZE : (page + 1) * SIZE],
        inside=inside,
        wanted=wanted,
        number=len(rows),
        groups=len(found),
        former=at(page) if page else None,
        next=at(page + 2) if (page + 1) * SIZE < len(rows) else None,
        complete=complete,
        looked=GROUPS_AT_MOST,
        counted=COUNTED_AT_MOST,
        named=TYPES,
        going=visit.look("acts", lambda: overview.under_way(visit.acts.going())),
    )


def _folded(groups: Iterable[dict[str, Any]], code: str | None) -> list[dict[str, Any]]:
    """The groups by destination and code, the most dead letters first; those of one code only. An error may have a text
    for each customer, and so many groups."""
    folds: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for group in groups:
        if code in (None, group["last_error_code"]):
            folds.setdefault((group["destination"], group["last_error_code"]), []).append(group)
    found = [
        {
            "destination": destination,
            "last_error_code": last_error_code,
            "groups": inside,
            "count": sum(group["count"] for group in inside),
            "some": any(group["count"] >= COUNTED_AT_MOST for group in inside),
            "first_at": min(group["first_at"] for group in inside),
            "dead_at": max(group["dead_at"] for group in inside),
            "types": list(dict.fromkeys(group["event_type"] for group in inside)),
        }
        for (destination, last_error_code), inside in folds.items()
    ]
    return sorted(found, key=lambda fold: -fold["count"])


def _page(said: str | None, rows: int) -> int:
    """Which page is asked for; the first one is 0."""
    number = int(said) if said is not None and re.fullmatch("[0-9]{1,6}", said) else 1
    return max(0, min(number, -(-rows // SIZE)) - 1)


def group(visit: Visit) -> Response:
    """One group: what, how many, since when, and the last messages."""
    name = visit.arguments["group"]
    if not filters.GROUP.fullmatch(name):
        raise HTTPException(404, "There is no such error group.")
    wanted, lookup = Filter(states=(DEAD,), group=name), Lookup(visit.store)
    found, page = visit.look(f"group {name}", lambda: (lookup.group(name), read_page(visit.store, wanted, LAST)))
    return visit.show(
        "group.html",
        name=name,
        group=found,
        last=page.messages,
        counted=COUNTED_AT_MOST,
        configured=found is None or found["destination"] in visit.settings.destinations,
        commands={action: filters.command_line(action, wanted) for action in filters.CHANGEABLE},
    )
