"""Direct dispatch: what a writer may send past the claim, and what becomes of it when something goes wrong."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis
from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Message, Outbox
from outbox_tasks.broker.broker import BEHIND_FOR, Broker
from outbox_tasks.broker.names import BEHIND, BUNDLE_TASK
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.local.ports import free_port
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import Bundle, Step, Ticket
from outbox_tasks.operating.pauses import pause
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import CLAIM_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.testing import OutboxProbe
from outbox_tasks.writing.direct import BURST, LEASE, MOST, Grants
from outbox_tasks.writing.nudge import LONG, SHORT
from tests.claims import take
from tests.conftest import MakeSettings, MakeStore, Rows, Stream, eventually, reached, seconds_from_now
from tests.integration.sessions import KINDS, driver


class Queue:
    """What the writers have sent to the relay's broker."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)

    def bundles(self, queue: str = PUBLISH_QUEUE) -> list[Bundle]:
        """Those of all priorities, the first one first."""
        return [_bundle(json.loads(each)) for each in reversed(self.client.lrange(queue, 0, -1))]  # type: ignore[arg-type]

    def nudged(self) -> bool:
        return bool(self.client.llen(CLAIM_QUEUE))

    def messages(self) -> list[str]:
        return [ticket.id for bundle in self.bundles() for ticket in bundle.tickets]


def _bundle(message: dict[str, Any]) -> Bundle:
    arguments = json.loads(base64.b64decode(message["body"]))[0]
    headers = message["headers"]
    if headers["task"] == BUNDLE_TASK:
        destination, lease, tickets = arguments
        return Bundle(destination, lease, tuple(Ticket(*ticket) for ticket in tickets))
    event_type, destination, attempt, lease = arguments
    return Bundle(destination, lease, (Ticket(headers["id"], attempt, event_type),))


@pytest.fixture
def queue(own_redis: EmbeddedValkey) -> Iterator[Queue]:
    made = Queue(own_redis.url)
    yield made
    made.client.close()


@pytest.fixture
def direct(settings: MakeSettings, own_redis: EmbeddedValkey, rows: Rows) -> Callable[..., Settings]:
    """Settings with a broker of the test's own."""

    def make(**values: Any) -> Settings:
        return settings(broker_url=own_redis.url, **values)

    return make


@pytest.fixture
def outbox(direct: Callable[..., Settings], queue: Queue) -> Outbox:
    made = reached(Outbox(direct()))
    queue.client.delete(CLAIM_QUEUE)
    return made


def publish(outbox: Outbox, engine: Engine, **options: Any) -> UUID:
    with Session(engine) as session, session.begin():
        return outbox.publish(session, "order.created", {"id": 1}, **{"to": "orders", **options})


@pytest.mark.parametrize("kind", KINDS)
def test_a_committed_message_is_leased_and_its_task_is_in_the_queue_and_what_is_rolled_back_leaves_nothing(
    kind: str, outbox: Outbox, engine: Engine, rows: Rows, queue: Queue, store: Store, stream: Stream
) -> None:
    """A savepoint's messages may be in a task: nothing begins them."""
    with driver(kind, outbox, engine) as driven:
        driven.begin()
        driven.publish(Message("order.created", {}))
        driven.rollback()
    with driver(kind, outbox, engine) as driven:
        driven.begin()
        [id] = driven.publish(Message("order.created", {"id": 1}))
        driven.savepoint()
        driven.publish(Message("order.created", {}))
        driven.undo()
        driven.commit()
    eventually(lambda: str(id) in queue.messages())
    [row] = rows.hot()
    [lease] = {bundle.lease for bundle in queue.bundles() if str(id) in [ticket.id for ticket in bundle.tickets]}
    assert (row.id, str(row.lease), row.locked_by, row.attempts, row.begun) == (id, lease, None, 0, False)
    assert 0 < (row.locked_until - row.created_at).total_seconds() <= LEASE + 1
    verdicts = [v for bundle in queue.bundles() for v in deliver(store, Publishers(store.settings), bundle)]
    [sent] = [verdict for verdict in verdicts if verdict.step is Step.SENT]
    assert sent.ticket.age >= 0  # it was due at once: the end of its lease is not its due time
    assert (stream.ids(), rows.hot()) == ([str(id)], [])
    assert [(row.attempts, row.last_error_code) for row in rows.archived()] == [(1, None)]


OTHERS: dict[str, dict[str, Any]] = {
    "with a key": {"key": "a"},
    "later": {"delay": 5},
    "of low priority": {"priority": "low"},
    "with an id of its own": {"id": UUID(int=5)},
    "to one with a rate": {"to": "metered"},
    "to one with slots of its own": {"to": "narrow"},
    "that is large": {"payload": "x" * 200_000},
}


