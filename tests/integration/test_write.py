"""What a publish writes, and how its commit wakes the claim. `test_sessions` has the kinds of sessions."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import redis
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from outbox_tasks.errors import NotInTransaction
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import Message
from outbox_tasks.outbox import Outbox
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE
from outbox_tasks.writing.nudge import Nudge
from tests.conftest import MakeSettings, Rows, Stream, eventually

AnySession = Session | Connection


@pytest.fixture(params=["Session", "Connection"])
def session(request: pytest.FixtureRequest, engine: Engine) -> Iterator[AnySession]:
    """Both offer begin, begin_nested, commit and rollback."""
    with Session(engine) if request.param == "Session" else engine.connect() as made:
        yield made


@pytest.mark.parametrize("make", [Session, Engine.connect], ids=["Session", "Connection"])
def test_an_autocommit_engine_is_refused(outbox: Outbox, rows: Rows, engine: Engine, make: Any) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with (
        make(autocommit) as session,
        session.begin(),
        pytest.raises(NotInTransaction, match=r'Take isolation_level="AUTO'),
    ):
        outbox.publish(session, "order.created", {})
    assert rows.hot() == []


@pytest.mark.parametrize(
    "act",
    [
        lambda outbox, session: outbox.publish(session, "order.created", {}),
        lambda outbox, session: outbox.cancel(session, UUID(int=5)),
    ],
    ids=["publish", "cancel"],
)
def test_a_lost_connection_leaves_the_pool(outbox: Outbox, engine: Engine, rows: Rows, act: Any) -> None:
    own = create_engine(engine.url)
    with Session(own) as session:
        session.begin()
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        with engine.begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        with pytest.raises(OperationalError) as raised:
            act(outbox, session)
        assert raised.value.connection_invalidated
        session.rollback()
        with session.begin():
            outbox.publish(session, "order.created", {})
    own.dispose()
    assert len(rows.hot()) == 1


class TestMessages:
    @pytest.fixture
    def outbox(self, settings: MakeSettings, rows: Rows) -> Outbox:
        destinations = {name: {"url": "a://b"} for name in ("orders", "audit", "mail")}
        return Outbox(settings(nudge=False, destinations=destinations, routes={"order.*": ["orders", "audit"]}))

    def test_are_whole_in_a_session_of_any_encoding(self, outbox: Outbox, rows: Rows, engine: Engine) -> None:
        for encoding in ("LATIN1", "SQL_ASCII", "UTF8"):
            with engine.begin() as connection:
                connection.exec_driver_sql(f"SET LOCAL client_encoding = '{encoding}'")
                outbox.publish(connection, "a", {"a": "€"}, to="mail", key="Zoë €", headers={"tenant": "€"})
        found = [(row.key, row.headers, row.payload.decode()) for row in rows.hot()]
        assert found == [("Zoë €", {"tenant": "€"}, '{"a":"€"}')] * 3

    def test_too_many_for_one_statement_take_several(
        self, outbox: Outbox, rows: Rows, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PostgreSQL takes no parameter of a gigabyte. All statements are of one transaction."""
        monkeypatch.setattr("outbox_tasks.writing.write.STATEMENT_CHARACTERS", 5000)
        statements: list[int] = []
        messages = [Message("a", "é" * size, to="mail") for size in (9000, *[100] * 200)]
        with Session(engine) as session, session.begin():
            connection = session.connection()
            event.listen(connection, "before_cursor_execute", lambda *args: statements.append(len(str(args[3]))))
            ids = outbox.publish_many(session, messages)
            assert rows.hot() == []
        assert [row.id for row in rows.hot()] == ids
        assert len(statements) > 10
        assert max(statements[1:]) < 6000  # the first has one message, which alone is larger


class Recorded(Nudge):
    """Counts what is asked for, at once."""

    def __init__(self) -> None:
        super().__init__(lambda targets: None)
        self.count = 0

    def __call__(self, after: object = None, target: object = None) -> None:
        self.count += 1


