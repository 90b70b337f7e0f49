"""Messages: a list with filters, page by page; and the search of every page."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.errors import DatabaseTooSlow, InvalidFilter
from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.find import STATES, Filter
from outbox_tasks.operating.messages.life import error_of
from outbox_tasks.operating.messages.paging import Cursor, read_page
from outbox_tasks.operating.messages.search import KINDS, search
from outbox_tasks.web.overview import status_of
from outbox_tasks.web.visit import ROWS_SHOWN, Visit

STATEMENT_SECONDS = 2.0
"""How long each statement of a search may run."""

ROWS_READ_AGAIN = 2_000
"""A list is not refreshed every two seconds if more rows than these were read for it."""

FIELDS = (
    ("destination", "Destination", "orders"), ("type", "Event type", "order.*"), ("key", "Key", ""),
    ("error", "Error code or group", "http_400"), ("older-than", "Written more than … ago", "15m"),
    ("newer-than", "Written less than … ago", "2h"),
)  # fmt: skip
"""The filters that are texts: the name, the label and an example of each."""


def messages(visit: Visit) -> Response:
    query = {name: [value for value in values if value.strip()] for name, values in visit.query.items()}
    names: dict[str, Any] = {"query": query, "fields": FIELDS, "states": STATES, "error_of": error_of}
    names["in_words"] = {name: ", ".join(values) for name, values in query.items() if name != "at" and values}
    try:
        wanted, place = filters.asked(visit.query), visit.query_value("at")
        at = None if place is None else Cursor.parse(place)
        read = partial(read_page, visit.store, wanted, ROWS_SHOWN, at, limit=STATEMENT_SECONDS)
        page = visit.look(f"messages {wanted} {at}", read)
    except DatabaseTooSlow:
        slow = f"This search takes more than {STATEMENT_SECONDS:.0f} s. Name a destination or a key."
        raise HTTPException(400, slow) from None
    except (InvalidFilter, ValueError) as error:
        wrong = error.reason if isinstance(error, InvalidFilter) else "this list has no such page"
        return visit.show("messages.html", status=400, again=None, page=None, wanted=Filter(), wrong=wrong, **names)
    if at or page.looked > ROWS_READ_AGAIN:
        names["again"] = None

    def list_at(cursor: Cursor | None) -> str:
        return visit.url("/messages", **{**filters.query_of(wanted), "at": cursor and str(cursor)})

    return visit.show(
        "messages.html",
        wanted=wanted,
        page=page,
        first=list_at(None) if at else None,
        older=page.older and list_at(page.older),
        acts=_acts(visit, wanted),
        changeable=filters.CHANGEABLE["discard"],
        **names,
    )


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


def results(visit: Visit) -> Response:
    """What the text of the search leads to: the one message that it names, or a list of those that it may mean."""
    text = visit.query_value("q")
    if text is None:
        return visit.go("/messages")
    answer = search(visit.store, text, lambda: status_of(visit).examination, limit=STATEMENT_SECONDS)
    if answer.only is not None:
        return visit.go(f"/messages/{answer.only}")
    if not answer.messages and answer.event_type:
        return visit.go("/messages", type=text)
    if not answer.messages and text in visit.settings.destinations:
        return visit.go(f"/destinations/{text}")
    return visit.show("search.html", answer=answer, kinds=KINDS, again=None)