def test_another_message_goes_by_the_claim(
    direct: Callable[..., Settings], engine: Engine, rows: Rows, queue: Queue
) -> None:
    url = "redis+stream://localhost/0/x"
    destinations = {
        "orders": {"url": url},
        "metered": {"url": url, "rate_limit": 5},
        "narrow": {"url": url, "concurrency": 1},
    }
    outbox = reached(Outbox(direct(destinations=destinations)))
    for what, options in OTHERS.items():
        queue.client.delete(CLAIM_QUEUE)
        with Session(engine) as session, session.begin():
            outbox.publish(session, "order.created", **{"payload": {}, "to": "orders", **options})
        eventually(queue.nudged)
        assert [row.lease for row in rows.hot()] == [None], what
        rows.clear()
    with Session(engine) as session, session.begin():
        outbox.publish_many(session, [Message("order.created", n, to="orders") for n in range(MOST + 1)])
    assert {row.lease for row in rows.hot()} == {None}, "many at once"
    assert queue.bundles() == []


@pytest.mark.parametrize("off", ["direct", "nudge"])
def test_it_can_be_switched_off(
    direct: Callable[..., Settings], engine: Engine, rows: Rows, queue: Queue, off: str
) -> None:
    outbox = Outbox(direct(**{off: False}))
    publish(outbox, engine)
    if off == "direct":
        eventually(queue.nudged)
    publish(outbox, engine)
    assert [row.lease for row in rows.hot()] == [None, None]


def test_a_session_that_works_on_a_connection_leaves_its_messages_to_the_claim(
    outbox: Outbox, engine: Engine, rows: Rows
) -> None:
    """Its commit is not the database's."""
    with engine.begin() as connection, Session(connection) as session:
        session.begin()
        outbox.publish(session, "order.created", {})
        session.commit()
    assert [row.lease for row in rows.hot()] == [None]


def test_messages_of_one_call_share_a_bundle_and_its_lease(
    outbox: Outbox, engine: Engine, rows: Rows, queue: Queue
) -> None:
    with Session(engine) as session, session.begin():
        outbox.publish(session, "order.created", 0)
        outbox.publish_many(session, [Message("order.created", n) for n in (1, 2)])
    eventually(lambda: len(queue.messages()) == 3)
    assert sorted(len(bundle.tickets) for bundle in queue.bundles()) == [1, 2]
    leases = [str(row.lease) for row in rows.hot()]
    assert leases[0] != leases[1] == leases[2]
    assert set(leases) == {bundle.lease for bundle in queue.bundles()}


def test_the_claim_is_woken_now_and_then_for_what_else_is_due(outbox: Outbox, engine: Engine, queue: Queue) -> None:
    publish(outbox, engine)
    eventually(queue.nudged)
    queue.client.delete(CLAIM_QUEUE)
    eventually(lambda: publish(outbox, engine) and queue.nudged())


def test_a_claim_is_woken_unless_one_waits(direct: Callable[..., Settings], queue: Queue) -> None:
    settings = direct()
    app = PinnedCelery("writer", broker=str(settings.broker_url), settings=settings)
    broker = Broker(app, settings)
    assert [broker.wake_claim() for _ in range(3)] == [True, False, False]
    assert queue.client.llen(CLAIM_QUEUE) == 1
    queue.client.delete(CLAIM_QUEUE)
    assert broker.wake_claim()
    assert not Broker(app, settings).wake_claim()


def test_a_process_keeps_one_client_of_redis_until_its_connections_are_lost(
    direct: Callable[..., Settings], own_redis: EmbeddedValkey
) -> None:
    settings = direct()
    broker = Broker(PinnedCelery("writer", broker=str(settings.broker_url), settings=settings), settings)

    def clients() -> set[int]:
        found = []
        for _ in range(2):
            broker.waiting()
            with broker.producer() as producer, producer.channel.conn_or_acquire() as client:
                found.append(client)
        return set(map(id, found))

    assert len(clients()) == 1
    own_redis.restart()
    eventually(lambda: _reached(broker))
    assert broker.wake_claim()
    assert len(clients()) == 1


def _reached(broker: Broker) -> bool:
    with suppress(BrokerUnreachable):
        return broker.waiting() == 0
    return False


def test_single_messages_are_not_bundled_for_a_destination_that_takes_no_bundles(
    direct: Callable[..., Settings], engine: Engine, queue: Queue
) -> None:
    outbox = reached(Outbox(direct(bundle_size=1)))
    with Session(engine) as session, session.begin():
        outbox.publish_many(session, [Message("order.created", n) for n in range(3)])
    eventually(lambda: len(queue.bundles()) == 3)


