"""What people and logs see: which lines, no secret of a URL, and nothing that a terminal would obey."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_tasks.errors import BrokerUnreachable, DatabaseUnavailable, NoRoute, OutboxError, WebhookFailed
from outbox_tasks.model import Outcome, Step, Verdict
from outbox_tasks.relay.retry import judge
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry import logs
from outbox_tasks.telemetry.alerts import sentence
from outbox_tasks.telemetry.logs import Json, _text
from outbox_tasks.text import is_text, logger, one_line, printable, redacted, said, storable, without_secrets
from outbox_tasks.worker.listener import TaskListener
from tests.contract.messages import message, sent_by

SECRET = "hunter2hunter"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"nats://{SECRET}@h:4222/orders", "nats://***@h:4222/orders"),
        (f"nats://{SECRET}@a:4222,{SECRET}@b:4222", "nats://***@b:4222"),
        (f"kafka://ada:{SECRET}@a:9092,b:9092/t", "kafka://ada:***@a:9092,b:9092/t"),
        (f"https://hooks.slack.com/services/T0/B0/{SECRET}", "https://hooks.slack.com/…"),
        (f"https://discord.com:443/api/webhooks/1/{SECRET}?wait=true", "https://discord.com:443/…"),
        (f"https://shop.example?token={SECRET}", "https://shop.example"),
        (f"grpc://shop.example:50051?token={SECRET}", "grpc://shop.example:50051"),
        (f"celery://?broker=redis://:{SECRET}@h/0", "celery://"),
        (f"azurestoragequeues://:{SECRET}/x==@https://a.queue.core.windows.net", "azurestoragequeues://:***@https://a.queue.core.windows.net"),
        (f"redis+stream://h/0/s#{SECRET}", "redis+stream://h/0/s"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
        (f"postgresql://u:{SECRET}@h:5432/d?password={SECRET}", "postgresql://u:***@h:5432/d"),
        (f"postgresql://u:pa/{SECRET}@h/d", "postgresql://u:***@h/d"),
        (f"redis://:one@h:1/0;redis://:{SECRET}@h:2/0", "redis://:***@h:1/0;redis://:***@h:2/0"),
        (f"redis://u:{SECRET};@h:1/0", "redis://u:***@h:1/0"),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_what_nobody_may_see(url: str, shown: str) -> None:
    assert redacted(url) == shown
    assert redacted(shown) == shown
    assert without_secrets(f'"{url}" is refused (see {url}).') == f'"{shown}" is refused (see {shown}).'


def test_a_url_without_its_slashes_is_shown_without_its_login() -> None:
    assert redacted(f"postgresql:{SECRET}@h/d") == redacted(f"postgresql:u:{SECRET}@h/d?x={SECRET}") == "***@h/d"


@pytest.mark.parametrize(
    ("url", "said", "shown"),
    [
        (f"nats://{SECRET}@h:1", f"Authorization Violation: {SECRET}", "Authorization Violation: ***"),
        (f"amqp://ada:{SECRET}%2F@h", f"ada, {SECRET}/ and {SECRET}%2F", "ada, *** and ***"),
        (f"grpc://h:1?token={SECRET}", f"bad {SECRET}", "bad ***"),
        (f"https://h/T0/{SECRET}", f"no route to /T0/{SECRET}", "no route to ***"),
        (f"celery://?broker=redis://:{SECRET}@h/0", f"AUTH {SECRET}", "AUTH ***"),
        (f"celery://?broker=redis%3A%2F%2F%3A{SECRET}%40h%2F0", f"AUTH {SECRET}", "AUTH ***"),
        (f"nats://{SECRET}@a:4222,another@b:4222", f"a:4222 refused {SECRET}", "a:4222 refused ***"),
        ("redis://h/0", f"host=h password={SECRET} user=ada", "host=h password=*** user=ada"),
        (f"postgresql://u:p@{SECRET}@h/db", f"p@{SECRET}: no host {SECRET}@h", "***: no host ***@h"),
        (f"redis://u:{SECRET}/p@h/0", f"no port {SECRET}", "no port ***"),
        ("kafka://h/t?ca_file=/etc/kafka/ca.pem", "no /etc/kafka/ca.pem", "no /etc/kafka/ca.pem"),
    ],
)
def test_an_error_of_a_client_is_shown_without_the_secrets_of_its_url(url: str, said: str, shown: str) -> None:
    assert without_secrets(said, url) == shown
    settings = Settings(destinations={"orders": {"url": url}})
    verdict = judge(settings, message(1), Outcome.retry("refused", said), by_celery=False)
    assert verdict.error == shown


def test_what_is_cut_off_is_cut_off_after_that() -> None:
    settings = Settings(destinations={"orders": {"url": f"nats://{SECRET}@h:1"}})
    verdict = judge(settings, message(1), Outcome.retry("refused", "x" * 495 + SECRET), by_celery=False)
    assert verdict.error == "x" * 495 + "***"
    long = f"https://h/{'x' * 1970} nats://{SECRET}@h:1"  # the first URL becomes short
    assert without_secrets(long, most=500) == "https://h/… nats://"


@pytest.mark.parametrize(
    "error",
    [
        BrokerUnreachable(url="redis://h", reason=OSError(f"Error at redis://{SECRET}@h:1/0.")),
        DatabaseUnavailable(url="postgresql://h", reason=f'missing "=" after "postgresql://ada:{SECRET}@h"'),
        WebhookFailed(place="https://h/…", reason=f"https://h/{SECRET} is gone"),
    ],
)
def test_no_error_of_the_family_quotes_a_secret(error: OutboxError) -> None:
    assert SECRET not in f"{error} {error.facts}"


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What an application with a formatter of its own logs of us."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("outbox_tasks")
    for name in ("outbox_tasks", "outbox_tasks.publish", "outbox_tasks.worker.listener"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)  # as others that configure logging leave it
    log.addHandler(handler)
    yield stream
    log.removeHandler(handler)


def test_no_traceback_of_a_client_in_the_logs_does(logged: io.StringIO) -> None:
    class Raising:
        def publish(self, messages: object) -> list[Outcome]:
            raise RuntimeError(f"refused by nats://{SECRET}@h:1")

        def close(self) -> None: ...

    sent_by(Raising(), message(1))
    assert "RuntimeError: refused by nats://***@h:1" in logged.getvalue()
    assert SECRET not in logged.getvalue()


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError


def test_whatever_is_logged_shows_no_secret_and_stops_nobody(logged: io.StringIO) -> None:
    log = logger("outbox_tasks.publish")
    log.warning("%s is away", f"redis://:{SECRET}@h")
    assert logged.getvalue() == "redis://:***@h is away\n"
    assert log.filter(logging.makeLogRecord({"msg": "%s", "args": (Mute(),)}))  # logging itself reports it
    assert [said(error) for error in (OSError("gone"), OSError(), Mute())] == ["gone", "OSError()", "Mute"]


def failed(text: str) -> Any:
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        return type(error), error, error.__traceback__


def test_no_line_of_the_relays_own_processes_does() -> None:
    kind = failed(f"nats://{SECRET}@h")
    record = logging.LogRecord("kombu", logging.ERROR, "", 0, "can't reach %s", (f"redis://{SECRET}@h",), kind)
    line = Json().format(record)
    assert SECRET not in line
    assert json.loads(line)["message"] == "can't reach redis://***@h"
    assert SECRET not in _text(logging.Formatter)("%(message)s").format(record)


FORGED = "a\n[2030-01-02 03:04:05,678: ERROR/MainProcess] forged\r\u2028forged\x85forged\x9b31m\u202eforged"
"""As an event type, a key or the name of a feed."""


def test_no_text_of_others_makes_a_line_of_the_log() -> None:
    record = logging.LogRecord("celery", logging.INFO, "", 0, "message of %s", (FORGED,), failed(FORGED))
    record.event_type = FORGED
    text = _text(logging.Formatter)("[INFO] %(message)s").format(record)
    assert record.args == (FORGED,)
    assert [line for line in text.splitlines() if not line.startswith("    ")] == ["[INFO] message of a"]
    assert text.replace("\n", "").isprintable()
    [line] = Json().format(record).splitlines()
    assert line.isprintable()
    assert json.loads(line)["event_type"] == FORGED


def test_no_text_of_others_makes_a_line_of_an_error_an_alert_or_an_application_s_log(logged: io.StringIO) -> None:
    assert "forged" in sentence({"state": "open", "severity": "error", "fact": FORGED})
    assert sentence({"state": "over", "lasted": 3.0, "fact": FORGED}).isprintable()
    assert str(NoRoute(event_type=FORGED, reason=FORGED)).isprintable()
    resources: Any = SimpleNamespace(app=object(), settings=Settings(destinations={"orders": {"url": "a://b"}}))
    TaskListener(resources).dead(Verdict(message(1, event_type=FORGED, key=FORGED), Step.DEAD, 0.0, "refused"))
    assert len(logged.getvalue().splitlines()) == 2
    assert logged.getvalue().replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("half \ud800", "half \\ud800"),
        ("Zoë 東京 👍", "Zoë 東京 👍"),
    ],
)
def test_nothing_is_left_that_a_terminal_would_obey(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert one_line(f"{text}\r\n\tx") == (f"{shown}\\r x")


@given(st.text(st.characters()))
def test_any_text_becomes_one_that_the_database_can_store(text: str) -> None:
    assert is_text(storable(text))


def test_a_lease_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "outbox_tasks.publish")
    verdicts = [
        Verdict(message(1), Step.SENT), Verdict(message(2), Step.RETRY, 2.0, "busy", "Dear Ada"),
        Verdict(message(3), Step.RETRY, 2.0, "busy", "Dear Bob"), Verdict(message(4), Step.DEAD, code="http_400"),
    ]  # fmt: skip
    logs.log_settled("orders", "a token", verdicts, 0.25)
    [lease] = caplog.records
    assert lease.getMessage() == "sent 1, retry 2 (busy), dead 1 (http_400) to orders in 0.250 s, lease a token"
    assert (lease.outcomes, lease.codes) == (  # type: ignore[attr-defined]
        {"sent": 1, "retry": 2, "dead": 1}, {"busy": 2, "http_400": 1}
    )  # fmt: skip
    assert not hasattr(lease, "message_id")
    assert "Dear" not in caplog.text, "the text of an error may quote the message"
    logs.log_settled("orders", "a token", verdicts[:1], 0.1)
    lease = caplog.records[-1]
    assert lease.message_id == message(1).id  # type: ignore[attr-defined]
    assert lease.getMessage().endswith(f"lease a token, message {message(1).id}")


def record(name: str, level: int = logging.INFO, **facts: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "levelno": level, "levelname": logging.getLevelName(level), **facts})


@pytest.mark.parametrize(
    ("told", "quiet"),
    [
        (record("celery.worker.strategy", data={"name": "outbox_tasks.claim"}), True),
        (record("celery.worker.strategy", data={"name": "outbox_tasks.drain"}), True),
        (record("celery.beat", args=("claim", "outbox_tasks.claim")), True),
        (record("celery.beat", args=("own", "shop.report")), False),
        (record("celery.worker.strategy", data={"name": "outbox_tasks.publish"}), False),
        (record("celery.app.trace", data={"name": "outbox_tasks.publish", "return_value": "'sent'"}), True),
        (record("celery.app.trace", data={"name": "outbox_tasks.publish", "exc": "Retry in 2s"}), False),
        (record("celery.app.trace", data={"name": "outbox_tasks.publish", "exc": "DeadLetter('x')"}), True),
        (record("celery.app.trace", logging.ERROR, data={"name": "outbox_tasks.claim"}), False),
        (record("celery.worker.strategy", data={"name": "shop.report"}), False),
    ],
)
def test_celerys_lines_that_say_what_ours_say_are_at_debug(told: logging.LogRecord, quiet: bool) -> None:
    logs._quieten(told)
    assert (told.levelno == logging.DEBUG) is quiet


def test_times_in_json_are_in_utc_wherever_the_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Pacific/Guam")
        time.tzset()
        line = json.loads(Json().format(logging.makeLogRecord({"created": 1767225600.0, "msg": "x"})))
    time.tzset()
    assert line["ts"] == "2026-01-01T00:00:00.000+00:00"


def test_json_has_the_facts_of_a_line() -> None:
    line = json.loads(logs.Json().format(record("outbox_tasks.x", msg="x", destination="orders", lease=None)))
    assert (line["destination"], "lease" in line) == ("orders", False)
    task = record("celery.app.trace", msg="x", data={"id": "4711", "name": "shop.report", "args": "('secret',)"})
    line = json.loads(logs.Json().format(task))
    assert (line["task"], line["task_id"], "secret" in str(line)) == ("shop.report", "4711", False)
