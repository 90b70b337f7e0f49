"""Database roles: each can do its work, and nothing of the others'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest
from celery import Celery
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError, ProgrammingError

from outbox_tasks import Inbox, Outbox, Settings
from outbox_tasks.database import sql
from outbox_tasks.database.rights import Kind
from outbox_tasks.errors import RightsMissing
from outbox_tasks.operating.retention import maintain
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.settings.operation import DAY_SECONDS
from outbox_tasks.supervised.store import Runs
from outbox_tasks.supervised.supervisor import Supervisor
from tests.claims import drain_batches
from tests.conftest import Rows, Stream, own_stream, seconds_from_now
from tests.integration.archived import TODAY, Archived
from tests.integration.doctoring import found
from tests.integration.own_database import Place, own_database
from tests.verbs import VERBS

SCHEMA = "Outbox"
KINDS: tuple[Kind, ...] = get_args(Kind)

WORK: dict[Kind, str] = {
    "writer": "write/publish write/publish_one write/publish_once write/cancel",
    "worker": "supervised write/first write/publish claim/expire deliver/give_back deliver/sent_in_vain",
    "relay": "act alert claim deliver doctor feeds find inbox keep look report supervised traffic"
    " -act/begin -act/edit -supervised/retry",
    "operator": "act archive audit traffic/probe claim/wake doctor find look traffic",
    "reader": "find look doctor report/course report/lately traffic/states -find/archived -find/named -find/one"
    " -find/originals -doctor/tasks",
}
"""What each role runs: folders and files of `sql/`, without some."""

HARM = {
    "DELETE FROM outbox_messages": "operator",
    "SELECT payload FROM outbox_messages": "worker relay operator",
    "SELECT payload FROM outbox_all": "relay operator",
    "SELECT headers FROM outbox_archive": "worker relay operator",
    "SELECT history FROM outbox_at_work": "worker relay operator",
    "SELECT history FROM outbox_trouble": "worker relay operator",
    "SELECT once FROM outbox_audit": "relay operator",
    "SELECT seq FROM outbox_ready": "relay operator reader",
    "SELECT name FROM outbox_destinations": "relay operator reader",
    "SELECT who FROM outbox_audit": "relay operator reader",
    "SELECT id FROM outbox_messages": "worker relay operator reader",
    "UPDATE outbox_messages SET payload = ''": "worker operator",
    "UPDATE outbox_messages SET destination = ''": "",
    "UPDATE outbox_journal SET state = 'sent'": "",
    "EXPLAIN INSERT INTO outbox_leases (token) VALUES (NULL)": "worker relay",
    "DELETE FROM outbox_journal": "",
    "SELECT facts FROM outbox_audit": "relay operator",
    "DELETE FROM outbox_ready": "relay operator",
    "UPDATE outbox_days SET ended_at = now()": "",
    "SELECT outbox_write('[]')": "writer worker relay",
    "SELECT payload FROM outbox_messages_0": "",
    "EXPLAIN INSERT INTO outbox_messages (seq) VALUES (1)": "operator",
    "EXPLAIN INSERT INTO outbox_journal (first) VALUES (1)": "worker relay operator",
    "DELETE FROM outbox_leases": "worker relay operator",
    "SELECT FROM outbox_take_new('orders', NULL, false, '', 1, 1, 1, 1, 0, '', 1)": "relay",
    "DELETE FROM outbox_limits": "operator",
    "EXPLAIN SELECT outbox_day_drop(0)": "relay",
    "EXPLAIN SELECT outbox_cancel('{}')": "writer",
    "UPDATE outbox_audit SET who = 'somebody'": "",
    "INSERT INTO outbox_audit (who, action, role) VALUES ('', '', '')": "",
    "INSERT INTO outbox_audit (who, action) VALUES ('', '')": "operator",
    "UPDATE outbox_acts SET wanted = '{}'": "",
    "UPDATE outbox_acts SET place = NULL": "relay operator",
    "UPDATE outbox_audit SET count = 0": "relay operator",
    "DELETE FROM outbox_audit": "relay",
    "UPDATE outbox_versions SET version = 1": "",
    "INSERT INTO outbox_inbox (consumer, message_id) VALUES ('', '')": "worker",
    "SELECT * FROM outbox_inbox": "worker relay",
    "SELECT nextval('outbox_seq')": "operator",
    "TRUNCATE outbox_messages": "",
    "CREATE TABLE mine (a int)": "",
    "CREATE FUNCTION length(text) RETURNS int LANGUAGE sql RETURN 1": "",
    "ALTER TABLE outbox_audit DISABLE TRIGGER ALL": "",
    "CREATE TRIGGER mine BEFORE INSERT ON outbox_ready EXECUTE FUNCTION outbox_audit_keep()": "",
}
"""Statements of whoever has got hold of a role, by the roles that may run them."""

TRUSTED = """
SELECT string_agg(DISTINCT proname, ' ' ORDER BY proname) FROM pg_proc
WHERE pronamespace = '"{schema}"'::regnamespace AND prosecdef AND has_function_privilege('{role}', oid, 'EXECUTE')
"""
"""The functions that a role may call, and that have the rights of their owner."""

TASKS = {"orders": {"url": "celery://?task=shop.on_order"}, "tasks": {"url": "celery://", "confirm": "run"}}
NOBODY = "redis+stream://127.0.0.1:1/0/mails"
"""Nobody listens there."""

RIGHTS = """
SELECT string_agg(concat_ws(' ', named, given), chr(10) ORDER BY named::text, given::text) FROM (
  SELECT oid::regclass::text, unnest(relacl) FROM pg_class WHERE relname LIKE 'outbox%'
  UNION ALL SELECT concat_ws('.', attrelid::regclass, attname), unnest(attacl) FROM pg_attribute
  UNION ALL SELECT oid::regprocedure::text, unnest(proacl) FROM pg_proc WHERE proname LIKE 'outbox%'
) AS t (named, given)
"""
"""All rights in the database, as a text."""


@pytest.fixture(scope="module")
def stream(redis_url: str) -> Iterator[Stream]:
    with own_stream(redis_url) as made:
        yield made


@pytest.fixture(scope="module")
def place(engine: Engine) -> Iterator[Place]:
    """A database with a role of each kind."""
    with own_database(engine) as made:
        for kind in KINDS:
            made.run(f"CREATE ROLE \"{role(made, kind)}\" LOGIN PASSWORD 'secret'")
        for _ in range(2):
            asked = (f"--{kind}={role(made, kind)}" for kind in KINDS)
            done = made.command("init", *asked, settings=made.settings(database_schema=SCHEMA))
            assert done.exit_code == 0, done.output
        try:
            yield made
        finally:
            for kind in KINDS:
                made.run(f'DROP OWNED BY "{role(made, kind)}"', f'DROP ROLE "{role(made, kind)}"')


def role(place: Place, kind: Kind) -> str:
    return f"{place.role} {kind}"


def test_a_role_that_may_not_make_the_tables_is_told_so(place: Place) -> None:
    settings = place.settings(database_url=place.url_of(role(place, "writer")), database_schema="another")
    done = place.command("init", settings=settings)
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "may not make or change the outbox tables in schema 'another': permission denied for database" in done.output
    assert role(place, "writer") in done.output


@contextmanager
def as_a(kind: Kind, place: Place) -> Iterator[Connection]:
    """A connection of the role."""
    made = create_engine(place.engine.url.set(username=role(place, kind), password="secret"))
    try:
        with made.connect() as connection:
            yield connection
    finally:
        made.dispose()


@pytest.fixture
def rows(place: Place) -> Iterator[Rows]:
    made = Rows(place.engine, SCHEMA)
    yield made
    made.clear()
    place.run(
        f"DELETE FROM {quoted('outbox_messages')}",
        f"TRUNCATE {quoted('outbox_journal')}, {quoted('outbox_destinations')}",
    )


def quoted(table: str) -> str:
    return f'"{SCHEMA}".{table}'


def settings_of(kind: Kind, place: Place, **values: Any) -> Settings:
    return place.settings(database_schema=SCHEMA, database_url=place.url_of(role(place, kind)), **values)


class TestEachStatement:
    @pytest.mark.parametrize("kind", KINDS)
    def test_of_its_work_is_allowed(self, place: Place, kind: Kind) -> None:
        """EXPLAIN looks at the rights, and runs nothing."""
        wanted, unwanted = [], []
        for word in WORK[kind].split():
            (unwanted if word[0] == "-" else wanted).append(word.lstrip("-"))
        verbs = [verb for verb in VERBS if any(is_in(verb, word) for word in wanted)]
        with as_a(kind, place) as connection:
            connection.exec_driver_sql(f'SET search_path = "{SCHEMA}"')
            for verb in verbs:
                if not any(is_in(verb, word) for word in unwanted):
                    assert self.may(connection, explained(verb)), f"{kind}: {verb}"

    @pytest.mark.parametrize("kind", KINDS)
    def test_that_does_harm_is_allowed_to_those_who_can_t_do_without(self, place: Place, kind: Kind) -> None:
        with as_a(kind, place) as connection:
            connection.exec_driver_sql(f'SET search_path = "{SCHEMA}"')
            for statement, roles in HARM.items():
                assert self.may(connection, statement) is (kind in roles.split()), f"{kind}: {statement}"

    def test_with_the_rights_of_the_owner_is_one_of_few(self, place: Place) -> None:
        """They write, keep house or count."""
        trusted = {kind: place.ask(TRUSTED.format(schema=SCHEMA, role=role(place, kind))) for kind in KINDS}
        assert trusted == {
            "writer": "outbox_cancel outbox_publish outbox_write outbox_write_one",
            "worker": "outbox_write",
            "relay": "outbox_day_drop outbox_day_make outbox_day_turn outbox_write",
            "operator": "outbox_backlog",
            "reader": "outbox_backlog",
        }

    def may(self, connection: Connection, statement: str) -> bool:
        savepoint = connection.begin_nested()
        try:
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
        except ProgrammingError as error:
            if not re.search("permission denied|must be owner", str(error.orig)):
                raise
            return False
        finally:
            savepoint.rollback()
        return True


SHOWN = ("status", "status --prometheus", "list", "list --by key", "list --by error", "doctor --alerts")


class TestWork:
    """What each role is for, done by it."""

    def test_of_a_worker(self, place: Place, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
        settings = settings_of("worker", place, destinations=TASKS)
        supervisor = Supervisor(Celery(set_as_current=False), settings)
        assert supervisor.check()
        assert caplog.text == ""
        with closing(Runs.connect(settings)) as runs:
            assert UUID(runs.identity).version == 4
        with as_a("worker", place) as connection, connection.begin():
            inbox, id = Inbox("billing", schema=SCHEMA), uuid4()
            assert [inbox.first(connection, id) for _ in range(2)] == [True, False]

    def test_of_the_relay_and_of_a_reader(self, place: Place, rows: Rows, stream: Stream) -> None:
        destinations = {"orders": {"url": stream.url}, "mails": {"url": NOBODY}}
        settings = settings_of("relay", place, destinations=destinations, breaker_failures=1)
        ids = rows.insert(2) + rows.insert(2, key="order:1")
        lost = rows.insert(1, destination="mails")
        [unroutable] = rows.insert(1, destination="nobody", payload=b'"secret"', locked_until=seconds_from_now(-7200))
        with closing(Store.connect(settings)) as store, closing(Publishers(settings)) as publishers:
            store.check_version()
            drain_batches(store, publishers)
            store.claims.bury()
        assert {row.id for row in rows.archived()} == {UUID(id) for id in ids}
        assert [str(row.id) for row in rows.hot() if row.status == "pending"] == lost
        assert rows.one(unroutable).status == "dead"
        reader = settings_of("reader", place)
        for configured, command in product((settings, reader), (*SHOWN, "health")):
            assert "permission denied" not in place.command(*command.split(), settings=configured).output, command
        for refused in (f"show {unroutable}", f"redrive {unroutable} --yes", "audit", "pause orders"):
            done = place.command(*refused.split(), settings=reader)
            assert (done.exit_code, "permission denied" in done.output, "secret" in done.output) == (1, True, False)

    def test_of_the_relay_s_housekeeping(self, place: Place, rows: Rows, tmp_path: Path) -> None:
        """It makes, exports and drops partitions that it does not own."""
        past = Archived(place.engine, f'"{SCHEMA}"')
        past.fill(past.ago(30)), past.fill(past.ago(3))
        place.run(f"DROP TABLE {quoted(f'outbox_messages_{TODAY + 2}')}, {quoted(f'outbox_journal_{TODAY + 2}')}")
        kept = {"archive_retention": 10 * DAY_SECONDS, "archive_export": tmp_path.as_uri()}
        with closing(Store.connect(settings_of("relay", place, **kept))) as store:
            done = maintain(store)
        assert (done.failed, done.kept) == ([], {})
        assert done.dropped == [past.ago(30)]
        assert list(tmp_path.rglob(f"day={past.ago(30)}/*.parquet"))
        assert place.ask(f"SELECT to_regclass('{quoted(f'outbox_messages_{TODAY + 2}')}') IS NOT NULL")
        replayed = place.command("replay", "--all", "--yes", settings=settings_of("operator", place))
        assert replayed.exit_code == 0, replayed.output
        assert len(rows.hot()) == 1
        with as_a("relay", place) as connection, pytest.raises(DBAPIError, match="is no day that has ended"):
            connection.exec_driver_sql(f"SELECT {quoted('outbox_day_drop')}({TODAY})")


def test_the_doctor_names_a_missing_right_on_a_column_or_a_function(place: Place) -> None:
    settings, relay = settings_of("relay", place), role(place, "relay")
    assert found(settings, "rights_missing") == {}
    identity = f"{quoted('outbox_identity')}()"
    place.run(
        f'REVOKE UPDATE (closed_at) ON {quoted("outbox_audit")} FROM "{relay}"',
        f'REVOKE EXECUTE ON FUNCTION {identity} FROM PUBLIC, "{relay}"',
    )
    missing = found(settings, "rights_missing")["rights_missing"]
    assert "UPDATE (count, facts, closed_at) on outbox_audit" in missing.fact
    assert f"EXECUTE on {identity}" in missing.fact
    place.run(
        *missing.remedy.splitlines(),
        "CREATE SCHEMA of_another_outbox",
        "CREATE FUNCTION of_another_outbox.outbox_identity() RETURNS text LANGUAGE sql AS $$ SELECT '' $$",
        "REVOKE EXECUTE ON FUNCTION of_another_outbox.outbox_identity() FROM PUBLIC",
    )
    try:
        assert found(settings, "rights_missing") == {}
    finally:
        place.run("DROP SCHEMA of_another_outbox CASCADE")


def test_the_archive_is_changed_by_nobody(place: Place, rows: Rows) -> None:
    """Also not by roles that rewrite, edit or purge messages at work."""
    rows.settle(*rows.insert(1))
    kinds: tuple[Kind, ...] = ("worker", "operator")
    for kind, statement in product(kinds, ("UPDATE {} SET payload = ''", "DELETE FROM {}")):
        with as_a(kind, place) as connection, pytest.raises(ProgrammingError, match=r"has ended|permission denied"):
            connection.exec_driver_sql(statement.format(quoted("outbox_messages")))


class TestTheAudit:
    """Who may change an entry: the rows decide, behind the rights on columns."""

    CHANGE = "UPDATE outbox_audit SET count = 0, facts = '{}', closed_at = NULL WHERE seq = "

    def entry(self, place: Place, role: str, closed_at: str = "NULL", once: str = "NULL") -> str:
        columns = "(who, action, role, closed_at, once)"
        values = f"('anna', 'redrive', '{role}', {closed_at}, {once})"
        place.run(f"INSERT INTO {quoted('outbox_audit')} {columns} VALUES {values}")
        return str(place.ask(f"SELECT max(seq) FROM {quoted('outbox_audit')}"))

    @pytest.mark.parametrize("kind", ["operator", "relay"])
    def test_has_entries_that_nobody_changes_but_who_made_them_until_they_are_closed(
        self, place: Place, kind: Kind
    ) -> None:
        own, token = role(place, kind), "gen_random_uuid()"
        entries = {
            self.entry(place, own): True,
            self.entry(place, "anna", once=token): True,
            self.entry(place, "anna"): False,
            self.entry(place, own, "now()"): False,
            self.entry(place, own, "now()", token): False,
        }
        with as_a(kind, place) as connection:
            connection.exec_driver_sql(f'SET search_path = "{SCHEMA}"')
            for entry, allowed in entries.items():
                if allowed:
                    connection.exec_driver_sql(self.CHANGE + entry)
                else:
                    self.refused(connection, self.CHANGE + entry)

    def test_begins_no_act_with_the_entry_of_another(self, place: Place) -> None:
        """And no process goes on with a replay whose role can't write the copies."""
        own = role(place, "operator")
        begin = "INSERT INTO outbox_acts (act, wanted, as_of) VALUES ({}, '{{}}', now())"
        others = [self.entry(place, "anna"), self.entry(place, own, "now()")]
        mine = self.entry(place, own)
        with as_a("operator", place) as connection:
            connection.exec_driver_sql(f'SET search_path = "{SCHEMA}"')
            for other in others:
                self.refused(connection, begin.format(other))
            connection.exec_driver_sql(begin.format(mine))
            connection.commit()
        place.run(f"UPDATE {quoted('outbox_audit')} SET action = 'replay' WHERE seq = {mine}")
        found: tuple[tuple[Kind, int | None], ...] = (("relay", None), ("operator", int(mine)))
        for kind, entry in found:
            with closing(Store.connect(settings_of(kind, place))) as store:
                assert store.ask("act/take.sql", own=[], overdue=0.0, place=SCHEMA)[0].entry == entry
        place.run(f"DELETE FROM {quoted('outbox_acts')}")

    def refused(self, connection: Connection, statement: str) -> None:
        savepoint = connection.begin_nested()
        with pytest.raises(ProgrammingError, match="closed, or another role's"):
            connection.exec_driver_sql(statement)
        savepoint.rollback()


