"""Wakes the tasks that copy feeds."""

from __future__ import annotations

from uuid import uuid4

from outbox_tasks.broker.broker import Broker, queue_length
from outbox_tasks.broker.names import FEED_TASK, NUDGED
from outbox_tasks.settings import FEED_QUEUE

NUDGED_FOR = 1.0
"""Seconds after which a task that was sent and has not begun is taken for lost."""

MANY = 100
"""So many tasks wait, of whichever feeds, that no more is sent: perhaps nobody takes them. Beat looks too."""


def wake_feed(broker: Broker, name: str) -> bool:
    """Send a feed's task, unless one waits already: that one will see what we have committed. Only a Redis
    can tell of which feed those are that wait. Raises `BrokerUnreachable`."""
    with broker.producer() as producer:
        client = getattr(producer.channel, "client", None)
        waits = client is not None and not client.set(NUDGED + name, 1, nx=True, px=round(NUDGED_FOR * 1000))
        waits = waits or queue_length(producer, FEED_QUEUE) >= MANY
        if not waits:
            broker.enqueue(producer, FEED_QUEUE, FEED_TASK, str(uuid4()), (name,))
    return not waits


def feed_begins(broker: Broker, name: str) -> None:
    """Its task begins, and has not looked yet: what is committed from now on needs another one. Raises
    `BrokerUnreachable`."""
    with broker.producer() as producer:
        if (client := getattr(producer.channel, "client", None)) is not None:
            client.delete(NUDGED + name)
