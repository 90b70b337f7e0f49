"""The limits that people have set for destinations, in the place of settings: somebody may have forgotten one."""

from __future__ import annotations

from outbox_tasks.operating.limits import InForce, set_by_people
from outbox_tasks.operating.overview import DestinationStatus
from outbox_tasks.operating.problems.problem import Problem, first_ones, note, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.text import many, number, one_line, shell_line, span

SHARE_USED = 0.8
"""From this share of the allowed sends on, the limit is why messages wait."""


def limits(site: Site) -> Problems:
    """What people have set, and whether messages wait because of that."""
    judged = [
        _judged(name, counts, site.destinations.get(name, DestinationStatus()))
        for name, counts in set_by_people(site.store).items()
    ]
    for code in ("limited", "limit_set"):
        yield from first_ones([each for each in judged if each.code == code], lambda each: each, "destination")


def _judged(name: str, counts: list[InForce], status: DestinationStatus) -> Problem:
    told = "; ".join(f"{each.setting} {one_line(str(each))}" for each in counts)
    remedy, cause = (
        shell_line("limit", name, "--clear"),
        "A person has limited it. Without the limit its settings count.",
    )
    if not status.due or not any(_is_used_up(each, status) for each in counts):
        return note("limit_set", f"{name}: {told}.", cause, remedy, which=name)
    due = many(status.due, "message", number(status.due, estimated="pending" in status.estimated))
    since = f", the oldest for {span(status.oldest)}" if status.oldest is not None else ""
    fact = f"{name}: {told}; {due} {'waits' if status.due == 1 else 'wait'}{since}."
    return warning("limited", fact, cause, remedy, which=name, since=status.oldest, how_many=status.due)


def _is_used_up(limit: InForce, status: DestinationStatus) -> bool:
    if limit.setting == "concurrency":
        return bool(status.drains >= limit.value)
    return limit.setting == "rate_limit" and status.sent + status.failed >= SHARE_USED * limit.value * 60