def test_the_statements_can_be_printed(place: Place) -> None:
    """Run by hand, they give the same rights."""
    place.run("CREATE SCHEMA IF NOT EXISTS empty")
    before = place.ask(RIGHTS)
    settings = place.settings(database_schema=SCHEMA)
    asked = [f"--{kind}={role(place, kind)}" for kind in KINDS]
    printed = place.command("init", *asked, "--sql", settings=settings)
    assert printed.exit_code == 0
    assert place.ask(RIGHTS) == before
    for kind in KINDS:
        place.run(f'DROP OWNED BY "{role(place, kind)}"')
    assert place.ask(RIGHTS) != before
    place.run(*printed.output.splitlines())
    assert place.ask(RIGHTS) == before
    none = place.command("init", "--sql", *asked, settings=place.settings(database_schema="empty"))
    assert "not in schema 'empty'" in none.output


def test_whoever_may_not_write_is_told_how_to_get_the_right(place: Place) -> None:
    settings = place.settings(database_schema=SCHEMA)
    outbox, writer = Outbox(settings), role(place, "writer")
    for function in ("outbox_write_one", "outbox_cancel"):
        place.run(f'REVOKE EXECUTE ON FUNCTION {quoted(function)} FROM "{writer}"')
    try:
        with as_a("writer", place) as connection:
            with pytest.raises(RightsMissing, match=r"permission denied .*init --writer ROLE"), connection.begin():
                outbox.publish(connection, "order.created", {}, to="orders")
            with pytest.raises(RightsMissing, match="permission denied for function outbox_cancel"), connection.begin():
                outbox.cancel(connection, uuid4())
    finally:
        place.command("init", "--writer", writer, settings=settings)
    done = place.command("init", "--writer", "nobody_of_this_name", settings=settings)
    assert (done.exit_code, "role = 'nobody_of_this_name' is no role of this database" in done.output) == (1, True)


def explained(verb: str) -> str:
    """A verb, to be explained for any parameters."""
    found = sql.statement(verb, SCHEMA)
    values = f"({', '.join('NULL' for _ in found.names)})" if found.names else ""
    text = found.text.decode()
    return f'SET plan_cache_mode = force_generic_plan; PREPARE "{verb}" AS {text}; EXPLAIN EXECUTE "{verb}"{values}'


def is_in(verb: str, word: str) -> bool:
    """Whether a verb is in this folder, or is this one."""
    return verb.startswith(f"{word}/") or verb == f"{word}.sql"
