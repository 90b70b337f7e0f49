"""Celery tasks: `celery://?task=shop.tasks.on_event&queue=shop&broker=redis://…`, one task a message.

A task stored by `outbox.delay` and the like goes to its queue byte for byte as Celery would have sent it, with the
trace context as one more header. Of the options, only `broker` and `queue` matter to it: if `queue` names queues, it
goes to no other. Any other message becomes a task, in the first of these queues.

A supervised task also says which row it belongs to. It is handed over, not sent: the row stays until the task has run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kombu import Connection, Producer

from outbox_tasks.broker.broker import batch
from outbox_tasks.broker.task_broker import app_of, canary, dropped_in_trouble, limit_waits, plant_canary
from outbox_tasks.database.connection import Database
from outbox_tasks.destinations.common import options
from outbox_tasks.errors import ConfigurationError, PermanentError
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import without_secrets
from outbox_tasks.wire.celery_message import ENVELOPE, RUN, TaskMessage, accepted, run_header
from outbox_tasks.wire.cloudevents import (
    UNEXPRESSED,
    attributes,
    checked_headers,
    encoded,
    own_headers,
    trace_headers,
)

OPTIONS: options.Options = dict.fromkeys(("task", "queue", "broker", "accept"), options.TEXT)

KEPT = {"compression", RUN}
"""Workers act upon these headers, so a message's own may not have their names. Celery sets the others itself."""

Send = Callable[[Producer], object]


class Ready(NamedTuple):
    """A task to send."""

    send: Send
    supervised: bool


class CeleryTaskPublisher:
    """Sends tasks. Sent, or handed over, means that the broker has taken the message."""

    green = True
    asks_password = True
    batch_size = 100

    def __init__(self, destination: Destination, settings: Settings) -> None:
        parts, values = urlsplit(destination.url), options.read(destination, OPTIONS)
        broker = values.get("broker") or settings.broker_url or ""
        options.check(
            destination,
            (not parts.netloc and not parts.path, "it must be celery:// with options only, as in celery://?queue=shop"),
            (broker, "it needs a broker: set broker_url"),
        )
        self._destination, self._settings = destination, settings
        self._outbox: str | None = None
        self._planted = False
        self._source = settings.source
        self._accepted = accepted(destination)
        self._task = values.get("task")
        self._queue = destination.queue
        self._app = app_of(destination, settings)
        # Not of Celery's pools: these stay open when the app is closed.
        self._connection = PerProcess[Connection](self._app.connection_for_write)
        try:
            self._app.connection_for_write().transport  # noqa: B018 - loads the client, connects to nothing
        except ConfigurationError as error:
            raise destination.unusable(f"its broker can't be used: {error.rule}") from error
        except (KeyError, ValueError, ImportError) as error:
            raise destination.unusable(f"its broker can't be used: {without_secrets(str(error), broker)}") from error

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """All in one batch where the broker's transport has batches, else one after the other."""
        deadline = time.monotonic() + self._settings.send_timeout
        tasks, outcomes = encoded(messages, self._prepared)
        arrived = {True: Outcome.handed(self._destination.confirm_within), False: Outcome.sent()}
        failed: Outcome | None = None
        try:
            producer = Producer(self._connection.get(), auto_declare=False)
            with dropped_in_trouble(producer):
                self._plant_canary(producer)
                together = getattr(producer, "supports_batch_publish", False)  # kombu has it since 5.7
                with batch(producer, max(1, len(tasks))):
                    for place, task in tasks.items():
                        limit_waits(producer, deadline)
                        task.send(producer)
                        if not together:
                            outcomes[place] = arrived[task.supervised]
        except self._app.trouble as error:
            failed = Outcome.outage(_code(error), str(error))
        rest = {place: failed or arrived[task.supervised] for place, task in tasks.items()}
        return [outcomes.get(place) or rest[place] for place in range(len(messages))]

    def _plant_canary(self, producer: Producer) -> None:
        """Before the first supervised task: the search for lost tasks must know our key from before."""
        if self._outbox is not None and not self._planted:
            plant_canary(producer, canary(self._outbox, self._destination.name))
            self._planted = True

    def close(self) -> None:
        """Close the connection."""
        connection = self._connection.take()
        if connection is not None:
            connection.release()

    def _prepared(self, message: LeasedMessage) -> Ready | Outcome:
        return self._stored(message) if ENVELOPE in checked_headers(message) else self._made(message)

    def _run(self, message: LeasedMessage, *, confirm: bool) -> dict[str, Any]:
        """The header of a supervised task; none for others."""
        if not confirm:
            return {}
        if self._outbox is None:
            self._outbox = identity_of(self._settings)
        return {RUN: run_header(message, self._outbox, self._destination.run_lease)}

    def _stored(self, message: LeasedMessage) -> Ready | Outcome:
        """A task as Celery made it when it was called."""
        try:
            task = TaskMessage.loads(message.headers[ENVELOPE], self._accepted)
            declare = task.entities()
            properties = dict(task.properties)
            expiration = float(properties.pop("expiration")) / 1000 if properties.get("expiration") else None
            if refused := task.misdirection(message.payload, self._destination.queues):
                raise ValueError(refused)
        except UNEXPRESSED as error:
            reason = f"the header {ENVELOPE} is not that of a stored task: {error!r}"
            raise PermanentError(reason, code="bad_task") from error
        if task.expires is not None:
            expiration = (task.expires - datetime.now(UTC)).total_seconds()
            if expiration <= 0:
                return Outcome.discarded("expired", f"it was to be run before {task.expires.isoformat()}")
        task.headers.pop(RUN, None)  # a retry repeats the headers of the run before
        run = self._run(message, confirm=task.confirm or self._destination.supervised)
        send: Send = lambda producer: producer.publish(  # noqa: E731
            message.payload,
            exchange=task.exchange,
            routing_key=task.routing_key,
            content_type=task.content_type,
            content_encoding=task.content_encoding,
            headers=task.headers | trace_headers(message) | run,
            priority=task.priority,
            mandatory=task.mandatory,
            expiration=expiration,
            declare=declare,
            retry=False,
            **properties,
        )
        return Ready(send, bool(run))

    def _made(self, message: LeasedMessage) -> Ready:
        """A task of our own making, with the message as its argument."""
        headers = {f"ce_{name}": value for name, value in attributes(message, self._source).items()}
        headers |= own_headers(message) | trace_headers(message)
        try:
            argument = json.loads(message.payload)
        except (ValueError, RecursionError) as error:
            raise PermanentError(f"a Celery task takes a JSON payload: {error}", code="not_json") from error
        name = self._task or message.event_type
        task = self._app.amqp.create_task_message(message.id, name, (argument,), {}, ignore_result=False)
        # A message's own headers must not pass for Celery's: they could name another task.
        task.headers.update({name: value for name, value in headers.items() if name not in task.headers.keys() | KEPT})
        run = self._run(message, confirm=self._destination.supervised)
        task.headers.update(run)
        send = partial(self._app.amqp.send_task_message, name=name, message=task, queue=self._queue, retry=False)
        return Ready(send, bool(run))


REFUSALS = {"AuthenticationError", "AccessRefused", "NoPermissionError"}
"""What the clients raise for refused credentials."""


def _code(error: BaseException | None) -> str:
    while error is not None:
        if type(error).__name__ in REFUSALS:
            return "unauthorized"
        error = error.__cause__
    return "connection"


def identity_of(settings: Settings) -> str:
    """Which outbox this is. A worker refuses the tasks of another one."""
    database = Database.connect(settings)
    try:
        return str(database.ask("deliver/identity.sql")[0].identity)
    finally:
        database.close()
