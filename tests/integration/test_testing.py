"""`outbox_tasks.testing`, as the tests of an application use it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from sqlalchemy import URL, Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox_tasks.database.connection import engine_url
from outbox_tasks.errors import PermanentError, TransientError
from outbox_tasks.model import LeasedMessage, Outcome, TaskHeaders
from outbox_tasks.outbox import Outbox
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import UNKNOWN_GRACE_SECONDS
from outbox_tasks.relay.store.processes import holder
from outbox_tasks.settings import Settings
from outbox_tasks.testing import OutboxProbe, SeenMessage, SimulatedCrash
from outbox_tasks.testing.errors import (
    ConsumerNotPlain,
    DrainEndless,
    NotADestination,
    NotAPoint,
    NotATask,
    NotJson,
    NotReadable,
    RelayAtWork,
)
from outbox_tasks.testing.pipe import Point
from tests.conftest import MakeSettings, Rows, Stream, make_tables, seconds_from_now

MEMORY = "redis+stream://localhost:1/0/nothing-listens-here"
ORDERS = {"orders": {"url": MEMORY}}
Publish = Callable[..., UUID]


@pytest.fixture
def own_settings(settings: MakeSettings) -> Settings:
    destinations = {
        "orders": {"url": MEMORY},
        "audit": {"url": MEMORY, "max_attempts": 3},
        "tasks": {"url": "celery://?accept=json,pickle"},
    }
    routes = {"order.*": ["orders"], "audited.*": ["orders", "audit"]}
    return settings(nudge=False, destinations=destinations, routes=routes)


@pytest.fixture
def outbox(own_settings: Settings, engine: Engine, schema: str) -> Iterator[OutboxProbe]:
    make_tables(engine, schema)  # a probe would take the longer way, by all the migrations
    with OutboxProbe(own_settings) as probe:
        yield probe


@pytest.fixture
def rows(outbox: OutboxProbe, engine: Engine, schema: str) -> Rows:
    """Without the store of the tests' own fixture: that would be a relay at work."""
    return Rows(engine, schema)


@pytest.fixture
def publish(own_settings: Settings, engine: Engine) -> Publish:
    writer = Outbox(own_settings)

    def publish(event_type: str = "order.created", payload: Any = None, **options: Any) -> UUID:
        with Session(engine) as session, session.begin():
            return writer.publish(session, event_type, {"id": 42} if payload is None else payload, **options)

    return publish


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("shop", broker="memory://", set_as_current=False) as made:
        made.conf.task_routes = {"shop.tasks.*": {"queue": "mails"}}

        @made.task(name="shop.tasks.send_receipt", shared=False)
        def send_receipt(*args: Any, **kwargs: Any) -> None: ...

        yield made


def busy_keys(rows: Rows) -> list[Any]:
    with rows.engine.connect() as connection:
        busy = f"SELECT key, token, due = 'infinity' FROM {rows.tables.messages.schema}.outbox_keys ORDER BY key"
        return list(connection.execute(text(busy)).all())


