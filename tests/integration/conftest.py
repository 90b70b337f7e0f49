"""Messages in the hands of a publisher."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from outbox_tasks.model import Bundle, LeasedMessage, Ticket
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import Claimed
from tests.conftest import Rows

Lease = Callable[..., Bundle]


def bundle_of(claimed: list[Claimed], lease: str) -> Bundle:
    """All that was claimed, in one bundle."""
    return Bundle(claimed[0].destination, lease, tuple(Ticket(c.id, c.attempts, c.event_type) for c in claimed))


def after(begun: dict[str, LeasedMessage]) -> tuple[Ticket, ...]:
    """The tickets to settle what was begun."""
    return tuple(Ticket(message.id, message.attempts, message.event_type) for message in begun.values())


@pytest.fixture
def lease(store: Store, rows: Rows) -> Lease:
    """Inserts rows and claims them, in one bundle."""

    def make(count: int = 1, /, by: Store = store, **columns: object) -> Bundle:
        if count:
            rows.insert(count, **columns)
        token = str(uuid4())
        return bundle_of(by.claim({"orders": 10_000}, token), token)

    return make