def test_an_event_of_which_one_copy_needs_the_claim_is_nudged_too(
    direct: Callable[..., Settings], engine: Engine, rows: Rows, queue: Queue
) -> None:
    url = "redis+stream://localhost/0/x"
    destinations = {"orders": {"url": url}, "narrow": {"url": url, "concurrency": 1}}
    outbox = reached(Outbox(direct(destinations=destinations)))
    queue.client.delete(CLAIM_QUEUE)
    publish(outbox, engine, to=["orders", "narrow"])
    eventually(lambda: queue.nudged() and queue.bundles())
    assert {row.destination: row.lease is None for row in rows.hot()} == {"orders": False, "narrow": True}


def test_a_stored_celery_task_goes_directly_too(
    direct: Callable[..., Settings], engine: Engine, rows: Rows, queue: Queue
) -> None:
    app = Celery("shop", set_as_current=False)

    @app.task(name="shop.add", shared=False)
    def task() -> None: ...

    outbox = reached(Outbox(direct(destinations={"tasks": {"url": "celery://"}})))
    with Session(engine) as session, session.begin():
        result = outbox.delay(session, task)
    [bundle] = eventually(queue.bundles)
    assert bundle.destination == "tasks"
    assert [row.aggregate_id for row in rows.hot()] == [result.id]


