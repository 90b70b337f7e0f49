"""`Outbox(feed=…)`: exactly the committed messages are in the feed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from celery import Celery
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.orm import Session

from outbox_tasks import Message, Outbox
from outbox_tasks.errors import (
    FeedCantCancel,
    FeedMissing,
    InvalidMessage,
    NotInTransaction,
    RightsMissing,
)
from outbox_tasks.feeds.bridge import bridge
from outbox_tasks.feeds.store import Feeds
from tests.conftest import MakeSettings, MakeStore, Rows, eventually
from tests.feeds.places import Place, made, place, woken_feeds
from tests.integration.sessions import Driver, driver
from tests.integration.test_sessions import PROGRAMS, perform

__all__ = ["made", "place"]

pytestmark = pytest.mark.parametrize("made", ["sqlite", "postgresql", "mysql"], indirect=True)


@pytest.fixture
def outbox(settings: MakeSettings) -> Outbox:
    return Outbox(settings(nudge=False), feed="eu")


@pytest.fixture(params=["Session", "AsyncSession ours", "Django"])
def driven(request: pytest.FixtureRequest, place: Place, outbox: Outbox) -> Iterator[Driver]:
    """One of each way to run a statement: integration/test_sessions.py has the other sessions."""
    django = place.django() if request.param == "Django" else None
    with driver(request.param, outbox, place.engine, django, place.asynchronous()) as made:
        yield made


def mail(number: int) -> None: ...


def found(place: Place) -> set[UUID]:
    ids = [UUID(str(row.id)) for row in place.rows()]
    assert len(ids) == len(set(ids))
    return set(ids)


def test_exactly_the_committed_messages_are_in_the_feed_in_their_order(driven: Driver, place: Place) -> None:
    with pytest.raises(NotInTransaction, match=r"Nothing was written for 'order\.created'"):
        driven.publish(Message("order.created", {}))
    expected: list[UUID] = []
    for steps, end in PROGRAMS:
        driven.begin()
        kept = perform(driven, steps)
        assert found(place) == set(expected)
        getattr(driven, "rollback" if end == "close" and not driven.reusable else end)()
        expected += kept if end == "commit" else []
    assert found(place) == set(expected)
    place.clear()
    driven.begin()
    written = driven.publish(*(Message("order.created", {"n": n}, key="a") for n in range(30)))
    written += driven.publish(Message("order.created", {}, key="a"))
    driven.commit()
    assert [UUID(str(row.id)) for row in place.rows()] == written


class TestTheRow:
    def test_the_relay_gets_the_same_through_the_feed_as_directly(
        self, place: Place, new_store: MakeStore, engine: Engine
    ) -> None:
        places = {"orders": {"url": "redis+stream://localhost:1/1/x"}, "tasks": {"url": "celery://"}}
        store = new_store(destinations=places, nudge=False)
        through, direct = Outbox(store.settings, feed="eu"), Outbox(store.settings)
        messages = [
            Message("order.created", {"name": 'Zoë 😀 \\ " %s :x'}, key="kéy%s 😀", to="orders"),
            Message("order.created", "text\0with NUL", headers={"tenant": "Zoë"}, priority="high", to="orders"),
            Message(
                "order.created", b"\xff\x00", aggregate_type="order", aggregate_id="1", content_type="a/b", to="orders"
            ),
            Message("order.created", {}, deliver_at=datetime(2040, 1, 1, tzinfo=UTC), to="orders"),
        ]
        app = Celery("shop", broker="redis://localhost:1", set_as_current=False)
        task = app.task(name="shop.mail", shared=False)(mail)
        with place.engine.begin() as connection:
            through.publish_many(connection, messages)
            through.apply_async(connection, task, (1,), task_id="t", origin="here")
        done = bridge(Feeds(store), place.source(), store.settings)
        assert (done.copied, done.dead, done.error, found(place)) == (5, 0, None, set())
        with engine.begin() as connection:
            direct.publish_many(connection, messages)
            direct.apply_async(connection, task, (1,), task_id="t", origin="here")
        rows = Rows(engine, store.settings.database_schema)
        own = ("seq", "id", "created_at", "locked_until")
        shown = [{name: value for name, value in row._mapping.items() if name not in own} for row in rows.shown()]
        assert shown[:5] == shown[5:]


class TestTheTable:
    @pytest.mark.parametrize("by", ["settings", "connection"])
    def test_may_be_in_a_schema_that_the_settings_or_the_connection_are_told(
        self, place: Place, settings: MakeSettings, by: str
    ) -> None:
        url, options = place.engine.url, {}
        if place.dialect == "postgresql":
            schema, options = "public", {"connect_args": {"options": "-c search_path="}}
        elif place.dialect == "sqlite":
            schema = "main"
        else:
            schema, url = str(url.database), url.set(database="mysql")
        engine = create_engine(url, **options)
        feeds = {"eu": {"url": "sqlite:////shop.db", "schema": schema}}
        outbox = Outbox(settings(nudge=False, feeds=feeds if by == "settings" else {}), feed="eu")
        told = engine.execution_options(schema_translate_map={None if by == "connection" else "other": schema})
        with told.begin() as connection:
            id = outbox.publish(connection, "order.created", {})
        engine.dispose()
        assert found(place) == {id}


class TestRefused:
    def test_a_missing_table_is_named_with_the_command_that_makes_it(self, place: Place, outbox: Outbox) -> None:
        place.execute("DROP TABLE outbox_feed")
        try:
            with place.engine.begin() as connection, pytest.raises(FeedMissing, match="outbox-tasks feed init"):
                outbox.publish(connection, "order.created", {})
        finally:
            place.make()

    def test_a_missing_right_is_named_with_the_one_that_is_needed(self, place: Place, outbox: Outbox) -> None:
        if place.dialect == "sqlite":  # which has no users
            return
        with place.user() as login:
            engine = create_engine(login)
            place.execute(f"GRANT SELECT ON outbox_feed TO {login.username}")
            missing = pytest.raises(RightsMissing, match=r"GRANT INSERT \(.*\) ON outbox_feed")
            with engine.begin() as connection, missing:
                outbox.publish(connection, "order.created", {})
            # Of columns, so that nobody chooses numbers: after the highest one MySQL gives out no more.
            place.execute(
                f"REVOKE SELECT ON outbox_feed FROM {login.username}",
                f"GRANT INSERT (id, ordering_key, message) ON outbox_feed TO {login.username}",
            )
            with engine.begin() as connection:  # that is all it takes
                messages = [Message("order.created", {}, key="k"), Message("order.created", {})]
                ids = outbox.publish_many(connection, messages)
            assert found(place) == set(ids)
            with engine.begin() as connection, pytest.raises(DBAPIError, match="denied"):
                connection.execute(text(f"INSERT INTO outbox_feed (number, message) VALUES ({2**63 - 1}, '{{}}')"))
            engine.dispose()

    def test_a_trigger_of_others_that_would_run_with_the_owner_s_rights(self, place: Place) -> None:
        if place.dialect != "postgresql":
            return
        with place.engine.connect() as connection:
            for statement in (
                "CREATE ROLE mallory",
                "CREATE SCHEMA mallory AUTHORIZATION mallory",
                "SET LOCAL ROLE mallory",
                "CREATE TABLE mallory.own (ordering_key text)",
            ):
                connection.execute(text(statement))
            own = "CREATE TRIGGER own BEFORE INSERT ON mallory.own FOR EACH ROW EXECUTE FUNCTION outbox_feed_number()"
            with pytest.raises(ProgrammingError, match="permission denied for function outbox_feed_number"):
                connection.execute(text(own))
            connection.rollback()

    def test_a_chosen_id_and_to_take_a_message_back(self, place: Place, outbox: Outbox) -> None:
        with place.engine.begin() as connection:
            with pytest.raises(InvalidMessage, match="can't be chosen with a feed"):
                outbox.publish(connection, "order.created", {}, id=uuid4())
            id = outbox.publish(connection, "order.created", {})
            with pytest.raises(FeedCantCancel, match=f"{id} was not taken back"):
                outbox.cancel(connection, id)
        assert found(place) == {id}


def test_a_commit_wakes_the_task_of_its_feed(place: Place, settings: MakeSettings, broker_url: str) -> None:
    outbox = Outbox(settings(broker_url=broker_url), feed=lambda: name)
    for name in (f"{place.dialect} one", f"{place.dialect} two"):
        with Session(place.engine) as session, session.begin():
            outbox.publish(session, "order.created", {})
        assert eventually(lambda: woken_feeds(broker_url)) == [name]
