"""Tables that lack what `init` and maintenance put there: their rows, the place of a sequence, few enough days."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine

from outbox_tasks import Outbox, Settings
from outbox_tasks.database.schema import VERSION
from outbox_tasks.errors import SourceTrouble
from outbox_tasks.feeds.source import open_source
from outbox_tasks.model import Step
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from tests.claims import drain_batches
from tests.conftest import Stream, own_stream
from tests.integration.doctoring import found
from tests.integration.own_database import Place, own_database

TABLES = """
SELECT string_agg(oid::regclass::text, ', ') FROM pg_class
WHERE relname LIKE 'outbox%' AND (relkind = 'p' OR relkind = 'r' AND NOT relispartition)
"""

A_DAY_LATER = "UPDATE outbox_days SET date = date - 1, ended_at = ended_at - interval '1 day'"


@pytest.fixture
def place(engine: Engine) -> Iterator[Place]:
    with own_database(engine) as made:
        assert made.command("init", settings=made.settings()).exit_code == 0
        yield made


@pytest.fixture
def stream(redis_url: str) -> Iterator[Stream]:
    with own_stream(redis_url) as made:
        yield made


def publish(place: Place, **more: object) -> None:
    with place.engine.begin() as connection:
        Outbox(place.settings()).publish(connection, "order.created", {}, to="orders", **more)  # type: ignore[arg-type]


def sent(settings: Settings) -> int:
    store, publishers = Store.connect(settings), Publishers(settings)
    try:
        return drain_batches(store, publishers)[Step.SENT]
    finally:
        publishers.close()
        store.close()


class TestTablesWithoutRows:
    """From a dump without data, whose first days were gone; or emptied by the tests of an application."""

    def test_are_filled_by_init(self, place: Place, stream: Stream) -> None:
        settings = place.settings(destinations={"orders": {"url": stream.url}})
        place.run(f"TRUNCATE {place.ask(TABLES)}", "DROP TABLE outbox_messages_0, outbox_journal_0")
        place.run("ALTER SEQUENCE outbox_seq RESTART")
        refused = place.command("drain", settings=settings)
        assert "init" in refused.output
        again = place.command("init", settings=settings)
        assert (again.exit_code, again.output) == (0, f"The outbox tables are already at version {VERSION}.\n")
        for _ in range(2):
            publish(place, key="order:1")
            assert sent(settings) == 1
            place.run(A_DAY_LATER)
            assert place.command("maintain", settings=settings).exit_code == 0
        assert place.ask("SELECT string_agg(number::text, ' ' ORDER BY number) FROM outbox_days") == "1 2 3"

    def test_of_which_nobody_knows_the_version_are_refused_in_a_line(self, place: Place) -> None:
        place.run(f"TRUNCATE {place.ask(TABLES)}", "COMMENT ON TABLE outbox_versions IS NULL")
        refused = place.command("init", settings=place.settings())
        assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
        assert "are of version unknown" in refused.output
        place.run(f"COMMENT ON TABLE outbox_versions IS '{VERSION}'")
        assert place.command("init", settings=place.settings()).exit_code == 0
        assert found(place.settings(), "sequence_behind") == {}


class TestASequenceThatIsBehind:
    def test_is_named_and_moved_by_maintenance(self, place: Place, stream: Stream) -> None:
        settings = place.settings(destinations={"orders": {"url": stream.url}})
        for _ in range(2):
            place.run(A_DAY_LATER)
            place.command("maintain", settings=settings)
        publish(place, key="order:1")
        place.run("ALTER SEQUENCE outbox_seq RESTART", "ALTER SEQUENCE outbox_audit_seq_seq RESTART")
        place.run("INSERT INTO outbox_audit (seq, who, action) VALUES (5, 'anna', 'pause')")
        assert found(settings, "sequence_behind")["sequence_behind"].remedy == "outbox-tasks maintain"
        assert sent(settings) == 0
        assert place.command("maintain", settings=settings).exit_code == 0
        assert found(settings, "sequence_behind") == {}
        publish(place, key="order:1")
        assert sent(settings) == 2
        assert place.ask("SELECT min(seq) >= 2::bigint << 32 FROM outbox_messages")
        assert place.ask("SELECT nextval('outbox_audit_seq_seq')") == 6


def test_a_database_that_is_not_in_utf8_is_refused(engine: Engine) -> None:
    name = f"outbox_test_{uuid4().hex[:12]}"
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
        place = Place(create_engine(engine.url.set(database=name)))
        try:
            refused = place.command("init", settings=place.settings())
            assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
            assert "in this database: it is in SQL_ASCII" in refused.output
            with closing(open_source("shop", place.url)) as source, pytest.raises(SourceTrouble, match="SQL_ASCII"):
                source.init()
        finally:
            place.engine.dispose()
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
