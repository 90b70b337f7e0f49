"""`outbox_tasks.testing`, as the tests of an application use it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from kombu import Exchange, Queue
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox_tasks.database.engine import engine_url
from outbox_tasks.errors import PermanentError, TransientError
from outbox_tasks.model import Outcome
from outbox_tasks.outbox import Outbox
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.testing import OutboxProbe
from outbox_tasks.testing.store import ProbeMisused, ProbeStore
from tests.conftest import MakeSettings, Rows, eventually, make_tables
from tests.integration.acting import acted
from tests.integration.own_database import own_database

MEMORY = "redis+stream://localhost:1/0/nothing-listens-here"
Publish = Callable[..., UUID]


@pytest.fixture
def own_settings(settings: MakeSettings) -> Settings:
    destinations = {
        "orders": {"url": MEMORY, "rate_limit": 0.001, "on_dead": "block"},
        "audit": {"url": MEMORY, "max_attempts": 12},
        "tasks": {"url": "celery://?accept=json,pickle"},
    }
    routes = {"order.*": ["orders"], "audited.*": ["audit", "orders"]}
    return settings(nudge=False, destinations=destinations, routes=routes)


@pytest.fixture
def outbox(own_settings: Settings, engine: Engine, schema: str) -> Iterator[OutboxProbe]:
    make_tables(engine, schema)  # a probe would take the longer way, by all the migrations
    with OutboxProbe(own_settings) as probe:
        yield probe


@pytest.fixture
def rows(outbox: OutboxProbe, engine: Engine, schema: str) -> Rows:
    """Without the store of the tests' own fixture: that would be a relay at work."""
    return Rows(engine, schema)


@pytest.fixture
def publish(own_settings: Settings, engine: Engine) -> Publish:
    writer = Outbox(own_settings)

    def publish(event_type: str = "order.created", payload: Any = None, **options: Any) -> UUID:
        with Session(engine) as session, session.begin():
            return writer.publish(session, event_type, {"id": 42} if payload is None else payload, **options)

    return publish


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("shop", broker="memory://", set_as_current=False) as made:
        made.conf.task_routes = {"shop.tasks.*": {"queue": "mails"}}
        made.conf.task_queues = [Queue("mails", Exchange("shop", "topic"), routing_key="mail")]

        @made.task(name="shop.tasks.send_receipt", shared=False)
        def send_receipt(*args: Any, **kwargs: Any) -> None: ...

        yield made


def busy_keys(rows: Rows) -> list[Any]:
    with rows.engine.connect() as connection:
        busy = f"SELECT key, token, due = 'infinity' FROM {rows.tables.messages.schema}.outbox_keys ORDER BY key"
        return list(connection.execute(text(busy)).all())


