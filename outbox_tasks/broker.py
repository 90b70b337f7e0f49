"""What the relay asks of Celery's broker: waking the claim, handing on bundles, how much is queued, retries."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from celery import Celery, Task
from celery.utils.functional import firstmethod
from kombu import Connection, Exchange, Producer
from kombu.exceptions import ChannelError, KombuError
from kombu.pools import ProducerPool
from kombu.serialization import prepare_accept_content

from outbox_tasks.errors import BrokerUnreachable, ConfigurationError
from outbox_tasks.model import Bundle
from outbox_tasks.settings import CLAIM_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.shown import redacted, without_secrets

log = logging.getLogger(__name__)

CLAIM_TASK, PUBLISH_TASK, MAINTAIN_TASK = "outbox_tasks.claim", "outbox_tasks.publish", "outbox_tasks.maintain"
"""The tasks' names are a contract."""

BUNDLE_TASK = "outbox_tasks.bundle"
"""Carries several publish tasks in one broker message; on its arrival it counts as those, not as itself."""


BY_BEAT = "outbox_beat"
"""The header of a claim that beat has sent, and not a nudge."""

WAIT = "outbox_wait"
"""The header of a retry: for how many seconds it waits, from its arrival at a worker on. See `arrivals`."""

QUEUES = (CLAIM_QUEUE, PUBLISH_QUEUE, MAINTAIN_QUEUE)

CANARY = "outbox.canary"
"""A key in Redis that is gone when all else is."""

LAST_LANE = 3
"""Of the lanes of `Bundle.lane`."""

REDIS, DEFAULTS = ("redis", "rediss", "valkey", "valkeys"), {"redis": ("6379", "0"), "amqp": ("5672", "")}
"""Schemes that mean a Redis, and what port and database a URL means that names none."""

PATIENCE = 3.0
"""Seconds that Redis has to answer. Of connections that died silently, each is waited for, one after another."""

AT_ONCE = 1.0
"""Seconds. What failed sooner may have met a connection that was closed meanwhile: a new one is worth trying."""


def is_redis(broker_url: str) -> bool:
    """Whether kombu's Redis transport, or that for its sentinels, takes this URL."""
    return broker_url.startswith(("redis", "sentinel", "valkey"))


def transport_options(broker_url: str, settings: Settings, *, timeout: float = PATIENCE) -> dict[str, Any]:
    """kombu's transport options for a broker. With the defaults a half-open connection hangs a worker for good."""
    # kombu would wait for two seconds before it connects again: what is refused goes back to the table instead.
    connecting = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
    if not is_redis(broker_url):
        return connecting | ({"confirm_publish": True} if broker_url.startswith(("amqp", "pyamqp")) else {})
    return connecting | {
        "visibility_timeout": settings.visibility_timeout,
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, PATIENCE),
        "socket_keepalive": True,
        "health_check_interval": 3,
        # Not noted in Redis as unacknowledged: the lease brings a lost task back, long before the visibility timeout
        # would. And a Redis that is full, or hangs, refused the notes: that ended workers, or used up their prefetch.
        "ack_emulation": False,
    }


