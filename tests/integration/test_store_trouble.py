"""A database that can't serve: one clear error of ours, and nothing half-written. On a server of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from lab.frozen import frozen
from lab.proxy import Proxy
from outbox_tasks.database.connection import migrating
from outbox_tasks.database.engine import SESSION, engine_url
from outbox_tasks.database.patient import Patient
from outbox_tasks.errors import (
    ConfigurationError,
    DatabaseTooSlow,
    DatabaseUnavailable,
    OutboxError,
    SchemaMissing,
    UnsupportedDatabase,
)
from outbox_tasks.local.ports import free_port
from outbox_tasks.local.servers import EmbeddedPostgres
from outbox_tasks.migrations import upgrade
from outbox_tasks.model import LeasedMessage, Outcome, Single, Step, Verdict
from outbox_tasks.operating import days
from outbox_tasks.relay.drain import drain
from outbox_tasks.relay.settle import Listener, settle
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import Share
from outbox_tasks.settings import django_project
from tests.claims import begin, keep_house, take, take_batch
from tests.conftest import MakeSettings, MakeStore, Rows, eventually, seconds_from_now
from tests.integration import pgbouncer
from tests.integration.conftest import Lease

TOKEN = str(UUID(int=1))
MESSAGE = LeasedMessage(
    str(UUID(int=2)), "order.created", "orders", None, b"{}", "a/b", {}, None, None, datetime.now(UTC), 1, seq=1
)

TERMINATE = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'outbox_tasks'"

CALLS: dict[str, Callable[[Store], Any]] = {
    "check_version": lambda store: store.check_version(),
    "keep_house": keep_house,
    "due": lambda store: store.due(10),
    "take_singly": lambda store: store.take_singly({"orders": Share(free=1, held=1, fresh=1)}),
    "take": lambda store: store.takes.take("orders"),
    "ask_drains": lambda store: store.ask_drains({"orders": (1, 1)}),
    "bury_strangers": lambda store: store.bury_strangers(),
    "begin": lambda store: store.begin(TOKEN, "orders"),
    "settle sent": lambda store: store.settle(TOKEN, "orders", [Verdict(MESSAGE, Step.SENT)]),
    "settle failed": lambda store: store.settle(TOKEN, "orders", [Verdict(MESSAGE, Step.DEAD)]),
    "sent_in_vain": lambda store: store.sent_in_vain([MESSAGE], tried_before=False),
    "give_back": lambda store: store.give_back([TOKEN]),
    "turn": days.turn,
}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings={"wal_writer_delay": "10s"}) as server:
        yield server


@pytest.fixture(scope="module")
def postgres_url(server: EmbeddedPostgres) -> str:
    return server.url


@pytest.fixture(scope="module")
def engine(postgres_url: str) -> Iterator[Engine]:
    made = create_engine(engine_url(postgres_url), pool_pre_ping=True)
    yield made
    made.dispose()


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


class TestReadOnly:
    @pytest.fixture
    def read_only(self, new_store: MakeStore, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> Store:
        """A store over one row, whose connections may only read, as on a standby."""
        rows.insert(destination="gone")
        for asked in (SESSION, Store.session):
            monkeypatch.setitem(asked, "default_transaction_read_only", "on")
        return new_store()

    def test_nothing_is_written(self, read_only: Store, rows: Rows) -> None:
        before = rows.hot()
        for name in CALLS.keys() - {"check_version", "due", "turn"}:
            with pytest.raises(DatabaseUnavailable, match="read-only transaction"):
                CALLS[name](read_only)
            assert rows.hot() == before, name

    def test_a_read_only_database_is_not_migrated(
        self, read_only: Store, engine: Engine, settings: MakeSettings, schema: str
    ) -> None:
        with pytest.raises(DatabaseUnavailable), migrating(settings()) as connection:
            upgrade(connection, f"{schema}_other")


class TestTablesGone:
    @pytest.mark.parametrize(
        "damage",
        [
            "DROP TABLE {0}.outbox_messages, {0}.outbox_leases, {0}.outbox_days, {0}.outbox_versions CASCADE",
            "ALTER TABLE {0}.outbox_leases RENAME COLUMN destination TO elsewhere; "
            "ALTER TABLE {0}.outbox_trouble RENAME code TO c; "
            "ALTER TABLE {0}.outbox_versions RENAME version TO v; ALTER TABLE {0}.outbox_days RENAME date TO d",
        ],
    )
    def test_says_so_and_names_the_remedy(self, store: Store, admin: psycopg.Connection[Any], damage: str) -> None:
        admin.execute(damage.format(store.settings.database_schema).encode())
        with pytest.raises(SchemaMissing, match="Run `outbox-tasks init`"):
            take(store, {"orders": 1})

    def test_every_call_says_so(self, store: Store, admin: psycopg.Connection[Any]) -> None:
        admin.execute(f"DROP SCHEMA {store.settings.database_schema} CASCADE".encode())
        for call in CALLS.values():
            with pytest.raises(SchemaMissing, match="Run `outbox-tasks init`"):
                call(store)


@pytest.fixture
def single(store: Store, rows: Rows) -> Callable[[], Single]:
    """Inserts a message and takes it singly. The server has this on its disk."""

    def make() -> Single:
        rows.insert()
        [taken] = take(store, {"orders": 10})
        rows.insert(destination="elsewhere")
        return taken

    return make


def begun(store: Store, taken: Single) -> LeasedMessage:
    """The message of a single whose send begins."""
    message = begin(store, taken)
    assert message
    return message


def forget(server: EmbeddedPostgres, store: Store) -> None:
    """A crash, in which it forgets what it has not yet written: mostly all since the last durable statement."""
    server.kill()
    server.start()
    store.engine.dispose()


class TestServerGone:
    def test_every_call_says_so_and_works_again_once_it_is_back(
        self, server: EmbeddedPostgres, new_store: MakeStore, rows: Rows
    ) -> None:
        pooled, fresh = new_store(), new_store()
        rows.insert(2)
        first, second = take(pooled, {"orders": 10})
        message = begun(pooled, first)
        rows.insert(destination="elsewhere")  # a begin alone may be forgotten in a crash; this makes it durable
        before = rows.hot()
        server.kill()
        try:
            for store in (pooled, fresh):
                for call in CALLS.values():
                    with pytest.raises(DatabaseUnavailable) as caught:
                        call(store)
                    assert str(make_url(server.url).password) not in str(caught.value)
        finally:
            server.start()
        for store in (pooled, fresh):
            store.check_version()
        assert rows.hot() == before
        assert pooled.settle(first.token, "orders", [Verdict(message, Step.SENT)])[0] == {message.seq}
        assert begin(fresh, second)

    @pytest.mark.parametrize("step", [Step.SENT, Step.RETRY, Step.OUTAGE])
    def test_a_send_whose_begin_is_forgotten_is_settled_all_the_same(
        self, server: EmbeddedPostgres, store: Store, rows: Rows, single: Callable[[], Single], step: Step
    ) -> None:
        taken = single()
        verdict = Verdict(begun(store, taken), step, 1.0, "away", "gone")
        forget(server, store)
        assert store.settle(taken.token, "orders", [verdict])[0] == {verdict.message.seq}
        row = rows.archived()[0] if step is Step.SENT else rows.one(taken.id)
        assert (row.attempts, row.last_error_code) == (1, None if step is Step.SENT else "away")
        if step is Step.RETRY:
            assert begun(store, taken._replace(token=verdict.token or "")).attempts == 2

    def test_a_retry_whose_settle_is_forgotten_is_on_its_row(
        self, server: EmbeddedPostgres, store: Store, rows: Rows, single: Callable[[], Single]
    ) -> None:
        taken = single()
        message = begun(store, taken)
        rows.insert(destination="elsewhere")  # makes the begin durable
        retry = Verdict(message, Step.RETRY, 1.0, "timeout", "no answer")
        store.settle(taken.token, "orders", [retry])
        forget(server, store)
        if not begin(store, taken._replace(token=retry.token or "")):
            rows.change([taken.id], locked_until=seconds_from_now(-1))
            keep_house(store)
        row = rows.one(taken.id)
        # Where the server has written the settle by itself, its code is there.
        assert (row.last_error_code, row.history[-1]["what"]) in (("unsettled", "claimed again"), ("timeout", "failed"))

    def test_a_task_that_comes_twice_when_its_begin_is_forgotten_is_on_the_row(
        self,
        server: EmbeddedPostgres,
        store: Store,
        rows: Rows,
        single: Callable[[], Single],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        taken = single()
        first = begun(store, taken)
        forget(server, store)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("outbox_tasks.relay.store.processes.holder", lambda: "elsewhere:1")
            second = begin(store, taken)
            if second:
                settle(store, taken.token, "orders", [Verdict(second, Step.SENT)])
        [verdict] = settle(store, taken.token, "orders", [Verdict(first, Step.SENT)]).verdicts
        assert verdict.step is (Step.STALE if second else Step.SENT)
        assert [row.last_error_code for row in rows.archived()] == ["unsettled" if second else None]

    def test_what_a_batch_had_whose_take_is_forgotten_says_so(
        self, server: EmbeddedPostgres, store: Store, rows: Rows
    ) -> None:
        """It is due again, and may have been sent."""
        store.note_lost_commits()
        rows.insert(3)
        assert len(take_batch(store).messages) == 3
        forget(server, store)
        if {row.begun for row in rows.hot()} == {True}:  # the server has written the take by itself
            rows.change(locked_until=seconds_from_now(-1))
            keep_house(store)
            codes = {"unsettled"}
        else:
            assert store.note_lost_commits() == 3
            codes = {"database_crashed"}
        assert {row.last_error_code for row in rows.hot()} == codes
        assert store.note_lost_commits() is None or codes == {"unsettled"}

    def test_a_connection_that_the_server_closed_is_replaced(
        self, store: Store, rows: Rows, admin: psycopg.Connection[Any]
    ) -> None:
        rows.insert()
        store.check_version()
        admin.execute(TERMINATE)

        assert eventually(lambda: works(lambda: take(store, {"orders": 1})))
        assert rows.hot()[0].lease

    def test_an_address_that_is_wrong_is_named(self, settings: MakeSettings, postgres_url: str) -> None:
        wrong: list[dict[str, Any]] = [
            {"port": free_port()}, {"password": "wrong-password"}, {"username": "nobody"}, {"database": "nowhere"},
        ]  # fmt: skip
        for change in wrong:
            url = make_url(postgres_url).set(**change)
            wanted = settings(database_url=url.render_as_string(hide_password=False))
            with closing(Store.connect(wanted)) as store, pytest.raises(DatabaseUnavailable) as caught:
                store.check_version()
            assert f"{url.host}:{url.port}/{url.database}" in str(caught.value)
            assert str(url.password) not in str(caught.value)


class TestSilence:
    """Connections on which nothing comes back: of a server that hangs, or a network that has lost them."""

    @pytest.fixture
    def proxy(self, server: EmbeddedPostgres) -> Iterator[Proxy]:
        with Proxy(make_url(server.url).port or 0) as made:
            yield made

    @pytest.fixture
    def beyond(self, proxy: Proxy, new_store: MakeStore, postgres_url: str) -> Store:
        """A store that reaches the server through the proxy, and has done so already."""
        url = make_url(postgres_url).set(port=proxy.port).render_as_string(hide_password=False)
        made = new_store(database_url=url, statement_timeout=0.2)
        made.check_version()
        return made

    def test_a_statement_without_an_answer_is_given_up_and_the_next_one_works(
        self, beyond: Store, proxy: Proxy, rows: Rows
    ) -> None:
        rows.insert(2)
        before = time.monotonic()
        proxy.forget()
        with pytest.raises(DatabaseTooSlow, match=r"no answer within 2\.2 s"):
            take(beyond, {"orders": 1})
        assert time.monotonic() - before < 10
        assert len(take(beyond, {"orders": 10})) == 2

    def test_every_call_gives_up_and_works_again_once_the_server_goes_on(
        self, new_store: MakeStore, rows: Rows, server: EmbeddedPostgres
    ) -> None:
        stores = [new_store(statement_timeout=0.2) for _ in CALLS]
        rows.insert(destination="elsewhere")
        for store in stores:
            store.check_version()

        def fails(store: Store, call: Callable[[Store], Any]) -> bool:
            with pytest.raises(DatabaseUnavailable):
                call(store)
            return True

        with frozen(server.pid), ThreadPoolExecutor(len(CALLS)) as pool:
            waiting = [pool.submit(fails, *one) for one in zip(stores, CALLS.values(), strict=True)]
            assert all(one.result(30) for one in waiting)
        for store, call in zip(stores, CALLS.values(), strict=True):
            eventually(lambda store=store: works(store.check_version))  # type: ignore[misc]
            call(store)

    def test_a_server_that_does_not_let_us_in_is_given_up(self, beyond: Store, proxy: Proxy) -> None:
        beyond.close()
        proxy.silence()
        before = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match="timeout"):
            beyond.check_version()
        assert time.monotonic() - before < 15
        proxy.resume()
        beyond.check_version()

    @pytest.mark.parametrize("silent", [False, True], ids=["it would answer", "it would not"])
    def test_a_time_limit_in_a_statement_leaves_nothing_behind(
        self, beyond: Store, proxy: Proxy, rows: Rows, engine: Engine, silent: bool
    ) -> None:
        """Celery raises its soft limit wherever the process is."""
        rows.insert()

        def strike(*_: Any) -> None:
            raise SoftTimeLimitExceeded

        former = signal.signal(signal.SIGALRM, strike)
        try:
            with engine.connect() as other:
                other.execute(text(f"LOCK TABLE {rows.tables.messages} IN ACCESS EXCLUSIVE MODE"))
                if silent:
                    proxy.forget()
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                before = time.monotonic()
                with pytest.raises(SoftTimeLimitExceeded):
                    take(beyond, {"orders": 1})
                assert time.monotonic() - before < 1.5
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
        assert len(take(beyond, {"orders": 1})) == 1

    def test_an_answer_that_is_there_is_read_even_if_we_come_late(self, beyond: Store, rows: Rows) -> None:
        rows.insert()
        statement = text("SELECT pg_sleep(5)")
        with beyond.connection() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, Patient)
            driver.patience = -1.0  # as if we had been asleep for long
            assert connection.execute(text("SELECT 1")).scalar() == 1
            with pytest.raises(OperationalError, match="no answer"):
                connection.execute(statement)

    def test_after_a_failover_the_next_connection_is_a_new_one(
        self, store: Store, rows: Rows, admin: psycopg.Connection[Any]
    ) -> None:
        """Its address may lead to another one now."""
        rows.insert()
        with store.connection() as connection:
            connection.execute(text("SET default_transaction_read_only = on"))
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            take(store, {"orders": 1})
        assert len(take(store, {"orders": 1})) == 1


def works(call: Callable[[], Any]) -> bool:
    try:
        call()
    except DatabaseUnavailable:
        return False
    return True


class Destination:
    """Takes everything, and then something happens."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.happens = happens
        self.sent: list[str] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        self.sent += [message.id for message in messages]
        self.happens()
        return [Outcome.sent()] * len(messages)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("gone", ["connections", "server"])
