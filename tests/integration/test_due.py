"""When the next message is due: for that moment a claim sends the next one."""

from __future__ import annotations

import pytest

from outbox_tasks.relay.store import Store
from tests.claims import take_batch
from tests.conftest import Rows, seconds_from_now


@pytest.mark.parametrize("keys", [(None, None, None), ("a", "b", "c")], ids=["without keys", "with keys"])
def test_the_next_message_that_is_due_within_some_seconds_is_found(
    store: Store, rows: Rows, keys: tuple[str | None, ...]
) -> None:
    rows.insert(key=keys[0], locked_until=seconds_from_now(3600))
    take_batch(store)  # it puts messages aside that have keys, and are not due
    assert store.until_next_due(50) is None
    rows.insert(key=keys[1], locked_until=seconds_from_now(40))
    rows.insert(key=keys[2], locked_until=seconds_from_now(30))
    take_batch(store)
    assert 10 < (store.until_next_due(50) or 0) <= 30


def test_behind_a_message_of_its_key_nothing_is_due(store: Store, rows: Rows) -> None:
    rows.insert(key="a", locked_until=seconds_from_now(3600))
    rows.insert(key="a", locked_until=seconds_from_now(30))
    take_batch(store)
    assert store.until_next_due(50) is None
