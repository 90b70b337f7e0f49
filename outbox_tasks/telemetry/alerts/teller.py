"""Who tells people of what needs them: dead letters, breakers, blocked keys, and messages that nobody sends.

What happens is put down by the process that finds it out, in its memory, and by a thread of its own in the table of the
alerts, where the cluster agrees on what is told: once, again after `alert_repeat`, and when it is over. Whoever is to
tell logs it, and posts it to the webhook. A thread of each worker, not a task of Celery's: an alert must also get
through when the broker is gone, and a webhook that hangs must keep no claim from running on the same worker.
"""

from __future__ import annotations

import json
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
from outbox_tasks.redaction import logger
from outbox_tasks.settings import Settings
from outbox_tasks.signals import Signal, breaker_opened, dead_letter, key_blocked, stale
from outbox_tasks.telemetry.alerts import webhook
from outbox_tasks.telemetry.alerts.board import Board, News, pace
from outbox_tasks.worker.resources import Resources, serves

log = logger("outbox_tasks.alerts")

GATHER = 0.25
"""Seconds for which what happens is gathered before it is put down: so many statements a second, in any flood."""

BROKEN_PAUSE = 1.0
"""Seconds before the next try while the database is away."""


def connect(resources: Resources) -> Alerts:
    """Have what happens in this process told, and its workers look out for the rest."""
    alerts = Alerts(resources)
    told: dict[Signal, Callable[..., None]] = {
        dead_letter: alerts.dead_letter,
        key_blocked: alerts.key_blocked,
        breaker_opened: alerts.breaker_opened,
        stale: alerts.stale,
    }
    for signal, receive in told.items():
        signal.connect(receive, sender=resources.app, weak=False)

    def watch(sender: Any = None, **_: Any) -> None:
        # After the pool's processes are made: a fork takes no thread along.
        if sender.app is resources.app and serves(resources.app):
            alerts.watch()

    def close(**_: Any) -> None:
        alerts.close()

    signals.worker_ready.connect(watch, weak=False)
    signals.worker_process_shutdown.connect(close, weak=False)
    signals.worker_shutdown.connect(close, weak=False)
    return alerts


class Alerts:
    """The alerts of one process. Nothing that is called here waits or fails."""

    def __init__(self, resources: Resources) -> None:
        self._teller = PerProcess(lambda: Teller(resources))

    def dead_letter(self, destination: str, message_id: str, event_type: str, code: str | None, **_: Any) -> None:
        """See the signal. By its code: the text of an error may quote what the message said."""
        facts = {"code": code, "event_type": event_type, "message_id": message_id}
        self._happened(f"dead_letter {destination} {code}", News("dead_letter", destination, facts))

    def key_blocked(self, destination: str, key: str, message_id: str, code: str | None, **_: Any) -> None:
        """See the signal. One alert for all keys of a destination: one cause may hold up thousands of them."""
        facts = {"code": code, "keys": [key], "message_id": message_id}
        self._happened(f"key_blocked {destination}", News("key_blocked", destination, facts))

    def breaker_opened(self, destination: str, code: str | None, **_: Any) -> None:
        """See the signal."""
        self._happened(f"breaker {destination}", News("breaker", destination, {"code": code}))

    def stale(self, destination: str, oldest: float, **_: Any) -> None:
        """See the signal."""
        self._happened(f"stale {destination}", News("stale", destination, {"oldest": round(oldest, 1)}))

    def watch(self) -> None:
        """Also look, from now on, at what is stale, what is over, and what was not posted."""
        self._teller.get().watch()

    def close(self) -> None:
        """Put down what has happened."""
        teller = self._teller.made
        if teller is not None:
            teller.end()

    def _happened(self, name: str, news: News) -> None:
        self._teller.get().put(name, news)