def test_what_was_sent_as_the_database_went_away_is_settled_when_it_is_back(
    server: EmbeddedPostgres, store: Store, rows: Rows, gone: str, admin: psycopg.Connection[Any]
) -> None:
    [id] = rows.insert()

    def go() -> None:
        rows.insert(destination="elsewhere")  # makes the take durable
        if gone == "server":
            server.kill()
            back.start()
        else:
            admin.execute(TERMINATE)

    back = threading.Timer(0.5, server.start)
    destination = Destination(go)
    assert drain(store, {"orders": destination}, "orders", Listener()).steps == {Step.SENT: 1}
    if gone == "server":
        back.join()
    assert destination.sent == [id]
    assert [row.last_error_code for row in rows.archived()] == [None]


@pgbouncer.needed
def test_a_pooler_that_is_killed_costs_one_try(postgres_url: str, new_store: MakeStore, rows: Rows) -> None:
    rows.insert(3)
    with pgbouncer.pooled(postgres_url, pool_mode="session") as first, Proxy(make_url(first).port or 0) as proxy:
        url = make_url(first).set(port=proxy.port).render_as_string(hide_password=False)
        store = new_store(database_url=url, statement_timeout=0)
        assert len(take(store, {"orders": 1})) == 1
        [pooler] = [one for one in psutil.Process().children(recursive=True) if one.name() == "pgbouncer"]
        pooler.kill()
        with pytest.raises(DatabaseUnavailable):
            take(store, {"orders": 1})
        with pgbouncer.pooled(postgres_url, pool_mode="session") as second:
            proxy.target = make_url(second).port or 0
            assert len(take(store, {"orders": 10})) == 2
            store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system of its own, where one may be made."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no file system may be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_loses_nothing(small_disk: Path, settings: MakeSettings, schema: str) -> None:
    with EmbeddedPostgres(small_disk / "postgres", settings={"max_wal_size": "64MB"}) as server:
        engine = create_engine(engine_url(server.url), pool_pre_ping=True)
        with engine.begin() as connection:
            upgrade(connection, schema)
        rows, store = Rows(engine, schema), Store.connect(settings(database_url=server.url))
        ids = rows.insert(30, payload=os.urandom(200_000))
        filler = small_disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"0" * 65_536):
                """Until there is no more room."""

        def work() -> None:
            """Take, begin and settle as much as can be."""
            if batch := take_batch(store):
                store.settle(batch.token, "orders", [Verdict(message, Step.SENT) for message in batch.messages])

        refused = 0
        for _ in range(10):
            try:
                work()
            except DatabaseUnavailable:
                refused += 1
        assert refused  # 6 MB can't be archived where there is no room
        filler.unlink()
        if not server.alive:  # it could not write its log of changes either
            server.start()
        eventually(lambda: works(store.check_version))
        assert {str(row.id) for row in (*rows.hot(), *rows.archived())} == set(ids)
        rows.change(locked_until=seconds_from_now(-1))
        while rows.hot():
            work()
            rows.change(locked_until=seconds_from_now(-1))
        assert sorted(str(row.id) for row in rows.archived()) == sorted(ids)
        store.close()
        engine.dispose()


