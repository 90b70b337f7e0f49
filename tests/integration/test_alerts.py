"""What people are told of, how often, and when it is over: by one process or by many."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from sqlalchemy import Engine, text

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import DatabaseUnavailable, WebhookFailed
from outbox_tasks.operating.problems import Examination, Problem, Severity, examine
from outbox_tasks.relay.store import Store
from outbox_tasks.signals import problems_changed
from outbox_tasks.telemetry import alerts
from outbox_tasks.telemetry.alerts import KEPT_SECONDS, LOOK_SECONDS, QUIET_SECONDS, Alerts, compared, known
from outbox_tasks.worker.resources import Resources
from tests.conftest import MakeSettings, Rows, eventually, seconds_from_now
from tests.integration.conftest import Command
from tests.integration.doctoring import NOBODY
from tests.receiver import Receiver, receiver

Later = Callable[[float], None]

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def database(settings: MakeSettings) -> Iterator[Database]:
    with closing(Database.connect(settings(alert_webhook="http://127.0.0.1:1/"))) as opened:
        yield opened


@pytest.fixture
def later(engine: Engine, schema: str) -> Later:
    """Lets so many seconds pass for what has been told."""

    def pass_(seconds: float) -> None:
        with engine.begin() as connection:
            for table, columns in (
                ("outbox_alerts", ("since", "seen_at", "told_at", "over_at")),
                ("outbox_heartbeats", ("seen_at",)),
            ):
                moved = ", ".join(f"{name} = {name} - :seconds * interval '1 second'" for name in columns)
                connection.execute(text(f"UPDATE {schema}.{table} SET {moved}"), {"seconds": seconds})

    return pass_


@pytest.fixture
def web() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def problem(code: str = "dead_letters", how_many: int | None = None, **facts: Any) -> Problem:
    return Problem(code, facts.pop("severity", Severity.ERROR), f"It is {code}.", "Why.", "Mend it.",
                   **{"which": "orders", "how_many": how_many, **facts})  # fmt: skip


def rows_of(database: Database, *problems: Problem) -> Any:
    """What is to be posted, if these are the problems now."""
    return compared(database, Examination(list(problems), {}, []))


def told(database: Database, *problems: Problem) -> list[tuple[str, str]]:
    """Code and state of each alert that is told, if these are the problems now."""
    rows = rows_of(database, *problems)
    alerts.note_posted(database, rows)
    return sorted((row.code, "over" if row.over_at else "open") for row in rows if row.is_news)


def test_a_problem_is_told_when_it_appears_has_doubled_and_is_over(database: Database, later: Later) -> None:
    assert told(database, problem(how_many=3, since=90.0)) == [("dead_letters", "open")]
    assert told(database, problem(how_many=5)) == []
    assert told(database, problem(how_many=6)) == [("dead_letters", "open")]
    assert told(database, problem(how_many=11)) == []
    [row] = known(database, 9)
    assert (row.how_many, row.over_at) == (11, None)
    assert 80 < (row.told_at - row.since).total_seconds() < 300
    later(QUIET_SECONDS)
    assert told(database) == [("dead_letters", "over")]
    assert told(database) == []
    assert told(database, problem(how_many=1)) == [("dead_letters", "open")]
    [row] = known(database, 9)
    assert row.since == row.told_at
    later(QUIET_SECONDS)
    told(database)
    later(KEPT_SECONDS)
    told(database, problem("no_beat"), problem("paused", severity=Severity.NOTE))  # notes are not told
    assert [row.code for row in known(database, 9)] == ["no_beat"]


def test_a_warning_that_becomes_an_error_is_told_once_and_after_its_end_it_is_a_warning(
    database: Database, later: Later
) -> None:
    warning, error = problem(severity=Severity.WARNING), problem()
    assert [bool(told(database, each)) for each in (warning, error, warning, error)] == [True, True, False, False]
    later(QUIET_SECONDS)
    assert told(database) == [("dead_letters", "over")]
    told(database, warning)
    assert [row.severity for row in known(database, 9)] == ["warning"]


def test_what_follows_from_another_is_not_told_and_not_over_either(database: Database, later: Later) -> None:
    assert told(database, problem("stale")) == [("stale", "open")]
    later(QUIET_SECONDS + 1)
    follows = (problem("stale"), problem("no_beat"))
    assert told(database, problem("broker_away", follows=follows)) == [("broker_away", "open")]
    later(QUIET_SECONDS - 10)
    assert told(database, problem("broker_away")) == []
    assert told(database, problem("stale"), problem("no_beat")) == [("no_beat", "open")]


def test_one_that_the_list_only_counts_is_not_over(database: Database, later: Later) -> None:
    told(database, problem())
    others = problem(which="", how_many=3)
    assert told(database, others) == [("dead_letters", "open")]
    later(QUIET_SECONDS + 1)
    assert told(database, others) == []


def test_many_processes_tell_it_once_and_one_looks_at_a_time(settings: MakeSettings, later: Later) -> None:
    problems = [problem(f"code_{n}") for n in range(20)]

    def look(_: int) -> tuple[bool, list[tuple[str, str]]]:
        with closing(Database.connect(settings())) as own:
            return bool(own.ask("alert/turn.sql", pace=LOOK_SECONDS)), told(own, *problems)

    with ThreadPoolExecutor(4) as pool:
        looks = list(pool.map(look, range(4)))
        assert sorted(alert for _, news in looks for alert in news) == sorted((each.code, "open") for each in problems)
        later(LOOK_SECONDS)
        assert [sum(turn for turn, _ in each) for each in (looks, pool.map(look, range(4)))] == [1, 1]


def test_what_was_not_posted_is_posted_with_the_next_look_and_logged_once(database: Database, later: Later) -> None:
    rows_of(database, problem("stale"))
    later(QUIET_SECONDS)
    rows_of(database)
    rows = rows_of(database, problem("no_beat"))
    news = {(row.code, bool(row.over_at), row.is_news) for row in rows}
    assert news == {("stale", True, False), ("no_beat", False, True)}
    alerts.note_posted(database, rows)
    assert rows_of(database, problem("no_beat")) == []


def test_what_is_told_while_something_is_posted_is_posted_next(database: Database) -> None:
    first, again = (rows_of(database, problem(how_many=count)) for count in (1, 2))
    alerts.note_posted(database, first)
    assert [row.how_many for row in again] == [2]
    [row] = rows_of(database, problem(how_many=2))
    alerts.note_posted(database, [row])
    assert rows_of(database, problem(how_many=2)) == []


@pytest.mark.parametrize(("code", "shows_text"), [("http_503", False), ("connection", True)])
def test_what_a_destination_has_answered_is_in_no_alert(
    database: Database, store: Store, code: str, shows_text: bool
) -> None:
    """The answer may quote the message."""
    for _ in range(store.settings.breaker_failures):
        store.traffic.tripped("orders", str(uuid4()), code, "Dear Ada Lovelace")
    [alert] = [row for row in compared(database, examine(store.settings)) if row.code == "breaker_open"]
    assert code in alert.fact
    assert ("Ada" in str(alert)) == shows_text


def test_times_are_in_utc_whatever_the_zone_of_the_connection_and_any_text_can_be_in_one(
    settings: MakeSettings,
) -> None:
    """Without start-up options, as behind a pooler, the zone is that of the server or of the role."""
    bare = settings(statement_timeout=0)
    zone = f"{bare.database_url}?options=-c%20TimeZone%3DPacific/Guam"
    with closing(Database.connect(bare.replace(database_url=zone))) as database:
        rows_of(database, problem(which="a\0b\ud800 'c' %s :d\n\u202e"))
        [row] = known(database, 9)
        assert row.which == "a\\0b? 'c' %s :d\n\u202e"
        assert alerts.as_json(row)["since"].endswith("+00:00")


def test_a_cluster_tells_each_change_once_through_a_failed_post_an_end_and_without_a_broker(
    settings: MakeSettings, rows: Rows, web: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two workers, each with its thread that looks. It is no Celery task, so it needs no broker."""
    monkeypatch.setattr(alerts, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(alerts, "QUIET_SECONDS", 0.3)
    monkeypatch.setattr(caplog.handler, "level", 0)
    heard: list[str] = []
    own = settings(alert_webhook=web.url, broker_url=NOBODY)
    errors = [RuntimeError("a fault"), DatabaseUnavailable(url="x", reason="it is away")] * 2  # for both

    def look(*arguments: Any) -> Examination:
        if errors:
            raise errors.pop()
        return examine(*arguments)

    monkeypatch.setattr(alerts, "examine", look)

    def posted(code: str, state: str = "open") -> list[dict[str, Any]]:
        return [one for one in web.problems() if (one["code"], one["state"]) == (code, state)]

    with Celery("relay", broker=NOBODY, set_as_current=False) as app:

        def hear(problems: list[dict[str, Any]], **_: Any) -> None:
            heard.extend([each["code"] for each in problems] or ["nothing"])

        problems_changed.connect(hear, sender=app)
        workers = [Alerts(Resources(app, own)) for _ in range(2)]
        web.status = 500
        dead = rows.insert(2, status="dead", dead_at=seconds_from_now(-60))
        for worker in workers:
            worker.start()
        eventually(lambda: web.tries >= 2)
        assert not web.got
        web.status = 200
        [first] = eventually(lambda: posted("dead_letters"))
        assert (first["which"], first["how_many"], first["severity"]) == ("orders", 2, "warning")
        assert posted("broker_away")
        assert not posted("no_beat"), "it follows from the broker"
        workers[0].stop()
        rows.insert(2, status="dead", dead_at=seconds_from_now(-60))
        eventually(lambda: [each["how_many"] for each in posted("dead_letters")] == [2, 4])
        rows.clear()
        [over] = eventually(lambda: posted("dead_letters", "over"))
        assert over["lasted"] > 0
        workers[1].stop()
    assert dead
    assert "An alert could not be posted to" in caplog.text
    assert (heard.count("broker_away"), heard.count("dead_letters"), heard.count("nothing")) == (1, 3, 0)


class TestTheWebhook:
    def test_gets_json_with_a_text_for_chats_and_the_login_of_its_url(self, database: Database, web: Receiver) -> None:
        rows = rows_of(database, problem(how_many=3), problem("stale"))
        url = web.url.replace("://", "://anna:p%40ss@")
        alerts.post(url, alerts.body([alerts.as_json(row) for row in rows], "/shop"))
        [got] = web.got
        assert got["text"].splitlines() == ["error: It is dead_letters.", "error: It is stale. [/shop]"]
        facts = {"code": "dead_letters", "which": "orders", "how_many": 3, "state": "open", "remedy": "Mend it."}
        assert facts.items() <= got["problems"][0].items()
        assert web.headers[-1]["Authorization"] == "Basic " + b64encode(b"anna:p@ss").decode()

    def test_that_refuses_is_down_or_hangs_is_an_error_without_its_secret(
        self, web: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(alerts, "POST_TIMEOUT_SECONDS", 0.2)
        login = b64encode(b"anna:a long password")
        named = web.url.replace("://", "://anna:a%20long%20password@")
        for status, answer in ((302, f"no_such_hook /{web.secret}".encode()), (401, b"not Basic " + login)):
            web.status, web.answer = status, answer + b" x" * 5_000
            with pytest.raises(WebhookFailed, match=f"HTTP {status} (no_such_hook|not Basic \\*\\*\\*)") as failure:
                alerts.post(named, {})
            assert (web.secret in str(failure.value), len(str(failure.value)) < 500) == (False, True)
            assert login.decode() not in str(failure.value)
        assert web.tries == 2, "it followed to where it was sent"
        web.hang = True
        for url in (web.url, f"http://user:{web.secret}@127.0.0.1:1/{web.secret}?token={web.secret}"):
            with pytest.raises(WebhookFailed) as failure:
                alerts.post(url, {})
            assert web.secret not in str(failure.value)


class TestTheCommand:
    def test_lists_what_is_going_on_first(self, command: Command, database: Database, later: Later) -> None:
        nothing = command("doctor", "--alerts")
        assert (nothing.exit_code, nothing.stdout) == (0, "There was no alert.\n")
        told(database, problem("stale"))
        later(QUIET_SECONDS)
        told(database)
        assert command("doctor", "--alerts").exit_code == 0
        told(database, problem(which="[red]"))
        shown = json.loads(command("doctor", "--alerts", "--json").stdout)["alerts"]
        states = [(one["code"], one["which"], one["state"]) for one in shown]
        assert states == [("dead_letters", "[red]", "open"), ("stale", "orders", "over")]
        listed = command("doctor", "--alerts")
        lines = listed.stdout.splitlines()
        assert (listed.exit_code, lines[0], lines[2]) == (
            1, "error: It is dead_letters.", "over after 60 s: It is stale."
        )  # fmt: skip

    def test_posts_a_test(self, command: Command, web: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        refused = command("doctor", "--test-alert")
        assert (refused.exit_code, "set OUTBOX_ALERT_WEBHOOK" in refused.output) == (1, True)
        monkeypatch.setenv("OUTBOX_ALERT_WEBHOOK", web.url)
        accepted = command("doctor", "--test-alert")
        assert (accepted.exit_code, "accepted the test: HTTP 200." in accepted.stdout) == (0, True)
        assert web.got[0]["problems"] == []
        web.status, web.answer = 404, b"no_team"
        failed = command("doctor", "--test-alert")
        assert (failed.exit_code, "HTTP 404 no_team" in failed.output) == (1, True)
        assert web.secret not in accepted.output + failed.output
