"""What beat asks before it sends a claim: whether anything is due, or leased."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from outbox_tasks.relay.store import Store
from tests.conftest import Rows, seconds_from_now

LATER = seconds_from_now(3600)


def test_nothing_is_due_in_an_empty_table(store: Store) -> None:
    assert not store.anything_due()


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"priority": -1},
        {"key": "order:1"},
        {"destination": "nobody knows it"},
        {"lease": UUID(int=1), "locked_until": seconds_from_now(50)},
        {"lease": UUID(int=1), "locked_until": seconds_from_now(50), "key": "order:1"},
    ],
    ids=["normal", "low priority", "with a key", "unknown destination", "leased", "leased with a key"],
)
def test_what_is_due_or_leased_counts(store: Store, rows: Rows, columns: dict[str, Any]) -> None:
    rows.insert(destination="audit", locked_until=LATER)
    rows.insert(**columns)
    assert store.anything_due()


@pytest.mark.parametrize("key", [None, "order:1"], ids=["without a key", "with a key"])
def test_what_is_due_later_or_dead_does_not_count(store: Store, rows: Rows, key: str | None) -> None:
    rows.insert(3, key=key, locked_until=LATER)
    rows.insert(3, key=key, status="dead", dead_at=seconds_from_now(-1))
    assert not store.anything_due()


@pytest.mark.parametrize("key", [None, "order:1"], ids=["without a key", "with a key"])
def test_what_is_due_before_beats_next_look_counts(store: Store, rows: Rows, key: str | None) -> None:
    """Then the claim comes back in time for it."""
    rows.insert(key=key, locked_until=seconds_from_now(30))
    assert store.anything_due(50)
    assert not store.anything_due()


@pytest.mark.parametrize("columns", [{}, {"priority": -1}, {"key": "order:1"}, {"destination": "mails"}])
def test_the_next_message_that_is_due_within_some_seconds_is_found(
    store: Store, rows: Rows, columns: dict[str, Any]
) -> None:
    rows.insert()  # due already
    rows.insert(locked_until=LATER, **columns)
    assert store.until_next_due(50) is None
    rows.insert(locked_until=seconds_from_now(40), **columns)
    rows.insert(locked_until=seconds_from_now(30), **columns)
    assert 10 < (store.until_next_due(50) or 0) <= 30