class TestLimits:
    def test_a_statement_that_hangs_is_cut(self, new_store: MakeStore, rows: Rows, engine: Engine) -> None:
        store = new_store(statement_timeout=0.2)
        rows.insert()
        with engine.connect() as other:
            other.execute(text(f"LOCK TABLE {rows.tables.messages} IN ACCESS EXCLUSIVE MODE"))
            with pytest.raises(DatabaseUnavailable, match="statement timeout"):
                take(store, {"orders": 1})
        assert len(take(store, {"orders": 1})) == 1

    def test_without_a_limit_no_option_is_asked_for(self, new_store: MakeStore) -> None:
        """PgBouncer refuses connections that ask for options."""
        with new_store(statement_timeout=0).engine.connect() as connection:
            assert connection.scalar(text("SHOW statement_timeout")) == "0"
            driver = connection.connection.driver_connection
            assert driver is not None
            assert "options" not in driver.info.get_parameters()

    def test_a_role_without_rights_is_told_so(
        self, new_store: MakeStore, postgres_url: str, admin: psycopg.Connection[Any]
    ) -> None:
        admin.execute("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN PASSWORD 'secret'")
        url = make_url(postgres_url).set(username="stranger", password="secret")
        store = new_store(database_url=url.render_as_string(hide_password=False))
        with pytest.raises(OutboxError):
            take(store, {"orders": 1})

    def test_the_error_says_that_the_pool_has_too_few_connections(self, store: Store) -> None:
        store.engine.pool._timeout = 0.1  # type: ignore[attr-defined]
        held = [store.engine.connect() for _ in range(10)]
        try:
            with pytest.raises(DatabaseUnavailable):
                take(store, {"orders": 1})
        finally:
            for connection in held:
                connection.close()


