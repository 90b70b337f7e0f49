"""Database roles: each can do its work, and nothing of the others'."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest
from celery import Celery
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outbox_tasks import Inbox, Outbox, Settings
from outbox_tasks.database.rights import GIVEN, Kind
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.find import Filter
from outbox_tasks.operating.retention import maintain
from outbox_tasks.relay.drain import drain
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.runs import Runs
from outbox_tasks.running.supervisor import Supervisor
from outbox_tasks.settings.operation import DAY
from tests.conftest import Rows, Stream, own_stream, seconds_from_now
from tests.golden import DIRECTORY
from tests.integration.doctoring import found
from tests.integration.own_database import Place, own_database, write_in_every_way

SCHEMA = "Outbox"
KINDS: tuple[Kind, ...] = get_args(Kind)

STATEMENTS = {
    "writer": "cancel publish_once",
    "writer worker operator": "publish publish_one publish_one_full",
    "writer worker relay operator reader": "identity alone",
    "worker": "mark",
    "worker operator": "end_run end_run_delete end_run_later fail_run",
    "worker relay operator": """
        begin_run bury_unroutable claim claim_keys end_waits everything handed_over lose_runs overtaken recall release
        renew_runs replay_named requeue_run retry_run archive_days archive_lots archive_measured archive_rows
        replay_chosen replay_kinds replay_originals doctor_strays note_timeline unknown_run""",
    "worker relay operator reader": """
        ahead anything_due archived blocked_keys completed count_blocked_keys counts dead_of_destinations dead_of_group
        doctor_upgraded groups handed_over_by_task heads horizon newest newest_archived next_dead next_due next_waiting
        of_key places_of_dead present sample states_of version waiting whereabouts""",
    "relay": """
        beat begin begin_mixed crowded end_alerts forget forget_acts forget_alerts forget_counts forget_publishers
        forget_workers left make_slots posted put_off record_alerts seen sent_in_vain settle_done settle_done_delete
        settle_done_mixed settle_failed settle_handed stopped take_posts tally turn_to_look vacated archive_move
        archive_remove archive_share archive_drop archive_detach archive_make_day archive_renew_default on_timeline""",
    "relay operator": """
        act act_begun_by act_ended acts_going acts_renewed acts_taken admit audit_about audit_closed audit_entries
        audit_entry audit_former became discard discard_delete discard_leased give_back make_meters metered recovered
        redrive redrive_leased tripped unspent untried""",
    "relay operator reader": "heartbeats holders known_alerts neighbours publishers states tallied",
    "operator": "act_begun audit_opened edit pause replay resume",
}
"""The statements of the product, by the roles that may run them: see tests/golden."""

HARM = {
    "DELETE FROM outbox_messages": "worker relay operator",
    "SELECT payload FROM outbox_messages": "worker relay operator",
    "SELECT headers FROM outbox_messages": "worker relay operator",
    "SELECT history FROM outbox_archive": "worker relay operator",
    "SELECT payload FROM outbox_all": "operator",
    "SELECT id, state, last_error FROM outbox_all": "operator reader",
    "UPDATE outbox_archive SET state = 'sent'": "relay",
    "DELETE FROM outbox_archive": "relay",
    "SELECT outbox_archive_share()": "relay",
    "UPDATE outbox_audit SET who = 'somebody'": "",
    "UPDATE outbox_audit SET role = 'somebody'": "",
    "INSERT INTO outbox_audit (who, action, role) VALUES ('', '', '')": "",
    "INSERT INTO outbox_audit (who, action, at) VALUES ('', '', now())": "",
    "INSERT INTO outbox_audit (who, action) VALUES ('', '')": "operator",
    "UPDATE outbox_acts SET wanted = '{}'": "",
    "UPDATE outbox_acts SET lease = NULL": "relay operator",
    "UPDATE outbox_audit SET count = 0": "relay operator",
    "DELETE FROM outbox_audit": "relay",
    "SELECT facts FROM outbox_audit": "relay operator",
    "DELETE FROM outbox_versions": "",
    "UPDATE outbox_versions SET version = 1": "",
    "DELETE FROM outbox_heartbeats": "relay",
    "UPDATE outbox_slots SET holder = ''": "relay",
    "INSERT INTO outbox_inbox (consumer, message_id) VALUES ('', '')": "worker",
    "DELETE FROM outbox_inbox": "relay",
    "SELECT * FROM outbox_inbox": "worker relay",
    "SELECT nextval('outbox_messages_seq_seq')": "writer worker operator",
    "SELECT setval('outbox_messages_seq_seq', 1)": "",
    "TRUNCATE outbox_messages": "",
    "DROP TABLE outbox_archive": "",
    "CREATE TABLE mine (a int)": "",
    "CREATE FUNCTION length(text) RETURNS int LANGUAGE sql RETURN 1": "",
    "ALTER TABLE outbox_messages DISABLE TRIGGER ALL": "",
    "CREATE TRIGGER mine BEFORE INSERT ON outbox_archive EXECUTE FUNCTION outbox_keep_order()": "",
}
"""Statements of whoever has got hold of a role, by the roles that may run them."""


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
    place.run(f"TRUNCATE {quoted('outbox_messages')}, {quoted('outbox_archive')}, {quoted('outbox_destinations')}")


def archived(id: str, at: str = "now") -> str:
    """A statement that archives a message as sent."""
    same = "seq, id, event_type, destination, payload, content_type, headers, created_at"
    return f"""WITH gone AS (DELETE FROM {quoted("outbox_messages")} WHERE id = '{id}' RETURNING *)
        INSERT INTO {quoted("outbox_archive")} ({same}, attempts, state, finished_at)
        SELECT {same}, 1, 'sent', '{at}' FROM gone"""


def quoted(table: str) -> str:
    return f'"{SCHEMA}".{table}'


def settings_of(kind: Kind, place: Place, **values: Any) -> Settings:
    return place.settings(database_schema=SCHEMA, database_url=place.url_of(role(place, kind)), **values)


class TestEachStatement:
    @pytest.mark.parametrize("kind", KINDS)
    def test_of_the_product_is_allowed_to_those_who_need_it(self, place: Place, kind: Kind) -> None:
        """EXPLAIN looks at the rights, and runs nothing."""
        with as_a(kind, place) as connection:
            connection.exec_driver_sql(f'SET search_path = "{SCHEMA}"')
            for roles, names in STATEMENTS.items():
                for name in names.split():
                    assert self.may(connection, explained(name)) is (kind in roles.split()), f"{kind}: {name}"

    @pytest.mark.parametrize("kind", KINDS)
    def test_that_does_harm_is_allowed_to_those_who_can_t_do_without(self, place: Place, kind: Kind) -> None:
        with as_a(kind, place) as connection:
            connection.exec_driver_sql(f'SET search_path = "{SCHEMA}"')
            for statement, roles in HARM.items():
                assert self.may(connection, statement) is (kind in roles.split()), f"{kind}: {statement}"

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


class TestWork:
    """What each role is for, done by it."""

    def test_of_a_writer(self, place: Place, rows: Rows) -> None:
        outbox = Outbox(settings_of("writer", place, destinations=TASKS))
        app = Celery(broker="redis://127.0.0.1:1/0", set_as_current=False)
        with as_a("writer", place) as connection, connection.begin():
            made = write_in_every_way(outbox, connection)
            with outbox.capture(connection):
                task = app.send_task("shop.charge", (42,))
            made.append(UUID(task.id))

        async def write() -> UUID:
            engine = create_async_engine(place.engine.url.set(username=role(place, "writer"), password="secret"))
            try:
                async with AsyncSession(engine) as session, session.begin():
                    return outbox.publish(session, "order.created", {}, to="orders")
            finally:
                await engine.dispose()

        made.append(asyncio.run(write()))
        assert {row.id for row in rows.hot()} >= set(made[:-2]) | {made[-1]}
        assert len(rows.hot()) == len(made)

    def test_of_a_worker(self, place: Place, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
        settings = settings_of("worker", place, destinations=TASKS)
        supervisor = Supervisor(Celery(set_as_current=False), settings)
        assert supervisor.check()
        assert caplog.text == ""
        runs = Runs.connect(settings)
        try:
            assert UUID(runs.identity())
        finally:
            runs.close()
        with as_a("worker", place) as connection, connection.begin():
            inbox, id = Inbox("billing", schema=SCHEMA), uuid4()
            assert [inbox.first(connection, id) for _ in range(2)] == [True, False]

    def test_of_the_relay(self, place: Place, rows: Rows, stream: Stream) -> None:
        destinations = {"orders": {"url": stream.url}, "mails": {"url": NOBODY}}
        settings = settings_of("relay", place, destinations=destinations, breaker_failures=1)
        ids = rows.insert(2) + rows.insert(2, key="order:1")
        lost = rows.insert(1, destination="mails")
        [unroutable] = rows.insert(1, destination="nobody", locked_until=seconds_from_now(-7200))
        store, publishers = Store.connect(settings), Publishers(settings)
        try:
            store.check_version()
            drain(store, publishers)
            assert {row.id for row in rows.archived()} == {UUID(id) for id in ids}
            assert [str(row.id) for row in rows.hot() if row.status == "pending"] == lost
            assert rows.one(unroutable).status == "dead"
        finally:
            publishers.close()
            store.close()
        for command in ("status", "metrics", "keys", "errors", "alerts", "health"):
            assert "permission denied" not in place.command(command, settings=settings).output, command

    def test_of_the_relay_s_housekeeping(self, place: Place, rows: Rows, tmp_path: Path) -> None:
        """It makes, exports and drops partitions that it does not own, and gives new ones the archive's rights."""
        archive, today = quoted("outbox_archive"), datetime.now(UTC).date()
        old, past, later = (today + timedelta(days=n) for n in (-30, -3, 5))
        place.run(
            f"DROP TABLE {archive}_{later:%Y%m%d}",
            f"CREATE TABLE {archive}_{old:%Y%m%d} PARTITION OF {archive} "
            f"FOR VALUES FROM ('{old} 00:00+00') TO ('{old + timedelta(days=1)} 00:00+00')",
        )
        for day, id in zip((old, past), rows.insert(2), strict=True):
            place.run(archived(id, f"{day} 12:00+00"))
        kept = {"archive_retention": 10 * DAY, "archive_export": tmp_path.as_uri(), "archive_format": "jsonl"}
        store = Store.connect(settings_of("relay", place, **kept))
        try:
            done = maintain(store)
        finally:
            store.close()
        assert (done.failed, done.trimmed.kept) == ([], {})
        assert done.trimmed.dropped == [old]
        assert list(tmp_path.rglob(f"day={old}/*.gz"))
        names = place.ask(f"SELECT string_agg(inhrelid::regclass::text, ' ') FROM pg_inherits WHERE inhparent = "
                          f"'{archive}'::regclass")  # fmt: skip
        assert {f"{day:%Y%m%d}" for day in (past, later)} <= set(re.findall(r"\d{8}", names))
        replayed = place.command("replay", "--all", "--yes", settings=settings_of("operator", place))
        assert replayed.exit_code == 0, replayed.output
        assert len(rows.hot()) == 1

    @pytest.mark.parametrize("name", ["outbox_messages", "outbox_archive_default", "outbox_archive_gone_20261122; --"])
    def test_of_the_relay_drops_no_other_table(self, place: Place, name: str) -> None:
        drop = text(f"SELECT {quoted('outbox_archive_drop')}(:name)")
        with as_a("relay", place) as connection, pytest.raises(DBAPIError, match="is no former partition"):
            connection.execute(drop, {"name": name})

    def test_of_an_operator(self, place: Place, rows: Rows) -> None:
        settings = settings_of("operator", place)
        dead = {"status": "dead", "attempts": 3, "dead_at": seconds_from_now(-60), "last_error_code": "http_400"}
        first, second, third, fourth = rows.insert(4, **dead)
        [keyed] = rows.insert(1, key="k", **dead)
        why = ("--yes", "--why", "a test")
        [sent] = rows.insert(1)
        place.run(archived(sent))
        for command in [
            ("list",), ("list", "--state", "dead"), ("show", first), ("errors",), ("keys",), ("status",), ("alerts",),
            ("redrive", first, *why), ("discard", second, *why), ("redrive", "--all", *why), ("pause", "orders"),
            ("resume", "orders"), ("audit",), ("replay", sent, *why), ("metrics",),
        ]:  # fmt: skip
            done = place.command(*command, settings=settings)
            assert done.exit_code == 0, (command, done.output)
        rows.change([third, fourth, keyed], **dead)
        payload = json.dumps({"mended": True})
        for command in [("edit", third, "--payload", "-", *why), ("purge", "--dead", "--older-than", "1s", *why)]:
            done = place.command(*command, settings=settings, input=payload)
            assert done.exit_code == 0, (command, done.output)

    def test_of_a_reader(self, place: Place, rows: Rows) -> None:
        settings = settings_of("reader", place)
        [dead] = rows.insert(1, payload=b'"secret"', status="dead", key="k", dead_at=seconds_from_now(-60))
        for command in [("list",), ("errors",), ("keys",), ("status",), ("alerts",), ("metrics",), ("health",)]:
            done = place.command(*command, settings=settings)
            assert "permission denied" not in done.output, command
            assert done.exit_code == (command == ("health",)), (command, done.output)
        for refused in [("show", dead), ("redrive", dead, "--yes"), ("audit",), ("pause", "orders")]:
            done = place.command(*refused, settings=settings)
            assert done.exit_code == 1
            assert "permission denied" in done.output, refused
            assert "secret" not in done.output


