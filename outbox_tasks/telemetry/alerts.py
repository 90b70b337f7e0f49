"""Tells people when the list of problems changes: in the log, by the signal `problems_changed`, and at a webhook.

A thread looks, in each worker that consumes `outbox.maintain`, by turn. It is no Celery task: an alert must also get
through when the broker is gone. The table of the alerts says what was told, so a cluster tells each change once.
Without a database that takes writes nobody tells anything here: the rules for Prometheus see that.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC
from typing import Any

from celery import bootsteps

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ConfigurationError, NotInstalled, OutboxError, WebhookFailed
from outbox_tasks.operating.problems import Examination, Problem, Severity, examine
from outbox_tasks.settings import MAINTAIN_QUEUE, Settings
from outbox_tasks.settings.destination import HIDDEN
from outbox_tasks.signals import problems_changed
from outbox_tasks.text import logger, one_line, redacted, span, storable, without_secrets
from outbox_tasks.worker.resources import Resources

log = logger("outbox_tasks.alerts")

LOOK_SECONDS = 15.0
"""Between two looks, by one worker of the cluster."""

QUIET_SECONDS = 60.0
"""A problem is over when it was absent for so long."""

KEPT_SECONDS = 30 * 86_400.0
"""For which an alert that is over stays in the table."""

POST_TIMEOUT_SECONDS = 5.0
"""For connecting to the webhook, and for each read and write."""

ANSWER_BYTES = 200
"""Of a webhook's refusal that the log quotes."""


class AlertsStep(bootsteps.StartStopStep):
    """Starts after the pool has forked, because threads don't survive a fork, and before the worker finds its
    broker."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, worker: Any) -> bool:
        return MAINTAIN_QUEUE in worker.app.amqp.queues.consume_from

    def create(self, worker: Any) -> Alerts:
        resources: Resources = worker.app.outbox_relay
        try:
            check(resources.settings)
        except OutboxError as error:
            raise SystemExit(f"outbox_tasks: {error}") from None
        return Alerts(resources)


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
                posted = {"codes": [row.code for row in rows], "which": [row.which for row in rows]}
                database.ask("alert/posted.sql", **posted, told_at=max(row.told_at for row in rows))


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


def check(settings: Settings) -> None:
    """Raises `NotInstalled` or `ConfigurationError` if alerts can't be posted as the settings say."""
    if settings.alert_webhook is None:
        return
    try:
        import httpx
    except ModuleNotFoundError as error:
        packages = "'outbox-tasks[http]'"
        raise NotInstalled(what="The alert_webhook", missing=error.name, packages=packages) from error
    try:
        good = httpx.URL(settings.alert_webhook).scheme in ("http", "https")
    except httpx.InvalidURL:
        good = False
    if not good:
        raise ConfigurationError(setting="alert_webhook", value=HIDDEN, rule="it must be an http:// or https:// URL")


def post(url: str, what: Mapping[str, Any]) -> str:
    """Post it to a webhook. Returns the status of the answer. Raises `WebhookFailed`."""
    import httpx

    def hides_url(record: logging.LogRecord) -> bool:
        return str(httpx.URL(url)) not in record.getMessage()

    client_log = logging.getLogger("httpx")
    client_log.addFilter(hides_url)  # it logs the URL of each request, which is a secret
    try:
        with httpx.Client(timeout=POST_TIMEOUT_SECONDS) as client, client.stream("POST", url, json=what) as answer:
            if answer.is_success:
                return f"HTTP {answer.status_code}"
            refusal = next(answer.iter_bytes(ANSWER_BYTES), b"").decode(errors="replace")
            reason = " ".join(f"HTTP {answer.status_code} {without_secrets(refusal, url)}".split())
            raise WebhookFailed(place=redacted(url), reason=reason)
    except httpx.HTTPError as error:
        reason = without_secrets(str(error), url) or type(error).__name__
        raise WebhookFailed(place=redacted(url), reason=reason) from None
    finally:
        client_log.removeFilter(hides_url)
