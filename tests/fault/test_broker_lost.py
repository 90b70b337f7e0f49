"""Celery's broker forgets everything, at the worst moments. It is not where the truth is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from outbox_tasks.local.commands import beat_argv
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import (
    LONG,
    SLOW,
    UNHURRIED,
    Here,
    check,
    drained,
    in_the_middle,
    queued,
    slow_messages,
)


def flush(server: EmbeddedValkey) -> None:
    with Stream(server.url, "any").client as client:
        client.flushall()


def test_what_the_broker_forgets_before_the_relay_starts_or_while_it_drains_is_claimed_again_and_loses_no_attempt(
    relay: Relay, here: Here, rows: Rows, stream: Stream, own_redis: EmbeddedValkey
) -> None:
    ids = rows.insert(10)
    assert here.claim().singles == 10
    assert queued(own_redis)
    flush(own_redis)
    workers = [relay.publish(concurrency=2, **SLOW, **UNHURRIED), relay.claim(**SLOW, **UNHURRIED)]
    relay.beat()
    relay.ready()
    drained(rows)
    assert check(rows, stream, ids) == 0
    assert {(row.attempts, row.last_error_code) for row in rows.archived()} == {(1, "lease_expired")}

    ids += slow_messages(rows)
    in_the_middle(stream)
    flush(own_redis)
    assert len(stream) < len(ids)
    drained(rows)
    ids += slow_messages(rows)
    in_the_middle(stream)
    own_redis.kill()
    ids += rows.insert(100)  # the outage costs the application nothing
    own_redis.start()
    assert len(stream) < len(ids)
    drained(rows)
    assert check(rows, stream, ids) == 0
    assert {row.attempts for row in rows.archived()} == {1}
    assert {worker.container.status for worker in workers} == {"running"}


def test_a_beat_without_its_broker_says_so_in_one_line_and_tells_when_that_is_over(
    relay: Relay, rows: Rows, own_redis: EmbeddedValkey, tmp_path: Path
) -> None:
    """Celery's own log would be a traceback of 260 lines for each of the tries, which are four a second here."""
    beat = relay.beat(beat_argv(loglevel="DEBUG"), feeds={"shop": {"url": f"sqlite:///{tmp_path}/shop.db"}})
    relay.ready()
    rows.insert(1)  # so each claim is wanted
    eventually(lambda: "outbox_tasks.claim sent" in beat.logs())
    own_redis.kill()
    said = "beat can't send anything"
    eventually(lambda: said in beat.logs())

    def tries() -> list[str]:
        return re.findall("Sending due task", beat.logs().partition(said)[2])

    eventually(lambda: len(tries()) > 8)
    assert beat.logs().count(said) == 1
    assert "Traceback" not in beat.logs()
    own_redis.start()
    eventually(lambda: "beat sends again" in beat.logs())


@pytest.mark.parametrize(("singles", "cause"), [("all", "lease_expired"), (0, None)])
def test_messages_whose_task_the_broker_lost_do_not_wait_for_their_lease(
    singles: str | int, cause: str | None, relay: Relay, rows: Rows, stream: Stream, own_redis: EmbeddedValkey
) -> None:
    only = {name: relay.values["destinations"][name] for name in ["orders"]}  # so no other needs room in the queue
    relay.claim(singles=singles, destinations=only, **LONG)
    relay.beat(**LONG)
    relay.ready()
    ids = rows.insert(200)
    eventually(lambda: not singles or all(row.lease for row in rows.hot()))
    eventually(lambda: queued(own_redis))
    flush(own_redis)
    relay.publish(singles=singles, destinations=only, **LONG)
    relay.ready()
    drained(rows, 80)
    assert check(rows, stream, ids) == 0
    assert {(row.attempts, row.last_error_code) for row in rows.archived()} == {(1, cause)}


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
