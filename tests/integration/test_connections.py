"""A store's connections: what each asks of the server, how it reads odd values, and that the next use finds it in
order."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event, text

from outbox_tasks.database.engine import ANSWER_SECONDS_WITHOUT_LIMIT, NETWORK_SECONDS, PIPE, engine_url
from outbox_tasks.database.patient import Patient
from outbox_tasks.database.schema import qualified, quoted
from outbox_tasks.errors import DatabaseTooSlow, DatabaseUnavailable
from outbox_tasks.migrations import upgrade
from outbox_tasks.model import FIRST_TIME, LAST_TIME
from outbox_tasks.operating.days import days
from outbox_tasks.relay.store import Store
from tests.claims import begin, claimed, take_batch
from tests.conftest import MakeSettings, MakeStore, Rows, own_schema
from tests.integration.pgbouncer import pooled, prepares

pytestmark = pytest.mark.usefixtures("rows")


def of_pool(store: Store) -> Patient:
    """The connection that the pool gives out next."""
    with closing(store.engine.raw_connection()) as pooled:
        driver = pooled.driver_connection
        assert isinstance(driver, Patient)
        return driver


def now(store: Store, name: str) -> str:
    """A setting of the connection that the pool gives out next."""
    [[value]] = of_pool(store).execute("SELECT current_setting(%s)", [name]).fetchall()
    return str(value)


def test_the_settings_of_the_pipe_hold_whatever_the_role_and_the_url_say(
    new_store: MakeStore, postgres_url: str
) -> None:
    others = "-c TimeZone=Asia/Tokyo -c DateStyle=German -c enable_seqscan=on -c row_security=on -c work_mem=5MB"
    ours = {"TimeZone": "UTC", "DateStyle": "ISO, MDY", "row_security": "off", "default_transaction_read_only": "off"}
    ours |= dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off")
    store = new_store(database_url=f"{postgres_url}?options={others.replace(' ', '%20').replace('=', '%3D')}")
    assert {name: now(store, name) for name in PIPE | ours} == PIPE | ours
    assert now(store, "work_mem") == "5MB"  # what we don't rely on is theirs to say
    assert (now(store, "statement_timeout"), now(store, "plan_cache_mode")) == ("3s", "force_generic_plan")


@pytest.mark.parametrize(
    ("timeout", "patience"), [(0.5, 0.5 + NETWORK_SECONDS), (0, ANSWER_SECONDS_WITHOUT_LIMIT)], ids=["a limit", "none"]
)
def test_a_limit_for_one_statement_ends_with_it(new_store: MakeStore, timeout: float, patience: float) -> None:
    store = new_store(statement_timeout=timeout)
    usual = now(store, "statement_timeout")
    assert of_pool(store).patience == patience
    assert ("options" in of_pool(store).info.get_parameters()) is (timeout > 0)  # PgBouncer takes none
    with store.transaction(7.0) as run:
        run("report/timeline.sql")
        assert of_pool(store) is not None
    with pytest.raises(ZeroDivisionError), store.transaction(7.0):
        raise ZeroDivisionError
    with store.rolled_back(7.0) as run:
        run("report/timeline.sql")
    assert (now(store, "statement_timeout"), of_pool(store).patience) == (usual, patience)


def test_inside_a_limit_of_its_own_a_statement_may_take_that_long(new_store: MakeStore) -> None:
    store = new_store(statement_timeout=0.05)
    with store._begun(5.0) as driver:
        assert driver.patience == 5.0 + NETWORK_SECONDS
        driver.execute("SELECT pg_sleep(0.1)")
    with pytest.raises(DatabaseTooSlow, match="outbox-tasks doctor"), store._begun() as driver:
        driver.execute("SELECT pg_sleep(5)")
    store.check_version()


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, psycopg.DataError])
def test_after_an_error_nothing_is_left_open_and_nothing_is_written(
    store: Store, rows: Rows, error: type[BaseException]
) -> None:
    schema = str(rows.tables.audit.schema)
    with pytest.raises(error), store._begun() as driver:  # noqa: PT012
        driver.execute(f"INSERT INTO {schema}.outbox_audit (who, action) VALUES ('me', 'x')".encode())
        raise error
    driver = of_pool(store)
    assert driver.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    beat = [{"name": "me", "kind": "worker", "ago": 0, "facts": {}}]
    with store.rolled_back(1.0) as run:
        assert run("report/beat.sql", seen=json.dumps(beat), late=1.0)
    for table in ("audit", "heartbeats"):
        assert store.query(f"SELECT 1 FROM {schema}.outbox_{table}") == []


def test_after_an_interruption_the_connection_is_another_one(store: Store) -> None:
    """It may have been struck inside a conversation; an error of the server ends one."""
    first = of_pool(store)
    with pytest.raises(DatabaseUnavailable), store._begun() as driver:
        driver.execute("SET LOCAL statement_timeout = 1; SELECT pg_sleep(5)")
    assert of_pool(store) is first
    with pytest.raises(KeyboardInterrupt), store._begun():
        raise KeyboardInterrupt
    assert of_pool(store) is not first


def test_whoever_is_alone_may_take_long_and_others_are_told_so(store: Store, new_store: MakeStore) -> None:
    taken: list[Any] = []
    event.listen(store.engine, "checkout", lambda driver, *_: taken.append(driver))
    with store.alone("maintain") as ours:
        assert ours
        assert taken[0].execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("0",)
        with new_store().alone("maintain") as theirs, new_store().alone("another thing") as another:
            assert (theirs, another) == (False, True)
        with store.engine.connect() as other:
            [[state, limit]] = other.execute(
                text("SELECT count(*) FILTER (WHERE state = 'idle in transaction'), max(backend_xmin::text) "
                     "FROM pg_stat_activity WHERE application_name = :name AND state <> 'active'"),
                {"name": store.application_name},
            ).all()  # fmt: skip
        assert (state >= 1, limit) == (True, None)  # it holds back no vacuum
    with new_store().alone("maintain") as ours:
        assert ours


TIMES: list[tuple[str, datetime]] = [
    ("-infinity", FIRST_TIME), ("4713-01-01 BC", FIRST_TIME), ("0001-01-01 BC", FIRST_TIME),
    ("2030-01-02 03:04:05+00", datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ("9999-12-31", LAST_TIME), ("294276-12-31", LAST_TIME), ("infinity", LAST_TIME),
]  # fmt: skip
DEEP, LONG = "[" * 5000 + "]" * 5000, "1" * 5000


def test_whatever_anybody_has_written_can_be_read(store: Store) -> None:
    def read(value: str, kind: str) -> Any:
        [[found]] = of_pool(store).execute(f"SELECT '{value}'::{kind}".encode(), binary=True).fetchall()
        return found

    for value, expected in TIMES:
        assert read(value, "timestamptz") == expected, value
    for kind in ("json", "jsonb"):
        assert read('{"a": [1, null]}', kind) == {"a": [1, None]}
        assert read(DEEP, kind).replace(" ", "") == DEEP
        assert read(LONG, kind) == LONG


def test_names_are_in_quotes_where_they_need_them() -> None:
    plain = ["outbox", "a_1", "_b"]
    assert [quoted(name) for name in plain] == plain
    assert [quoted(name) for name in ("user", "A", "a b", 'a"b', "1a", "")] == [
        '"user"', '"A"', '"a b"', '"a""b"', '"1a"', '""',
    ]  # fmt: skip
    assert (qualified("user", "t"), qualified(None, "t")) == ('"user".t', "t")


def test_a_url_may_name_another_driver_and_a_socket_as_libpq_does() -> None:
    url = engine_url("postgres+asyncpg://me@%2Frun%2Fpg/shop")
    assert (url.drivername, url.host, url.query["host"]) == ("postgresql+psycopg", None, "/run/pg")


def test_days_are_those_of_utc_in_whatever_zone_the_tables_were_made(engine: Engine, settings: MakeSettings) -> None:
    """An application's own session may have made them."""
    with own_schema(engine) as schema:
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL timezone = 'Pacific/Guam'; SET LOCAL datestyle = 'SQL, DMY'")
            upgrade(connection, schema)
            assert connection.scalar(text("SHOW datestyle")) == "SQL, DMY"
        with closing(Store.connect(settings(database_schema=schema))) as store:
            [day] = days(store)
        assert day.date == day.began_at.astimezone(UTC).date()


@prepares
def test_behind_pgbouncer_prepared_statements_follow_to_other_sessions(
    new_store: MakeStore, rows: Rows, postgres_url: str
) -> None:
    """As docs/managed-postgresql.md says, with a pooler that gives a session for a transaction."""
    with pooled(postgres_url, pool_mode="transaction", max_prepared_statements=200) as url:
        store = new_store(database_url=url, statement_timeout=0, singles=1)

        def told() -> None:
            rows.insert(2)
            singles, _ = claimed(store)
            assert sum(begin(store, single) is not None for single in singles) + len(take_batch(store).messages) == 2

        for _ in range(7):  # psycopg prepares what it has run five times
            told()
        assert of_pool(store).execute("SELECT count(*) > 3 FROM pg_prepared_statements").fetchone() == (True,)
        session = of_pool(store).execute("SELECT pg_backend_pid()").fetchone()
        with psycopg.connect(url) as another:  # its transaction keeps the session
            assert another.execute("SELECT pg_backend_pid()").fetchone() == session
            told()
