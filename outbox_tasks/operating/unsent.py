"""What a drain could not send: the destinations that are in trouble, paused or limited, and how much waits for each."""

from __future__ import annotations

from dataclasses import dataclass

from outbox_tasks.operating import overview
from outbox_tasks.relay.store import Store

COUNTED = 1000
"""Messages of a destination are counted up to this."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """A destination whose messages could not be sent, although they are due."""

    destination: str
    waiting: int
    """How many, counted up to some thousand."""
    state: str
    """`trouble`, `paused`, `limited` or `behind`: something else comes first, which is no failure of this drain."""
    why: str


def unsent(store: Store) -> list[Unsent]:
    """The destinations whose due messages a drain has not sent, although it had time for all.

    The tables decide, so that each drain says the same. While a destination is in trouble, its failed messages count,
    whether or not their next try is due at this moment.
    """
    found = []
    for name, one in overview.destinations(store, COUNTED, estimate=False).items():
        if not one.configured:
            continue
        row = one.breaker
        # A message that an outage put off has spent no attempt. So it counts as scheduled.
        waiting = sum(one.states[state] for state in ("pending", "retrying", "scheduled"))
        if row["state"] == "paused":
            why = ": ".join(filter(None, (f"it is paused by {row['paused_by']}", row["paused_why"])))
            found.append(Unsent(name, one.due, "paused", why))
        elif row["failures"]:
            why = f"its last sends failed ({row['error_code']}: {row['error']})"
            found.append(Unsent(name, waiting, "trouble", why))
        elif store.limits.of(name).is_limited:
            found.append(Unsent(name, one.due, "limited", "its rate_limit or concurrency is used up for now"))
        else:
            why = (
                "something else comes first, another drain is at work, or they were written just now "
                "(see outbox-tasks list --by key, and doctor)"
            )
            found.append(Unsent(name, one.due, "behind", why))
    return [one for one in found if one.waiting]
