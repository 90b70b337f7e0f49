"""Messages: a list with filters, page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.errors import DatabaseTooSlow, InvalidFilter
from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.find import STATES, Filter
from outbox_tasks.operating.messages.life import error_of
from outbox_tasks.operating.messages.paging import Cursor, read_page
from outbox_tasks.web.visit import Visit

SIZE = 50
"""Messages on a page."""

PATIENCE = 2.0
"""Seconds that each statement of a search may run."""

CHEAP = 2_000
"""A list for which so many rows were looked at is not looked for again every two seconds."""

FIELDS = (
    ("destination", "Destination", "orders"), ("type", "Event type", "order.*"), ("key", "Key", ""),
    ("error", "Error code or group", "http_400"), ("older-than", "Written more than … ago", "15m"),
    ("newer-than", "Written less than … ago", "2h"),
)  # fmt: skip
"""The filters that are texts: the name, the label and an example of each."""


@dataclass
class Asked:
    """What a person filled in."""

    wanted: Filter = field(default_factory=Filter)
    at: Cursor | None = None
    wrong: dict[str, str] = field(default_factory=dict)
    """What is wrong, by the name of the field."""


def messages(visit: Visit) -> Response:
    """The messages of the filters."""
    asked = _asked(visit.query)
    query = {name: [value for value in values if value.strip()] for name, values in visit.query.items()}
    names: dict[str, Any] = {"asked": asked, "query": query, "fields": FIELDS, "states": STATES, "error_of": error_of}
    names["said"] = {name: ", ".join(values) for name, values in query.items() if name != "at" and values}
    if not asked.wrong:
        try:
            with visit.searches.by(visit.person.name):
                read = partial(read_page, visit.store, asked.wanted, SIZE, asked.at, limit=PATIENCE)
                page = visit.look(f"messages {asked.wanted} {asked.at}", read)
        except DatabaseTooSlow:
            raise HTTPException(
                400, f"This search takes more than {PATIENCE:.0f} s. Name a destination or a key."
            ) from None
        except ValueError:
            asked.wrong["at"] = "This page is one of a list with other filters."
    if asked.wrong:
        return visit.show("messages.html", status=400, again=None, page=None, **names)
    if asked.at or page.looked > CHEAP:
        names["again"] = None

    def list_at(cursor: Cursor | None) -> str:
        return visit.url("/messages", **{**filters.query_of(asked.wanted), "at": cursor and str(cursor)})

    return visit.show(
        "messages.html",
        page=page,
        first=list_at(None) if asked.at else None,
        newer=page.newer and list_at(page.newer),
        older=page.older and list_at(page.older),
        known=asked.wanted.destination is None or asked.wanted.destination in visit.settings.destinations,
        acts=_acts(visit, asked.wanted),
        changeable=filters.CHANGEABLE["discard"],
        **names,
    )


def _asked(query: Mapping[str, Sequence[str]]) -> Asked:
    """What an address asks for. A value that can't be used is named, and the others count."""
    asked = Asked()
    good: dict[str, Sequence[str]] = {}
    for name in ("state", "group", *(name for name, *_ in FIELDS)):
        values = query.get(name, ())
        try:
            filters.asked({name: values})
            good[name] = values
        except InvalidFilter as error:
            asked.wrong[name] = error.reason
    try:
        asked.wanted = filters.asked(good)
    except InvalidFilter as error:  # these do not go together
        asked.wrong["error"] = error.reason
    if place := "".join(query.get("at", ())[:1]):
        try:
            asked.at = Cursor.parse(place)
        except ValueError:
            asked.wrong["at"] = "There is no such page of this list."
    return asked


def _acts(visit: Visit, wanted: Filter) -> dict[str, str]:
    """The pages that show what an act on all messages of the filter would do."""
    links = {}
    for action in filters.CHANGEABLE:
        try:
            changed = filters.for_act(action, wanted, named=False)
        except InvalidFilter:
            continue  # it can't change messages in these states
        links[action] = visit.url("/acts/new", action=action, **filters.query_of(changed))
    return links