class TestUrls:
    def test_a_missing_url_is_an_error_that_names_the_setting(self, settings: MakeSettings) -> None:
        with pytest.raises(ConfigurationError, match="OUTBOX_DATABASE_URL"):
            Store.connect(settings(database_url=None))

    @pytest.mark.parametrize("url", ["mysql://h/d", "sqlite:///x", "redis://h/0"])
    def test_the_url_of_another_kind_of_database_is_refused(self, settings: MakeSettings, url: str) -> None:
        with pytest.raises(UnsupportedDatabase, match="postgresql"):
            Store.connect(settings(database_url=url))

    @pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
    def test_a_url_is_taken_as_people_write_it(self, scheme: str) -> None:
        assert engine_url(f"{scheme}://u:p@h/d").drivername == "postgresql+psycopg"

    @pytest.mark.parametrize(
        "url", ["postgresql://h:port/d", "://", "postgresql+asyncpg://h/d", "postgresql+psycopg2://h/d"]
    )
    def test_a_url_that_can_not_work_is_refused(self, settings: MakeSettings, url: str) -> None:
        with pytest.raises(OutboxError):
            Store.connect(settings(database_url=url))

    def test_a_port_that_is_no_number_is_refused_in_a_django_project_too(
        self, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(django_project._declared, "default", engine_url("postgresql://h/d"))
        with pytest.raises(ConfigurationError, match="it must be a URL"):
            Store.connect(settings(database_url="postgresql://h:port/d"))


class TestDurability:
    """With a WAL writer that sleeps for 10 s, what a commit did not flush itself is still to be flushed."""

    @pytest.fixture
    def flushed(self, admin: psycopg.Connection[Any]) -> Callable[[], bool]:
        def flushed() -> bool:
            row = admin.execute("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()").fetchone()
            return bool(row and row[0])

        return flushed

    def test_the_pipe_waits_for_no_disk(self, store: Store, rows: Rows, flushed: Callable[[], bool]) -> None:
        acts: dict[str, list[bool]] = {name: [] for name in ("take", "give back", "begin", "batch", "sent", "failed")}
        for _ in range(5):
            rows.insert(2)
            [taken] = take(store, {"orders": 1})
            acts["take"].append(flushed())
            store.give_back([taken.token])
            acts["give back"].append(flushed())
            [taken] = take(store, {"orders": 1})
            rows.insert(destination="elsewhere")  # flushes
            message = begun(store, taken)
            acts["begin"].append(flushed())
            rows.insert(destination="elsewhere")
            store.settle(taken.token, "orders", [Verdict(message, Step.SENT)])
            acts["sent"].append(flushed())
            rows.insert(destination="elsewhere")
            batch = take_batch(store)
            acts["batch"].append(flushed())
            rows.insert(destination="elsewhere")
            store.settle(batch.token, "orders", [Verdict(message, Step.DEAD) for message in batch.messages])
            acts["failed"].append(flushed())
        # The server writes a little by itself, so that one of the five may be otherwise.
        assert {name: sum(values) >= 2 for name, values in acts.items()} == {
            "take": False, "give back": True, "begin": False, "batch": False, "sent": False, "failed": False,
        }  # fmt: skip

    def test_the_setting_does_not_stay_on_the_connection(self, store: Store, lease: Lease) -> None:
        lease()
        with store.engine.connect() as connection:
            assert connection.scalar(text("SHOW synchronous_commit")) == "on"
