"""Sends people alerts of dead letters, breakers, blocked keys, and messages that nobody sends.

The process that finds something out notes it in memory. An application's worker, which ends supervised tasks, sends no
alerts: the relay's workers look for those that it ended dead. A thread records it in the table of the alerts, by which
the cluster sends each alert once, again after `alert_repeat`, and when it is over. The process that is to send an alert
logs it and posts it to the webhook. This is a thread of each worker, not a Celery task: an alert must also get through
when the broker is gone, and a webhook that hangs must not hold up claims.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from celery import signals

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import DatabaseUnavailable, SchemaMissing, WebhookFailed
from outbox_tasks.per_process import PerProcess
from outbox_tasks.signals import breaker_opened, dead_letter, key_blocked, stale
from outbox_tasks.telemetry.alerts import webhook
from outbox_tasks.telemetry.alerts.table import AlertTable, Occurrence, check_interval
from outbox_tasks.text import json_line, logger
from outbox_tasks.worker.resources import Resources, serves
from outbox_tasks.worker.told import tell_dead

log = logger("outbox_tasks.alerts")

COLLECT = 0.25
"""Seconds for which the thread collects occurrences before it records them: a flood makes four statements a second."""

BROKEN_PAUSE = 1.0
"""Seconds until the next try while the database is away."""


def connect(resources: Resources) -> Alerts:
    """Alert people of what this app's processes find out. Its workers also check for what is stale or over."""
    alerts = Alerts(resources)
    for signal in (dead_letter, key_blocked, breaker_opened, stale):  # each has a method of its name
        signal.connect(getattr(alerts, signal.name), sender=resources.app, weak=False)

    def start_checks(sender: Any = None, **_: Any) -> None:
        # Called after the pool has forked: threads don't survive a fork.
        if sender.app is resources.app and serves(resources.app):
            alerts.start_checks()

    signals.worker_ready.connect(start_checks, weak=False)
    resources.before_close.append(alerts.close)
    return alerts


class Alerts:
    """Receives the signals of a process. Nothing that is called here waits or fails."""

    def __init__(self, resources: Resources) -> None:
        self._notifier = PerProcess(lambda: Notifier(resources))

    def dead_letter(self, destination: str, message_id: str, event_type: str, code: str | None, **_: Any) -> None:
        """See the signal. The alert has the error's code, not its text, which may quote the message."""
        self._put("dead_letter", destination, code=code, event_type=event_type, message_id=message_id)

    def key_blocked(self, destination: str, key: str, message_id: str, code: str | None, **_: Any) -> None:
        """See the signal. There is one alert for all keys of a destination: one cause may hold up thousands of them."""
        self._put("key_blocked", destination, code=code, keys=[key], message_id=message_id)

    def breaker_opened(self, destination: str, code: str | None, **_: Any) -> None:
        self._put("breaker", destination, code=code)

    def stale(self, destination: str, oldest: float, **_: Any) -> None:
        self._put("stale", destination, oldest=round(oldest, 1))

    def start_checks(self) -> None:
        """See `Notifier.start_checks`."""
        self._notifier.get().start_checks()

    def close(self) -> None:
        """Record what happened."""
        if (notifier := self._notifier.made) is not None:
            notifier.end()

    def _put(self, kind: str, destination: str, **facts: Any) -> None:
        self._notifier.get().put(Occurrence(kind, destination, facts))


