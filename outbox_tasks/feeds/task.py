"""The task that copies a feed. Each feed has its own, so one in trouble holds up no other."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from outbox_tasks.broker.names import FEED_TASK
from outbox_tasks.errors import BrokerUnreachable, ConfigurationError, DatabaseUnavailable
from outbox_tasks.feeds.bridge import bridge
from outbox_tasks.feeds.feed_list import FeedList
from outbox_tasks.feeds.nudge import feed_begins, wake_feed
from outbox_tasks.feeds.store import Feeds
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import FEED_QUEUE
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)


def add_feed(resources: Resources, common: Mapping[str, Any]) -> None:
    """Add the task to the app."""
    lists = PerProcess(lambda: FeedList(resources.store))

    def close() -> None:
        if (feeds := lists.take()) is not None:
            feeds.close()

    resources.before_close.append(close)

    @resources.app.task(name=FEED_TASK, home=FEED_QUEUE, **common)
    def outbox_feed(name: str | None = None) -> str:
        try:
            return _wake_all(resources, lists.get()) if name is None else _copy(resources, lists.get(), name)
        except (DatabaseUnavailable, BrokerUnreachable, ConfigurationError) as error:
            log.warning("%s", error)
            return "not done"


def _wake_all(resources: Resources, feeds: FeedList) -> str:
    """Send a task for each feed that nobody copies, and whose source did not fail just now."""
    names = Feeds(resources.store).wanted(list(feeds.places()))
    return f"woke {sum(wake_feed(resources.broker, name) for name in names)} of {len(names)}"


def _copy(resources: Resources, feeds: FeedList, name: str) -> str:
    feed_begins(resources.broker, name)
    source = feeds.source(name)
    if source is None:
        log.warning("there is no feed %r in the settings of this worker", name)
        return "unknown"

    def wake() -> None:
        with suppress(BrokerUnreachable):  # beat's next claim does it
            resources.broker.wake_claim()

    done = bridge(Feeds(resources.store), source, resources.settings, wake=wake)
    if done.more:
        with suppress(BrokerUnreachable):  # beat's next one does it
            wake_feed(resources.broker, name)
    return f"copied {done.copied}, {done.dead} dead"
