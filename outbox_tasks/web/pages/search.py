"""The search of every page: to the one message that a text names, or to a list of those that it may mean."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.errors import DatabaseTooSlow, InvalidFilter
from outbox_tasks.operating.messages.search import KINDS, search
from outbox_tasks.operating.problems import Examination
from outbox_tasks.web.overview import status_of
from outbox_tasks.web.pages.messages import STATEMENT_SECONDS
from outbox_tasks.web.visit import Visit


def results(visit: Visit) -> Response:
    """What a text leads to."""
    text = visit.query_value("q")
    if text is None:
        return visit.go("/messages")

    def examined() -> Examination:
        return status_of(visit).examination

    try:
        answer = search(visit.store, text, examined, limit=STATEMENT_SECONDS)
    except InvalidFilter as error:
        raise HTTPException(400, f"{error.reason[:1].upper()}{error.reason[1:]}.") from None
    except DatabaseTooSlow:
        slow = f"The database took more than {STATEMENT_SECONDS:.0f} s for this search. Try again."
        raise HTTPException(503, slow) from None
    if answer.only is not None:
        return visit.go(f"/messages/{answer.only}")
    if not answer.messages and answer.event_type:
        return visit.go("/messages", type=text)
    if not answer.messages and text in visit.settings.destinations:
        return visit.go(f"/destinations/{text}")
    return visit.show("search.html", answer=answer, kinds=KINDS, again=None)
