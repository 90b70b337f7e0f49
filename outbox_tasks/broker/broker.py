"""Wakes the claim, enqueues singles and drains, and measures queues at Celery's broker."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import Any
from uuid import uuid4

from celery import Celery
from kombu import Connection, Producer
from kombu.exceptions import ChannelError
from kombu.pools import ProducerPool
from kombu.serialization import prepare_accept_content

from outbox_tasks.broker import stamp
from outbox_tasks.broker.internals import keep_redis_client
from outbox_tasks.broker.names import CLAIM_TASK, DRAIN_TASK, PUBLISH_TASK, queues_of
from outbox_tasks.broker.pinned import ANSWER_SECONDS, transport_options, trouble
from outbox_tasks.broker.places import joined
from outbox_tasks.broker.tls import own_connection
from outbox_tasks.errors import BrokerUnreachable, ConfigurationError, CrossedWires
from outbox_tasks.model import Single, Slot
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.text import redacted, said, without_secrets

log = logging.getLogger(__name__)


FAILED_AT_ONCE_SECONDS = 1.0
"""If a call failed sooner, its connection may have been closed before: a new one is worth a try."""

CLUSTER = "it is a Redis cluster, which Celery can't use; take a Redis without cluster mode, alone or with Sentinel"


class Broker:
    """The relay's side of a Celery app's broker. Every method that talks to it raises `BrokerUnreachable`.

    It has its own connections, by the app's configuration, with our timeouts where that sets none. `timeout` is for
    callers in a hurry, and overrides the app's. It reads the configuration at the first use: that may not be complete
    when the app gets its relay.
    """

    def __init__(self, app: Celery, settings: Settings, *, timeout: float | None = None) -> None:
        self.app = app
        self.settings = settings
        self._timeout = timeout
        self._slow_failures = 0
        """How many calls in a row failed slowly."""
        self._spared_until = 0.0

    def check(self) -> None:
        """Raises `ConfigurationError` if the app's settings for messages and broker rule out the relay's messages."""
        accepted = self.app.conf.accept_content
        if accepted is not None and "application/json" not in prepare_accept_content(accepted):
            rule = "the relay's messages are JSON; add 'json' to it, the application's own may stay as they are"
            raise ConfigurationError(setting="accept_content", value=sorted(accepted), rule=rule)
        connection = self.app.connection_for_read()
        channel = getattr(connection.transport, "Channel", None)
        timeout = connection.transport_options.get("visibility_timeout", getattr(channel, "visibility_timeout", None))
        least = self.settings.least_visibility_timeout
        if timeout is not None and timeout < least:
            rule = f"it must be at least {least:g}, or Redis repeats tasks that only wait (see queue_lease)"
            setting = "broker_transport_options['visibility_timeout']"
            raise ConfigurationError(setting=setting, value=timeout, rule=rule)

    def check_server(self) -> None:
        """Raises `ConfigurationError` if the broker is a Redis cluster. Each of its servers has a part of the keys, and
        kombu asks one server for all queues at once."""
        with self.producer() as producer:
            client: Any = getattr(producer.channel, "client", None)
            with suppress(*producer.connection.channel_errors):  # we may not ask
                if client is not None and client.info("cluster").get("cluster_enabled"):
                    url = redacted(joined(self.app.conf.broker_write_url))
                    raise ConfigurationError(setting="broker_url", value=url, rule=CLUSTER)

    @contextmanager
    def producer(self) -> Iterator[Producer]:
        """A producer on one of the relay's connections. Raises trouble with the broker as `BrokerUnreachable`.

        After two slow failures in a row it fails at once, for as long as the last one took: many slow calls would hold
        up a worker beyond its time limit.
        """
        began = time.monotonic()
        if began < self._spared_until:
            raise self._unreachable("it did not answer a moment ago")
        try:
            with self._producers.acquire(block=True) as producer:
                try:
                    yield producer
                except self._trouble:
                    # Its other sockets may be dead too, and each would take as long.
                    with suppress(Exception):
                        producer.connection.collect(socket_timeout=socket.getdefaulttimeout())
                    raise
        except self._trouble as error:
            took = time.monotonic() - began
            self._slow_failures = self._slow_failures + 1 if took > FAILED_AT_ONCE_SECONDS else 0
            if self._slow_failures > 1:
                self._spared_until = time.monotonic() + min(took, ANSWER_SECONDS)
            raise self._unreachable(said(error).rstrip(".")) from error
        self._slow_failures = 0

    def _unreachable(self, reason: str) -> BrokerUnreachable:
        url = joined(self.app.conf.broker_write_url)
        return BrokerUnreachable(url=url, reason=without_secrets(reason, url))

    def wake_claim(self) -> bool:
        """Send a claim task, unless one waits already: that one will see what we have committed."""
        return self._wake(CLAIM_QUEUE, 1, CLAIM_TASK)

    def wake_drain(self, destination: str) -> bool:
        """Send a drain of a destination, unless ten wait already. It finds a slot by itself, or ends."""
        return self._wake(DRAIN_QUEUE, 10, DRAIN_TASK, destination)

    def _wake(self, queue: str, most: int, name: str, *arguments: str) -> bool:
        with self.producer() as producer:
            if queue_length(producer, queue) >= most:
                return False
            self.enqueue(producer, queue, name, str(uuid4()), arguments)
        return True

    def queued(self) -> int:
        """How many singles wait in the publish queue."""
        with self.producer() as producer:
            return queue_length(producer, PUBLISH_QUEUE)

    def any_waits(self, queues: Iterable[str]) -> bool:
        """Whether a task waits in one of these queues."""
        with self.producer() as producer:
            return any(queue_length(producer, queue) for queue in queues)

    def prefetch_grows(self) -> bool:
        """Whether a worker takes more tasks while tasks wait in it for their time. It can't with quorum queues and on
        RabbitMQ 4: there a consumer's prefetch does not change."""
        if self.app.connection_for_write().transport.driver_type != "amqp":
            return True
        kinds = [(queue.queue_arguments or {}).get("x-queue-type") for queue in self.app.amqp.queues.values()]
        if "quorum" in kinds:
            return False
        with self.producer() as producer:
            version = str(producer.connection.connection.server_properties.get("version", ""))
        return version.split(".")[0] in ("0", "1", "2", "3")

    def has_forgotten(self, outbox: str) -> bool:
        """Whether a Redis has lost its data: somebody emptied it, or it restarted without them. Only the first look
        after the loss returns True, because it leaves the stamp of this outbox. False for other brokers, and for a
        Redis where we may not write.

        Raises `CrossedWires` if the broker has the stamp of another outbox.
        """
        with self.producer() as producer:
            owner = stamp.leave(producer, outbox)
        self.check_owner(owner, outbox)
        return owner is None

    def check_owner(self, owner: str | None, outbox: str) -> None:
        """Raises `CrossedWires` if the broker's stamp names another outbox than this one."""
        if owner not in (None, outbox):
            broker = redacted(joined(self.app.conf.broker_write_url))
            raise CrossedWires(broker=broker, owner=owner, outbox=outbox)

    def adopt(self, outbox: str) -> str | None:
        """Leave the stamp of this outbox, whatever stamp is there. Returns the stamp that was there."""
        with self.producer() as producer:
            before = stamp.look(producer, outbox)
            stamp.replace(producer, outbox)
        return before

    def lengths(self) -> dict[str, int]:
        """How many of Celery's messages wait in each of the relay's queues."""
        with self.producer() as producer:
            return {queue: queue_length(producer, queue) for queue in queues_of(self.settings)}

    def send(self, singles: Sequence[Single], slots: Sequence[Slot]) -> None:
        """Enqueue the tasks, all in one batch where the transport has batches."""
        with self.producer() as producer, batch(producer, 500):
            for slot in slots:
                self.enqueue(producer, DRAIN_QUEUE, DRAIN_TASK, str(uuid4()), (slot.destination, slot.token))
            for single in singles:
                arguments = (single.event_type, single.destination, single.attempts, single.token)
                more = {"more": True} if single.more else {}
                # The task's id is that of the message. Without `expires`, which Celery compares with the clock of
                # another host.
                self.enqueue(producer, PUBLISH_QUEUE, PUBLISH_TASK, single.id, arguments, more, retries=single.attempts)

    def enqueue(
        self,
        producer: Producer,
        queue: str,
        name: str,
        task_id: str,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
        **headers: Any,
    ) -> None:
        """Do what `apply_async` does in the end, without its detours: this runs for every single. The app's
        `task_routes`, `task_protocol` and the like do not apply.
        """
        keep_redis_client(producer.channel)
        shown = {"argsrepr": repr(arguments), "kwargsrepr": repr(keywords or {})}
        message = self.app.amqp.as_task_v2(
            task_id, name, arguments, keywords or {}, ignore_result=True, **shown, **headers
        )
        producer.publish(
            message.body,
            # By the queue's name: a flush of Redis deletes the bindings of a named exchange, which then drops messages.
            exchange="",
            routing_key=queue,
            serializer="json",
            headers=message.headers,
            **message.properties,
        )

    def connection(self) -> Connection:
        """A connection like the relay's, not yet open, and not from its pool."""
        conf = self.app.conf
        given, timeout = conf.broker_transport_options, self._timeout
        ours = transport_options(joined(conf.broker_write_url), self.settings, timeout=timeout or ANSWER_SECONDS)
        options = {**ours, **given} if timeout is None else {**given, **ours}
        return own_connection(self.app, transport_options=options, connect_timeout=timeout)

    def close(self) -> None:
        """Close its connections."""
        if "_producers" in vars(self):
            self._producers.connections.force_close_all()

    @cached_property
    def _producers(self) -> ProducerPool:
        limit = self.app.conf.broker_pool_limit
        return ProducerPool(self.connection().Pool(limit=limit), limit=limit)

    @cached_property
    def _trouble(self) -> tuple[type[BaseException], ...]:
        return trouble(self.app.connection_for_write())


def batch(producer: Producer, size: int) -> AbstractContextManager[Any]:
    """Inside, up to `size` messages are sent together, where kombu (since 5.7) and the transport have batches."""
    return producer.batch(max_size=size) if hasattr(producer, "batch") else nullcontext()


def queue_length(producer: Producer, queue: str) -> int:
    """How many messages wait in a queue."""
    keep_redis_client(producer.channel)
    # RabbitMQ closes a channel that asks for a queue that is not there. A new one takes long on Redis.
    is_redis = hasattr(producer.channel, "client")
    try:
        with nullcontext(producer.channel) if is_redis else producer.connection.channel() as channel:
            return int(channel.queue_declare(queue=queue, passive=True).message_count)
    except ChannelError:  # an empty queue does not exist
        return 0
