"""Celery tasks: `celery://?task=shop.tasks.on_event&queue=shop&broker=redis://…`, one task a message.

Without `task`, the event type is the task's name. Without `broker`, tasks go through the relay's own broker;
without `queue`, to the queue `celery`. The task is called with the payload, decoded from JSON, as its only
argument; its id is the message's id, and the CloudEvents attributes (`ce_id`, `ce_type`, …) and the message's own
headers are its headers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from outbox_tasks.broker import PinnedCelery
from outbox_tasks.errors import ConfigurationError, PermanentError
from outbox_tasks.events import attributes, own_headers
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.settings import HIDDEN, Destination, Settings

OPTIONS = ("task", "queue", "broker")


class CeleryTaskPublisher:
    """Sends tasks. Sent means that the broker has taken the message."""

    def __init__(self, destination: Destination, settings: Settings) -> None:
        setting = f"destinations.{destination.name}.url"
        parts = urlsplit(destination.url)
        options = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.netloc or parts.path or not options.keys() <= set(OPTIONS):
            rule = f"it must be celery:// with the options {', '.join(OPTIONS)}, as in celery://?queue=shop"
            raise ConfigurationError(setting=setting, value=HIDDEN, rule=rule)
        broker = options.get("broker") or settings.broker_url
        if broker is None:
            raise ConfigurationError(setting=setting, value="celery://", rule="it needs a broker: set broker_url")
        self._source = settings.source
        self._task = options.get("task")
        self._queue = options.get("queue", "celery")
        # Half of what a send may take: connecting counts too.
        self._app = PinnedCelery(
            "outbox_tasks.destination", broker=broker, settings=settings, timeout=settings.send_timeout / 2
        )
        try:
            self._app.connection_for_write().transport  # noqa: B018 - loads the client, connects to nothing
        except (KeyError, ValueError, ImportError) as error:
            raise ConfigurationError(
                setting=setting, value=HIDDEN, rule=f"its broker can't be used: {error}"
            ) from error

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """All in one batch where the broker's transport has batches."""
        tasks = [self._prepared(message) for message in messages]
        try:
            with self._app.producer_or_acquire() as producer, producer.batch(max_size=len(tasks)):
                for task in tasks:
                    if not isinstance(task, Outcome):
                        name, message = task
                        self._app.amqp.send_task_message(producer, name, message, queue=self._queue, retry=False)
        except self._app.trouble as error:
            failed = Outcome.retry("connection", str(error))
            return [task if isinstance(task, Outcome) else failed for task in tasks]
        return [task if isinstance(task, Outcome) else Outcome.sent() for task in tasks]

    def close(self) -> None:
        """Close the connections."""
        self._app.close()

    def _prepared(self, message: LeasedMessage) -> tuple[str, Any] | Outcome:
        try:
            headers = {f"ce_{name}": value for name, value in attributes(message, self._source).items()}
            headers |= own_headers(message)
            argument = json.loads(message.payload)
        except PermanentError as error:
            return Outcome.dead(error.code, str(error))
        except ValueError as error:
            return Outcome.dead("not_json", f"a Celery task takes a JSON payload: {error}")
        name = self._task or message.event_type
        task = self._app.amqp.create_task_message(message.id, name, (argument,), {}, ignore_result=False)
        # A message's own headers must not pass for Celery's: they could name another task.
        task.headers.update({name: value for name, value in headers.items() if name not in task.headers})
        return name, task