class Notifier:
    """The thread that records what happened and sends alerts."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._settings = resources.settings
        self._interval = check_interval(resources.settings)
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        """What other threads ask this one to do."""
        self._pending: dict[str, Occurrence] = {}
        self._checking = False
        self._next_check = 0.0
        self._next_deletion = 0.0
        self._ended = False
        self._table: AlertTable | None = None
        self._thread = threading.Thread(target=self._run, name="outbox-alerts", daemon=True)
        self._thread.start()

    def put(self, occurrence: Occurrence) -> None:
        """Count an occurrence of its alert."""
        self._orders.put(partial(self._add, occurrence))

    def start_checks(self) -> None:
        """From now on, check for what is stale, which alerts are over, and which were not posted."""
        self._orders.put(self._start_checks)

    def end(self) -> None:
        """Record what there is, and stop. Waits for some seconds at most."""
        self._orders.put(self._stop)
        self._thread.join(timeout=webhook.TIMEOUT)

    def _run(self) -> None:
        while not self._ended:
            self._collect()
            try:
                self._send()
            except DatabaseUnavailable as error:
                # Keep what is pending. The pipe itself says that the database is away.
                log.debug("alerts wait: %s", error)
                self._pause()
            except SchemaMissing as error:
                log.debug("no alert can be sent: %s", error)
                self._pending.clear()  # the messages went with the tables
                self._pause()
            except Exception:
                log.exception("alerts could not be sent")
                self._pause()
        if self._table is not None:
            self._table.close()

    def _pause(self) -> None:
        if self._table is not None:
            self._table.close()
        time.sleep(BROKEN_PAUSE)

    def _collect(self) -> None:
        """Wait for an occurrence, or until it is time to check; then a moment for more of them."""
        with suppress(Empty):
            wait = 0.0 if self._pending else self._interval if self._checking else None
            self._orders.get(timeout=wait)()
            if not self._ended:
                time.sleep(COLLECT)
            while True:
                self._orders.get_nowait()()

    def _stop(self) -> None:
        self._ended = True

    def _start_checks(self) -> None:
        self._checking, self._next_check = True, time.monotonic() + self._interval

    def _add(self, occurrence: Occurrence) -> None:
        if (earlier := self._pending.get(occurrence.name)) is not None:
            earlier.add(occurrence)
        else:
            self._pending[occurrence.name] = occurrence

    def _send(self) -> None:
        if self._table is None:
            self._table = AlertTable(Database.connect(self._settings))
        alerts = self._table.record(self._pending) if self._pending else []
        self._pending.clear()
        check = self._checking and time.monotonic() >= self._next_check and not self._ended
        if check:
            self._next_check = time.monotonic() + self._interval
            alerts += self._check(self._table)
        for row in alerts:
            # The end has the same level, so that whoever read of the beginning reads of the end.
            alert = webhook.as_json(row, self._settings.source)
            log.warning("%s", json_line(alert), extra={"alert": alert})
        if (alerts or check) and self._settings.alert_webhook and not self._ended:
            self._post(self._table, self._settings.alert_webhook)
        if self._orders.empty():
            # The next one may come late, and a process that the pool forks until then must not share a connection.
            self._table.close()

    def _check(self, table: AlertTable) -> list[Any]:
        """If it is our turn, report supervised tasks that ended dead, claims that time out and feeds in trouble, send
        the signal `stale` and end alerts. Returns the alerts whose end is sent."""
        if not table.is_our_turn(self._interval):
            return []
        for row in table.failed_runs():
            tell_dead(
                self._resources, row.destination, row.id, row.event_type, row.key, row.attempts, row.code, row.error
            )
        for destination, oldest in table.stale().items():
            stale.send(sender=self._resources.app, destination=destination, oldest=oldest)
        if table.claims_late():
            self._add(Occurrence("late", "", {}))
        for problem in table.feeds_in_trouble():
            self._add(Occurrence("feed", problem.which, {"why": problem.fact}))
        if time.monotonic() >= self._next_deletion:
            self._next_deletion = time.monotonic() + 3600
            table.forget()
        return table.end()

    def _post(self, table: AlertTable, url: str) -> None:
        rows = table.lease_posts()
        for number, row in enumerate(rows):
            try:
                webhook.post(url, webhook.as_json(row, self._settings.source))
            except WebhookFailed as error:
                # The others would fail too, and each would take its time.
                log.warning("%s", error, extra={"alert": row.name, "posts": row.posts})
                table.put_off(rows[number:], self._interval)
                return
            table.posted([row])