class Teller:
    """The thread that puts down what has happened, and tells what is to be told."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._settings = resources.settings
        self._pace = pace(resources.settings)
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        """What others ask of the thread, for the thread to do."""
        self._pending: dict[str, News] = {}
        self._watching = False
        self._next_look = 0.0
        self._next_clearing = 0.0
        self._ended = False
        self._board: Board | None = None
        self._thread = threading.Thread(target=self._run, name="outbox-alerts", daemon=True)
        self._thread.start()

    def put(self, name: str, news: News) -> None:
        """Have it told soon."""
        self._orders.put(partial(self._add, name, news))

    def watch(self) -> None:
        """Also look at what is stale, what is over, and what was not posted."""
        self._orders.put(self._begin_to_watch)

    def end(self) -> None:
        """Put down what there is, and stop: within some seconds, or as the process ends."""
        self._orders.put(self._stop)
        self._thread.join(timeout=webhook.TIMEOUT)

    def _run(self) -> None:
        while not self._ended:
            self._gather()
            try:
                self._tell()
            except DatabaseUnavailable as error:
                # What is pending is told when it is back: the pipe itself says that it is away.
                log.debug("alerts wait: %s", error)
                self._pause()
            except SchemaMissing as error:
                log.debug("nobody can be told: %s", error)
                self._pending.clear()  # nor ever could be: it went with the tables
                self._pause()
            except Exception:
                log.exception("alerts could not be told")
                self._pause()
        if self._board is not None:
            self._board.close()

    def _pause(self) -> None:
        if self._board is not None:
            self._board.close()
        time.sleep(BROKEN_PAUSE)

    def _gather(self) -> None:
        """Wait for news, or until it is time to look; then a moment for more of them."""
        with suppress(Empty):
            wait = 0.0 if self._pending else self._pace if self._watching else None
            self._orders.get(timeout=wait)()
            if not self._ended:
                time.sleep(GATHER)
            while True:
                self._orders.get_nowait()()

    def _stop(self) -> None:
        self._ended = True

    def _begin_to_watch(self) -> None:
        self._watching, self._next_look = True, time.monotonic() + self._pace

    def _add(self, name: str, news: News) -> None:
        if name in self._pending:
            self._pending[name].add(news)
        else:
            self._pending[name] = news

    def _tell(self) -> None:
        if self._board is None:
            self._board = Board(Database.connect(self._settings))
        told = self._board.record(self._pending) if self._pending else []
        self._pending.clear()
        look = self._watching and time.monotonic() >= self._next_look and not self._ended
        if look:
            self._next_look = time.monotonic() + self._pace
            told += self._look(self._board)
        for row in told:
            announce(row, self._settings)
        if (told or look) and self._settings.alert_webhook and not self._ended:
            self._post(self._board, self._settings.alert_webhook)
        if self._orders.empty():
            # There may not be more for long; and what the pool forks meanwhile must not share a connection.
            self._board.close()

    def _look(self, board: Board) -> list[Any]:
        if not board.turn(self._pace):
            return []
        for destination, oldest in board.stale().items():
            stale.send(sender=self._resources.app, destination=destination, oldest=oldest)
        if time.monotonic() >= self._next_clearing:
            self._next_clearing = time.monotonic() + 3600
            board.forget()
        return board.end()

    def _post(self, board: Board, url: str) -> None:
        rows = board.take()
        for number, row in enumerate(rows):
            try:
                webhook.post(url, webhook.described(row, self._settings.source))
            except WebhookFailed as error:
                # The others would fare no better, and each would take its time.
                log.warning("%s", error, extra={"alert": row.name, "posts": row.posts})
                board.put_off(rows[number:], self._pace)
                return
            board.posted([row])


def announce(row: Any, settings: Settings) -> None:
    """Log an alert: one JSON object. Its end at the same level, so that nobody learns only of its beginning."""
    alert = webhook.described(row, settings.source)
    log.warning("%s", json.dumps(alert, ensure_ascii=False), extra={"alert": alert})
