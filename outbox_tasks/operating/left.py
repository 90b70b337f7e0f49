"""What a drain could not send: the destinations that are in trouble, paused or limited, and how much waits for each."""

from __future__ import annotations

from dataclasses import dataclass

from outbox_tasks.operating import overview
from outbox_tasks.relay.store import Store

COUNTED = 1000
"""Messages of a destination that are counted as left, at most."""


@dataclass(frozen=True, slots=True)
class Left:
    """A destination whose messages could not be sent, although they are due."""

    destination: str
    waiting: int
    """How many, counted up to some hundred."""
    state: str
    """`trouble`, `paused` or `limited`."""
    why: str


def left_alone(store: Store) -> list[Left]:
    """The destinations of which something due was not sent, after a drain that had time for all.

    It follows from what the tables say, so that one drain after the other says the same: while a destination is in
    trouble, what failed on its way there counts, whether or not its next try is due in this moment.
    """
    found = []
    trouble = {row.name: row for row in store.traffic.states()}
    for name, standing in overview.standings(store, COUNTED, estimate=False).items():
        configured, row = store.settings.destinations.get(name), trouble.get(name)
        if configured is None:
            continue
        # What an outage has put off has spent no attempt, and so counts as scheduled.
        waiting = sum(standing.states[state] for state in ("pending", "retrying", "scheduled"))
        if row is not None and row.paused_at is not None:
            why = f"it is paused by {row.paused_by}{f': {row.paused_why}' if row.paused_why else ''}"
            found.append(Left(name, standing.due, "paused", why))
        elif row is not None and row.failures:
            why = f"its last sends failed ({row.error_code}: {row.error})"
            found.append(Left(name, waiting, "trouble", why))
        elif configured.rate_limit is not None or configured.concurrency is not None:
            found.append(Left(name, standing.due, "limited", "its rate_limit or concurrency is used up for now"))
    return [one for one in found if one.waiting]
