"""The base class of the relay's Celery tasks."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

from celery import Task
from kombu import Exchange

from outbox_tasks.broker.broker import Broker, queue_length
from outbox_tasks.broker.internals import limit_only_tasks
from outbox_tasks.broker.names import BY_BEAT, WAIT
from outbox_tasks.errors import BrokerUnreachable

log = logging.getLogger(__name__)


class RelayTask(Task):
    """A task of the relay. Neither its app's configuration for all tasks nor the app's own Task class applies to it:
    they may retry or acknowledge in other ways. Celery would replace a None here by the configuration's value.
    """

    abstract = True

    broker: Broker
    home: str
    """Its queue. Celery's own attribute for it is deprecated, and routes override it."""
    once = False
    """It is not sent while its queue already holds one."""

    # Acknowledged before it runs: the lease brings a lost task back, late acknowledgement would only repeat tasks.
    acks_late = reject_on_worker_lost = retry_on_worker_lost = False
    acks_on_failure_or_timeout = acks_on_failure = acks_on_timeout = True
    # The row has the outcome. A copy in a result backend would be one more thing that can fail.
    ignore_result = True
    store_errors_even_if_ignored = store_eager_result = track_started = False
    serializer = "json"
    rate_limit = priority = 0
    # Long: each step of it has limits of its own.
    soft_time_limit, time_limit = 600.0, 660.0

    def before_start(self, *_: Any) -> None:
        """Celery calls this as the task begins."""
        limit_only_tasks()

    @classmethod
    def annotate(cls) -> None:
        """The application's `task_annotations` are not meant for the relay."""

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        headers: Any = None,
        expires: Any = None,
        **options: Any,
    ) -> Any:
        """Send it to its own queue, whatever the app's routes, default exchange or `task_always_eager` say.

        `self.retry` and beat use it too. Raises `BrokerUnreachable`; beat, which tries again, gets None instead: it
        would log a traceback each second.
        The task never expires: Celery would compare the clocks of two hosts. It ignores the caller's producer: beat's
        does not recover from every loss of its channel.
        """
        task_id = task_id or str(uuid4())
        options["ignore_result"] = True
        message = self.app.amqp.as_task_v2(task_id, self.name, args, kwargs, **options)
        headers = dict(headers or {})
        if options.get("countdown") is not None:
            headers[WAIT] = options["countdown"]
        try:
            self._send(message, headers)
        except BrokerUnreachable as error:
            if not headers.get(BY_BEAT):
                raise
            log.error("beat can't send %s, and tries again: %s", self.name, error)
            return None
        return self.AsyncResult(task_id)

    def _send(self, message: Any, headers: dict[str, Any]) -> None:
        amqp = self.app.amqp
        with self.broker.producer() as producer:
            if self.once and queue_length(producer, self.home):
                return
            amqp.send_task_message(
                producer,
                self.name,
                message,
                # By the queue's name: see `Broker`.
                queue=amqp.queues[self.home],
                exchange="",
                exchange_type="direct",
                headers=headers,
                serializer=self.serializer,
                priority=self.priority,
                delivery_mode=Exchange.PERSISTENT_DELIVERY_MODE,
                retry=False,
            )
