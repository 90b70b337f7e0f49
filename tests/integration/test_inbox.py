"""The inbox in PostgreSQL: `once` with whatever begins transactions, and how marks are forgotten.
`test_inbox_everywhere`: in each database."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery
from celery.exceptions import Retry
from sqlalchemy import Engine, Text, func, insert, literal, select, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating import retention
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import MAINTAIN_QUEUE
from outbox_tasks.worker.app import make_app
from outbox_tasks.writing.inbox import Inbox
from tests.conftest import MakeSettings, MakeStore, Rows, eventually
from tests.integration.sessions import configure_django

DAY = 86_400.0


class Inboxes:
    """The inbox of a test, in its schema."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self.engine = engine
        self.schema = schema
        self.billing = Inbox("billing", schema=schema)

    def marks(self) -> list[tuple[str, str]]:
        """Consumer and message id of every mark."""
        with self.engine.connect() as connection:
            found = connection.execute(
                text(f"SELECT consumer, message_id FROM {self.schema}.outbox_inbox ORDER BY 1, 2")
            )
            return [(row[0], row[1]) for row in found]

    def waiting(self) -> int:
        """How many marks wait for another transaction."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE :mark"
        with self.engine.connect() as connection:
            return int(connection.scalar(text(query), {"mark": f'%INTO "{self.schema}".outbox_inbox%'}) or 0)


@pytest.fixture
def inboxes(rows: Rows, engine: Engine, schema: str) -> Inboxes:
    return Inboxes(engine, schema)


@contextmanager
def by_hand(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


def django_connection(engine: Engine) -> Any:
    """That of this thread."""
    configure_django(engine.url.render_as_string(hide_password=False))
    return connections()["default"]


def connections() -> Any:
    from django.db import connections

    return connections


BEGINS: dict[str, Callable[[Engine], Any]] = {
    "sessionmaker": sessionmaker,
    "Engine": lambda engine: engine,
    "scoped_session": lambda engine: scoped_session(sessionmaker(engine)),
    "a method": lambda engine: engine.begin,
    "a function": lambda engine: lambda: by_hand(engine),
    "Django": django_connection,
}


def by_order(order: int, **_: Any) -> str:
    return f"order:{order}"


class TestOnce:
    @pytest.mark.parametrize("begin", BEGINS)
    def test_the_effect_and_the_mark_are_committed_together(
        self, inboxes: Inboxes, begin: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        effects = Inbox("effect", schema=inboxes.schema)

        @inboxes.billing.once(BEGINS[begin](inboxes.engine), message_id=by_order)
        def charge(session: Any, order: int, *, fail: bool = False) -> str:
            assert effects.first(session, str(order))
            if fail:
                raise Retry("an exception of Celery's rolls back, too")
            return "charged"

        with ThreadPoolExecutor(1) as other, caplog.at_level(logging.INFO, "outbox_tasks.writing.inbox"):
            with pytest.raises(Retry):
                other.submit(charge, 7, fail=True).result()
            assert inboxes.marks() == []
            calls = other.submit(charge, 7), other.submit(charge, 7), other.submit(charge, order=8)
            assert [call.result() for call in calls] == ["charged", None, "charged"]
            if begin == "Django":
                other.submit(connections().close_all).result()
        marks = [("billing", "order:7"), ("billing", "order:8"), ("effect", "7"), ("effect", "8")]
        assert inboxes.marks() == marks
        assert caplog.messages == ["billing has taken message order:7 before; it is a duplicate and was skipped"]

    def test_the_mark_is_made_before_the_effect(self, inboxes: Inboxes) -> None:
        """So that the second of two waits before it has done anything."""
        inside, leave = threading.Semaphore(0), threading.Event()

        @inboxes.billing.once(inboxes.engine, message_id=by_order)
        def charge(order: int) -> str:
            inside.release()
            assert leave.wait(10)
            return "charged"

        with ThreadPoolExecutor(2) as others:
            both: list[Future[str | None]] = [others.submit(charge, 7) for _ in range(2)]
            try:
                eventually(inboxes.waiting)
                assert inside.acquire(timeout=10)
                assert not inside.acquire(blocking=False)
            finally:
                leave.set()
            assert {each.result(10) for each in both} == {"charged", None}

    def test_the_session_goes_to_its_place(self, inboxes: Inboxes) -> None:
        kinds: list[Callable[..., Any]] = [
            lambda session, a, b=0, *more, **named: (session, a, b, more, named),
            lambda a, session, b=0, *more, **named: (session, a, b, more, named),
            lambda a, b=0, *more, session, **named: (session, a, b, more, named),
            last := lambda a, b=0, session=None: (session, a, b, (), {}),
        ]

        def expected(a: Any, b: Any = 0, *more: Any, **named: Any) -> Any:
            return a, b, more, named

        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((1,), {}), ((1, 2), {}), ((1,), {"b": 2})]
        calls += [((), {"a": 1, "b": 2}), ((1, 2, 3), {"c": 4})]
        for kind in kinds:
            call = inboxes.billing.once(sessionmaker(inboxes.engine), message_id=lambda *_, **__: uuid4())(kind)
            for args, named in calls[:-2] if kind is last else calls:
                session, *got = call(*args, **named)
                assert isinstance(session, Session)
                assert tuple(got) == expected(*args, **named)

    def test_a_task_is_marked_by_its_own_id(self, inboxes: Inboxes) -> None:
        app = Celery(set_as_current=False)

        @app.task(bind=True, shared=False)
        @inboxes.billing.once(sessionmaker(inboxes.engine))
        def charge(self: Any, session: Session, order: int) -> str:
            return str(self.request.id)

        id = str(uuid4())
        assert [charge.apply((7,), task_id=id).get() for _ in range(2)] == [id, None]
        assert charge.apply(kwargs={"order": 8}, task_id="another").get() == "another"
        assert set(inboxes.marks()) == {("billing", id), ("billing", "another")}


class TestRetention:
    def test_only_old_marks_are_deleted(self, inboxes: Inboxes, new_store: MakeStore) -> None:
        store = new_store(inbox_retention=2 * DAY)
        fill(store, 5, age=2 * DAY + 60)
        fill(store, 4, age=2 * DAY - 60)
        assert retention.forget_marks(store)[0] == 5
        assert len(inboxes.marks()) == 4

    def test_it_skips_locked_marks(self, inboxes: Inboxes, store: Store) -> None:
        fill(store, 10, age=8 * DAY)
        i = store.tables.inbox
        with inboxes.engine.connect() as connection:
            held = connection.scalars(select(i.c.message_id).limit(3).with_for_update()).all()
            assert retention.forget_marks(store)[0] == 7
            assert {id for _, id in inboxes.marks()} == set(held)
        assert retention.forget_marks(store)[0] == 3

    def test_maintenance_deletes_marks_and_queues_itself_for_the_rest(
        self, store: Store, settings: MakeSettings, own_redis: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        retention.maintain(store)
        monkeypatch.setattr(retention, "ROWS_A_BATCH", 10)
        fill(store, 15, age=8 * DAY)
        app = make_app(settings(broker_url=own_redis.url))
        app.finalize()
        maintain = app.tasks["outbox_tasks.maintain"]
        try:
            assert maintain.apply().get() == "made 0 partitions, forgot 10 marks, dropped 0 days"
            with redis.Redis.from_url(own_redis.url) as client:
                sent: bytes = client.lpop(MAINTAIN_QUEUE)
                assert json.loads(sent)["headers"]["task"] == maintain.name
                assert maintain.apply().get() == "made 0 partitions, forgot 5 marks, dropped 0 days"
                assert not client.exists(MAINTAIN_QUEUE)
            fill(store, 15, age=8 * DAY)
            own_redis.kill()
            assert maintain.apply().get() == "made 0 partitions, forgot 10 marks, dropped 0 days"
        finally:
            app.outbox_relay.close()
            app.close()


def fill(store: Store, count: int, *, age: float) -> None:
    """Commit marks of this age."""
    made = select(
        literal("billing"),
        func.gen_random_uuid().cast(Text),
        func.clock_timestamp() - literal(timedelta(seconds=age)),
    ).select_from(func.generate_series(1, count))
    with store.engine.begin() as connection:
        connection.execute(insert(store.tables.inbox).from_select(["consumer", "message_id", "received_at"], made))
