"""The tasks' broker of a `celery://` destination: how to send to it, and our key in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import amqp
from kombu import Producer

from outbox_tasks.broker.names import CANARY
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination

log = logging.getLogger(__name__)


def app_of(destination: Destination, settings: Settings) -> PinnedCelery:
    """The app that sends to a destination's broker."""
    broker = destination.option("broker") or settings.broker_url or ""
    # Half of the time limit: connecting counts too.
    app = PinnedCelery("outbox_tasks.destination", broker=broker, settings=settings, timeout=settings.send_timeout / 2)
    app.conf.broker_password = destination.password or app.conf.broker_password
    # The relay decides about retries, and notes them on the row.
    app.conf.broker_transport_options.update(destination.transport_options, retry_on_timeout=False)
    app.conf.broker_use_ssl = app.conf.broker_transport_options.pop("ssl", None)
    return app


def limit_waits(producer: Producer, deadline: float) -> None:
    """Let each wait for RabbitMQ from now on end at the deadline: its client has no limit of its own. Raises
    `TimeoutError`."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("there was no time left to send it")
    connection = getattr(producer.channel, "connection", None)
    if isinstance(connection, amqp.Connection):
        connection.sock.settimeout(remaining)


@contextmanager
def dropped_in_trouble(producer: Producer) -> Iterator[None]:
    """Whatever is raised inside, the connection is not used again: a late confirm would count for another task."""
    try:
        yield
    except BaseException:
        producer.connection.collect()
        raise


def canary(outbox: str, destination: str) -> str:
    """The name of our key in the broker of a destination: several outboxes may share it."""
    return f"{CANARY}.{outbox}.{destination}"


def plant_canary(producer: Producer, key: str) -> frozenset[str] | None:
    """What our key in a Redis holds: random tokens. If there is none, it gets one. After a flush, it is gone, or has
    only other tokens. None for other brokers, and for a Redis where we may not write."""
    client: Any = getattr(producer.channel, "client", None)
    if client is None:
        return None
    # A set, because with `global_keyprefix` kombu prefixes the keys of only some commands.
    try:
        found = frozenset(token.decode() for token in client.smembers(key))
        if not found:
            client.sadd(key, str(uuid4()))
    except producer.connection.channel_errors as error:
        log.debug("could not find out whether the broker has lost its data: %s", error)
        return None
    return found
