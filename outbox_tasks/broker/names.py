"""The names on the broker: tasks, queues, headers and keys. People's routes and dashboards rely on the first two."""

from __future__ import annotations

from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, FEED_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE, Settings

WAIT = "outbox_wait"
"""The header of a retry: the seconds that it waits after its arrival at a worker. See `worker/message_checks.py`."""

STAMP = "outbox.stamp"
"""Says which outbox the broker's relay serves: a key in Redis, an exchange in RabbitMQ. See `broker/stamp.py`."""

CANARY = "outbox.canary"
"""The beginning of a key in the Redis of a destination. If the key is gone, Redis has lost its data."""

NUDGED = "outbox.nudged."
"""A key in Redis, with the name of a feed. While it is there, a task of this feed waits."""

CLAIM_TASK, PUBLISH_TASK, DRAIN_TASK = "outbox_tasks.claim", "outbox_tasks.publish", "outbox_tasks.drain"
MAINTAIN_TASK = "outbox_tasks.maintain"
"""The tasks' names are a contract."""

FEED_TASK = "outbox_tasks.feed"
"""Copies the rows of a feed, by the feed's name."""

TASKS = (CLAIM_TASK, PUBLISH_TASK, DRAIN_TASK, MAINTAIN_TASK, FEED_TASK)

BY_BEAT = "outbox_beat"
"""The header of a task that beat has sent. A claim by a nudge has none."""

QUEUES = (CLAIM_QUEUE, PUBLISH_QUEUE, DRAIN_QUEUE, MAINTAIN_QUEUE)

ALL_QUEUES = (*QUEUES, FEED_QUEUE)
"""Also that of feeds, which a site may not have."""


def queues_of(settings: Settings) -> tuple[str, ...]:
    """The queues that a site needs workers for."""
    return ALL_QUEUES if settings.feeds else QUEUES