class PinnedCelery(Celery):  # type: ignore[misc]
    """An app that uses the broker it was made with.

    Others prefer CELERY_BROKER_URL, which in an application's environment names the application's broker.
    """

    def __init__(self, name: str, *, broker: str, settings: Settings, timeout: float = PATIENCE) -> None:
        super().__init__(name, broker=broker, set_as_current=False)
        self.pinned_broker = broker
        given = settings.broker_transport_options if broker == settings.broker_url else {}
        self.conf.update(
            broker_url=broker,
            # Short socket timeouts and health checks: a half-open connection would hang a worker for good, silently.
            broker_transport_options=transport_options(broker, settings, timeout=timeout) | given,
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
        """What may be raised when the broker does not answer or refuses."""
        return trouble(self.connection_for_write())

    def _chosen(self, url: str | None) -> str:
        """The pinned broker, unless somebody asks for one that is not just what Celery takes for the default."""
        defaults = (None, self.conf.broker_url, self.conf.broker_read_url, self.conf.broker_write_url)
        return self.pinned_broker if url in defaults else str(url)


class Broker:
    """The relay's side of a Celery app's broker. Every method that talks to it raises `BrokerUnreachable`.

    It has connections of its own, by the app's configuration, with our timeouts where that sets none. `timeout` is for
    callers in a hurry, and goes before the app's. The configuration is not looked at before the first use: it may not
    be complete when the app gets its relay.
    """

    def __init__(self, app: Celery, settings: Settings, *, timeout: float | None = None) -> None:
        self.app = app
        self.settings = settings
        self._timeout = timeout
        self._slow = 0
        """Calls in a row for whose failure we had to wait."""
        self._spared = 0.0

    def check(self) -> None:
        """Raises `ConfigurationError` if what the app says of its messages and its broker rules out the relay's."""
        accepted = self.app.conf.accept_content
        if accepted is not None and "application/json" not in prepare_accept_content(accepted):
            rule = "the relay's messages are JSON; add 'json' to it, the application's own may stay as they are"
            raise ConfigurationError(setting="accept_content", value=sorted(accepted), rule=rule)
        connection = self.app.connection_for_read()
        channel = getattr(connection.transport, "Channel", None)
        timeout = connection.transport_options.get("visibility_timeout", getattr(channel, "visibility_timeout", None))
        if timeout is not None:
            try:
                self.settings.replace(visibility_timeout=timeout)
            except ConfigurationError as error:
                setting = "broker_transport_options['visibility_timeout']"
                raise ConfigurationError(setting=setting, value=timeout, rule=error.rule) from None

    @contextmanager
    def producer(self) -> Iterator[Producer]:
        """A producer on one of the relay's connections. Trouble with the broker is raised as `BrokerUnreachable`.

        One that has let us wait twice in a row is then spared for as long: many calls, one after another, would hold up
        a worker beyond its time limit.
        """
        began = time.monotonic()
        if began < self._spared:
            raise self._unreachable("it did not answer a moment ago")
        try:
            wait = getattr(self.app.conf, "broker_pool_acquire_timeout", None)  # Celery has it since 5.7
            with self._producers.acquire(block=True, timeout=wait) as producer:
                try:
                    yield producer
                except self._trouble:
                    # Its other sockets may be as dead, and each would have to be waited for.
                    with suppress(Exception):
                        producer.connection.collect(socket_timeout=socket.getdefaulttimeout())
                    raise
        except self._trouble as error:
            took = time.monotonic() - began
            self._slow = self._slow + 1 if took > AT_ONCE else 0
            if self._slow > 1:
                self._spared = time.monotonic() + min(took, PATIENCE)
            raise self._unreachable(str(error).rstrip(".")) from error
        self._slow = 0

    def _unreachable(self, reason: str) -> BrokerUnreachable:
        url = joined(self.app.conf.broker_write_url)
        return BrokerUnreachable(url=redacted(url), reason=without_secrets(reason, url))

    def wake_claim(self) -> bool:
        """Send a claim task, unless one is waiting already: that one will see what we have committed."""
        with self.producer() as producer:
            if _length(producer, CLAIM_QUEUE):
                return False
            self._enqueue(producer, CLAIM_QUEUE, CLAIM_TASK, str(uuid4()))
        return True

    def waiting(self) -> int:
        """Messages queued for the publish workers: at most; a bundle counts as a full one."""
        with self.producer() as producer:
            return _length(producer, PUBLISH_QUEUE) * self.settings.bundle_size

    def has_forgotten(self) -> bool:
        """Whether a Redis has lost what it knew: it was emptied, or has started anew without its data. It says so once,
        to whoever asks first. Other brokers never say so, nor does a Redis where we may not write our key."""
        with self.producer() as producer:
            client = getattr(producer.channel, "client", None)
            try:
                return client is not None and bool(client.set(CANARY, 1, nx=True))
            except producer.connection.channel_errors as error:
                log.debug("no sign of what the broker remembers: %s", error)
                return False

    def lengths(self) -> dict[str, int]:
        """How many of Celery's messages wait in each of the relay's queues."""
        with self.producer() as producer:
            return {queue: _length(producer, queue) for queue in QUEUES}

    def send(self, bundles: Sequence[Bundle]) -> None:
        """Enqueue bundles, all in one batch where the transport has batches."""
        with self.producer() as producer, batch(producer, 500):
            for bundle in bundles:
                self._publish(producer, bundle)

    def _publish(self, producer: Producer, bundle: Bundle) -> None:
        # Without `expires`, which Celery compares with the clock of another host: begin finds out what is stale.
        if len(bundle.tickets) == 1:
            ticket = bundle.tickets[0]
            name, task_id = PUBLISH_TASK, ticket.id
            arguments: tuple[Any, ...] = publish_arguments(bundle, ticket.event_type, ticket.attempt)
            retries = ticket.attempt
        else:
            name, task_id, retries = BUNDLE_TASK, str(uuid4()), 0
            arguments = (bundle.destination, bundle.lease, [ticket[:3] for ticket in bundle.tickets])
        self._enqueue(
            producer,
            PUBLISH_QUEUE,
            name,
            task_id,
            arguments,
            {name: True for name in ("more", "gather") if getattr(bundle, name)},
            retries=retries,
            lane=bundle.lane,
            argsrepr=repr(arguments) if name == PUBLISH_TASK else f"{bundle.destination}: {len(bundle.tickets)}",
            kwargsrepr="{}",
        )

    def _enqueue(
        self,
        producer: Producer,
        queue: str,
        name: str,
        task_id: str,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
        *,
        lane: int = 0,
        **headers: Any,
    ) -> None:
        """What `apply_async` does in the end, without its detours: it is called for every message.

        Nor do the app's `task_routes`, `task_protocol` and the like have a say.
        """
        message = self.app.amqp.as_task_v2(task_id, name, arguments, keywords, ignore_result=True, **headers)
        producer.publish(
            message.body,
            # By the queue's name: a named exchange loses its bindings, and then messages silently, in a flush.
            exchange="",
            routing_key=queue,
            serializer="json",
            headers=message.headers,
            priority=_priority(producer, lane),
            **message.properties,
        )

    def connection(self) -> Connection:
        """A connection as the relay's are, not yet open, and not one of its pool."""
        conf = self.app.conf
        given, timeout = conf.broker_transport_options, self._timeout
        ours = transport_options(joined(conf.broker_write_url), self.settings, timeout=timeout or PATIENCE)
        options = {**ours, **given} if timeout is None else {**given, **ours}
        made: Connection = self.app.connection_for_write(transport_options=options, connect_timeout=timeout)
        return made

    @cached_property
    def _producers(self) -> ProducerPool:
        limit = self.app.conf.broker_pool_limit if self._timeout is None else 1
        return ProducerPool(self.connection().Pool(limit=limit), limit=limit)

    @cached_property
    def _trouble(self) -> tuple[type[BaseException], ...]:
        return trouble(self.app.connection_for_write())


class RelayTask(Task):  # type: ignore[misc]
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


def batch(producer: Producer, size: int) -> AbstractContextManager[Any]:
    """Inside, up to `size` messages are sent together, where kombu (since 5.7) and the transport have batches."""
    return producer.batch(max_size=size) if hasattr(producer, "batch") else nullcontext()


def trouble(connection: Connection) -> tuple[type[BaseException], ...]:
    """What may be raised when the broker does not answer or refuses; each transport has errors of its own."""
    transport = connection.transport
    own = (*transport.connection_errors, *transport.channel_errors)
    # Of these, kombu counts KeyError as trouble of the connection; here it would hide our own mistakes.
    return (KombuError, OSError, *(kind for kind in own if kind is not KeyError))


def same_place(one: str, other: str) -> bool:
    """Whether two broker URLs lead to the same place, whoever logs in there."""
    return one == other or not _places(one).isdisjoint(_places(other))


def _places(broker_url: str) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for url in broker_url.split(";"):
        parts = urlsplit(url)
        kind = "amqp" if "amqp" in parts.scheme else "redis" if parts.scheme in REDIS else parts.scheme
        port, place = DEFAULTS.get(kind, ("", ""))
        address = parts.netloc.rpartition("@")[2].lower()
        host, colon, given = address.rpartition(":")
        if not colon or not given.isdecimal():
            host, given = address, port
        found.add((kind, host, given, parts.path.strip("/") or place))
    return found


def joined(broker_url: str | Sequence[str] | None) -> str:
    """A broker's URL as Celery's configuration may have it, several or none, in one text that kombu takes as well."""
    return broker_url if isinstance(broker_url, str) else ";".join(broker_url or ())


def publish_arguments(bundle: Bundle, event_type: str, attempt: int) -> tuple[str, str, int, str]:
    """The arguments of a publish task, whose id is the message's id; people read them in Flower."""
    return event_type, bundle.destination, attempt, bundle.lease


def _priority(producer: Producer, lane: int) -> int:
    """Redis counts from the front, and keeps each step in a list of its own; AMQP counts from the back, and only where
    the queue was made for priorities."""
    steps = getattr(producer.channel, "priority_steps", None)
    return int(steps[min(lane, len(steps) - 1)]) if steps else LAST_LANE - lane


def _length(producer: Producer, queue: str) -> int:
    if hasattr(producer.channel, "client"):  # Redis: one round trip instead of the two that kombu's public way takes
        return int(producer.channel._size(queue))
    try:
        # On a channel of its own, which RabbitMQ closes if there is no such queue.
        with producer.connection.channel() as channel:
            return int(channel.queue_declare(queue=queue, passive=True).message_count)
    except ChannelError:  # an empty queue does not exist
        return 0
