"""The dead letters, in groups of one error each."""

from __future__ import annotations

from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.find import COUNTED, DEAD, MOST_GROUPS, Filter, Lookup
from outbox_tasks.web.http import NotFound, Response
from outbox_tasks.web.visit import Visit

GROUPS, LAST = 100, 20
"""Groups, and messages of a group, that are shown."""


def errors(visit: Visit) -> Response:
    """All error groups, the largest first; or those of one destination."""
    destination = filters.asked(visit.request.query).destination
    found, complete = visit.look(f"errors {destination}", lambda: Lookup(visit.store).groups(destination))
    return visit.show(
        "errors.html",
        groups=found[:GROUPS],
        destination=destination,
        number=len(found),
        complete=complete,
        looked=MOST_GROUPS,
        counted=COUNTED,
        going=visit.look("acts", visit.acts.going),
    )


def group(visit: Visit) -> Response:
    """One group: what, how many, since when, and the last messages."""
    name = visit.arguments["group"]
    if not filters.GROUP.fullmatch(name):
        raise NotFound("There is no such error group.")
    wanted, lookup = Filter(states=(DEAD,), group=name), Lookup(visit.store)
    found, last = visit.look(f"group {name}", lambda: (lookup.group(name), lookup.find(wanted, LAST).messages))
    return visit.show(
        "group.html",
        name=name,
        group=found,
        last=last,
        counted=COUNTED,
        configured=found is None or found["destination"] in visit.settings.destinations,
        commands={action: filters.command_line(action, wanted) for action in filters.CHANGEABLE},
    )
