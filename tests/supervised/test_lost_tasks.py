"""Tasks that were handed over and that the broker has lost, or that wait there for long: with a real Redis."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.supervised.lost_tasks import LostTasks
from tests.claims import drain_batches
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.integration.doctoring import beats
from tests.supervised.tasks import QUEUE, Send, Tasks, supervised


class Looking(LostTasks):
    """Looks whenever it is asked."""

    def look(self) -> None:
        self._next = 0.0
        super().look()


@pytest.fixture
def lost(confirming: Store, rows: Rows) -> Iterator[Looking]:
    """A worker that supervises serves the queue."""
    beats(rows, "tasks", queues=[QUEUE])
    made = Looking(confirming)
    yield made
    made.close()


def test_after_a_flush_all_are_sent_again_and_each_runs_once(
    tasks: Tasks, rows: Rows, send: Send, lost: Looking
) -> None:
    ids = rows.insert(300, payload=b"{}")
    assert send() == {"handed": 300}
    lost.look()
    before = tasks.headers()
    ran = [header["id"] for header in before[:10] if tasks.begin(header)]
    tasks.client.flushdb()
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
    tasks.client.flushdb()
    [second] = rows.insert(payload=b"{}")
    newcomer = Publishers(confirming.settings)
    drain_batches(confirming, newcomer)
    newcomer.close()
    lost.look()
    assert rows.state(first) == "retrying"
    assert rows.state(second) == "handed over"


def test_a_task_that_is_neither_in_the_queue_nor_with_a_worker_is_sent_again(
    tasks: Tasks, rows: Rows, send: Send, lost: Looking
) -> None:
    ids = rows.insert(2, payload=b"{}")
    send()
    taken = tasks.take()
    rows.change(ids, handed_at=seconds_from_now(-60))
    lost.look()
    lost.look()
    assert {rows.state(id) for id in ids} == {"handed over"}, "the other one is in the queue"
    assert tasks.begin(tasks.take() or {}) is not None
    tasks.client.hset("unacked", "tag", "somebody has one")
    lost.look()
    lost.look()
    assert sorted(rows.state(id) for id in ids) == ["handed over", "running"]
    tasks.client.delete("unacked")
    lost.look()
    assert sorted(rows.state(id) for id in ids) == ["handed over", "running"], "one look is not enough"
    lost.look()
    assert taken is not None
    assert rows.state(taken["id"]) == "retrying"
    assert send() == {"handed": 1}
    assert rows.one(taken["id"]).last_error_code == "not_started"
    lost.look()
    assert rows.state(taken["id"]) == "handed over"


def test_what_workers_take_that_do_not_supervise_is_not_sent_again_before_its_time(
    tasks: Tasks, rows: Rows, send: Send, lost: Looking
) -> None:
    """They run it, and say nothing. It would run again every few seconds."""
    with rows.engine.begin() as connection:
        connection.execute(rows.tables.heartbeats.update().values(seen_at=seconds_from_now(-60)))
    ids = rows.insert(3, payload=b"{}")
    send()
    rows.change(ids, handed_at=seconds_from_now(-60))
    for left in (2, 0):
        while len(tasks.headers()) > left:
            tasks.take()
        for _ in range(3):
            lost.look()
    assert {rows.state(id) for id in ids} == {"handed over"}
    tasks.client.flushdb()
    lost.look()
    assert {rows.state(id) for id in ids} == {"retrying"}, "a flush is certain"


def test_while_the_queue_has_them_they_wait_on_but_not_for_ever(
    tasks: Tasks, rows: Rows, send: Send, lost: Looking
) -> None:
    ids = rows.insert(3, payload=b"{}")
    send()
    rows.change(ids, locked_until=seconds_from_now(-1))
    rows.change(ids[:1], handed_at=seconds_from_now(-9 * 3600))
    lost.look()
    assert [rows.state(id) for id in ids] == ["retrying", "handed over", "handed over"]
    assert send() == {"handed": 1}
    tasks.client.delete(QUEUE)
    rows.change(ids, locked_until=seconds_from_now(-1))
    lost.look()
    assert {rows.state(id) for id in ids} == {"retrying"}


def test_the_queue_of_a_stored_task_is_in_its_row(confirming: Store, rows: Rows) -> None:
    envelopes: tuple[dict[str, Any], ...] = (
        {"declare": [{"queue": {"name": "mails"}}], "exchange": "x", "routing_key": "r"},
        {"declare": [], "exchange": "", "routing_key": "mails", "headers": {"note": "\0 and \\u0000"}},
        {"declare": [], "exchange": "x", "routing_key": "r"},
    )
    for envelope in envelopes:
        rows.insert(2, headers={"celery-message": json.dumps(envelope)}, handed_at=seconds_from_now(-9), begun=False)
    parameters = {"asked": '[{"destination": "orders", "queue": "celery"}]', "soon": 1.0, "late": 30.0}
    found = {row[:4] for row in confirming.ask("supervised/handed_over.sql", **parameters)}
    assert found == {("orders", "mails", 4, 4), ("orders", None, 2, 2)}


def test_a_broker_that_is_away_is_no_trouble(new_store: MakeStore, rows: Rows) -> None:
    store = new_store(destinations=supervised("redis://127.0.0.1:1/0"))
    [id] = rows.insert(attempts=1, handed_at=seconds_from_now(-60), locked_until=seconds_from_now(60))
    lost = Looking(store)
    lost.look()
    lost.look()
    lost.close()
    assert rows.state(id) == "handed over"


UNREADABLE = ["{", "5", '{"queue": "\\ud800"}', "[" * 60_000]


def test_a_task_that_can_not_be_read_hides_none_of_the_others(
    confirming: Store, tasks: Tasks, rows: Rows, send: Send, lost: Looking
) -> None:
    for envelope in UNREADABLE:
        [odd] = rows.insert(headers={"celery-message": envelope}, handed_at=seconds_from_now(-60))
        rows.change([odd], locked_until=seconds_from_now(60))
    ids = rows.insert(3, payload=b"{}")
    send()
    asked = json.dumps([{"destination": "orders", "queue": QUEUE}])
    found = confirming.ask("supervised/handed_over.sql", asked=asked, soon=0.0, late=30.0)
    assert {row.queue: row.count for row in found} == {QUEUE: 3, None: len(UNREADABLE)}
    lost.look()
    tasks.client.flushdb()
    lost.look()
    assert {rows.state(id) for id in ids} == {"retrying"}