def refusal(assertion: Callable[..., object], *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assertion(*arguments, **keywords)
    return str(caught.value)


class TestPublished:
    def test_a_message_is_found_by_whatever_is_said_of_it(self, outbox: OutboxProbe, publish: Publish) -> None:
        customer = uuid4()
        publish("order.paid", "plain")
        payload = {"id": 42, "customer": {"id": customer, "name": "Ada"}, "lines": [{"sku": "a", "n": 1}]}
        id = publish(payload=payload, key="k", headers={"tenant": "t1", "user": "u1"})
        _, message = outbox.published
        assert (message.id, message.destination, message.key, message.state) == (id, "orders", "k", "pending")
        assert message.headers == {"tenant": "t1", "user": "u1"}
        assert message.due is not None
        assert abs(message.due - datetime.now(UTC)) < timedelta(minutes=1)
        find = outbox.assert_published
        assert find("order.cr*", id=42).id == id
        assert find("order.created", customer={"id": customer}, lines=[{"sku": "a"}]).id == id
        assert find(key="k", to="orders", headers={"tenant": "t1"}).id == id
        assert find("order.paid", payload="plain").payload == b"plain"
        assert find(id=pytest.approx(42.0, abs=0.1)).id == id
        unlike: list[dict[str, Any]] = [
            {"id": 43}, {"lines": []}, {"lines": 1}, {"key": "other"}, {"to": "audit"}, {"headers": {"tenant": "t2"}},
            {"id": 42, "key": None}, {"payload": [42]}, {"id": pytest.approx(7)},
        ]  # fmt: skip
        for facts in unlike:
            outbox.assert_not_published("order.created", **facts)

    def test_only_what_is_written_since_it_began_is_seen(
        self, own_settings: Settings, outbox: OutboxProbe, publish: Publish
    ) -> None:
        publish()
        with OutboxProbe(own_settings) as later:
            later.assert_not_published()
            publish("order.paid")
            assert [message.event_type for message in later.published] == ["order.paid"]
        pool: Any = later._store.engine.pool
        assert pool.checkedin() == 0
        assert len(outbox.published) == 2

    def test_tables_are_made_where_they_are_missing(self, own_settings: Settings) -> None:
        with OutboxProbe(own_settings) as probe:
            probe.assert_not_published()
        store = Store.connect(own_settings)
        store.check_version()
        store.close()


class TestFailuresRead:
    def test_what_was_published_instead_and_why_it_is_not_meant(self, outbox: OutboxProbe, publish: Publish) -> None:
        hint = "Only committed messages are seen here; for others there is outbox.within(session)."
        nothing = refusal(outbox.assert_published, "order.created")
        assert nothing.splitlines()[0].endswith(f"at least one expected, none found. {hint}")
        publish(payload={"id": 42, "customer": {"name": "Ada"}}, key="order:42")
        publish("mail.sent", {"to": "ada"}, to="audit", delay=60)
        customer = {"name": "Bob"}
        text = refusal(outbox.assert_published, "order.created", id=43, total=7, customer=customer, to="audit")
        assert text == (
            "assert_published('order.created', id=43, total=7, customer={'name': 'Bob'}, to='audit'): "
            "at least one expected, none found.\n"
            "What was published (2):\n"
            """   1 order.created → orders  key='order:42'  {"id":42,"customer":{"name":"Ada"}}\n"""
            "       - id is 42, not 43\n"
            "       - total is missing; there is id, customer, payload, key, to, headers\n"
            "       - customer.name is 'Ada', not 'Bob'\n"
            "       - to is 'orders', not 'audit'\n"
            """   2 mail.sent → audit  {"to":"ada"}  (scheduled)"""
        )
        outbox.assert_published("mail.sent", to="audit")

    def test_too_many(self, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        publish(payload={"id": 43, "text": "x" * 300})
        publish("order.scanned", b"\xff")
        text = refusal(outbox.assert_published, "order.created", times=1)
        assert text.splitlines()[0] == "assert_published('order.created'): 1 expected, 2 found."
        text = refusal(outbox.assert_not_published, "order.created", id=43)
        assert text.splitlines()[0] == "assert_not_published('order.created', id=43): none expected, 1 found."
        shown = '{"id":43,"text":"' + "x" * 183
        assert f"*  2 order.created → orders  {shown}… (319 characters)" in text.splitlines()
        assert text.endswith("order.scanned → orders  \ufffd")


class TestTasks:
    @pytest.fixture
    def stored(self, own_settings: Settings, engine: Engine, app: Celery) -> Callable[..., Any]:
        writer = Outbox(own_settings, celery=app)

        def store(*args: Any, **options: Any) -> Any:
            with Session(engine) as session, session.begin():
                return writer.apply_async(session, app.tasks["shop.tasks.send_receipt"], *args, **options)

        return store

    @pytest.mark.parametrize("how", [{}, {"serializer": "pickle", "compression": "gzip"}])
    def test_a_stored_task_is_found_with_its_arguments(
        self, outbox: OutboxProbe, stored: Any, app: Celery, how: dict[str, str]
    ) -> None:
        result = stored((42, (1, 2)), {"lang": "de", "more": {"a": 1, "b": 2}}, **how)
        task = outbox.assert_task(
            "shop.tasks.send_receipt", args=(42, (1, 2)), kwargs={"more": {"a": 1}}, queue="mails"
        )
        assert (task.id, task.kwargs["lang"]) == (result.id, "de")
        assert outbox.assert_task(app.tasks["shop.tasks.send_receipt"]) == task
        assert outbox.assert_task("shop.*", times=1) == task

    def test_a_refusal_shows_tasks_as_calls_and_names_an_eager_app(
        self, outbox: OutboxProbe, stored: Any, publish: Publish, app: Celery, monkeypatch: Any
    ) -> None:
        stored((42,), {"lang": "de"}, countdown=60)
        publish()
        text = refusal(outbox.assert_task, "shop.tasks.send_receipt", args=(43,), queue="other")
        assert text.splitlines()[2:] == [
            "   1 task shop.tasks.send_receipt(42, lang='de') → tasks, queue 'mails'  (scheduled)",
            "       - args.0 is 42, not 43",
            "       - queue is 'mails', not 'other'",
            """   2 order.created → orders  {"id":42}""",
        ]
        assert "args is [42], not ()" in refusal(outbox.assert_task, "shop.tasks.send_receipt", args=())
        assert "none found" in refusal(outbox.assert_task, "order.created")  # which is no task
        task = app.tasks["shop.tasks.send_receipt"]
        assert "eager" not in refusal(outbox.assert_task, task, args=())
        monkeypatch.setitem(app.conf, "task_always_eager", True)
        assert "is eager (task_always_eager): each task runs at once" in refusal(outbox.assert_task, task, args=())


class TestWithin:
    """Applications whose tests run inside a transaction that is rolled back."""

    def test_a_session_or_a_connection_sees_what_it_has_not_committed(
        self, outbox: OutboxProbe, engine: Engine
    ) -> None:
        with engine.connect() as connection:
            transaction = connection.begin()
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                with session.begin():
                    Outbox(outbox.settings).publish(session, "order.created", {"id": 42})
                message = outbox.within(session).assert_published("order.created", id=42)
                assert not session.in_transaction()
            assert message.state == "pending"
            outbox.within(connection).assert_published("order.created", id=42)
            outbox.assert_not_published()
            assert transaction.is_active
            transaction.rollback()
            outbox.within(connection).assert_not_published()
            assert not connection.in_transaction()

    @pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
    def test_an_async_session_shows_it_when_it_commits(
        self, outbox: OutboxProbe, postgres_url: str, driver: str
    ) -> None:
        async def run() -> None:
            engine = create_async_engine(engine_url(postgres_url).set(drivername=f"postgresql+{driver}"))
            async with engine.connect() as connection, connection.begin() as transaction:
                session = AsyncSession(connection, join_transaction_mode="create_savepoint")
                async with session.begin():
                    Outbox(outbox.settings).publish(session, "order.created", {"id": 42})
                    await session.run_sync(lambda s: outbox.within(s).assert_not_published())
                await session.run_sync(lambda s: outbox.within(s).assert_published("order.created", id=42))
                with pytest.raises(ProbeMisused, match=r"AsyncSession can't be read without awaiting it.*run_sync"):
                    outbox.within(session).assert_not_published()
                await session.close()
                await transaction.rollback()
            await engine.dispose()

        asyncio.run(run())


class TestDrain:
    def test_it_delivers_in_memory_in_the_order_of_the_writes(
        self, outbox: OutboxProbe, publish: Publish, rows: Rows
    ) -> None:
        soon = {5: {"delay": 0.3}}
        ids = [
            publish(payload={"id": n}, key=f"order:{n % 3}" if n % 2 else None, **soon.get(n, {})) for n in range(20)
        ]
        late: Any = outbox.published[5]
        eventually(lambda: late.due < datetime.now(UTC))
        delivered = outbox.drain()
        assert [message.id for message in delivered] == ids
        assert {(message.state, message.attempts) for message in delivered} == {("sent", 1)}
        assert (rows.hot(), busy_keys(rows)) == ([], [])
        assert {row.state for row in rows.archived()} == {"sent"}
        assert outbox.drain() == []

    def test_it_leaves_what_others_wrote_and_is_not_held_up_by_it(
        self, own_settings: Settings, publish: Publish, outbox: OutboxProbe, rows: Rows
    ) -> None:
        publish(key="dead")
        outbox.fail("orders", PermanentError("no", code="never"))
        outbox.drain()
        publish(key="dead")  # it waits behind the dead letter
        publish()
        before, busy = rows.hot(), busy_keys(rows)
        assert (len(before), len(busy)) == (3, 1)
        with OutboxProbe(own_settings) as later:
            ids = [publish(f"order.{n}", key="dead") for n in range(2)]
            later.fail("orders", event_type="order.0", times=2)
            assert [message.id for message in later.drain()] == ids
        assert (rows.hot(), busy_keys(rows)) == (before, busy)

    def test_behind_a_dead_letter_of_the_test_its_key_waits_until_the_redrive(
        self, own_settings: Settings, outbox: OutboxProbe, publish: Publish
    ) -> None:
        first, second = publish("order.first", key="a"), publish("order.second", key="a")
        outbox.fail("orders", PermanentError("no", code="never"))
        assert outbox.drain() == []
        assert [message.state for message in outbox.published] == ["dead", "pending"]
        store = ProbeStore.open(own_settings)  # which is no relay
        acted(store, "redrive", [first])
        store.close()
        assert [message.id for message in outbox.drain()] == [first, second]

    def test_it_refuses_beside_a_relay(self, own_settings: Settings, outbox: OutboxProbe, publish: Publish) -> None:
        publish()
        nearby = str(own_settings.database_url).rpartition("/")[0] + "/postgres"
        relay, another = Store.connect(own_settings), Store.connect(own_settings.replace(database_url=nearby))
        try:
            another.query("SELECT 1")
            assert len(outbox.drain()) == 1
            publish()
            relay.check_version()
            with pytest.raises(ProbeMisused, match=r"A relay is connected to the database of this test \(server pro"):
                outbox.drain()
        finally:
            relay.close()
            another.close()
        assert outbox.published[1].state == "pending"

    def test_what_is_not_to_be_sent_is_left(
        self, own_settings: Settings, outbox: OutboxProbe, publish: Publish, engine: Engine, schema: str
    ) -> None:
        publish("order.paused", to="audit")
        publish("order.late", key="a", delay=3600)
        publish("order.later", delay=3600)
        publish("order.behind", key="a")
        pause = f"INSERT INTO {schema}.outbox_destinations (name, paused_at) VALUES ('audit', now())"
        with engine.begin() as connection:
            connection.exec_driver_sql(pause)
        assert outbox.drain() == []
        assert [message.state for message in outbox.published] == ["pending", "scheduled", "scheduled", "pending"]
        outbox.fail("orders", Outcome.retry("slow down", "no", retry_after=600))
        first, second = publish("order.slow", key="b"), publish("order.behind", key="b")
        assert outbox.drain() == []
        assert [m.id for m in outbox.published if m.key == "b" and m.state != "sent"] == [first, second]


class TestFail:
    @pytest.mark.parametrize(
        ("answer", "state", "attempts", "code"),
        [
            (Outcome.retry("busy", "no"), "dead", 12, "busy"),
            (PermanentError("no", code="never"), "dead", 1, "never"),
            (Outcome.retry("busy", "no", retry_after=600), "retrying", 1, "busy"),
            (Outcome.outage("away", "no"), "retrying", 1, "away"),
        ],
        ids=str,
    )
    def test_every_answer_means_what_it_means_to_the_relay(
        self, outbox: OutboxProbe, publish: Publish, answer: Any, state: str, attempts: int, code: str
    ) -> None:
        publish("audited.login", key="k")
        outbox.fail("audit", answer, times=None)
        assert [message.destination for message in outbox.drain()] == ["orders"]
        message = outbox.assert_published("audited.login", to="audit")
        assert (message.state, message.attempts, message.error_code) == (state, attempts, code)
        assert "no" in str(message.error)
        assert (message.due is None) == (state in ("dead", "discarded"))

    def test_failures_follow_each_other_and_are_for_the_events_that_they_name(
        self, outbox: OutboxProbe, publish: Publish
    ) -> None:
        publish(key="a")
        publish("order.paid", key="b")
        outbox.fail("orders", TransientError("try later", code="busy"), times=2, event_type="*.paid")
        outbox.fail("orders", Outcome.dead("second", "2"), event_type="*.paid")
        assert [message.event_type for message in outbox.drain()] == ["order.created"]
        paid = outbox.assert_published("order.paid")
        assert (paid.state, paid.attempts, paid.error_code) == ("dead", 3, "second")
        assert "(dead, second)" in str(paid)
        with pytest.raises(ProbeMisused, match=r"'ordres' is not a configured .* Known: audit, orders, tasks"):
            outbox.fail("ordres")


PAGES = [Path(__file__).parents[2] / "docs" / name for name in ("testing.md", "existing-tests.md")]
DJANGO = """
import os
from urllib.parse import urlsplit
import django
from django.conf import settings

url = urlsplit(os.environ["SHOP_DATABASE_URL"])
settings.configure(INSTALLED_APPS=["outbox_tasks.django"], DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username,
    "PASSWORD": url.password or "", "HOST": url.hostname, "PORT": url.port}})
django.setup()
"""


OF_THE_PAGE = ("test_published.py", "test_rolled_back.py", "test_async.py", "test_drained.py", "test_eager.py")

FAILS = """
from shop import engine, place_order
from sqlalchemy.orm import Session

def test_it(outbox):
    with Session(engine) as session, session.begin():
        place_order(session, 42)
    outbox.assert_published("order.created", id=43)
"""

OWN = """
import pytest
from outbox_tasks import Settings
from outbox_tasks.testing import OutboxProbe

@pytest.fixture
def outbox_settings():
    return Settings(database_schema="mine")

@pytest.fixture
def probe(outbox_settings):
    with OutboxProbe(outbox_settings) as made:
        yield made

@pytest.fixture
def outbox():
    return "mine"

def test_settings_and_fixture(outbox, probe):
    assert (outbox, probe.settings.database_schema) == ("mine", "mine")
    assert probe.drain() == []
"""


def test_in_a_project_of_somebody_else_the_pages_hold(tmp_path: Path, engine: Engine) -> None:
    """The page's configuration, application and examples, and files of our own, in a strict pytest of its own."""
    files = {name: block(name) for name in ("conftest.py", "outbox.toml", "shop.py", *OF_THE_PAGE)}
    # Whoever imports it before pytest does gets no warning.
    files["conftest.py"] = f"from outbox_tasks.testing import OutboxProbe\n{files['conftest.py']}"
    files |= {"with_django/conftest.py": DJANGO, "with_django/test_django.py": block("test_django.py")}
    files |= {"test_fails.py": FAILS, "test_own.py": OWN}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    with own_database(engine) as place:
        url = place.engine.url.render_as_string(False)
        env = {"OUTBOX_DATABASE_URL": place.url, "SHOP_DATABASE_URL": url, "OUTBOX_NUDGE": "0"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "--tb=short", "-rA"],
            cwd=tmp_path, env={**os.environ, **env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    report = done.stdout + done.stderr
    outcomes = Counter(re.findall(r"^(PASSED|FAILED|ERROR) ([\w/]+\.py)", report, re.MULTILINE))
    passed = dict(zip(OF_THE_PAGE, (2, 1, 1, 3, 2), strict=True)) | {"with_django/test_django.py": 2, "test_own.py": 1}
    expected = {("PASSED", name): count for name, count in passed.items()} | {("FAILED", "test_fails.py"): 1}
    assert outcomes == expected, report
    # A failure points at the line of the test, and reads as on the page.
    [failure] = re.findall(r"^_+ test_it _+$(.*?)^_+ ", report, re.DOTALL | re.MULTILINE)
    shown = [line.removeprefix("E   ") for line in failure.splitlines() if line.startswith("E   ")]
    [page] = re.findall(r"```\n(assert_published.*?)```", shown_text(), re.DOTALL)
    assert "\n".join(shown) + "\n" == f"AssertionError: {page}"
    assert re.findall(r"^.*\.py:\d+: in .*", failure, re.MULTILINE) == ["test_fails.py:8: in test_it"]


def shown_text() -> str:
    """What the pages on tests show."""
    return "".join(page.read_text(encoding="utf-8") for page in PAGES)


def block(name: str) -> str:
    """The block of the page that begins with the file's name."""
    [found] = re.findall(rf"```\w+\n(# {re.escape(name)}\n.*?)```", shown_text(), re.DOTALL)
    return str(found)
