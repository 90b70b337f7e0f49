"""The base class of the relay's Celery tasks."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from celery import Task
from celery.utils.functional import firstmethod
from kombu import Exchange

from outbox_tasks.broker.broker import AT_ONCE, Broker, _length
from outbox_tasks.broker.names import WAIT
from outbox_tasks.errors import BrokerUnreachable


class RelayTask(Task):
    """A task of the relay, in whichever app: what that app's configuration says of all tasks does not reach it.

    Nor does the app's own Task class, which may retry or acknowledge in ways of its own. What would be None here,
    Celery would fill in from the configuration.
    """

    abstract = True

    broker: Broker
    home: str
    """Its queue. Celery's own attribute for it is deprecated, and loses against routes."""
    once = False
    """It is not sent while one of it waits in its queue: that one will do."""

    # Acknowledged before it runs: the lease brings a lost task back, an unacknowledged one only comes twice.
    acks_late = reject_on_worker_lost = retry_on_worker_lost = False
    acks_on_failure_or_timeout = acks_on_failure = acks_on_timeout = True
    # The outcome is on the row; a second copy in a result backend would be one more thing to fail.
    ignore_result = True
    store_errors_even_if_ignored = store_eager_result = track_started = False
    serializer = "json"
    rate_limit = priority = 0
    # Long: what it does has limits of its own.
    soft_time_limit, time_limit = 600.0, 660.0

    @classmethod
    def annotate(cls) -> None:
        """Apply what `task_annotations` say of this task by name; a limit on all tasks is not meant for the relay."""
        for name, value in (firstmethod("annotate")(cls.app.annotations, cls) or {}).items():
            if name.startswith("@"):
                cls.add_around(name[1:], value)
            else:
                setattr(cls, name, value)

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

        So do `self.retry` and beat. Raises `BrokerUnreachable`. It never expires: Celery would compare the clocks of
        two hosts. A producer of the caller's is not used: beat's own does not recover from every loss of its channel.
        """
        task_id = task_id or str(uuid4())
        options["ignore_result"] = True
        message = self.app.amqp.as_task_v2(task_id, self.name, args, kwargs, **options)
        headers = {name: value for name, value in (headers or {}).items() if name != WAIT}
        if options.get("countdown") is not None:
            headers[WAIT] = options["countdown"]
        began = time.monotonic()
        try:
            self._send(message, headers)
        except BrokerUnreachable:
            if time.monotonic() - began > AT_ONCE:
                raise
            self._send(message, headers)
        return self.AsyncResult(task_id)

    def _send(self, message: Any, headers: dict[str, Any]) -> None:
        amqp = self.app.amqp
        with self.broker.producer() as producer:
            if self.once and _length(producer, self.home):
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
