"""The relay's tasks, in an app on a real broker, run by Celery's tracer as a worker would; no worker processes."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery
from celery.signals import task_success
from celery.worker import state as worker_state
from kombu import Message as Arrived
from sqlalchemy import text

from outbox_tasks.broker.names import BY_BEAT, CLAIM_TASK, IN_TIME, QUEUES, WAIT
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.celery import make_app
from outbox_tasks.feeds.source import open_source
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import CLAIM_QUEUE, PUBLISH_QUEUE
from outbox_tasks.signals import key_blocked
from outbox_tasks.worker.bundles import PublishRequest, trace_each
from tests.claims import take
from tests.conftest import MakeSettings, MakeStore, Rows, eventually, seconds_from_now


@pytest.fixture
def app(settings: MakeSettings, own_redis: EmbeddedValkey, store: Store) -> Iterator[Celery]:
    made = make_app(settings(broker_url=own_redis.url))
    made.finalize()
    yield made
    made.outbox_relay.close()
    made.close()


@pytest.fixture
def publish(app: Celery) -> Any:
    return app.tasks["outbox_tasks.publish"]


def waiting(own_redis: EmbeddedValkey, queue: str = PUBLISH_QUEUE) -> list[dict[str, Any]]:
    """The Celery messages in a queue."""
    with redis.Redis.from_url(own_redis.url) as client:
        found: list[bytes] = client.lrange(queue, 0, -1)  # type: ignore[assignment]
    return [json.loads(message) for message in found]


def leased(store: Store, rows: Rows, count: int = 1) -> Bundle:
    """Fresh messages, claimed and begun."""
    rows.insert(count)
    lease = "11111111-1111-4111-8111-111111111111"
    claimed = take(store, {"orders": count}, lease)
    bundle = Bundle("orders", lease, tuple(Ticket(row.id, row.attempts, row.event_type) for row in claimed))
    store.begin(bundle)
    return bundle


def begun(ticket: Ticket) -> Ticket:
    return ticket._replace(attempt=ticket.attempt + 1)


def test_a_message_that_fails_in_a_bundle_is_retried_by_celery_as_a_publish_task(
    app: Celery, publish: Any, store: Store, rows: Rows, own_redis: EmbeddedValkey
) -> None:
    bundle = leased(store, rows, 3)
    first, second, third = (begun(ticket) for ticket in bundle.tickets)
    verdicts = [Verdict(first, Step.SENT), Verdict(second, Step.RETRY, 2.0, "busy", "later"), Verdict(third, Step.SENT)]
    trace_each(publish, bundle, verdicts)
    [message] = waiting(own_redis)
    headers = message["headers"]
    assert (headers["task"], headers["id"], headers["retries"]) == ("outbox_tasks.publish", second.id, 1)
    assert datetime.fromisoformat(headers["eta"]) > datetime.now(UTC)
    assert headers["outbox_wait"] == 2.0
    arguments, _, _ = json.loads(base64.b64decode(message["body"]))
    assert arguments == ["order.created", "orders", 1, bundle.lease]


def test_a_retry_that_the_broker_refuses_goes_back_to_the_table(
    app: Celery, publish: Any, store: Store, rows: Rows, own_redis: EmbeddedValkey
) -> None:
    bundle = leased(store, rows)
    verdict = Verdict(begun(bundle.tickets[0]), Step.RETRY, 2.0, "busy", "later")
    store.settle(bundle.lease, "orders", [verdict])
    own_redis.kill()
    trace_each(publish, bundle, [verdict])
    row = rows.one(bundle.tickets[0].id)
    assert (row.lease, row.status, row.last_error_code) == (None, "pending", "busy")


def test_every_sent_message_of_a_bundle_is_traced_for_those_who_listen(
    app: Celery, publish: Any, store: Store, rows: Rows
) -> None:
    bundle = leased(store, rows, 3)
    heard: list[str] = []

    def hear(sender: Any, **_: Any) -> None:
        heard.append(f"{sender.name} {sender.request.id}")

    task_success.connect(hear)
    try:
        trace_each(publish, bundle, [Verdict(begun(ticket), Step.SENT) for ticket in bundle.tickets])
    finally:
        task_success.disconnect(hear)
    assert heard == [f"outbox_tasks.publish {ticket.id}" for ticket in bundle.tickets]


def test_a_bundle_begins_sends_and_settles(app: Celery, store: Store, rows: Rows, stream: Any) -> None:
    rows.insert(5)
    lease = "11111111-1111-4111-8111-111111111111"
    tickets = [Ticket(row.id, row.attempts, row.event_type) for row in take(store, {"orders": 5}, lease)]
    result = app.tasks["outbox_tasks.bundle"].apply(args=("orders", lease, tickets)).get()
    assert result == '{"sent": 5}'
    assert stream.ids() == [ticket.id for ticket in tickets]
    assert [row.state for row in rows.shown()] == ["sent"] * 5


def slowly(rows: Rows, schema: str, seconds: float) -> None:
    """Have the begin of each message take so long."""
    body = f"'BEGIN PERFORM pg_sleep({seconds} * cardinality(new.seqs)); RETURN new; END'"
    sleep = f"CREATE FUNCTION {schema}.slowly() RETURNS trigger LANGUAGE plpgsql AS {body}"
    when = (
        f"CREATE TRIGGER slowly BEFORE UPDATE ON {schema}.outbox_leases "
        f"FOR EACH ROW WHEN (new.begun_at <> old.begun_at OR old.begun_at IS NULL AND new.begun_at IS NOT NULL) "
        f"EXECUTE FUNCTION {schema}.slowly()"
    )
    with rows.engine.begin() as connection:
        connection.execute(text(sleep))
        connection.execute(text(when))


def test_a_bundle_whose_begin_takes_too_long_is_halved_until_it_does_not(
    settings: MakeSettings, own_redis: EmbeddedValkey, new_store: MakeStore, rows: Rows, stream: Any, schema: str
) -> None:
    app = make_app(settings(broker_url=own_redis.url, statement_timeout=0.5, backoff_base=0.01))
    rows.insert(32)
    slowly(rows, schema, 0.08)
    lease = "11111111-1111-4111-8111-111111111111"
    tickets = [Ticket(row.id, row.attempts, row.event_type) for row in take(new_store(), {"orders": 32}, lease)]
    result = app.tasks["outbox_tasks.bundle"].apply(args=("orders", lease, tickets)).get()
    sent = len(stream)
    assert result == json.dumps({"sent": sent})
    assert 1 <= sent <= 4
    assert stream.ids() == [ticket.id for ticket in tickets[:sent]]
    # The others wait for the next claim, and nothing was counted.
    rest = rows.hot()
    assert [(row.lease, row.begun, row.attempts) for row in rest] == [(None, False, 0)] * (32 - sent)
    assert len(take(new_store(), {"orders": 100}, str(UUID(int=7)))) == 32 - sent
    app.outbox_relay.close()


@pytest.mark.parametrize("task", ["outbox_tasks.publish", "outbox_tasks.bundle"])
def test_a_single_message_whose_begin_takes_too_long_is_given_more_time(
    settings: MakeSettings,
    own_redis: EmbeddedValkey,
    new_store: MakeStore,
    rows: Rows,
    stream: Any,
    schema: str,
    task: str,
) -> None:
    app = make_app(settings(broker_url=own_redis.url, statement_timeout=0.5, backoff_base=0.01))
    [id] = rows.insert()
    slowly(rows, schema, 0.8)
    lease = "11111111-1111-4111-8111-111111111111"
    [row] = take(new_store(), {"orders": 1}, lease)
    single = ("order.created", "orders", 0, lease)
    arguments = single if task == "outbox_tasks.publish" else ("orders", lease, [(row.id, 0, row.event_type)])
    app.tasks[task].apply(args=arguments, task_id=id)
    assert stream.ids() == [id]
    [archived] = rows.archived()
    assert archived.attempts == 1
    app.outbox_relay.close()


def test_a_bundle_sends_only_messages_of_its_destination(
    app: Celery, settings: MakeSettings, store: Store, rows: Rows, stream: Any
) -> None:
    """Who can write to the broker may know a lease; what it is for is on the row."""
    rows.insert(1, destination="elsewhere")
    lease = "11111111-1111-4111-8111-111111111111"
    elsewhere = Store.connect(settings(destinations={"elsewhere": {"url": "a://b"}}))
    [row] = take(elsewhere, {"elsewhere": 1}, lease)
    ticket = Ticket(row.id, 0, row.event_type)
    result = app.tasks["outbox_tasks.bundle"].apply(args=("orders", lease, [ticket])).get()
    assert result == '{"sent": 0, "others": [[0, "stale", ""]]}'
    assert not stream.ids()
    # Nor settles, whoever says that it has sent them.
    assert elsewhere.begin(Bundle("elsewhere", lease, (ticket,)))
    for step in (Step.SENT, Step.DEAD, Step.DISCARDED):
        assert store.settle(lease, "orders", [Verdict(begun(ticket), step)]) == set()
    assert rows.state(row.id) == "leased"
    elsewhere.close()


def test_a_claim_hands_what_is_due_to_the_publish_queue(app: Celery, rows: Rows, own_redis: EmbeddedValkey) -> None:
    ids = rows.insert(40)
    rows.insert(1, locked_until=seconds_from_now(60))
    assert app.tasks["outbox_tasks.claim"].apply().get() == "claimed 40 in 4 bundles, 0 dead"
    bodies = [json.loads(base64.b64decode(message["body"])) for message in waiting(own_redis)]
    assert sorted(ticket[0] for arguments, _, _ in bodies for ticket in arguments[2]) == sorted(ids)


def test_a_claim_gives_its_leases_back_when_the_broker_is_gone(
    app: Celery, rows: Rows, own_redis: EmbeddedValkey
) -> None:
    rows.insert(3)
    own_redis.kill()
    assert app.tasks["outbox_tasks.claim"].apply().get() == "unavailable"
    assert {(row.lease, row.attempts) for row in rows.hot()} == {(None, 0)}


def test_maintenance_makes_partitions_ahead(app: Celery) -> None:
    assert app.tasks["outbox_tasks.maintain"].apply().get() == "made 0 partitions, forgot 0 marks, dropped 0 days"


def test_a_message_that_was_revoked_is_not_refused_for_good(app: Celery, publish: Any) -> None:
    """Celery remembers the id of such a task as revoked; ours is the message's, which will come again."""
    task = app.amqp.create_task_message("an-id", publish.name, (), {})
    arrived = Arrived(body="[[], {}, {}]", content_type="application/json", content_encoding="utf-8")
    arrived.headers, arrived.properties, arrived.delivery_info = task.headers, {}, {}
    worker_state.revoked.add("an-id")  # as when somebody revokes it in Flower
    assert not PublishRequest(arrived, app=app, task=publish).revoked()


