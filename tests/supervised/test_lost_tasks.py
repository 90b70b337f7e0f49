"""Tasks that were handed over and that the broker has lost: with a real Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.supervised import lost_tasks
from outbox_tasks.supervised.lost_tasks import LostTasks
from tests.claims import drain_batches
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.supervised.tasks import Send, Tasks, supervised


class Looking(LostTasks):
    """Looks whenever it is asked."""

    def look(self) -> None:
        self._next = 0.0
        super().look()


@pytest.fixture
def lost(confirming: Store) -> Iterator[Looking]:
    made = Looking(confirming)
    yield made
    made.close()


def test_after_a_flush_all_are_sent_again_and_each_runs_once(
    tasks: Tasks, rows: Rows, send: Send, lost: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_tasks, "TASKS_A_STATEMENT", 145)
    ids = rows.insert(300, payload=b"{}")
    assert send() == {"handed": 300}
    lost.look()
    before = tasks.headers()
    ran = [header["id"] for header in before[:10] if tasks.begin(header)]
    tasks.client.flushdb()
    LostTasks.look(lost)  # it is too soon
    assert send() == {}
    lost.look()
    assert send() == {"handed": 290}
    lost.look()
    assert send() == {}
    ran += [header["id"] for header in [*tasks.headers(), *before] if tasks.begin(header)]
    assert Counter(ran) == Counter(ids)


def test_a_publisher_that_makes_the_key_anew_does_not_hide_a_flush(
    confirming: Store, tasks: Tasks, rows: Rows, send: Send, lost: Looking
) -> None:
    [first] = rows.insert(payload=b"{}")
    send()
    lost.look()
    for _ in range(2):
        tasks.client.flushdb()
        [second] = rows.insert(payload=b"{}")
        newcomer = Publishers(confirming.settings)
        drain_batches(confirming, newcomer)
        newcomer.close()
        lost.look()
        assert rows.state(first) == "retrying"
        assert rows.state(second) == "handed over"
        first = second


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "memory://"])
def test_a_broker_that_is_away_or_does_not_say_has_lost_nothing(new_store: MakeStore, rows: Rows, url: str) -> None:
    store = new_store(destinations=supervised(url))
    [id] = rows.insert(attempts=1, handed_at=seconds_from_now(-60), locked_until=seconds_from_now(60))
    lost = Looking(store)
    lost.look()
    lost.look()
    lost.close()
    assert rows.state(id) == "handed over"
