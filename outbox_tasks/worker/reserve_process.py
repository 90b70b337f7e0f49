"""While quick sends hold all slots of a destination, a worker reserves its last free process for other destinations.

Otherwise that process would take bundle after bundle of the same destination and find no slot for it, and bundles of
other destinations would wait each time. So the worker then takes only what goes first: see `Bundle.lane`. This needs
the Redis transport, which has a list of its own for each step of priority.
"""

from __future__ import annotations

from typing import Any

from celery.worker import state

from outbox_tasks.internals import choose_redis_steps, redis_steps
from outbox_tasks.settings import PUBLISH_QUEUE
from outbox_tasks.worker.resources import ConsumerStep, Resources

LOOK_AGAIN = 0.01
"""Seconds for which a worker waits for bundles that go first. Then another process may be free."""


class ReserveProcess(ConsumerStep):
    """See the top of this file."""

    def include_if(self, consumer: Any) -> bool:
        return PUBLISH_QUEUE in consumer.app.amqp.queues.consume_from

    def start(self, consumer: Any) -> None:
        steps = redis_steps(consumer)
        if len(steps) > 1:
            choose_redis_steps(consumer, lambda: steps[:1] if self._is_for_others(consumer) else None, LOOK_AGAIN)

    @staticmethod
    def _is_for_others(consumer: Any) -> bool:
        resources: Resources = consumer.app.outbox_relay
        processes = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
        return resources.slots_full.noted and 1 < processes <= len(state.reserved_requests) + 1