class TestTrouble:
    @pytest.fixture
    def grants(self, outbox: Outbox) -> Grants:
        nudge = outbox._writer.nudge
        assert nudge is not None
        assert nudge.grants is not None
        return nudge.grants

    def test_a_task_that_never_comes_costs_the_lease_and_no_attempt(
        self, outbox: Outbox, engine: Engine, rows: Rows, queue: Queue, store: Store, stream: Stream
    ) -> None:
        id = publish(outbox, engine)
        [late] = eventually(queue.bundles)
        assert take(store, {"orders": 10}, str(uuid4())) == []
        rows.change(locked_until=seconds_from_now(-1))
        [again] = take(store, {"orders": 10}, str(uuid4()))
        assert (again.attempts, again.cause, again.alone) == (0, "direct_expired", False)
        assert rows.one(id).last_error.startswith("its writer leased it, and no worker began it in time")
        [verdict] = deliver(store, Publishers(store.settings), late)
        assert verdict.step is Step.STALE
        assert stream.ids() == []

    def test_without_a_broker_no_message_waits_for_a_lease(
        self, settings: MakeSettings, engine: Engine, rows: Rows
    ) -> None:
        outbox = Outbox(settings(broker_url=f"redis://127.0.0.1:{free_port()}/0"))
        for _ in range(3):
            publish(outbox, engine)
        assert [row.lease for row in rows.hot()] == [None, None, None]

    def test_it_begins_again_once_the_broker_is_back(
        self, outbox: Outbox, engine: Engine, rows: Rows, queue: Queue, own_redis: EmbeddedValkey, grants: Grants
    ) -> None:
        publish(outbox, engine)
        eventually(queue.bundles)
        own_redis.kill()
        publish(outbox, engine)
        eventually(lambda: grants.stopped)
        own_redis.start()
        eventually(lambda: publish(outbox, engine) and not grants.stopped)
        publish(outbox, engine)
        assert rows.hot()[-1].lease is not None

    def test_while_the_queue_is_long_messages_go_by_the_claim_and_directly_once_it_is_short(
        self, outbox: Outbox, engine: Engine, rows: Rows, queue: Queue, grants: Grants
    ) -> None:
        """Not once it is a little less long, nor after a while."""
        queue.client.lpush(PUBLISH_QUEUE, *["{}"] * (LONG + 1))
        eventually(lambda: publish(outbox, engine) and grants.paused)
        publish(outbox, engine)
        assert rows.hot()[-1].lease is None
        queue.client.ltrim(PUBLISH_QUEUE, 0, SHORT)
        self.look(outbox, engine, 2)
        assert grants.paused
        queue.client.delete(PUBLISH_QUEUE)
        eventually(lambda: publish(outbox, engine) and not grants.paused)

    @staticmethod
    def look(outbox: Outbox, engine: Engine, times: int) -> None:
        """Publish until the process has looked so often whether older messages wait."""
        line = outbox._writer.nudge._wake.__self__  # type: ignore[union-attr]
        for _ in range(times):
            before = line._looked
            eventually(lambda before=before: publish(outbox, engine) and line._looked > before)

    def test_while_older_messages_are_due_new_ones_go_by_the_claim(
        self, outbox: Outbox, engine: Engine, rows: Rows, queue: Queue, grants: Grants
    ) -> None:
        """The claim says so. The queue may be short all the time."""
        settings = outbox.settings
        relay = Broker(PinnedCelery("relay", broker=str(settings.broker_url), settings=settings), settings)
        assert not relay.is_behind()
        relay.note_behind()
        assert relay.is_behind()
        eventually(lambda: publish(outbox, engine) and grants.paused)
        publish(outbox, engine)
        assert rows.hot()[-1].lease is None
        assert 0 < queue.client.pttl(BEHIND) <= BEHIND_FOR * 1000  # type: ignore[operator]
        queue.client.delete(BEHIND, *queue.client.keys("outbox.publish*"))  # what it sent until it looked
        eventually(lambda: publish(outbox, engine) and not grants.paused)

    @pytest.mark.parametrize("why", ["it is paused", "its breaker is open"])
    def test_a_destination_that_gets_nothing_gives_the_message_back(
        self, outbox: Outbox, engine: Engine, rows: Rows, queue: Queue, store: Store, stream: Stream, why: str
    ) -> None:
        if why == "it is paused":
            pause(store, "orders", "somebody", None)
        else:
            for _ in range(store.settings.breaker_failures):
                store.traffic.tripped("orders", str(uuid4()), "connection", "refused")
        id = publish(outbox, engine)
        [bundle] = eventually(queue.bundles)
        [verdict] = deliver(store, Publishers(store.settings), bundle)
        row = rows.one(id)
        assert (verdict.step, row.lease, row.attempts, len(stream)) == (Step.STALE, None, 0, 0)

    def test_a_relay_that_does_not_know_the_destination_releases_the_message(
        self, direct: Callable[..., Settings], engine: Engine, rows: Rows, queue: Queue, new_store: MakeStore
    ) -> None:
        outbox = reached(Outbox(direct(destinations={"fresh": {"url": "redis+stream://localhost/0/x"}})))
        id = publish(outbox, engine, to="fresh")
        [bundle] = eventually(queue.bundles)
        store = new_store()
        [verdict] = deliver(store, Publishers(store.settings), bundle)
        row = rows.one(id)
        assert (verdict.step, row.status, row.lease) == (Step.RELEASE, "pending", None)
        assert row.last_error_code == "unknown_destination"

    @pytest.mark.parametrize("when", ["before the commit", "after it"])
    def test_a_message_can_be_cancelled_until_it_is_begun(
        self, outbox: Outbox, engine: Engine, rows: Rows, queue: Queue, store: Store, stream: Stream, when: str
    ) -> None:
        with Session(engine) as session, session.begin():
            id = outbox.publish(session, "order.created", {})
            if when == "before the commit":
                assert outbox.cancel(session, id)
        if when == "after it":
            with Session(engine) as session, session.begin():
                assert outbox.cancel(session, id)
        [bundle] = eventually(queue.bundles)
        deliver(store, Publishers(store.settings), bundle)
        assert (rows.hot(), len(stream)) == ([], 0)

    def test_a_transaction_that_takes_longer_than_the_lease_nudges_instead(
        self, outbox: Outbox, engine: Engine, rows: Rows, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_tasks.writing.direct.LEASE", 1.0)
        with Session(engine) as session, session.begin():
            outbox.publish(session, "order.created", {})
            time.sleep(0.01)
        eventually(queue.nudged)
        assert queue.bundles() == []

    def test_a_commit_that_takes_long_is_waited_for(
        self, outbox: Outbox, engine: Engine, rows: Rows, queue: Queue, schema: str
    ) -> None:
        """A task that came before its end would be dropped."""
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql "
                "AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END';"
                f"CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {schema}.outbox_messages "
                f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.slow()"
            )
        connection = engine.connect()
        with connection.begin():
            outbox.publish(connection, "order.created", {})
            written = time.monotonic()
        connection.close()
        assert time.monotonic() - written > 0.25
        assert len(eventually(queue.bundles)) == 1
        assert len(rows.hot()) == 1

    def test_the_test_plugin_drains_what_a_writer_leased(
        self, direct: Callable[..., Settings], engine: Engine, rows: Rows
    ) -> None:
        probe = OutboxProbe(direct())
        try:
            publish(reached(Outbox(direct())), engine)
            assert probe.drain().sent == 1
        finally:
            probe.close()


def test_a_process_grants_itself_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("outbox_tasks.writing.direct.time.monotonic", lambda: now)
    grants = Grants()
    assert not grants.take(1)
    grants.note(answers=True)
    taken = [grants.take(1) for _ in range(int(BURST) + 5)]
    assert taken == [True] * int(BURST) + [False] * 5
    now += 0.011
    assert grants.take(5)
    assert not grants.take(1)
    now += 2
    assert grants.take(1)
