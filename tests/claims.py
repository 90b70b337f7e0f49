"""The hops one by one, for tests: take what is due, singly or as a batch, and drain it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from outbox_tasks.destinations import Publisher
from outbox_tasks.model import LeasedMessage, Single, Slot, Step
from outbox_tasks.relay.claim import Pace, _shared, claim
from outbox_tasks.relay.drain import drain
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.takes import Batch


def keep_house(store: Store) -> None:
    """Take back the leases that have run out, and make the messages due whose wait is over."""
    store.claims.keep_house(at_once=True)


def claimed(store: Store, queued: int = 0, pace: Pace | None = None) -> tuple[list[Single], list[Slot]]:
    """The tasks of one claim. Without a `pace`: of a process that knows its destinations to be quick."""
    tasks: tuple[list[Single], list[Slot]] = ([], [])

    def send(singles: Sequence[Single], drains: Sequence[Slot]) -> None:
        tasks[0].extend(singles)
        tasks[1].extend(drains)

    claim(store, send, lambda: queued, pace or Pace(store.settings.destinations))
    return tasks


def take(store: Store, shares: Mapping[str, int]) -> list[Single]:
    """Lease messages singly: of each destination up to so many."""
    keep_house(store)
    due = {row.destination: row for row in store.claims.due(10_000)}
    wanted = {name: _shared(due[name], most) for name, most in shares.items() if name in due}
    return store.claims.take_singly(wanted) if wanted else []


def take_batch(store: Store, destination: str = "orders") -> Batch:
    """Lease the next messages of a destination as a drain does: their send has begun."""
    keep_house(store)
    while (batch := store.takes.take(destination)).moved and not batch.messages:
        pass
    return batch


def begin(store: Store, single: Single) -> LeasedMessage | None:
    """Let the send of a single begin."""
    return store.leases.begin(single.token, single.destination)


def drain_batches(store: Store, publishers: Mapping[str, Publisher]) -> Counter[Step]:
    """Drain each destination, as the drain task does, until nothing is due; nothing travels singly. Returns how many
    messages took which step."""
    keep_house(store)
    steps: Counter[Step] = Counter()
    for destination in store.settings.destinations:
        steps += drain(store, publishers, destination, Listener()).steps
    return steps
