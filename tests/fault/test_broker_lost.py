"""Celery's broker forgets everything, at the worst moments. It is not where the truth is."""

from __future__ import annotations

import json

import pytest

from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import LONG, UNHURRIED, Here, check, drained, queued

MANY = 5000


def flush(server: EmbeddedValkey) -> None:
    with Stream(server.url, "any").client as client:
        client.flushall()


def test_messages_claimed_before_a_flush_are_claimed_again_and_lose_no_attempt(
    relay: Relay, here: Here, rows: Rows, stream: Stream, own_redis: EmbeddedValkey
) -> None:
    ids = rows.insert(200)
    assert here.claim().claimed == 200
    assert queued(own_redis)
    flush(own_redis)
    relay.publish(**UNHURRIED)
    relay.claim(**UNHURRIED)
    relay.beat()
    relay.ready()
    drained(rows)
    assert check(rows, stream, ids) == 0
    assert {(row.attempts, row.last_error_code) for row in rows.archived()} == {(1, "lease_expired")}


def test_messages_whose_task_the_broker_lost_do_not_wait_for_their_lease(
    relay: Relay, rows: Rows, stream: Stream, own_redis: EmbeddedValkey
) -> None:
    relay.claim(**LONG)
    relay.beat(**LONG)
    relay.ready()
    ids = rows.insert(200)
    eventually(lambda: all(row.lease for row in rows.hot()))
    eventually(lambda: queued(own_redis))
    flush(own_redis)
    relay.publish(**LONG)
    relay.ready()
    drained(rows, 40)
    assert check(rows, stream, ids) == 0
    assert {(row.attempts, row.last_error_code) for row in rows.archived()} == {(1, "lease_expired")}


@pytest.mark.parametrize("loss", ["flushed", "killed and empty"])
def test_a_drain_goes_on_after_the_broker_lost_all_it_had(
    relay: Relay, rows: Rows, stream: Stream, own_redis: EmbeddedValkey, loss: str
) -> None:
    workers = [relay.publish(max_in_flight=1000, **UNHURRIED), relay.claim(max_in_flight=1000, **UNHURRIED)]
    relay.beat()
    relay.ready()
    ids = rows.insert(MANY)
    eventually(lambda: len(stream) > MANY / 20)
    if loss == "flushed":
        flush(own_redis)
    else:
        own_redis.kill()
        ids += rows.insert(100)  # the outage costs the application nothing
        own_redis.start()
    assert len(stream) < MANY
    drained(rows)
    assert check(rows, stream, ids) == 0
    assert {row.attempts for row in rows.archived()} == {1}
    assert {worker.container.status for worker in workers} == {"running"}


def test_a_retry_that_the_broker_and_its_worker_lost_comes_back_from_the_row(
    relay: Relay, rows: Rows, stream: Stream, own_redis: EmbeddedValkey
) -> None:
    patient = {"backoff_base": 1.5, "backoff_cap": 1.5}
    worker = relay.publish(**patient)
    relay.claim()
    relay.beat()
    relay.ready()
    [id] = rows.insert(1, destination="told", payload=json.dumps({"fail": 1}).encode())
    eventually(lambda: rows.one(id).last_error_code == "told")
    worker.wait_for_log(f"[{id}] retry: Retry in ")
    worker.kill()
    worker.container.child.end()
    flush(own_redis)
    worker.restart()
    drained(rows)
    assert check(rows, stream, [id]) == 0
    [row] = rows.archived()
    assert (row.attempts, row.last_error_code) == (2, "told")
