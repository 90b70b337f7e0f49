"""What the relay logs: a line for each lease. How its own processes write it.

It never logs a payload or a credential. It logs only the code of an error: the text may quote an answer, and the answer
may quote the message. `outbox-tasks show` reads the text from the row.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from celery import Celery, current_task, signals
from celery.app.log import Logging
from celery.utils.log import ColorFormatter

from outbox_tasks.broker.names import PUBLISH_TASK, TASKS
from outbox_tasks.model import Verdict
from outbox_tasks.text import json_line, printable, without_secrets

log = logging.getLogger("outbox_tasks.publish")

CLIENTS = ("aiobotocore", "azure", "boto3", "botocore", "httpcore", "httpx", "s3transfer", "urllib3")
"""Loggers of the destinations' clients that write URLs, headers and bodies at INFO or DEBUG."""

CELERYS = ("celery.app.trace", "celery.beat", "celery.worker.strategy")
"""Celery's loggers that write a line for each task that is sent, received or done."""

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "data", "task_id", "task_name"}
"""Attributes that every record has. Any other is a fact that its caller added."""


def log_settled(destination: str, lease: str, verdicts: Sequence[Verdict], seconds: float, **_: Any) -> None:
    """Log what became of the messages of a lease: "sent 98, retry 2 (timeout) to orders in 0.031 s, lease …"."""
    counts = Counter((verdict.step, verdict.code) for verdict in verdicts)
    outcomes = ", ".join(f"{step} {count}{f' ({code})' if code else ''}" for (step, code), count in counts.items())
    facts: dict[str, Any] = {
        "destination": destination, "lease": lease, "seconds": round(seconds, 4),
        "outcomes": dict(Counter(verdict.step.value for verdict in verdicts)),
        "codes": dict(Counter(verdict.code for verdict in verdicts if verdict.code)),
    }  # fmt: skip
    which = ""
    if len(verdicts) == 1:
        facts["message_id"] = verdicts[0].message.id
        which = f", message {verdicts[0].message.id}"
    log.info("%s to %s in %.3f s, lease %s%s", outcomes, destination, seconds, lease, which, extra=facts)


class RelayLogging(Logging):  # type: ignore[misc]
    """The `log_cls` of the relay's own app. An application's app keeps its own."""

    def setup_logging_subsystem(self, *arguments: Any, **options: Any) -> Any:
        """Called by Celery as a process starts."""
        receivers = super().setup_logging_subsystem(*arguments, **options)
        for name in CLIENTS:
            client = logging.getLogger(name)
            client.setLevel(max(client.level, logging.WARNING))
        quieten()
        return receivers

    def setup_handlers(self, logger: Any, *arguments: Any, formatter: Any = ColorFormatter, **options: Any) -> Any:
        """Called by Celery for each of its loggers."""
        kind = Json if _is_json(self.app) else _text(formatter)
        return super().setup_handlers(logger, *arguments, formatter=kind, **options)


def quieten() -> None:
    """Keep Celery's lines on the relay's tasks, some in each second, out of the log if ours say the same."""
    for name in CELERYS:
        logging.getLogger(name).addFilter(_quieten)


def set_up(app: Celery) -> None:
    """Have the processes of the relay's own app log by its settings."""
    app.log_cls = "outbox_tasks.telemetry.logs:RelayLogging"

    def early(instance: Any, **_: Any) -> None:
        if instance.app is app and _is_json(app):
            instance.quiet = True  # no banner
            _write_json_early()

    signals.celeryd_init.connect(early, weak=False)
    if _is_json(app):
        vars(app)["Beat"] = partial(_beat, app)


def _beat(app: Celery, **options: Any) -> Any:
    from celery.apps.beat import Beat

    return Beat(app=app, **{**options, "quiet": True})


def _is_json(app: Celery) -> bool:
    return bool(app.outbox_relay.given.log_format == "json")


def _write_json_early() -> None:
    """Write as JSON also the lines that are logged before Celery has set up its loggers."""
    logging.captureWarnings(True)
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(Json())
    logging.getLogger().addHandler(handler)


def _quieten(record: logging.LogRecord) -> bool:
    """Lower Celery's lines on the relay's tasks to DEBUG if ours say the same. Its lines on a single message that is
    received, is retried, or fails stay as they are."""
    if not _is_routine(record):
        return True
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _is_routine(record: logging.LogRecord) -> bool:
    if record.levelno != logging.INFO:
        return False
    if record.name == "celery.beat":
        return isinstance(record.args, tuple) and record.args[-1:] in [(task,) for task in TASKS]
    data = getattr(record, "data", {})
    if data.get("name") != PUBLISH_TASK:
        return data.get("name") in TASKS
    return "return_value" in data or str(data.get("exc", "")).startswith("DeadLetter")


class Json(logging.Formatter):
    """One JSON object a line: ts, level, logger, message, process; in a task its name and id; other facts (destination,
    lease, message_id, seconds …); the traceback of an exception."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        data, task = getattr(record, "data", None), current_task
        line = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
            "process": record.processName,
            "pid": record.process,
        }
        if isinstance(data, dict) and "id" in data:  # a line of Celery's on a task
            line |= {"task": data.get("name"), "task_id": data["id"]}
        elif task and task.request.id:
            line |= {"task": task.name, "task_id": task.request.id}
        line |= {name: value for name, value in vars(record).items() if name not in STANDARD and value is not None}
        if record.exc_info:
            line["exception"] = without_secrets(self.formatException(record.exc_info))
        return json_line(line)


def _text(kind: Any) -> Any:
    """Celery's formatter, but only the first line of a record begins at the margin, so that no text of others looks
    like a record of its own."""

    class Text(kind):  # type: ignore[misc]
        def format(self, record: logging.LogRecord) -> str:
            # An application may choose any event type. The copy is for us: other handlers get the record as it is.
            safe = copy.copy(record)
            safe.msg, safe.args = printable(record.getMessage()), None
            if record.exc_info:
                safe.exc_text = printable(record.exc_text or self.formatException(record.exc_info))
            return without_secrets(str(super().format(safe))).replace("\n", "\n    ")

    return Text