class TestTheDoctor:
    def test_names_a_right_on_one_column_of_several(self, place: Place) -> None:
        audit = quoted("outbox_audit")
        place.run(f'REVOKE UPDATE (closed_at) ON {audit} FROM "{role(place, "relay")}"')
        [missing] = found(settings_of("relay", place), "rights_missing").values()
        assert "UPDATE (count, facts, closed_at) on outbox_audit" in missing.fact
        place.run(*missing.remedy.splitlines())
        assert found(settings_of("relay", place), "rights_missing") == {}

    def test_finds_that_the_relay_has_its_rights(self, place: Place) -> None:
        assert found(settings_of("relay", place), "rights_missing") == {}

    def test_names_a_function_that_may_not_be_called(self, place: Place) -> None:
        name = f"{quoted('outbox_identity')}()"
        place.run(f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC")
        place.run(f'REVOKE EXECUTE ON FUNCTION {name} FROM "{role(place, "relay")}"')
        [missing] = found(settings_of("relay", place), "rights_missing").values()
        assert f"EXECUTE on {name}" in missing.fact
        place.run(*missing.remedy.splitlines())
        assert name not in str(found(settings_of("relay", place), "rights_missing"))


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
        own = role(place, "operator")
        begin = "INSERT INTO outbox_acts (act, wanted, as_of) VALUES ({}, '{{}}', now())"
        others = [self.entry(place, "anna"), self.entry(place, own, "now()")]
        mine = self.entry(place, own)
        with as_a("operator", place) as connection:
            connection.exec_driver_sql(f'SET search_path = "{SCHEMA}"')
            for entry in others:
                self.refused(connection, begin.format(entry))
            connection.exec_driver_sql(begin.format(mine))

    def refused(self, connection: Connection, statement: str) -> None:
        savepoint = connection.begin_nested()
        with pytest.raises(ProgrammingError, match="closed, or another role's"):
            connection.exec_driver_sql(statement)
        savepoint.rollback()

    def test_closes_each_entry_as_its_act_ends(self, place: Place, rows: Rows) -> None:
        """An act in the background is begun by an operator, and ended by the relay."""
        place.run(f"DELETE FROM {quoted('outbox_audit')}")
        dead = {"status": "dead", "attempts": 3, "dead_at": seconds_from_now(-60)}
        first, second, _ = rows.insert(3, **dead)
        why = ("--yes", "--why", "a test")
        settings = settings_of("operator", place)
        [sent] = rows.insert(1)
        place.run(archived(sent))
        for command in [
            ("redrive", first, *why), ("discard", second, *why), ("pause", "orders"), ("resume", "orders"),
            ("purge", "--dead", "--older-than", "1s", *why), ("replay", sent, *why),
        ]:  # fmt: skip
            done = place.command(*command, settings=settings)
            assert done.exit_code == 0, (command, done.output)
        begun, going = Store.connect(settings), Store.connect(settings_of("relay", place))
        mine, theirs = Runner(begun), Runner(going)
        try:
            mine.close()  # it begins acts, and runs none
            ids = [UUID(id) for id in rows.insert(3, **dead)]
            wanted = Filter(states=("dead",))
            entry = mine.begin("redrive", wanted, ids, who="anna", why=None, token=uuid4())
            theirs.wake()
            assert theirs.ended(entry, 60)
            assert (theirs.act(entry) or {})["count"] == 3
        finally:
            theirs.close()
            begun.close()
            going.close()
        made = f"SELECT count(*) FILTER (WHERE role = '{role(place, 'operator')}') FROM {quoted('outbox_audit')}"
        assert (place.ask(made), place.ask(f"SELECT count(closed_at) FROM {quoted('outbox_audit')}")) == (7, 7)


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
    nothing = place.command("init", "--sql", settings=settings)
    assert nothing.exit_code == 2
    none = place.command("init", "--sql", *asked, settings=place.settings(database_schema="empty"))
    assert "not in schema 'empty'" in none.output


def test_a_table_of_a_later_release_is_the_relay_s_and_the_operator_s() -> None:
    assert {kind for kind in KINDS if "others" in GIVEN[kind]} == {"relay", "operator"}


def explained(name: str) -> str:
    """A statement of tests/golden, to be explained for any parameters."""
    written = (DIRECTORY / f"{name}.sql").read_text(encoding="utf-8").replace("some_schema.", quoted(""))
    written = re.sub(r"\boutbox_archive_20\d{6}\b", "outbox_archive_default", written)
    sql = re.sub(r"^--.*$", "", written, flags=re.MULTILINE).replace("%%", "%").strip()
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
    sql = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", sql)
    values = f"({', '.join('NULL' for _ in names)})" if names else ""
    return f'SET plan_cache_mode = force_generic_plan; PREPARE "{name}" AS {sql} EXPLAIN EXECUTE "{name}"{values}'