def test_what_is_sent_has_no_time_that_another_host_would_compare_with_its_clock(
    app: Celery, rows: Rows, own_redis: EmbeddedValkey
) -> None:
    rows.insert(1)
    app.tasks["outbox_tasks.claim"].apply()
    for task in ("outbox_tasks.claim", "outbox_tasks.maintain"):
        app.tasks[task].apply_async(expires=5)
    sent = [message for queue in QUEUES for message in waiting(own_redis, queue)]
    assert len(sent) == 3
    assert {(message["headers"]["expires"], message["headers"]["eta"]) for message in sent} == {(None, None)}
    assert not [message for message in sent if "expiration" in message["properties"]]


def test_a_claim_is_sent_only_if_none_waits(app: Celery, own_redis: EmbeddedValkey) -> None:
    for _ in range(3):
        app.tasks["outbox_tasks.claim"].apply_async()
    assert len(waiting(own_redis, CLAIM_QUEUE)) == 1


@pytest.mark.parametrize("header", [BY_BEAT, IN_TIME])
def test_a_claim_sends_the_next_one_for_the_moment_when_a_message_is_due(
    app: Celery, rows: Rows, own_redis: EmbeddedValkey, header: str
) -> None:
    def sent() -> list[dict[str, Any]]:
        rows.insert(locked_until=seconds_from_now(0.9))
        rows.insert(locked_until=seconds_from_now(30))
        app.tasks[CLAIM_TASK].apply(headers={header: True})
        return waiting(own_redis, CLAIM_QUEUE)

    [message] = eventually(sent)
    assert 0 < message["headers"][WAIT] <= 0.9
    assert message["headers"][IN_TIME]
    with redis.Redis.from_url(own_redis.url) as client:
        client.delete(CLAIM_QUEUE)
    app.tasks[CLAIM_TASK]._returns_at = inf  # it is on its way
    assert not sent()


