"""A database that can't serve: one clear error of ours, and nothing half-written. On a server of its own, which
is killed and made silent, and which undoes statements."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import Engine, create_engine, make_url, text

from lab.proxy import Proxy
from outbox_tasks.database.engine import engine_url
from outbox_tasks.errors import (
    ConfigurationError,
    DatabaseTooSlow,
    DatabaseUnavailable,
    SchemaMissing,
)
from outbox_tasks.local.ports import free_port
from outbox_tasks.local.servers import EmbeddedPostgres
from outbox_tasks.model import LeasedMessage, Single, Step, Verdict
from outbox_tasks.operating import days
from outbox_tasks.relay.drain import drain
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.settle import Listener, settle
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import Share
from outbox_tasks.settings import django_project
from tests.claims import begin, keep_house, take, take_batch
from tests.conftest import MakeSettings, MakeStore, Rows, seconds_from_now
from tests.storage.relaying import Receiver

TOKEN = str(UUID(int=1))
MESSAGE = LeasedMessage(
    str(UUID(int=2)), "order.created", "orders", None, b"{}", "a/b", {}, None, None, datetime.now(UTC), 1, seq=1
)

TERMINATE = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'outbox_tasks'"

CALLS: dict[str, Callable[[Store], Any]] = {
    "check_version": lambda store: store.check_version(),
    "keep_house": keep_house,
    "due": lambda store: store.claims.due(10),
    "take_singly": lambda store: store.claims.take_singly({"orders": Share(keyless=1, held=1, new=1)}),
    "take": lambda store: store.takes.take("orders"),
    "reserve_slots": lambda store: store.claims.reserve_slots({"orders": (1, 1)}),
    "bury": lambda store: store.claims.bury(),
    "begin": lambda store: store.leases.begin(TOKEN, "orders"),
    "settle sent": lambda store: store.leases.settle(TOKEN, "orders", [Verdict(MESSAGE, Step.SENT)]),
    "settle failed": lambda store: store.leases.settle(TOKEN, "orders", [Verdict(MESSAGE, Step.DEAD)]),
    "sent_in_vain": lambda store: store.leases.sent_in_vain([MESSAGE], tried_before=False),
    "give_back": lambda store: store.leases.give_back([TOKEN]),
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


class TestTablesGone:
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
        assert pooled.leases.settle(first.token, "orders", [Verdict(message, Step.SENT)])[0] == {message.seq}
        assert begin(fresh, second)

    @pytest.mark.parametrize("step", [Step.SENT, Step.RETRY])
    def test_a_send_whose_begin_is_forgotten_is_settled_all_the_same(
        self, server: EmbeddedPostgres, store: Store, rows: Rows, single: Callable[[], Single], step: Step
    ) -> None:
        taken = single()
        verdict = Verdict(begun(store, taken), step, 1.0, "away", "gone")
        forget(server, store)
        assert store.leases.settle(taken.token, "orders", [verdict])[0] == {verdict.message.seq}
        row = rows.archived()[0] if step is Step.SENT else rows.one(taken.id)
        assert (row.attempts, row.last_error_code) == (1, None if step is Step.SENT else "away")
        if step is Step.RETRY:
            assert begun(store, taken._replace(token=verdict.token or "")).attempts == 2

    def test_what_a_batch_had_whose_take_is_forgotten_says_so(
        self, server: EmbeddedPostgres, store: Store, rows: Rows
    ) -> None:
        """It is due again, and may have been sent."""
        store.claims.note_lost_commits()
        rows.insert(3)
        assert len(take_batch(store).messages) == 3
        forget(server, store)
        if {row.begun for row in rows.hot()} == {True}:  # the server has written the take by itself
            rows.change(locked_until=seconds_from_now(-1))
            keep_house(store)
            codes = {"unsettled"}
        else:
            assert store.claims.note_lost_commits() == 3
            codes = {"database_crashed"}
        assert {row.last_error_code for row in rows.hot()} == codes
        assert store.claims.note_lost_commits() is None or codes == {"unsettled"}

    def test_a_connection_that_the_server_closed_is_replaced(
        self, store: Store, rows: Rows, admin: psycopg.Connection[Any]
    ) -> None:
        rows.insert()
        idle = [store.engine.raw_connection() for _ in range(2)]
        for connection in idle:
            connection.close()
        admin.execute(TERMINATE)
        assert not works(store.check_version)
        with closing(store.engine.raw_connection()):  # another thread's
            assert works(store.check_version), "the other idle one was given up, too"
        assert take(store, {"orders": 1})
        assert rows.hot()[0].lease

    def test_an_address_that_is_wrong_is_named(self, settings: MakeSettings, postgres_url: str) -> None:
        wrong: list[dict[str, Any]] = [
            {"port": free_port()}, {"password": "wrong-password"}, {"username": "nobody"}, {"database": "nowhere"},
            {"password": "quoted", "query": {"sslmode": "quoted"}},
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
                with pytest.raises(SoftTimeLimitExceeded), beyond._begun() as driver:
                    driver.execute(f"SELECT FROM {rows.tables.messages}".encode())
                assert time.monotonic() - before < 1.5
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
        assert len(take(beyond, {"orders": 1})) == 1

    def test_an_answer_that_is_there_is_read_even_if_we_come_late(self, beyond: Store, rows: Rows) -> None:
        rows.insert()
        with beyond._driver() as driver:
            usual, driver.patience = driver.patience, -1.0  # as if we had been asleep for long
            assert driver.execute("SELECT 1").fetchone() == (1,)
            driver.patience = usual
        with pytest.raises(DatabaseUnavailable, match="no answer"), beyond._driver() as driver:  # noqa: PT012
            driver.patience = -1.0
            driver.execute("SELECT pg_sleep(5)")

    def test_after_a_failover_the_next_connection_is_a_new_one(
        self, store: Store, rows: Rows, admin: psycopg.Connection[Any]
    ) -> None:
        """Its address may lead to another one now."""
        rows.insert()
        store.query("SET default_transaction_read_only = on")
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            take(store, {"orders": 1})
        assert len(take(store, {"orders": 1})) == 1


def works(call: Callable[[], Any]) -> bool:
    try:
        call()
    except DatabaseUnavailable:
        return False
    return True


class TestUrls:
    def test_a_port_that_is_no_number_is_refused_in_a_django_project_too(
        self, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(django_project._declared, "default", engine_url("postgresql://h/d"))
        monkeypatch.setattr(django_project, "name_in_tests", lambda alias: None)
        with pytest.raises(ConfigurationError, match="it must be a URL"):
            Store.connect(settings(database_url="postgresql://h:port/d"))


Refuse = Callable[[str, str, int], None]

STATES = pytest.mark.parametrize("state", ["40P01", "57014", "53100"], ids=["deadlock", "too slow", "disk full"])


@pytest.fixture
def refuse(rows: Rows, schema: str) -> Refuse:
    """Have the server undo the first statements that do this to a lease."""

    def refuse(act: str, state: str, count: int) -> None:
        first = f"nextval('{schema}.tries') <= {count}"
        before_a_lease(rows, schema, act, f"IF {first} THEN RAISE SQLSTATE '{state}'; END IF")

    return refuse


def before_a_lease(rows: Rows, schema: str, act: str, does: str) -> None:
    """Have the server do something before it does that to a lease."""
    body = f"BEGIN {does}; RETURN coalesce(new, old); END"
    with rows.engine.begin() as connection:
        for statement in (
            f"CREATE SEQUENCE {schema}.tries",
            f"CREATE FUNCTION {schema}.does() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$",
            f"CREATE TRIGGER does BEFORE {act} ON {schema}.outbox_leases FOR EACH ROW EXECUTE FUNCTION {schema}.does()",
        ):
            connection.exec_driver_sql(statement)


def until_it_works(call: Callable[[], object]) -> None:
    """Make the call again and again."""
    for _ in range(5):
        try:
            call()
        except DatabaseUnavailable:
            continue
        return
    raise AssertionError("it never worked")


@STATES
def test_a_take_has_taken_nothing(store: Store, rows: Rows, refuse: Refuse, state: str) -> None:
    rows.insert(3)
    before = rows.hot()
    refuse("INSERT", state, 3)  # what is too slow is tried three times
    with pytest.raises(DatabaseUnavailable):
        take_batch(store)
    assert rows.hot() == before
    until_it_works(lambda: take_batch(store))
    assert {row.begun for row in rows.hot()} == {True}


@STATES
def test_a_send_does_not_begin_and_may_later(store: Store, rows: Rows, refuse: Refuse, state: str) -> None:
    [id] = rows.insert()
    [single] = take(store, {"orders": 1})
    receiver = Receiver()
    refuse("UPDATE", state, 3)
    with pytest.raises(DatabaseUnavailable):
        publish(store, {"orders": receiver}, "orders", single.token, Listener())
    assert (receiver.got, rows.one(id).begun) == ([], False)
    until_it_works(lambda: publish(store, {"orders": receiver}, "orders", single.token, Listener()))
    assert [message.id for message in receiver.got] == [id]
    assert [row.attempts for row in rows.archived()] == [1]


@pytest.mark.parametrize("step", [Step.SENT, Step.LATER])
def test_a_settle_that_was_too_slow_gets_more_time(new_store: MakeStore, rows: Rows, schema: str, step: Step) -> None:
    store = new_store(statement_timeout=0.5)
    rows.insert()
    batch = take_batch(store)
    before_a_lease(rows, schema, "DELETE", "PERFORM pg_sleep(0.8)")
    verdicts = [Verdict(batch.messages[0], step)]
    assert settle(store, batch.token, "orders", verdicts, Listener(), 0.0).verdict.step is step


@STATES
def test_what_was_sent_is_settled_and_not_sent_again(store: Store, rows: Rows, refuse: Refuse, state: str) -> None:
    ids = rows.insert(3)
    refuse("DELETE", state, 2)
    receiver = Receiver()
    assert drain(store, {"orders": receiver}, "orders", Listener()).steps == {Step.SENT: 3}
    assert sorted(message.id for message in receiver.got) == sorted(ids)
    assert [(row.attempts, row.last_error_code) for row in rows.archived()] == [(1, None)] * 3
