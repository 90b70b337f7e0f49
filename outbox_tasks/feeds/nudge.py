"""Wakes the tasks that copy feeds."""

from __future__ import annotations

from uuid import uuid4

from outbox_tasks.broker.broker import Broker, queue_length
from outbox_tasks.broker.names import FEED_TASK, NUDGED
from outbox_tasks.settings import FEED_QUEUE

BEGIN_SECONDS = 1.0
"""A task of a feed that has not begun after so many seconds is taken for lost."""

WAITING_TASKS_AT_MOST = 100
"""If so many tasks of feeds wait, no more are sent: perhaps nobody takes them. Beat wakes feeds too."""


def wake_feed(broker: Broker, name: str) -> bool:
    """Send the task of a feed, unless one waits already: that task will see the rows that are committed now. Only Redis
    can tell to which feed a waiting task belongs. Returns whether it was sent. Raises `BrokerUnreachable`."""
    with broker.producer() as producer:
        client = getattr(producer.channel, "client", None)
        waits = client is not None and not client.set(NUDGED + name, 1, nx=True, px=round(BEGIN_SECONDS * 1000))
        waits = waits or queue_length(producer, FEED_QUEUE) >= WAITING_TASKS_AT_MOST
        if not waits:
            broker.enqueue(producer, FEED_QUEUE, FEED_TASK, str(uuid4()), (name,))
    return not waits


def feed_begins(broker: Broker, name: str) -> None:
    """The task of a feed begins, and has not looked yet. Rows that are committed from now on need another task. Raises
    `BrokerUnreachable`."""
    with broker.producer() as producer:
        if (client := getattr(producer.channel, "client", None)) is not None:
            client.delete(NUDGED + name)