def refusal(assertion: Callable[..., object], *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assertion(*arguments, **keywords)
    return str(caught.value)


class TestPublished:
    def test_a_committed_message_is_seen_as_it_was_published(self, outbox: OutboxProbe, publish: Publish) -> None:
        id = publish(payload={"id": 42, "of": ["ä"]}, key="order:42", headers={"tenant": "t1"}, aggregate_id="42")
        [message] = outbox.published
        assert (message.id, message.event_type, message.destination) == (id, "order.created", "orders")
        assert (message.key, message.json, message.headers) == ("order:42", {"id": 42, "of": ["ä"]}, {"tenant": "t1"})
        assert (message.payload, message.aggregate_id) == ('{"id":42,"of":["ä"]}'.encode(), "42")
        assert (message.state, message.attempts, message.task) == ("pending", 0, None)
        assert message.due is not None
        assert abs(message.due - datetime.now(UTC)) < timedelta(minutes=1)

    def test_it_is_found_by_whatever_is_said_of_it(self, outbox: OutboxProbe, publish: Publish) -> None:
        customer = uuid4()
        publish("order.paid", {"id": 1})
        id = publish(
            payload={"id": 42, "customer": {"id": customer, "name": "Ada"}, "lines": [{"sku": "a", "n": 1}]}, key="k"
        )
        find = outbox.assert_published
        assert find("order.created").id == id
        assert find("order.cr*", id=42).id == id
        assert find("order.created", customer={"id": customer}, lines=[{"sku": "a"}]).id == id
        assert find(key="k", to="orders", message_id=str(id)).id == id
        assert find("order.*", times=2).json == {"id": 1}
        assert find("order.paid", payload={"id": 1}).event_type == "order.paid"
        assert find(id=pytest.approx(42.0, abs=0.1)).id == id
        assert [message.id for message in outbox.find("*.created")] == [id]
        outbox.assert_not_published("order.created", id=43)
        outbox.assert_not_published("order.created", payload={"id": 42})
        outbox.assert_not_published("order.created", lines=[])
        outbox.assert_not_published("order.created", key="other")

    def test_only_what_is_written_since_it_began_is_seen(
        self, own_settings: Settings, outbox: OutboxProbe, publish: Publish
    ) -> None:
        publish()
        with OutboxProbe(own_settings) as later:
            later.assert_nothing_published()
            publish("order.paid")
            assert [message.event_type for message in later.published] == ["order.paid"]
        assert len(outbox.published) == 2

    def test_what_was_rolled_back_is_not_there(self, outbox: OutboxProbe, engine: Engine) -> None:
        with Session(engine) as session:
            session.begin()
            Outbox(outbox.settings).publish(session, "order.created", {})
            session.rollback()
        outbox.assert_nothing_published()

    def test_text_and_bytes_are_payloads_too(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish(payload="plain")
        publish(payload=b"\xff\x00", content_type="image/x")
        outbox.assert_published(payload="plain")
        binary = outbox.assert_published(payload=b"\xff\x00")
        with pytest.raises(NotJson, match=r"'order.created' \(image/x\) is not JSON"):
            _ = binary.json
        assert "payload is not JSON but image/x" in refusal(outbox.assert_published, id=42)

    def test_tables_are_made_where_they_are_missing(self, own_settings: Settings) -> None:
        with OutboxProbe(own_settings) as probe:
            probe.assert_nothing_published()
        store = Store.connect(own_settings)
        store.check_version()
        store.close()


class TestFailuresRead:
    def test_what_was_published_instead_and_why_it_is_not_meant(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish(payload={"id": 42, "customer": {"name": "Ada"}}, key="order:42")
        publish("mail.sent", {"to": "ada"}, to="audit", delay=60)
        text = refusal(
            outbox.assert_published,
            "order.created",
            id=43,
            total=7,
            customer={"name": "Bob"},
            key="order:43",
            to="audit",
        )
        assert text == (
            "assert_published('order.created', id=43, total=7, customer={'name': 'Bob'}, key='order:43', to='audit'): "
            "at least one expected, none found.\n"
            "What was published (2):\n"
            """   1 order.created → orders  key='order:42'  {"id":42,"customer":{"name":"Ada"}}\n"""
            "       - key is 'order:42', not 'order:43'\n"
            "       - to is 'orders', not 'audit'\n"
            "       - id is 42, not 43\n"
            "       - total is missing; there is id, customer\n"
            "       - customer.name is 'Ada', not 'Bob'\n"
            """   2 mail.sent → audit  {"to":"ada"}  (scheduled)"""
        )

    def test_too_many(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        publish(payload={"id": 43})
        text = refusal(outbox.assert_published, "order.created", times=1)
        assert text.splitlines()[0] == "assert_published('order.created'): 1 expected, 2 found."
        assert [line[0] for line in text.splitlines()[2:]] == ["*", "*"]
        text = refusal(outbox.assert_not_published, "order.created", id=43)
        assert text.splitlines() == [
            "assert_not_published('order.created', id=43): none expected, 1 found.",
            "What was published (2):",
            """   1 order.created → orders  {"id":42}""",
            "       - id is 42, not 43",
            """*  2 order.created → orders  {"id":43}""",
        ]
        assert "assert_nothing_published(): none expected, 2 found." in refusal(outbox.assert_nothing_published)

    def test_nothing_at_all(self, outbox: OutboxProbe) -> None:
        assert refusal(outbox.assert_published, "order.created") == (
            "assert_published('order.created'): at least one expected, none found.\n"
            "Nothing was published. "
            "Only committed messages are seen here; for others there is outbox.within(session)."
        )
        assert "Call outbox.drain() first" in refusal(outbox.assert_delivered, "order.created")

    def test_a_long_payload_is_cut_and_a_reason_is_given(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish(payload={"text": "x" * 1000})
        outbox.fail("orders", Outcome.dead("refused", "no"))
        outbox.drain()
        [line] = [line for line in refusal(outbox.assert_nothing_published).splitlines() if "xxx" in line]
        assert line.endswith("xxx… (1011 characters)  (dead, refused)")

    def test_none_is_asked_for_by_another_name(self, outbox: OutboxProbe) -> None:
        with pytest.raises(ValueError, match="use assert_not_"):
            outbox.assert_published("order.created", times=0)


class TestTasks:
    @pytest.fixture
    def stored(self, own_settings: Settings, engine: Engine, app: Celery) -> Callable[..., Any]:
        writer = Outbox(own_settings, celery=app)

        def store(*args: Any, task: Any = "shop.tasks.send_receipt", **options: Any) -> Any:
            with Session(engine) as session, session.begin():
                return writer.apply_async(session, app.tasks[task], *args, **options)

        return store

    @pytest.mark.parametrize(
        "how",
        [{}, {"serializer": "pickle"}, {"compression": "zlib"}, {"serializer": "pickle", "compression": "gzip"}],
        ids=str,
    )
    def test_a_stored_task_is_found_with_its_arguments(
        self, outbox: OutboxProbe, stored: Any, app: Celery, how: dict[str, str]
    ) -> None:
        result = stored((42, (1, 2)), {"lang": "de", "more": {"a": 1, "b": 2}}, **how)
        task = outbox.assert_task(
            "shop.tasks.send_receipt", args=(42, (1, 2)), kwargs={"more": {"a": 1}}, queue="mails"
        )
        assert (task.id, task.kwargs["lang"]) == (result.id, "de")
        assert outbox.assert_task(app.tasks["shop.tasks.send_receipt"]) == task
        assert outbox.assert_task("shop.*", times=1) == task
        assert str(task) == f"shop.tasks.send_receipt(42, {task.args[1]!r}, lang='de', more={{'a': 1, 'b': 2}})"

    def test_the_first_message_protocol_too(self, outbox: OutboxProbe, stored: Any, app: Celery) -> None:
        app.conf.task_protocol = 1
        stored((42,))
        assert outbox.assert_task("shop.tasks.send_receipt", args=(42,), kwargs={}).args == [42]

    def test_a_refusal_shows_tasks_as_calls(self, outbox: OutboxProbe, stored: Any, publish: Publish) -> None:
        stored((42,), {"lang": "de"}, countdown=60)
        publish()
        text = refusal(outbox.assert_task, "shop.tasks.send_receipt", args=(43,), kwargs={"lang": "en"}, queue="other")
        assert text.splitlines() == [
            "assert_task('shop.tasks.send_receipt', args=(43,), kwargs={'lang': 'en'}, queue='other'): "
            "at least one expected, none found.",
            "What was published (2):",
            "   1 task shop.tasks.send_receipt(42, lang='de') → tasks, queue 'mails'  (scheduled)",
            "       - args are (42,), not (43,)",
            "       - kwargs.lang is 'de', not 'en'",
            "       - queue is 'mails', not 'other'",
            """   2 order.created → orders  {"id":42}""",
        ]
        outbox.assert_no_task("shop.tasks.send_receipt", args=(43,))
        assert "1 found" in refusal(outbox.assert_no_task)

    def test_a_refusal_names_an_eager_app(self, outbox: OutboxProbe, app: Celery, monkeypatch: Any) -> None:
        task = app.tasks["shop.tasks.send_receipt"]
        assert "eager" not in refusal(outbox.assert_task, task)
        monkeypatch.setitem(app.conf, "task_always_eager", True)
        assert "is eager (task_always_eager): each task runs at once" in refusal(outbox.assert_task, task)

    def test_an_event_is_no_task(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        outbox.assert_no_task()
        assert "none found" in refusal(outbox.assert_task, "order.created")

    def test_a_task_that_can_not_be_read_is_listed_all_the_same(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish(headers=TaskHeaders({"celery-message": "no"}))
        with pytest.raises(NotATask, match="is not that of a stored Celery task: "):
            _ = outbox.published[0].task
        assert """1 order.created → orders  {"id":42}""" in refusal(outbox.assert_nothing_published)

    def test_a_delivered_task_can_be_run(self, outbox: OutboxProbe, stored: Any, app: Celery) -> None:
        ran: list[Any] = []

        @app.task(name="shop.tasks.note", shared=False)
        def note(value: int) -> None:
            ran.append(value)

        def run(message: SeenMessage) -> None:
            assert message.task is not None
            app.tasks[message.task.name].apply(message.task.args, message.task.kwargs, throw=True)

        outbox.consume("tasks", run)
        stored((7,), task="shop.tasks.note")
        outbox.drain()
        assert ran == [7]


class TestWithin:
    """Applications whose tests run inside a transaction that is rolled back."""

    def test_a_session_sees_what_it_has_not_committed(self, outbox: OutboxProbe, engine: Engine) -> None:
        with Session(engine) as session:
            session.begin()
            id = Outbox(outbox.settings).publish(session, "order.created", {"id": 42})
            message = outbox.within(session).assert_published("order.created", id=42)
            assert (message.id, message.state) == (id, "pending")
            outbox.assert_nothing_published()
            assert session.in_transaction()
            session.rollback()
            outbox.within(session).assert_nothing_published()
            assert not session.in_transaction()

    def test_an_external_transaction(self, outbox: OutboxProbe, engine: Engine) -> None:
        with engine.connect() as connection:
            transaction = connection.begin()
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                with session.begin():
                    Outbox(outbox.settings).publish(session, "order.created", {"id": 42})
                outbox.within(session).assert_published("order.created", id=42)
                assert not session.in_transaction()
            outbox.within(connection).assert_published("order.created", id=42)
            assert transaction.is_active
            transaction.rollback()
            outbox.within(connection).assert_nothing_published()
            assert not connection.in_transaction()

    @pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
    def test_an_async_session_shows_it_when_it_commits(
        self, outbox: OutboxProbe, postgres_url: str, driver: str
    ) -> None:
        async def run() -> None:
            engine = create_async_engine(engine_url(postgres_url).set(drivername=f"postgresql+{driver}"))
            async with engine.connect() as connection, connection.begin() as transaction:
                session = AsyncSession(connection, join_transaction_mode="create_savepoint")
                async with session.begin():
                    Outbox(outbox.settings).publish(session, "order.created", {"id": 42})
                    await session.run_sync(lambda s: outbox.within(s).assert_nothing_published())
                await session.run_sync(lambda s: outbox.within(s).assert_published("order.created", id=42))
                with pytest.raises(NotReadable, match=r"AsyncSession can't be read without awaiting it.*run_sync"):
                    outbox.within(session).assert_nothing_published()
                await session.close()
                await transaction.rollback()
            await engine.dispose()

        asyncio.run(run())

    def test_a_refusal_says_when_it_will_be_there(self, outbox: OutboxProbe, engine: Engine) -> None:
        with Session(engine) as session, session.begin():
            text = refusal(outbox.within(session).assert_published, "order.created")
        assert text.endswith(
            "Nothing was published. Messages of an AsyncSession are written, and seen, when it commits."
        )


class TestDrain:
    def test_it_delivers_in_memory_and_leaves_nothing(self, outbox: OutboxProbe, publish: Publish, rows: Rows) -> None:
        ids = [publish(payload={"id": n}, key=f"order:{n}") for n in range(120)]
        drained = outbox.drain()
        assert (drained.sent, drained.left) == (120, 0)
        assert {message.id for message in outbox.delivered} == set(ids)
        assert outbox.assert_delivered("order.created", id=7, key="order:7", times=1).attempts == 1
        assert rows.hot() == []
        assert {row.state for row in rows.archived()} == {"sent"}
        assert outbox.assert_published("order.created", id=7).state == "sent"

    def test_it_leaves_what_others_wrote(
        self, own_settings: Settings, publish: Publish, outbox: OutboxProbe, rows: Rows
    ) -> None:
        publish()
        with outbox.crash_at("after_send"):
            outbox.drain()
        publish("order.late", delay=60)
        before = rows.hot()
        with OutboxProbe(own_settings) as later:
            publish("order.paid")
            assert later.drain(skip_waits=True).sent == 1
            assert [message.event_type for message in later.delivered] == ["order.paid"]
            later.forward(10)
            assert later.expire_leases() == 0
            assert rows.hot() == before

            rows.change(locked_until=seconds_from_now(-1))
            before = rows.hot()
            assert later.drain(skip_waits=True).sent == 0
        assert rows.hot() == before

    def test_what_others_left_under_a_key_holds_up_nothing_and_stays(
        self, own_settings: Settings, publish: Publish, outbox: OutboxProbe, rows: Rows
    ) -> None:
        publish(key="dead")
        outbox.fail("orders", PermanentError("no", code="never"))
        outbox.drain()
        publish(key="dead")  # behind it
        outbox.drain()
        publish(key="leased")
        with outbox.crash_at("after_send"):
            outbox.drain()
        before, busy = rows.hot(), busy_keys(rows)
        with OutboxProbe(own_settings) as later:
            for key in ("dead", "leased"):
                publish("order.first", key=key)
                publish("order.second", key=key)
            later.fail("orders", event_type="order.first", times=2)
            assert later.drain(skip_waits=True).sent == 4
            assert [m.event_type for m in later.delivered if m.key == "dead"] == ["order.first", "order.second"]
        assert (rows.hot(), busy_keys(rows)) == (before, busy)
        assert outbox.expire_leases() == 1
        assert outbox.drain().sent == 1

    def test_dead_letters_are_made_of_ones_own_only(
        self, own_settings: Settings, outbox: OutboxProbe, rows: Rows
    ) -> None:
        long_ago = seconds_from_now(-2 * UNKNOWN_GRACE_SECONDS)
        rows.insert(1, destination="gone", locked_until=long_ago)
        with OutboxProbe(own_settings) as later:
            rows.insert(250, destination="gone", locked_until=long_ago)
            assert later.drain().dead == 250
            assert later.published[0].error_code == "unknown_destination"
        assert outbox.published[0].state == "pending"

    def test_what_is_published_while_draining_is_drained(self, outbox: OutboxProbe, publish: Publish) -> None:
        outbox.consume("orders", lambda message: publish("mail.wanted", message.json, to="audit"))
        publish()
        assert outbox.drain().sent == 2
        assert [message.event_type for message in outbox.delivered] == ["order.created", "mail.wanted"]

    def test_a_circle_is_noticed(self, outbox: OutboxProbe, publish: Publish) -> None:
        outbox.consume("orders", lambda message: publish())
        publish()
        with pytest.raises(DrainEndless, match="begun 20 sends, and there are more"):
            outbox.drain(at_most=20)

    def test_it_refuses_beside_a_relay(self, own_settings: Settings, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        relay = Store.connect(own_settings)
        try:
            relay.check_version()
            with pytest.raises(
                RelayAtWork, match=r"A relay is connected to the database of this test \(server process \d+"
            ):
                outbox.drain()
            outbox.assert_published("order.created", times=1)
            with OutboxProbe(own_settings, beside_relay=True) as other:
                publish()
                assert other.drain().sent == 1
        finally:
            relay.close()

    def test_real_publishers_can_be_used(self, settings: MakeSettings, engine: Engine, stream: Stream) -> None:
        own = settings(nudge=False)
        publishers = Publishers(own)
        with OutboxProbe(own) as probe:
            with Session(engine) as session, session.begin():
                ids = [str(Outbox(own).publish(session, "order.created", {})) for _ in range(3)]
            probe.fail("orders", times=1)
            drained = probe.drain(publishers=publishers)
            assert (drained.sent, drained.retried) == (2, 1)
            assert stream.ids() == ids[1:] == [str(message.id) for message in probe.delivered]
        publishers.close()

    def test_a_real_publisher_that_fails_delivers_nothing(self, outbox: OutboxProbe, publish: Publish) -> None:
        class Broken:
            def publish(self, messages: list[LeasedMessage]) -> list[Outcome]:
                raise TransientError("away", code="gone_fishing")

            def close(self) -> None: ...

        publish()
        assert outbox.drain(publishers={"orders": Broken()}).retried == 1  # type: ignore[dict-item]
        assert (outbox.delivered, outbox.published[0].error_code) == ([], "gone_fishing")


class TestConsumers:
    def test_it_gets_what_goes_to_its_destination(self, outbox: OutboxProbe, publish: Publish) -> None:
        got: list[SeenMessage] = []
        outbox.consume("audit", got.append)
        publish("audited.login", {"user": 1})
        assert outbox.drain().sent == 2
        assert [(message.destination, message.json) for message in got] == [("audit", {"user": 1})]

    @pytest.mark.parametrize(
        ("error", "state", "code"),
        [
            (RuntimeError("no"), "retrying", "RuntimeError"),
            (TransientError("no", code="busy"), "retrying", "busy"),
            (PermanentError("no", code="never"), "dead", "never"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
    )
    def test_what_it_raises_is_an_answer(
        self, outbox: OutboxProbe, publish: Publish, error: Exception, state: str, code: str
    ) -> None:
        def consumer(message: SeenMessage) -> None:
            raise error

        publish()
        outbox.consume("orders", consumer)
        outbox.drain()
        message = outbox.published[0]
        assert (message.state, message.error_code, message.error) == (state, code, "no")
        outbox.assert_not_delivered()

    def test_an_assertion_in_it_fails_the_test(self, outbox: OutboxProbe, publish: Publish) -> None:
        def consumer(message: SeenMessage) -> None:
            assert message.json == {"id": 43}, "not the one"

        publish()
        outbox.consume("orders", consumer)
        with pytest.raises(AssertionError, match="not the one"):
            outbox.drain()

    def test_what_can_never_be_called_is_refused(self, outbox: OutboxProbe) -> None:
        async def consumer(message: SeenMessage) -> None: ...

        with pytest.raises(ConsumerNotPlain, match="The consumer of 'orders' is an `async def`"):
            outbox.consume("orders", consumer)
        with pytest.raises(NotADestination, match=r"'ordres' is not a configured .* Known: audit, orders, tasks"):
            outbox.consume("ordres", print)
        with pytest.raises(NotADestination):
            outbox.fail("ordres")


class TestRetries:
    def test_a_failure_waits_and_then_succeeds(self, outbox: OutboxProbe, publish: Publish, rows: Rows) -> None:
        id = publish()
        outbox.fail("orders", TransientError("try later", code="busy"))
        drained = outbox.drain()
        assert (drained.retried, drained.sent, drained.left) == (1, 0, 1)
        assert (outbox.published[0].state, outbox.published[0].error_code) == ("retrying", "busy")
        lease = rows.one(id).lease
        assert lease is not None
        assert outbox.drain().sent == 0
        outbox.forward(2)
        assert rows.one(id).lease == lease
        assert outbox.drain().sent == 1
        assert outbox.assert_delivered(message_id=id, times=1).attempts == 2
        assert outbox.published[0].error_code == "busy"

    def test_time_does_not_end_the_lease_of_a_retry(self, outbox: OutboxProbe, publish: Publish, rows: Rows) -> None:
        id = publish()
        outbox.fail("orders", Outcome.retry("busy", "later"))
        outbox.drain()
        lease = rows.one(id).lease
        outbox.forward(3600)
        assert rows.one(id).lease == lease
        with outbox.crash_at("after_send"):
            outbox.drain()
        assert (rows.one(id).lease, rows.one(id).attempts) == (lease, 2)

    def test_a_long_wait_goes_back_to_the_table(self, outbox: OutboxProbe, publish: Publish, rows: Rows) -> None:
        id = publish()
        outbox.fail("orders", Outcome.retry("throttled", "slow down", retry_after=600))
        outbox.drain()
        assert rows.one(id).lease is None
        outbox.forward(500)
        assert outbox.drain().sent == 0
        outbox.forward(300)
        assert outbox.drain().sent == 1

    def test_skipping_the_waits_ends_in_a_dead_letter(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish("audited.login")
        outbox.fail("audit", Outcome.retry("busy", "later"), times=None)
        drained = outbox.drain(skip_waits=True)
        assert (drained.sent, drained.retried, drained.dead, drained.left) == (1, 2, 1, 0)
        dead = outbox.assert_published("audited.login", to="audit")
        assert (dead.state, dead.attempts, dead.error_code, dead.due) == ("dead", 3, "busy", None)

    def test_a_permanent_failure_is_a_dead_letter_at_once(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        publish("order.paid")
        outbox.fail("orders", PermanentError("no such user", code="no_user"), event_type="*.paid", times=None)
        drained = outbox.drain()
        assert (drained.sent, drained.dead) == (1, 1)
        assert outbox.assert_published("order.paid").error_code == "no_user"
        outbox.assert_not_delivered("order.paid")

    def test_failures_follow_each_other(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        outbox.fail("orders", Outcome.retry("first", "1"))
        outbox.fail("orders", Outcome.discarded("expired", "2"))
        drained = outbox.drain(skip_waits=True)
        assert (drained.retried, drained.discarded, drained.sent) == (1, 1, 0)
        assert (outbox.published[0].state, outbox.published[0].error_code) == ("discarded", "expired")

    def test_what_is_scheduled_waits(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish("order.late", delay=3600)
        publish("order.soon", delay=60)
        assert outbox.drain().left == 2
        assert [message.state for message in outbox.published] == ["scheduled"] * 2
        outbox.forward(61)
        assert outbox.drain().sent == 1
        assert outbox.drain(skip_waits=True).sent == 1
        assert [message.event_type for message in outbox.delivered] == ["order.soon", "order.late"]

    def test_waits_are_skipped_in_their_order(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish("order.third", delay=600)
        publish("order.second")
        publish("order.first", to="audit", delay=1)
        outbox.fail("orders", Outcome.retry("busy", "later", retry_after=10))
        assert outbox.drain(skip_waits=True).sent == 3
        assert [message.event_type for message in outbox.delivered] == ["order.first", "order.second", "order.third"]

    def test_what_somebody_has_locked_ends_the_skipping(
        self, outbox: OutboxProbe, publish: Publish, rows: Rows, engine: Engine
    ) -> None:
        publish()
        with engine.begin() as connection:
            connection.execute(text(f"SELECT FROM {rows.tables.messages.schema}.outbox_ready FOR UPDATE"))
            assert outbox.drain(skip_waits=True).left == 1
        assert outbox.drain().sent == 1


class TestCrashes:
    @pytest.mark.parametrize(
        ("point", "begun", "attempts", "deliveries", "code"),
        [
            ("after_claim", False, 0, 0, "lease_expired"),
            ("before_send", True, 1, 0, "unsettled"),
            ("after_send", True, 1, 1, "unsettled"),
            ("before_settle", True, 1, 1, "unsettled"),
        ],
    )
    def test_the_row_is_as_a_killed_worker_leaves_it(
        self,
        outbox: OutboxProbe,
        publish: Publish,
        rows: Rows,
        point: Point,
        begun: bool,
        attempts: int,
        deliveries: int,
        code: str,
    ) -> None:
        id = publish()
        with outbox.crash_at(point):
            outbox.drain()
            pytest.fail("the drain went on")
        row = rows.one(id)
        assert (row.begun, row.attempts, row.status) == (begun, attempts, "pending")
        assert row.lease is not None
        assert row.locked_by == holder()
        assert row.locked_until > datetime.now(UTC) + timedelta(seconds=30)
        assert len(outbox.delivered) == deliveries
        assert outbox.published[0].state == "leased"

        assert outbox.drain().left == 1
        assert outbox.expire_leases() == 1
        assert (outbox.drain().sent, outbox.published[0].state) == (1, "sent")
        assert outbox.published[0].error_code == code
        outbox.assert_delivered(message_id=id, times=deliveries + 1)

    def test_after_the_settle_nothing_is_repeated(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        with outbox.crash_at("after_settle"):
            outbox.drain()
        assert outbox.expire_leases() == 0
        assert outbox.drain().sent == 0
        assert (outbox.published[0].state, outbox.published[0].error_code) == ("sent", None)

    def test_time_ends_the_lease_of_the_dead(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        with outbox.crash_at("after_send"):
            outbox.drain()
        outbox.forward(30)
        assert outbox.drain().sent == 0
        outbox.forward(31)
        assert outbox.drain().sent == 1
        assert [message.attempts for message in outbox.delivered] == [1, 2]

    def test_an_hour_ends_it_too(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        outbox.drain()
        publish()
        with outbox.crash_at("after_send"):
            outbox.drain()
        outbox.forward(3600)
        assert outbox.drain().sent == 1

    def test_skipping_the_waits_outlives_a_crash(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        with outbox.crash_at("before_settle"):
            outbox.drain()
        assert outbox.drain(skip_waits=True).sent == 1
        outbox.assert_delivered("order.created", times=2)

    def test_only_the_message_that_is_meant_crashes_it(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish("order.paid", to="audit")
        publish("order.created")
        with outbox.crash_at("after_send", "*.created"):
            outbox.drain()
        outbox.assert_delivered("order.created", times=1)
        with outbox.crash_at("after_claim", "order.created"):
            outbox.expire_leases()
            outbox.drain()

    def test_a_crash_takes_the_retries_along(self, outbox: OutboxProbe, publish: Publish, rows: Rows) -> None:
        id = publish(payload={"id": 1})
        outbox.fail("orders", Outcome.retry("busy", "later"))
        outbox.drain()
        publish("order.paid")
        with outbox.crash_at("after_claim"):
            outbox.drain()
        outbox.forward(10)
        assert outbox.drain().sent == 0
        assert rows.one(id).lease is not None
        assert outbox.expire_leases() == 2
        assert outbox.drain().sent == 2

    def test_a_flush_of_the_broker_loses_a_retry_and_not_its_message(
        self, outbox: OutboxProbe, publish: Publish
    ) -> None:
        publish()
        outbox.fail("orders", Outcome.retry("busy", "later"))
        outbox.drain()
        assert outbox.expire_leases() == 1
        assert outbox.drain().sent == 1
        assert outbox.assert_delivered("order.created").attempts == 2

    def test_a_crash_that_does_not_happen_fails_the_test(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish()

        def armed() -> None:
            with outbox.crash_at("after_send", "order.paid"):
                outbox.drain()

        assert refusal(armed) == (
            "crash_at('after_send'): no drain came to this point with a message 'order.paid', so that nothing crashed."
        )
        publish("order.paid")
        assert outbox.drain().sent == 1

    def test_a_consumer_can_be_killed_half_way(self, outbox: OutboxProbe, publish: Publish, rows: Rows) -> None:
        def consumer(message: SeenMessage) -> None:
            if message.attempts == 1:
                raise SimulatedCrash

        id = publish()
        outbox.consume("orders", consumer)
        with pytest.raises(SimulatedCrash):
            outbox.drain()
        assert rows.one(id).begun
        outbox.expire_leases()
        assert outbox.drain().sent == 1

    def test_a_misspelt_point_is_refused(self, outbox: OutboxProbe) -> None:
        with pytest.raises(NotAPoint, match=r"no crash point 'after_sent'\. Choose one of: after_claim, before_send"):
            outbox.crash_at("after_sent").__enter__()  # type: ignore[arg-type]


PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
DJANGO = """
import os
from urllib.parse import urlsplit
import django
from django.conf import settings

url = urlsplit(os.environ["SHOP_DATABASE_URL"])
settings.configure(INSTALLED_APPS=["outbox_tasks.django"], DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username,
    "PASSWORD": url.password or "", "HOST": url.hostname, "PORT": url.port}})
django.setup()
"""


OF_THE_PAGE = ("test_published.py", "test_rolled_back.py", "test_async.py", "test_drained.py", "test_crash.py",
               "test_eager.py", "test_worker.py")  # fmt: skip

FAILS = """
from shop import engine, place_order
from sqlalchemy.orm import Session

def test_it(outbox):
    with Session(engine) as session, session.begin():
        place_order(session, 42)
    outbox.assert_published("order.created", id=43)
"""

OWN = """
import pytest
from outbox_tasks import Settings
from outbox_tasks.testing import OutboxProbe, SimulatedCrash

@pytest.fixture
def outbox_settings():
    return Settings(database_schema="mine")

@pytest.fixture
def probe(outbox_settings):
    with OutboxProbe(outbox_settings) as made:
        yield made

@pytest.fixture
def outbox():
    return "mine"

def test_settings_and_fixture(outbox, probe):
    assert (outbox, probe.settings.database_schema) == ("mine", "mine")
    assert probe.drain().sent == 0

def test_a_crash_outside_of_a_block():
    raise SimulatedCrash

def test_another():
    pass
"""


@pytest.fixture(scope="module")
def database(engine: Engine) -> Iterator[URL]:
    """A database for this project alone."""
    name = f"outbox_test_{uuid4().hex[:12]}"
    outside = engine.execution_options(isolation_level="AUTOCOMMIT")
    with outside.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield engine.url.set(database=name)
    with outside.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's configuration, application and examples, and files of our own."""
    directory = tmp_path_factory.mktemp("project")
    files = {name: block(name) for name in ("conftest.py", "outbox.toml", "shop.py", *OF_THE_PAGE)}
    # Whoever imports it before pytest does gets no warning.
    files["conftest.py"] = f"from outbox_tasks.testing import SimulatedCrash\n{files['conftest.py']}"
    files |= {"with_django/conftest.py": DJANGO, "with_django/test_django.py": block("test_django.py")}
    files |= {"test_fails.py": FAILS, "test_own.py": OWN}
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def said(project: Path, database: URL) -> str:
    """What pytest says of the project. It is as strict as a project can be."""
    urls = {
        "OUTBOX_DATABASE_URL": database.set(drivername="postgresql").render_as_string(False),
        "SHOP_DATABASE_URL": database.render_as_string(False),
    }
    strict = ("-p", "no:cacheprovider", "-W", "error", "--tb=short", "-rA")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *strict],
        cwd=project,
        env={**os.environ, **urls, "OUTBOX_NUDGE": "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


class TestThePlugin:
    """In a project of somebody else's, in a process of its own. It runs once, with all that the tests look at."""

    def outcomes(self, said: str, *files: str) -> list[str]:
        return [
            outcome
            for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) ([\w/]+\.py)", said, re.MULTILINE)
            if name in files
        ]

    def test_the_examples_of_the_page_pass(self, said: str) -> None:
        assert self.outcomes(said, *OF_THE_PAGE) == ["PASSED"] * (2 + 1 + 1 + 4 + 1 + 2 + 1), said

    def test_the_example_for_django_passes(self, said: str) -> None:
        assert self.outcomes(said, "with_django/test_django.py") == ["PASSED"] * 2, said

    def test_a_failure_points_at_the_line_of_the_test_and_reads_as_on_the_page(self, said: str) -> None:
        assert self.outcomes(said, "test_fails.py") == ["FAILED"], said
        [failure] = re.findall(r"^_+ test_it _+$(.*?)^_+ ", said, re.DOTALL | re.MULTILINE)
        shown = [line.removeprefix("E   ") for line in failure.splitlines() if line.startswith("E   ")]
        page = re.search(r"```\n(assert_published.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        assert page is not None
        assert "\n".join(shown) + "\n" == "AssertionError: " + page[1]
        assert re.findall(r"^.*\.py:\d+: in .*", failure, re.MULTILINE) == ["test_fails.py:8: in test_it"]

    def test_what_is_the_projects_own_wins(self, said: str) -> None:
        """And a crash outside of a block fails its test, and no other."""
        assert self.outcomes(said, "test_own.py") == ["PASSED", "PASSED", "FAILED"], said


def block(name: str) -> str:
    """The block of the page that begins with the file's name."""
    found = re.findall(rf"```\w+\n(# {re.escape(name)}\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(found) == 1, name
    return str(found[0])
