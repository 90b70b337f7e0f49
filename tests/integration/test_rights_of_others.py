"""What others may do whom nobody asked to: by the defaults of the schema, or because rows are hidden from the relay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from sqlalchemy import Engine

from outbox_tasks import Outbox, Settings
from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.feeds.source import open_source
from outbox_tasks.operating.retention import maintain
from outbox_tasks.relay.store import Store
from tests.claims import take
from tests.integration.doctoring import found
from tests.integration.own_database import Place, own_database

OPEN = """
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON {what} TO "{role}", PUBLIC
"""

GIVEN = """
SELECT string_agg(DISTINCT name, ' ') FROM (
  SELECT relname AS name, (aclexplode(relacl)).grantee, relowner AS owner FROM pg_class WHERE relname LIKE 'outbox%'
  UNION ALL
  SELECT proname, (aclexplode(proacl)).grantee, proowner FROM pg_proc
  WHERE proname LIKE 'outbox%' AND (prosecdef OR proname = 'outbox_discard')
) AS given WHERE grantee <> owner AND (name <> 'outbox_discard' OR grantee <> 0)
"""
"""What others than the owner have a right on."""

HIDE = "ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"


@pytest.fixture
def place(engine: Engine) -> Iterator[Place]:
    """A database where a stranger gets all rights on whatever is made."""
    with own_database(engine) as made:
        made.run(f"CREATE ROLE \"{made.role}\" LOGIN PASSWORD 'secret'")
        made.run(*(OPEN.format(what=what, role=made.role) for what in ("TABLES", "SEQUENCES", "FUNCTIONS")))
        yield made
        made.run(f'DROP OWNED BY "{made.role}"')


class TestDefaultPrivileges:
    def test_give_nobody_a_right_on_the_tables(self, place: Place) -> None:
        assert place.command("init", settings=place.settings()).exit_code == 0
        assert place.ask(GIVEN) is None
        place.run("UPDATE outbox_days SET date = date - 1")
        with closing(Store.connect(place.settings())) as store:
            assert maintain(store).made == 1
        assert place.ask(GIVEN) is None

    def test_give_nobody_a_right_on_a_feed(self, place: Place) -> None:
        with closing(open_source("shop", place.url)) as source:
            source.init()
            assert place.ask(GIVEN) is None
            place.run(f'GRANT INSERT ON outbox_feed TO "{place.role}"')
            source.init()
        assert place.ask(GIVEN) == "outbox_feed"


class TestRowLevelSecurity:
    @pytest.fixture
    def relay(self, place: Place) -> Settings:
        place.command("init", f"--relay={place.role}", settings=place.settings())
        return place.settings(database_url=place.url_of(place.role))

    def test_stops_the_relay_with_an_error_that_says_so(self, place: Place, relay: Settings) -> None:
        with closing(Store.connect(relay)) as store:
            store.check_version()
            place.run(HIDE.format(table="outbox_ready"))
            with place.engine.begin() as connection:
                Outbox(place.settings()).publish(connection, "order.created", {}, to="orders")
            with pytest.raises(DatabaseUnavailable, match=r"outbox_ready.*DISABLE ROW LEVEL SECURITY"):
                take(store, {"orders": 10})

    def test_is_what_commands_health_and_the_doctor_name(self, place: Place, relay: Settings) -> None:
        tables = place.ask(
            "SELECT string_agg(relname, ' ') FROM pg_class WHERE relkind IN ('r', 'p') AND relname LIKE 'outbox%'"
        )
        place.run(*(HIDE.format(table=table) for table in tables.split()))
        for command in ("drain", "status", "maintain", "health"):
            done = place.command(command, settings=relay)
            assert done.exit_code == (command != "status")
            assert "Row-level security" in done.output, done.output
        problems = found(relay)
        hidden = problems["rows_hidden"]
        assert f"from the role {place.role}" in hidden.fact
        assert "check_failed" not in problems
        place.run(*hidden.remedy.partition("\n--")[0].split("\n"))
        assert found(relay, "rows_hidden") == {}
        place.run(
            f'ALTER TABLE outbox_ready OWNER TO "{place.role}"',
            HIDE.format(table="outbox_ready"),
            "ALTER TABLE outbox_ready FORCE ROW LEVEL SECURITY",
        )
        try:
            assert "NO FORCE" in found(relay, "rows_hidden")["rows_hidden"].remedy  # from the owner, too
        finally:
            place.run("ALTER TABLE outbox_ready OWNER TO CURRENT_USER")


LOCKS = {
    "pg_advisory_lock(hashtextextended('public, pg_temp keys orders', 0))": "takes of messages with keys to orders",
    "pg_advisory_lock(hashtextextended('outbox maintain public', 0))": "the maintenance",
    "pg_advisory_lock_shared(('outbox_seq'::regclass::oid::bigint & 127) << 56)": "takes of messages with keys",
}


def test_a_lock_of_a_stranger_is_named_and_none_of_a_writer(place: Place) -> None:
    """A role with nothing but CONNECT takes the numbers of our advisory locks."""
    settings = place.settings()
    place.command("init", settings=settings)
    with psycopg.connect(place.url_of(place.role), application_name="evil", autocommit=True) as stranger:
        session = f"The session {stranger.info.backend_pid} (evil, role {place.role}"
        for taken, what in LOCKS.items():
            stranger.execute(f"SELECT {taken}".encode())
            held = found(settings, "lock_of_a_stranger")["lock_of_a_stranger"]
            assert held.fact.startswith(session)
            assert held.cause.startswith(f"These wait for it: {what}. ")
            with place.engine.begin() as connection:
                message = Outbox(settings).publish(connection, "order.created", {}, to="orders", key=what)
            shown = place.command("show", str(message), settings=settings).output
            assert session in " ".join(shown.split())
            stranger.execute("SELECT pg_advisory_unlock_all()")
        place.command("init", f"--writer={place.role}", settings=settings)
        with stranger.transaction():
            stranger.execute("SELECT outbox_publish('order.created', '{}'::text, key => 'a', destination => 'orders')")
            assert found(settings, "lock_of_a_stranger") == {}
