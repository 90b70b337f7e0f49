"""What the relay asks of Celery's broker: waking the claim, handing on bundles, and how much is queued."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import uuid4

from celery import Celery
from kombu import Connection, Producer
from kombu.exceptions import ChannelError, KombuError

from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.model import Bundle
from outbox_tasks.settings import CLAIM_QUEUE, PUBLISH_QUEUE, Settings, redacted

CLAIM_TASK, PUBLISH_TASK, MAINTAIN_TASK = "outbox_tasks.claim", "outbox_tasks.publish", "outbox_tasks.maintain"
"""The tasks' names are a contract."""

BUNDLE_TASK = "outbox_tasks.bundle"
"""Carries several publish tasks in one broker message; on its arrival it counts as those, not as itself."""


def transport_options(broker_url: str, settings: Settings, *, timeout: float = 5.0) -> dict[str, Any]:
    """kombu's transport options for a broker. With the defaults a half-open connection hangs a worker for good."""
    # kombu would wait for two seconds before it connects again: what is refused goes back to the table instead.
    connecting = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
    if not broker_url.startswith(("redis", "sentinel", "valkey")):
        return connecting | ({"confirm_publish": True} if broker_url.startswith(("amqp", "pyamqp")) else {})
    return connecting | {
        "visibility_timeout": settings.visibility_timeout,
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, 5.0),
        "socket_keepalive": True,
        "health_check_interval": 5,
    }


class PinnedCelery(Celery):  # type: ignore[misc]
    """An app that uses the broker it was made with.

    Others prefer CELERY_BROKER_URL, which in an application's environment names the application's broker.
    """

    def __init__(self, name: str, *, broker: str, settings: Settings, timeout: float = 5.0) -> None:
        super().__init__(name, broker=broker, set_as_current=False)
        self.pinned_broker = broker
        self.conf.update(
            broker_url=broker,
            # Short socket timeouts and health checks: a half-open connection would hang a worker for good, silently.
            broker_transport_options=transport_options(broker, settings, timeout=timeout),
            broker_connection_timeout=min(timeout, 5.0),
        )

    def connection_for_write(self, url: str | None = None, **options: Any) -> Connection:
        """A connection for sending."""
        connection: Connection = super().connection_for_write(self._chosen(url), **options)
        return connection

    def connection_for_read(self, url: str | None = None, **options: Any) -> Connection:
        """A connection for receiving."""
        connection: Connection = super().connection_for_read(self._chosen(url), **options)
        return connection

    @cached_property
    def trouble(self) -> tuple[type[BaseException], ...]:
        """What may be raised when the broker does not answer or refuses; each transport has errors of its own."""
        transport = self.connection_for_write().transport
        own = (*transport.connection_errors, *transport.channel_errors)
        # Of these, kombu counts KeyError as trouble of the connection; here it would hide our own mistakes.
        return (KombuError, OSError, *(kind for kind in own if kind is not KeyError))

    def _chosen(self, url: str | None) -> str:
        """The pinned broker, unless somebody asks for one that is not just what Celery takes for the default."""
        defaults = (None, self.conf.broker_url, self.conf.broker_read_url, self.conf.broker_write_url)
        return self.pinned_broker if url in defaults else str(url)


class Broker:
    """The relay's side of a Celery app's broker. Every method raises `BrokerUnreachable`."""

    def __init__(self, app: PinnedCelery, settings: Settings) -> None:
        self.app = app
        self.settings = settings

    def wake_claim(self) -> bool:
        """Send a claim task, unless one is waiting already: that one will see what we have committed."""
        try:
            with self.app.producer_or_acquire() as producer:
                if _length(producer, CLAIM_QUEUE):
                    return False
                self.app.send_task(
                    CLAIM_TASK,
                    queue=CLAIM_QUEUE,
                    expires=self.settings.claim_expires,
                    ignore_result=True,
                    producer=producer,
                    retry=False,
                )
        except self.app.trouble as error:
            raise self._unreachable(error) from error
        return True

    def waiting(self) -> int:
        """Messages queued for the publish workers: at most; a bundle counts as a full one."""
        try:
            with self.app.producer_or_acquire() as producer:
                return _length(producer, PUBLISH_QUEUE) * self.settings.bundle_size
        except self.app.trouble as error:
            raise self._unreachable(error) from error

    def send(self, bundles: Sequence[Bundle]) -> None:
        """Enqueue bundles, all in one batch where the transport has batches."""
        try:
            # As text: Celery would work it out for each message anew, time zones and all.
            expires = (datetime.now(UTC) + timedelta(seconds=self.settings.queue_lease)).isoformat()
            with self.app.producer_or_acquire() as producer, producer.batch(max_size=500):
                for bundle in bundles:
                    self._publish(producer, bundle, expires)
        except self.app.trouble as error:
            raise self._unreachable(error) from error

    def _publish(self, producer: Producer, bundle: Bundle, expires: str) -> None:
        """What `apply_async` does in the end, without its detours: it is called for every message."""
        if len(bundle.tickets) == 1:
            ticket = bundle.tickets[0]
            name, task_id = PUBLISH_TASK, ticket.id
            arguments: tuple[Any, ...] = publish_arguments(bundle, ticket.event_type, ticket.attempt)
            retries = ticket.attempt
        else:
            name, task_id, retries = BUNDLE_TASK, str(uuid4()), 0
            arguments = (bundle.destination, bundle.lease, bundle.tickets)
        message = self.app.amqp.create_task_message(
            task_id,
            name,
            arguments,
            {name: True for name in ("more", "gather") if getattr(bundle, name)},
            expires=expires,
            retries=retries,
            argsrepr=repr(arguments) if name == PUBLISH_TASK else f"{bundle.destination}: {len(bundle.tickets)}",
            kwargsrepr="{}",
            ignore_result=True,
        )
        producer.publish(
            message.body,
            # By the queue's name: a named exchange loses its bindings, and then messages silently, in a flush.
            exchange="",
            routing_key=PUBLISH_QUEUE,
            serializer="json",
            headers=message.headers,
            **message.properties,
        )

    def _unreachable(self, error: BaseException) -> BrokerUnreachable:
        return BrokerUnreachable(url=redacted(self.app.conf.broker_url or ""), reason=error)


def publish_arguments(bundle: Bundle, event_type: str, attempt: int) -> tuple[str, str, int, str]:
    """The arguments of a publish task, whose id is the message's id; people read them in Flower."""
    return event_type, bundle.destination, attempt, bundle.lease


def _length(producer: Producer, queue: str) -> int:
    client = getattr(producer.channel, "client", None)
    if client is not None:  # Redis: one round trip instead of the two that kombu's way takes
        return int(client.llen(queue))
    try:
        return int(producer.channel.queue_declare(queue=queue, passive=True).message_count)
    except ChannelError:  # an empty queue does not exist
        return 0
