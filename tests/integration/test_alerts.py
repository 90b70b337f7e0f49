"""What people are told of, how often, and when it is over: by one process or by many."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from sqlalchemy import Engine, text

from outbox_tasks.database.activity import LATE
from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ConfigurationError, WebhookFailed
from outbox_tasks.operating import pauses
from outbox_tasks.operating.heartbeats import LATE_CLAIM
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.signals import dead_letter, key_blocked
from outbox_tasks.telemetry.alerts import table as telling
from outbox_tasks.telemetry.alerts import webhook
from outbox_tasks.telemetry.alerts.notifier import connect
from outbox_tasks.telemetry.alerts.table import KEPT, KEYS, QUIET, AlertTable, Occurrence
from outbox_tasks.worker.resources import Resources
from tests.conftest import MakeSettings, MakeStore, Rows, eventually, seconds_from_now
from tests.integration.conftest import Command
from tests.integration.plans import explained, pages
from tests.integration.supervised import Send, Tasks
from tests.receiver import Receiver, receiver

REPEAT = 3600.0

MakeTable = Callable[..., AlertTable]


@pytest.fixture
def new_table(new_store: MakeStore, settings: MakeSettings) -> Iterator[MakeTable]:
    """Makes tables as processes of one cluster have them."""
    made: list[AlertTable] = []

    def make(**values: Any) -> AlertTable:
        made.append(AlertTable(Database.connect(settings(**{"alert_repeat": REPEAT, **values}))))
        return made[-1]

    yield make
    for table in made:
        table.close()


@pytest.fixture
def table(new_table: MakeTable) -> AlertTable:
    return new_table()


@pytest.fixture
def later(engine: Engine, schema: str) -> Callable[[float], None]:
    """Lets so many seconds pass for what has been told."""

    def pass_(seconds: float) -> None:
        with engine.begin() as connection:
            for table, columns in (
                ("outbox_alerts", ("first_at", "last_at", "told_at", "over_at", "post_at")),
                ("outbox_heartbeats", ("seen_at",)),
            ):
                moved = ", ".join(f"{name} = {name} - :seconds * interval '1 second'" for name in columns)
                connection.execute(text(f"UPDATE {schema}.{table} SET {moved}"), {"seconds": seconds})

    return pass_


@pytest.fixture
def web() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def dead(count: int = 1, code: str = "http_400", destination: str = "orders") -> dict[str, Occurrence]:
    facts = {"code": code, "error": "no", "event_type": "order.created", "message_id": str(uuid4())}
    return {f"dead_letter {destination} {code}": Occurrence("dead_letter", destination, facts, count)}


def broken(destination: str = "orders") -> dict[str, Occurrence]:
    return {f"breaker {destination}": Occurrence("breaker", destination, {"code": "connection", "error": "refused"})}


class TestSending:
    def test_an_alert_is_sent_once_with_how_often_it_happened(self, table: AlertTable) -> None:
        [row] = table.record(dead(3))
        assert (row.kind, row.destination, row.told, row.count) == ("dead_letter", "orders", 3, 3)
        assert table.record(dead(4)) == []
        assert table.record(dead(code="http_500")) != []

    def test_one_process_of_many_sends_it(self, new_table: MakeTable) -> None:
        tables = [new_table() for _ in range(4)]
        assert [len(table.record({**dead(2), **broken()})) for table in tables] == [2, 0, 0, 0]
        assert {row.name: row.count for row in tables[0].known(9)} == {
            "dead_letter orders http_400": 8,
            "breaker orders": 4,
        }

    def test_it_is_sent_again_after_a_while_with_what_happened_meanwhile(
        self, table: AlertTable, later: Callable[[float], None]
    ) -> None:
        table.record(dead(5))
        table.record(dead(7))
        later(REPEAT)
        [row] = table.record(dead(1))
        assert (row.told, row.count) == (8, 13)
        assert table.record(dead(1)) == []

    def test_a_quiet_while_is_not_sent(self, table: AlertTable, later: Callable[[float], None], rows: Rows) -> None:
        rows.insert(status="dead", dead_at=seconds_from_now(0), last_error_code="http_400")
        table.record(dead())
        later(REPEAT)
        assert table.end() == []
        [row] = table.known(9)
        assert row.over_at is None

    def test_any_text_can_be_in_an_alert(self, table: AlertTable) -> None:
        [row] = table.record(dead(code="a\0b\ud800 'c' %s :d"))
        assert row.name == "dead_letter orders a\\0b? 'c' %s :d"


class TestTheEnd:
    def test_the_end_of_a_breaker_is_sent_once_after_a_while(
        self, table: AlertTable, store: Store, later: Callable[[float], None]
    ) -> None:
        for _ in range(5):
            store.traffic.tripped("orders", str(uuid4()), "connection", "refused")
        table.record(broken())
        later(REPEAT * QUIET)
        assert table.end() == []  # it is open
        store.traffic.recovered("orders")
        [row] = table.end()
        assert (row.name, row.over_at is not None) == ("breaker orders", True)
        assert table.end() == []

    def test_its_end_waits_while_it_comes_and_goes(self, table: AlertTable, later: Callable[[float], None]) -> None:
        table.record(broken())
        for _ in range(9):
            later(REPEAT * QUIET / 2)
            assert table.end() == []
            assert table.record(broken()) == []

    def test_what_comes_later_is_a_new_alert(self, table: AlertTable, later: Callable[[float], None]) -> None:
        table.record(broken())
        later(REPEAT * QUIET + 1)
        assert len(table.end()) == 1
        [row] = table.record(broken())
        assert (row.count, row.over_at) == (1, None)

    def test_the_end_of_dead_letters_comes_when_none_is_left_and_is_not_sent(
        self, table: AlertTable, later: Callable[[float], None], rows: Rows
    ) -> None:
        [id] = rows.insert(status="dead", dead_at=seconds_from_now(0), last_error_code="http_400")
        rows.insert(status="dead", dead_at=seconds_from_now(-86_400))  # one that has long been there
        rows.insert(status="dead", dead_at=seconds_from_now(0), last_error_code="http_401")  # of another alert
        table.record(dead())
        later(REPEAT * QUIET + 1)
        assert table.end() == []
        assert table.known(9)[0].over_at is None
        rows.change([id], status="pending", dead_at=None)
        assert table.end() == []
        assert table.known(9)[0].over_at is not None

    def test_a_few_look_ups_find_it_among_many_dead(
        self, table: AlertTable, store: Store, rows: Rows, later: Callable[[float], None]
    ) -> None:
        rows.insert(20_000, status="dead", dead_at=seconds_from_now(-86_400))
        for code in ("http_400", "http_401", "http_500"):
            table.record(dead(code=code))
        later(REPEAT)
        plan = explained(store, "alert/end.sql", {"quiet": 60.0, "posting": True})
        assert pages(plan) < 60

    def test_an_alert_is_deleted_after_a_month(self, table: AlertTable, later: Callable[[float], None]) -> None:
        table.record(broken())
        table.record(dead())
        later(REPEAT)
        table.end()
        table.forget()
        assert len(table.known(9)) == 2
        later(KEPT)
        table.forget()
        assert table.known(9) == []


class TestChecks:
    def test_one_process_of_the_cluster_checks_at_a_time(
        self, new_table: MakeTable, later: Callable[[float], None]
    ) -> None:
        tables = [new_table() for _ in range(3)]
        assert [table.is_our_turn(15) for table in tables] == [True, False, False]
        later(15)
        assert [table.is_our_turn(15) for table in tables] == [True, False, False]

    @pytest.mark.parametrize("key", [None, "order:42"])
    def test_finds_what_has_been_due_for_too_long(self, new_table: MakeTable, rows: Rows, key: str | None) -> None:
        table = new_table(stale_after=600)
        [first] = rows.insert(locked_until=seconds_from_now(-400), key=key and "order:7")
        rows.insert(3, locked_until=seconds_from_now(-300), key=key)
        assert table.stale() == {}
        rows.change([first], locked_until=seconds_from_now(-1000))
        assert table.stale() == {"orders": pytest.approx(1000, abs=60)}
        rows.insert(destination="unknown", locked_until=seconds_from_now(-2000), key=key)
        assert table.stale().keys() == {"orders", "unknown"}

    def test_claims_that_time_out_are_an_alert_until_they_end_in_time(
        self, new_table: MakeTable, store: Store, later: Callable[[float], None]
    ) -> None:
        table = new_table()
        assert not table.claims_late()
        seen = [{"name": LATE_CLAIM, "kind": LATE_CLAIM, "ago": 1.0, "facts": {}}]
        store.ask("report/beat.sql", seen=json.dumps(seen), late=LATE)
        assert table.claims_late()
        [begun] = table.record({"late": Occurrence("late", "", {})})
        assert "outbox-tasks doctor" in webhook.text(begun)
        later(REPEAT)
        [over] = table.end()
        assert webhook.text(over).startswith("Claims end in time again")

    @pytest.mark.parametrize("why", ["paused", "circuit open"])
    def test_a_destination_that_is_not_open_is_not_stale(
        self, new_table: MakeTable, store: Store, rows: Rows, why: str
    ) -> None:
        rows.insert(locked_until=seconds_from_now(-1000))
        assert new_table().stale() != {}
        if why == "paused":
            pauses.pause(store, "orders", "me", None)
        else:
            for _ in range(5):
                store.traffic.tripped("orders", str(uuid4()), "connection", "refused")
        assert new_table().stale() == {}


class TestPosting:
    def test_one_process_posts_at_a_time_and_tries_again(
        self, new_table: MakeTable, web: Receiver, later: Callable[[float], None]
    ) -> None:
        one, other = (new_table(alert_webhook=web.url) for _ in range(2))
        one.record({**dead(), **broken()})
        taken = one.lease_posts()
        assert (len(taken), list(other.lease_posts())) == (2, [])
        one.put_off(taken, 15)
        assert list(other.lease_posts()) == []
        later(15)
        taken = other.lease_posts()
        assert [row.posts for row in taken] == [2, 2]
        other.put_off(taken, 15)
        later(15)
        assert list(one.lease_posts()) == []  # each time it takes longer
        later(15)
        taken = one.lease_posts()
        one.posted(taken)
        later(86_400)
        assert list(one.lease_posts()) == []

    def test_another_process_posts_if_one_died(
        self, new_table: MakeTable, web: Receiver, later: Callable[[float], None]
    ) -> None:
        one, other = (new_table(alert_webhook=web.url) for _ in range(2))
        one.record(dead())
        late = one.lease_posts()
        later(60)
        assert len(other.lease_posts()) == 1
        one.posted(late)  # which is not its any more
        later(60)
        assert len(other.lease_posts()) == 1

    def test_an_alert_that_is_sent_meanwhile_is_posted_too(
        self, new_table: MakeTable, web: Receiver, later: Callable[[float], None]
    ) -> None:
        table = new_table(alert_webhook=web.url)
        table.record(broken())
        taken = table.lease_posts()
        later(REPEAT)
        table.record(broken())
        table.posted(taken)
        assert len(table.lease_posts()) == 1

    def test_it_gives_up_after_many_tries(
        self, new_table: MakeTable, web: Receiver, later: Callable[[float], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        table = new_table(alert_webhook=web.url)
        table.record(broken())
        for _ in range(telling.POSTS):
            table.put_off(table.lease_posts(), 15)
            later(301)
        assert list(table.lease_posts()) == []
        assert "after 100 tries" in caplog.text

    def test_nothing_is_posted_without_a_webhook(self, table: AlertTable) -> None:
        table.record(dead())
        assert list(table.lease_posts()) == []


class TestTheWebhook:
    def test_gets_json_with_a_text_for_chats(self, new_table: MakeTable, web: Receiver) -> None:
        [row] = new_table(alert_webhook=web.url).record(dead(12))
        webhook.post(web.url, webhook.as_json(row, "/shop"))
        [got] = web.got
        assert got["text"].startswith("orders: 12 messages are dead (http_400). The latest is order.created ")
        assert {
            "kind": "dead_letter",
            "state": "open",
            "destination": "orders",
            "count": 12,
            "code": "http_400",
        }.items() <= (got.items())

    @pytest.mark.parametrize("status", [302, 307, 404, 500])
    def test_that_refuses_is_an_error_without_its_secret(self, web: Receiver, status: int) -> None:
        web.status, web.answer = status, b"no_such_hook"
        with pytest.raises(WebhookFailed, match=f"HTTP {status} no_such_hook") as failure:
            webhook.post(web.url, {})
        assert web.secret not in str(failure.value)
        assert web.tries == 1, "it followed to where it was sent"

    def test_that_is_down_or_hangs_is_an_error_without_its_secret(
        self, web: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhook, "TIMEOUT", 0.2)
        web.hang = True
        for url in (web.url, f"http://user:{web.secret}@127.0.0.1:1/{web.secret}?token={web.secret}"):
            with pytest.raises(WebhookFailed) as failure:
                webhook.post(url, {})
            assert web.secret not in str(failure.value)

    def test_is_not_in_the_client_s_log(self, web: Receiver, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        webhook.post(web.url, {"text": "x"})
        assert web.got
        assert web.secret not in caplog.text

    @pytest.mark.parametrize("url", ["ftp://there/x", "slack://there"])
    def test_must_be_one(self, settings: MakeSettings, url: str) -> None:
        with pytest.raises(ConfigurationError, match="alert_webhook"):
            webhook.check(settings(alert_webhook=url))


class Process:
    """The alerts of a process of the relay, and what its pipe would tell them."""

    def __init__(self, settings: Settings) -> None:
        self.app = Celery("a_process", set_as_current=False)
        self.alerts = connect(Resources(self.app, settings))

    def die(self, count: int, **facts: Any) -> None:
        told = {"destination": "orders", "event_type": "order.created", "attempts": 1, "code": "http_400", **facts}
        for n in range(count):
            id = str(uuid4())
            dead_letter.send(sender=self.app, **{"error": "no", "message_id": id, "key": f"key-{n}", **told})
            key_blocked.send(sender=self.app, destination="orders", key=f"key-{n}", message_id=id, code="http_400")


class TestAProcess:
    def test_records_a_flood_in_a_few_statements(
        self, store: Store, new_table: MakeTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        statements: list[str] = []
        ask = Database.ask

        def count(database: Database, verb: str, *limit: Any, **values: Any) -> Any:
            statements.append(verb)
            return ask(database, verb, *limit, **values)

        process = Process(store.settings)
        with monkeypatch.context() as counting:
            counting.setattr(Database, "ask", count)
            process.die(3_000)
            process.alerts.close()
        assert 1 <= len([verb for verb in statements if verb.startswith("alert/")]) <= 50
        found = {row.kind: row for row in new_table().known(9)}
        assert {kind: row.count for kind, row in found.items()} == {"dead_letter": 3_000, "key_blocked": 3_000}
        assert len(found["key_blocked"].facts["keys"]) == KEYS
        told = [json.loads(r.getMessage()) for r in caplog.records if r.name == "outbox_tasks.alerts"]
        assert sorted(one["kind"] for one in told) == ["dead_letter", "key_blocked"]

    def test_sends_what_happened_while_the_database_was_away(
        self, new_store: MakeStore, engine: Engine, schema: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = new_store(statement_timeout=0.5)
        caplog.set_level(logging.DEBUG, logger="outbox_tasks.alerts")
        with engine.begin() as connection:
            connection.execute(text(f"LOCK TABLE {schema}.outbox_alerts IN ACCESS EXCLUSIVE MODE"))
            process = Process(store.settings)
            process.die(3)
            eventually(lambda: "alerts wait" in caplog.text)
        eventually(lambda: '"kind": "dead_letter"' in caplog.text)
        assert '"count": 3' in caplog.text
        process.alerts.close()


class TestSupervisedTasks:
    """An application's worker ends them, and has no part of the relay that sends alerts."""

    @pytest.fixture
    def impatient(self, confirming: Store, monkeypatch: pytest.MonkeyPatch) -> Settings:
        monkeypatch.setattr("outbox_tasks.telemetry.alerts.table.LAG", 0.0)
        return confirming.settings.model_copy(update={"stale_after": 1.0})

    def fail(self, rows: Rows, tasks: Tasks, send: Send, code: str, count: int = 1, **columns: Any) -> None:
        rows.insert(count, payload=b"[[],{},null]", **columns)
        send()
        while (header := tasks.take()) is not None:
            run = tasks.begin(header)
            assert run is not None
            assert tasks.runs.dead(run, code, "no", "Traceback ...", [], 0.1)

    def test_that_fail_are_told_of_by_log_signal_and_webhook(
        self, impatient: Settings, rows: Rows, tasks: Tasks, send: Send, web: Receiver, caplog: Any
    ) -> None:
        self.fail(rows, tasks, send, "ValueError", 19)
        self.fail(rows, tasks, send, "KeyError", key="k")
        heard: list[str] = []
        process = Process(impatient.model_copy(update={"alert_webhook": web.url}))
        dead_letter.connect(lambda code, **_: heard.append(code), sender=process.app, weak=False)
        process.alerts.start_checks()
        eventually(lambda: len(web.got) == 3)
        assert sorted(heard) == ["KeyError"] + 19 * ["ValueError"]
        posted = {(one["kind"], one["code"]): one["count"] for one in web.got}
        assert posted == {
            ("dead_letter", "ValueError"): 19,
            ("dead_letter", "KeyError"): 1,
            ("key_blocked", "KeyError"): 1,
        }
        assert caplog.text.count("is dead after attempt 1: ValueError") == 19
        self.fail(rows, tasks, send, "TypeError")
        eventually(lambda: len(web.got) == 4)
        assert len(heard) == 21  # nobody hears twice of a task
        process.alerts.close()

    def test_each_death_is_read_once_in_small_parts(
        self, impatient: Settings, rows: Rows, tasks: Tasks, send: Send, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_tasks.telemetry.alerts.table.RUNS", 2)
        self.fail(rows, tasks, send, "ValueError", 5)
        rows.insert(status="dead", dead_at=seconds_from_now(-1), history=[{"what": "dead"}])  # who buried it told of it
        table = AlertTable(Database.connect(impatient))
        assert table.is_our_turn(0.0)
        assert len({row.id for row in table.failed_runs()}) == 5
        assert list(table.failed_runs()) == []
        table.close()


class TestTheCommand:
    @pytest.fixture
    def run(self, command: Command) -> Command:
        return partial(command, "alerts")

    def test_lists_what_is_going_on_first(
        self, run: Command, table: AlertTable, later: Callable[[float], None]
    ) -> None:
        assert (run().exit_code, run().stdout) == (0, "There was no alert.\n")
        table.record(broken())
        later(REPEAT)
        table.end()
        assert run().exit_code == 0
        later(REPEAT)
        table.record(dead(3, code="[red]"))
        table.record(broken("mails"))
        later(60)
        shown = json.loads(run("--json").stdout)["alerts"]
        assert {(one["name"], one["state"]) for one in shown[:2]} == {
            ("dead_letter orders [red]", "open"),
            ("breaker mails", "open"),
        }
        assert (shown[2]["name"], shown[2]["state"]) == ("breaker orders", "over")
        assert run().exit_code == 1
        assert "orders: 3 messages are dead ([red])" in run().stdout
        table.record(dead(197, code="[red]"))
        assert "orders: 200 messages are dead ([red])" in run().stdout

    def test_fits_a_narrow_terminal(self, run: Command, table: AlertTable, monkeypatch: pytest.MonkeyPatch) -> None:
        table.record(dead(3))
        monkeypatch.setenv("COLUMNS", "80")
        lines = run().stdout.splitlines()
        assert lines[0] == "open  dead_letter  3 times"
        assert re.fullmatch(r"  since [-0-9]{10} [:0-9]{8} UTC, last [-0-9]{10} [:0-9]{8} UTC", lines[1])
        assert max(map(len, lines)) <= 80
        assert "\u2026" not in "".join(lines)

    def test_posts_a_test(self, run: Command, web: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        refused = run("--test")
        assert (refused.exit_code, "set OUTBOX_ALERT_WEBHOOK" in refused.output) == (1, True)
        monkeypatch.setenv("OUTBOX_ALERT_WEBHOOK", web.url)
        told = run("--test")
        assert (told.exit_code, "accepted the test: HTTP 200." in told.stdout) == (0, True)
        assert web.got[0]["kind"] == "test"
        web.status, web.answer = 404, b"no_team"
        failed = run("--test")
        assert (failed.exit_code, "HTTP 404 no_team" in failed.output) == (1, True)
        assert web.secret not in told.output + failed.output