class TestNudge:
    @pytest.fixture
    def nudge(self) -> Recorded:
        return Recorded()

    @pytest.fixture
    def outbox(self, outbox: Outbox, nudge: Recorded) -> Outbox:
        outbox._writer.nudge = nudge
        return outbox

    def test_is_given_once_for_a_commit(self, outbox: Outbox, session: AnySession, nudge: Recorded) -> None:
        """And not for a rollback, nor for the end of a savepoint."""
        with session.begin() as transaction:
            outbox.publish(session, "order.created", {})
            transaction.rollback()
        with session.begin():
            session.execute(text("SELECT 1"))
        assert nudge.count == 0
        with session.begin():
            outbox.publish(session, "order.created", {})
            with session.begin_nested():
                outbox.publish(session, "order.created", {})
            assert nudge.count == 0
        with session.begin():
            session.execute(text("SELECT 1"))
        assert nudge.count == 1

    def test_is_given_for_a_message_that_is_taken_back(
        self, outbox: Outbox, session: AnySession, nudge: Recorded
    ) -> None:
        """Messages that waited behind it, for their key, may be due."""
        with session.begin():
            id = outbox.publish(session, "order.created", {}, delay=60)
        for taken in (True, False):
            before = nudge.count
            with session.begin():
                assert outbox.cancel(session, id) is taken
            assert nudge.count == before + taken

    @pytest.mark.parametrize("make", [Session, Engine.connect], ids=["Session", "Connection"])
    def test_wakes_the_claim_once_the_message_can_be_seen(
        self, outbox: Outbox, rows: Rows, engine: Engine, schema: str, make: Any
    ) -> None:
        """The commit takes some time here. A claim that ran before its end would find nothing."""
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql "
                "AS 'BEGIN PERFORM pg_sleep(0.03); RETURN NULL; END';"
                f"CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {schema}.outbox_messages "
                f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.slow()"
            )
        seen: list[int] = []
        outbox._writer.nudge = Nudge(lambda targets: seen.append(len(rows.hot())))
        with make(engine) as session, session.begin():
            outbox.publish(session, "order.created", {})
        eventually(lambda: seen)
        assert seen[0] == 1

    def test_starts_drains_of_destinations_without_singles_and_the_claim_for_others(
        self, settings: MakeSettings, rows: Rows, engine: Engine, own_redis: EmbeddedValkey, stream: Stream
    ) -> None:
        singles = {"orders": 50, "mail": 0, "audit": 0}
        places = {name: {"url": stream.url, "singles": most} for name, most in singles.items()}
        outbox = Outbox(settings(broker_url=own_redis.url, destinations=places))
        with redis.Redis.from_url(own_redis.url) as broker:

            def woken() -> tuple[int, list[Any]]:
                drains = [
                    json.loads(b64decode(json.loads(task)["body"]))[0] for task in broker.lrange(DRAIN_QUEUE, 0, -1)
                ]
                return broker.llen(CLAIM_QUEUE), sorted(drains)

            with Session(engine) as session, session.begin():
                for name in ("mail", "audit", "mail"):
                    outbox.publish(session, "order.created", {}, to=name)
            eventually(lambda: woken() == (0, [["audit"], ["mail"]]))
            with Session(engine) as session, session.begin():
                outbox.publish(session, "order.created", {}, to=["orders", "mail"])
            eventually(lambda: woken() == (1, [["audit"], ["mail"], ["mail"]]))


class TestAnOwnId:
    """With other content it is an error: `tests/storage/test_write.py`."""

    def test_among_messages_without_one_is_known_again(self, outbox: Outbox, engine: Engine, rows: Rows) -> None:
        for _ in range(2):
            with Session(engine) as session, session.begin():
                outbox.publish_many(session, [Message("a", "x", id=UUID(int=5)), Message("b", "x")])
        assert [row.event_type for row in rows.hot()] == ["a", "b", "b"]
