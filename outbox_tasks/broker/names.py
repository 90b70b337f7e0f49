"""The names on the broker: tasks, queues, headers and keys. People's routes and dashboards rely on the first two."""

from __future__ import annotations

from outbox_tasks.settings import CLAIM_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE

WAIT = "outbox_wait"
"""The header of a retry: the seconds that it waits after its arrival at a worker. See `worker/message_checks.py`."""

CANARY = "outbox.canary"
"""A key in Redis. If it is gone, so is everything else."""

BEHIND = "outbox.behind"
"""A key in Redis. While it is there, messages wait that are older than what is published now."""

LAST_LANE = 3
"""The last of the lanes in `Bundle.lane`."""

CLAIM_TASK, PUBLISH_TASK, MAINTAIN_TASK = "outbox_tasks.claim", "outbox_tasks.publish", "outbox_tasks.maintain"
"""The tasks' names are a contract."""

BUNDLE_TASK = "outbox_tasks.bundle"
"""Carries several publish tasks in one broker message. People see these tasks, not the bundle."""

TASKS = (CLAIM_TASK, PUBLISH_TASK, MAINTAIN_TASK, BUNDLE_TASK)

BY_BEAT = "outbox_beat"
"""The header of a claim that beat has sent. A nudge's has none."""

IN_TIME = "outbox_in_time"
"""The header of a claim that waits until a message is due."""

QUEUES = (CLAIM_QUEUE, PUBLISH_QUEUE, MAINTAIN_QUEUE)
