"""What a drain could not send: the destinations that still have messages which are due, and why."""

from __future__ import annotations

from dataclasses import dataclass

from outbox_tasks.operating import overview
from outbox_tasks.relay.store import Store


@dataclass(frozen=True, slots=True)
class Unsent:
    """A destination whose messages could not be sent, although they are due."""

    destination: str
    waiting: int
    """How many, counted up to `overview.COUNTED_EXACTLY`."""
    state: str
    """`trouble`, `paused`, `limited` or `behind`: something else comes first, which is no failure of this drain."""
    why: str


def unsent(store: Store) -> list[Unsent]:
    """The destinations whose due messages a drain has not sent, although it had time for all.

    While a destination is in trouble, its failed messages count, whether or not their next try is due at this moment:
    so each drain says the same. A message that an outage put off has spent no attempt, and counts as scheduled."""
    destinations_left = []
    for name, status in overview.destinations(store, estimate=False).items():
        if not status.configured:
            continue
        row, waiting = status.breaker, status.due
        if row["state"] == "paused":
            state, why = "paused", ": ".join(filter(None, (f"it is paused by {row['paused_by']}", row["paused_why"])))
        elif row["failures"]:
            state, why = "trouble", f"its last sends failed ({row['error_code']}: {row['error']})"
            waiting = status.waiting + status.states["scheduled"]
        elif store.limits.of(name).is_limited:
            state, why = "limited", "its rate_limit or concurrency is used up for now"
        else:
            state = "behind"
            why = (
                "something else comes first, another drain is at work, or they were written just now "
                "(see outbox-tasks list --by key, and doctor)"
            )
        if waiting:
            destinations_left.append(Unsent(name, waiting, state, why))
    return destinations_left
