"""Which lines the relay's processes write, at which level, and with which facts."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from outbox_tasks.model import Step, Verdict
from outbox_tasks.telemetry import logs
from tests.contract.messages import message


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "outbox_tasks.publish")
    return caplog


def test_a_lease_is_one_line_and_each_message_one_at_debug(lines: pytest.LogCaptureFixture) -> None:
    verdicts = [
        Verdict(message(1), Step.SENT), Verdict(message(2), Step.RETRY, 2.0, "busy", "Dear Ada"),
        Verdict(message(3), Step.RETRY, 2.0, "busy", "Dear Bob"), Verdict(message(4), Step.DEAD, code="http_400"),
    ]  # fmt: skip
    logs.log_settled("orders", "a token", verdicts, 0.25)
    *single, lease = lines.records
    assert lease.getMessage() == "sent 1, retry 2 (busy), dead 1 (http_400) to orders in 0.250 s, lease a token"
    assert (lease.outcomes, lease.codes) == (  # type: ignore[attr-defined]
        {"sent": 1, "retry": 2, "dead": 1}, {"busy": 2, "http_400": 1}
    )  # fmt: skip
    assert not hasattr(lease, "message_id")
    assert [record.levelname for record in single] == ["DEBUG"] * 4
    assert [getattr(record, "wait", None) for record in single] == [None, 2.0, 2.0, None]
    assert single[1].getMessage().endswith("lease a token: retry (busy), again in 2.0 s")
    assert "Dear" not in lines.text, "the text of an error may quote the message"
    lines.clear()
    lines.set_level(logging.INFO, "outbox_tasks.publish")
    logs.log_settled("orders", "a token", verdicts[:1], 0.1)
    [lease] = lines.records
    assert lease.message_id == message(1).id  # type: ignore[attr-defined]
    assert lease.getMessage().endswith(f"lease a token, message {message(1).id}")


def record(name: str, level: int = logging.INFO, **facts: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "levelno": level, "levelname": logging.getLevelName(level), **facts})


@pytest.mark.parametrize(
    ("told", "quiet", "quiet_in_an_application"),
    [
        (record("celery.worker.strategy", data={"name": "outbox_tasks.claim"}), True, True),
        (record("celery.worker.strategy", data={"name": "outbox_tasks.drain"}), True, False),
        (record("celery.beat", args=("claim", "outbox_tasks.claim")), True, True),
        (record("celery.beat", args=("own", "shop.report")), False, False),
        (record("celery.worker.strategy", data={"name": "outbox_tasks.publish"}), False, False),
        (record("celery.app.trace", data={"name": "outbox_tasks.publish", "return_value": "'sent'"}), True, False),
        (record("celery.app.trace", data={"name": "outbox_tasks.publish", "exc": "Retry in 2s"}), False, False),
        (record("celery.app.trace", data={"name": "outbox_tasks.publish", "exc": "DeadLetter('x')"}), True, False),
        (record("celery.app.trace", logging.ERROR, data={"name": "outbox_tasks.claim"}), False, False),
        (record("celery.worker.strategy", data={"name": "shop.report"}), False, False),
    ],
)
def test_celerys_lines_that_say_what_ours_say_are_at_debug(
    told: logging.LogRecord, quiet: bool, quiet_in_an_application: bool
) -> None:
    for lowers, expected in ((logs._quieten, quiet), (logs._quieten_claims, quiet_in_an_application)):
        copy = logging.makeLogRecord(vars(told))
        lowers(copy)
        assert (copy.levelno == logging.DEBUG) is expected


def test_times_in_json_are_in_utc_wherever_the_process_is() -> None:
    code = (
        "import logging; from outbox_tasks.telemetry.logs import Json;"
        "print(Json().format(logging.makeLogRecord({'created': 1767225600.0, 'msg': 'x'})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TZ": "Pacific/Guam"}, capture_output=True, check=True
    )
    assert json.loads(done.stdout)["ts"] == "2026-01-01T00:00:00.000+00:00"


def test_json_has_the_facts_of_a_line() -> None:
    line = json.loads(logs.Json().format(record("outbox_tasks.x", msg="x", destination="orders", lease=None)))
    assert (line["destination"], "lease" in line) == ("orders", False)
    task = record("celery.app.trace", msg="x", data={"id": "4711", "name": "shop.report", "args": "('secret',)"})
    line = json.loads(logs.Json().format(task))
    assert (line["task"], line["task_id"], "secret" in str(line)) == ("shop.report", "4711", False)