def test_the_application_s_broker_does_not_become_the_relay_s(
    settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://elsewhere:1/0")
    app = PinnedCelery("relay", broker="redis://here:1/0", settings=settings())
    for connection in (app.connection(), app.connection_for_read(), app.connection_for_write()):
        assert connection.hostname == "here"
    assert app.connection_for_write("redis://chosen:1/0").hostname == "chosen"


def test_a_dead_message_that_holds_up_its_key_is_told(app: Celery, store: Store, rows: Rows) -> None:
    [dead] = rows.insert(1, key="order:42", attempts=20, last_error_code="http_500")
    rows.insert(1, attempts=20)
    heard: list[tuple[Any, ...]] = []

    def hear(sender: Any, destination: str, key: str, message_id: str, code: str, **_: Any) -> None:
        heard.append((destination, key, message_id, code))

    key_blocked.connect(hear)
    try:
        app.tasks["outbox_tasks.claim"].apply()
    finally:
        key_blocked.disconnect(hear)
    assert heard == [("orders", "order:42", dead, "http_500")]


def test_a_feed_is_copied_by_a_task_of_its_own(
    settings: MakeSettings, own_redis: EmbeddedValkey, store: Store, rows: Rows, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    open_source("shop", url).init()
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        for id in ("0190a5c4-0000-7000-8000-000000000001", "0190a5c4-0000-7000-8000-000000000002"):
            shop.execute(
                "INSERT INTO outbox_feed (id, message) VALUES (?, ?)", (id, '{"event_type": "a", "text": "{}"}')
            )
    places = {"shop": {"url": url}, "gone": {"url": "sqlite:////no/such/file.db"}}
    app = make_app(settings(broker_url=own_redis.url, feeds=places))
    app.finalize()
    feed = app.tasks["outbox_tasks.feed"]
    assert app.conf.beat_schedule["outbox_tasks.feed"]["options"]["queue"] == "outbox.feed"
    assert feed.apply().get() == "woke 2 of 2"
    assert feed.apply(args=("gone",)).get() == "copied 0, 0 dead"
    assert feed.apply(args=("shop",)).get() == "copied 2, 0 dead"
    assert feed.apply(args=("another",)).get() == "unknown"
    assert feed.apply().get() == "woke 1 of 1"
    assert [row.state for row in rows.shown()] == ["pending"] * 2
    app.outbox_relay.close()
    app.close()
