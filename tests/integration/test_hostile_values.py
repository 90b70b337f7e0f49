# ruff: noqa: F811 - fixtures of others
"""Values that mean something to SQL, to drivers and to templates: they come out as they went in, and nothing else
happens."""

from __future__ import annotations

from contextlib import closing, suppress
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from outbox_tasks import Inbox, Outbox
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.migrations import grants, upgrade
from outbox_tasks.operating.messages import paging
from outbox_tasks.operating.messages.find import Filter, Lookup
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from tests.claims import drain_batches
from tests.conftest import MakeSettings, MakeStore, Rows, Stream
from tests.supervised.conftest import confirming, send  # noqa: F401
from tests.supervised.tasks import Send

HOSTILE = (
    "'; DROP TABLE outbox_messages; --", '"; DROP TABLE outbox_all; --', "\\'; SELECT pg_sleep(9); --",
    "%s %(id)s %% {id} ${id}", ":name ::text $1 ?", "a\\", "{a,b}", "/* */ -- \n;", "$$ $outbox$ '||'",
    "x' OR 'x' = 'x",    "1e309", "null", "\u2028\u02bc\uff07",
)  # fmt: skip
EVERYTHING = " ".join(HOSTILE)


def test_what_is_published_is_sent_as_it_is(
    settings: MakeSettings, rows: Rows, connection: Connection, stream: Stream
) -> None:
    outbox = Outbox(settings(destinations={EVERYTHING: {"url": stream.url}}, nudge=False))
    with connection.begin():
        for value in HOSTILE:
            fields = {"key": value, "headers": {value: value}, "aggregate_type": value, "aggregate_id": value}
            outbox.publish(connection, value, {value: value}, **fields)
    with closing(Store.connect(outbox.settings)) as store, closing(Publishers(outbox.settings)) as publishers:
        drain_batches(store, publishers)
    assert {entry["ce_type"].decode() for entry in stream.entries()} == set(HOSTILE)
    assert {entry["ce_partitionkey"].decode() for entry in stream.entries()} == set(HOSTILE)
    assert rows.hot() == []


@pytest.mark.parametrize("name", ['a"; DROP SCHEMA public; --', "a b", "{x} é", "a-b.c"])
def test_a_schema_of_an_odd_name_is_a_schema_of_this_name(engine: Engine, name: str) -> None:
    with engine.connect() as connection, connection.begin() as transaction:
        upgrade(connection, name)
        assert connection.scalar(text("SELECT to_regnamespace(quote_ident(:name)) IS NOT NULL"), {"name": name})
        for statement in grants(connection, "reader", name, name):
            assert name.replace('"', '""') in statement
        inbox = Inbox("billing", schema=name)
        assert [inbox.first(connection, "1") for _ in range(2)] == [True, False]
        transaction.rollback()


@pytest.mark.parametrize("name", ["x' || pg_sleep(9)::text || '", "%s", "a:schema", "a$$; SELECT 1; $$", "a\\", "a\n"])
def test_a_schema_whose_name_could_leave_its_quotes_is_refused(engine: Engine, name: str) -> None:
    with engine.connect() as connection, connection.begin() as transaction:
        with pytest.raises(ConfigurationError, match="control character in its name"):
            upgrade(connection, name)
        transaction.rollback()


PLAIN = {
    "event_type": "'odd'", "destination": "'orders'", "payload": "'{}'", "content_type": "'application/json'",
    "headers": "NULL", "key": "NULL", "aggregate_type": "NULL", "aggregate_id": "NULL", "priority": "0::smallint",
    "latest": "false", "deliver_at": "NULL", "delay": "NULL",
}  # fmt: skip
"""The parameters of outbox_write_one, as SQL."""

LONG = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) AS n)"
TEXTS = ("event_type", "content_type", "key", "aggregate_type", "aggregate_id", "destination")
SAME = {"id": "'00000000-0000-0000-0000-000000000007'"}
ODD = [
    *({"deliver_at": f"'{time}'"} for time in ("-infinity", "infinity", "4000-01-01 BC", "99999-01-01")),
    *({"delay": f"'{delay}'"} for delay in ("NaN", "Infinity", "-Infinity", "1e300", "-1e11")),
    *({name: value} for name in TEXTS for value in (LONG, "''")),
    *({"headers": f"'{said}'"} for said in ("null", "[]", "5", '{"a": {"b": [1]}}', '{"celery-message": 5}')),
    *({"headers": f"jsonb_build_object('celery-message', {s})"} for s in (LONG, "'5'", "'{}'", "'{\"body\": 5}'")),
    *({name: "NULL"} for name in ("id", "payload", "priority", "latest")),
    {"priority": "5::smallint"}, SAME, SAME,
]  # fmt: skip


class TestAWriter:
    """A role that may write calls what it may call with whatever it likes."""

    @staticmethod
    def write(engine: Engine, schema: str, said: dict[str, str]) -> None:
        """What is refused is not there."""
        given = {"id": f"'{uuid4()}'"} | PLAIN | said
        named = ", ".join(f"{name} => {value}" for name, value in given.items())
        with suppress(DBAPIError), engine.begin() as connection:
            connection.exec_driver_sql(
                f"SELECT {schema}.outbox_write_one({named})", execution_options={"no_parameters": True}
            )

    @pytest.mark.parametrize("key", ["NULL", "'order:1'"], ids=["plain", "keyed"])
    def test_stops_nobody_else(
        self, new_store: MakeStore, rows: Rows, stream: Stream, engine: Engine, schema: str, key: str
    ) -> None:
        for odd in ODD:
            for _ in range(2):
                self.write(engine, schema, {"key": key} | odd)
        ids = rows.insert(3) + [id for n in range(3) for id in rows.insert(key=f"order:{n + 2}")]
        store = new_store()
        with closing(Publishers(store.settings)) as publishers:
            for _ in range(2):
                drain_batches(store, publishers)
        assert set(ids) <= set(stream.ids())
        assert {day.missing for day in store.ask("look/books.sql")} == {0}
        found = paging.read_page(store, Filter(), 100)
        listed = {str(message["id"]) for message in found.messages}
        assert set(ids) < listed
        for id in listed:
            assert Lookup(store).one(UUID(id)), id

    def test_nor_a_supervised_task(
        self, confirming: Store, rows: Rows, engine: Engine, schema: str, send: Send
    ) -> None:
        """Messages with an id that another has are each a message."""
        for _ in range(2):
            self.write(engine, schema, SAME)
        rows.insert(3)
        assert send() == {"handed": 5}
        assert [row.place for row in rows.hot()] == ["handed over"] * 5
