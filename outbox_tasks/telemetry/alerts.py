"""Tells people when the list of problems changes: in the log, by the signal `problems_changed`, and at a webhook.

A thread looks, in each worker that consumes `outbox.maintain`, by turn. It is no Celery task: an alert must also get
through when the broker is gone. The table of the alerts says what was told, so a cluster tells each change once.
Without a database that takes writes nobody tells anything here: the rules for Prometheus see that.
"""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from celery import bootsteps

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import OutboxError, WebhookFailed
from outbox_tasks.operating.problems import Examination, Problem, Severity, examine
from outbox_tasks.settings import MAINTAIN_QUEUE
from outbox_tasks.signals import problems_changed
from outbox_tasks.text import STARS, logger, one_line, redacted, span, storable, without_secrets
from outbox_tasks.worker.resources import Resources

log = logger("outbox_tasks.alerts")

LOOK_SECONDS = 15.0
"""Seconds between two looks, by one worker of the cluster."""

QUIET_SECONDS = 60.0
"""A problem is over when it was absent for so long."""

KEPT_SECONDS = 30 * 86_400.0
"""An alert that is over stays in the table for so long."""

POST_TIMEOUT_SECONDS = 5.0
"""Seconds for connecting to the webhook, and for each read and write."""


class AlertsStep(bootsteps.StartStopStep):
    """Starts after the pool has forked, because threads don't survive a fork, and before the worker finds its
    broker."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, worker: Any) -> bool:
        return MAINTAIN_QUEUE in worker.app.amqp.queues.consume_from

    def create(self, worker: Any) -> Alerts:
        return Alerts(worker.app.outbox_relay)


class Alerts:
    """The thread that looks for problems and tells people of changes."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox-alerts", daemon=True)

    def start(self, *_: Any) -> None:
        self._thread.start()

    def stop(self, *_: Any) -> None:
        """Waits until a post is over, for some seconds at most."""
        self._ended.set()
        self._thread.join(POST_TIMEOUT_SECONDS)

    terminate = stop

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self._look()
            except WebhookFailed as error:
                log.warning("%s", error)
            except OutboxError as error:
                log.debug("nobody can be told of problems: %s", error)
            except Exception:
                log.exception("nobody could be told of problems")

    def _look(self) -> None:
        settings, app = self._resources.settings, self._resources.app
        # No connection stays open: a process that the pool forks later must not share it.
        with closing(Database.connect(settings)) as database:
            # Slightly less than the pause: otherwise every other turn would be missed by a moment.
            if not database.ask("alert/turn.sql", pace=LOOK_SECONDS * 0.9):
                return
            rows = compared(database, examine(settings, app))
            news = [as_json(row) for row in rows if row.is_news]
            for alert in news:
                log.warning("%s", sentence(alert), extra={"alert": alert})
            if news:
                problems_changed.send(sender=app, problems=news)
            if rows and settings.alert_webhook:
                post(settings.alert_webhook, body([as_json(row) for row in rows], settings.source))
                note_posted(database, rows)


def compared(database: Database, examination: Examination) -> Sequence[Any]:
    """Compare the problems with what was told, and note the difference as told. Returns what is to be posted; those
    with `is_news` are to be logged too: see alert/compare.sql."""
    roots = [_as_row(problem, is_root=True) for problem in examination.problems]
    others = [_as_row(other, is_root=False) for problem in examination.problems for other in problem.follows]
    parameters = {
        "problems": json.dumps([row for row in roots + others if row["severity"] != Severity.NOTE]),
        "posting": database.settings.alert_webhook is not None,
        "quiet": QUIET_SECONDS,
        "keep": KEPT_SECONDS,
    }
    return database.ask("alert/compare.sql", **parameters)


def note_posted(database: Database, rows: Sequence[Any]) -> None:
    """These were posted. What was told since they were read is posted with the next look."""
    if rows:
        names = {"codes": [row.code for row in rows], "which": [row.which for row in rows]}
        database.ask("alert/posted.sql", **names, told_at=max(row.told_at for row in rows))


def _as_row(problem: Problem, *, is_root: bool) -> dict[str, Any]:
    facts = asdict(problem)
    del facts["follows"]
    texts = {name: storable(value) for name, value in facts.items() if isinstance(value, str)}
    return {**facts, **texts, "ago": problem.since, "is_root": is_root}


def known(database: Database, most: int) -> list[Any]:
    """The alerts as rows: those that are not over first, then the latest."""
    return list(database.ask("alert/known.sql", size=most))


def as_json(row: Any) -> dict[str, Any]:
    """An alert as programs get it. Times are in UTC."""
    names = ("code", "which", "severity", "fact", "cause", "remedy", "how_many")
    return {
        "state": "over" if row.over_at else "open",
        **{name: getattr(row, name) for name in names},
        **{name: at and at.astimezone(UTC).isoformat() for name, at in (("since", row.since), ("over", row.over_at))},
        "lasted": round((row.over_at - row.since).total_seconds(), 1) if row.over_at else None,
    }


def sentence(alert: Mapping[str, Any]) -> str:
    """An alert in one line."""
    how = f"over after {span(alert['lasted'])}" if alert["state"] == "over" else alert["severity"]
    return one_line(f"{how}: {alert['fact']}")


def body(alerts: Sequence[Mapping[str, Any]], source: str) -> dict[str, Any]:
    """What is posted: `text` for people, the alerts for programs."""
    text = "\n".join(sentence(alert) for alert in alerts)
    return {"text": f"{text} [{source}]", "source": source, "problems": alerts}


class _NoRedirect(HTTPRedirectHandler):
    """A webhook that has moved is an error: what is posted goes to no other place."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(url: str, what: Mapping[str, Any]) -> str:
    """Post it to a webhook. Returns the status of the answer. Raises `WebhookFailed`."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    basic = ""
    headers = {"Content-Type": "application/json"}
    if login:
        user, _, password = login.partition(":")
        basic = b64encode(unquote(f"{user}:{password}").encode()).decode()
        headers["Authorization"] = f"Basic {basic}"
    try:
        place = parts._replace(netloc=host).geturl()
        request = Request(place, json.dumps(what).encode(), headers)  # noqa: S310 - of http or https: see `WebUrl`
        with build_opener(_NoRedirect).open(request, timeout=POST_TIMEOUT_SECONDS) as answer:
            return f"HTTP {answer.status}"
    except HTTPError as refused:
        with refused:  # the log quotes the beginning of its answer
            reason = f"HTTP {refused.code} {refused.read(200).decode(errors='replace')}"
    except (OSError, ValueError, HTTPException) as failed:
        reason = str(failed) or type(failed).__name__
    reason = without_secrets(reason.replace(basic, STARS) if basic else reason, url)
    raise WebhookFailed(place=redacted(url), reason=" ".join(reason.split()))
