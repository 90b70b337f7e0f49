"""What feeds add to the relay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from outbox_tasks.satellites import Command, Satellite


class Feeds(Satellite):
    tables = "feeds/tables.sql"
    rights: ClassVar = {
        "feeds": {"relay": ("SELECT", "INSERT", "UPDATE", "DELETE"), "operator": ("SELECT",), "reader": ("SELECT",)},
        "copied": {"relay": ("SELECT", "INSERT", "UPDATE", "DELETE")},
    }
    commands: ClassVar = {
        "feed": Command("Run it", "Copy messages from applications' own databases.", "outbox_tasks.feeds.command")
    }

    def check_settings(self, settings: Any) -> None:
        if settings.feeds:
            from outbox_tasks.feeds.place import check_settings

            check_settings(settings)

    def writer(self, settings: Any, feed: Any, nudge: Any) -> Any:
        """What `Outbox(feed=…)` writes with."""
        from outbox_tasks.feeds.writer import FeedWriter

        return FeedWriter(settings, feed, nudge)

    def upgrade(self, connection: Any, schema: str | None) -> None:
        """See `migrations.upgrade_feed`."""
        from outbox_tasks.feeds.tables import upgrade

        upgrade(connection, schema)

    def wake(self, broker: Any, name: str) -> None:
        """Wake the task of a feed, for a nudge. Raises `BrokerUnreachable`."""
        from outbox_tasks.feeds.nudge import wake_feed

        wake_feed(broker, name)

    def register(self, resources: Any, common: Mapping[str, Any]) -> None:
        from outbox_tasks.feeds.task import add_feed

        add_feed(resources, common)

    def copy(self, store: Any, stop: Callable[[], bool]) -> bool:
        if not store.settings.feeds:
            return False
        from outbox_tasks.feeds.bridge import RUN_SECONDS, bridge_all

        return any(bridged.more for bridged in bridge_all(store, stop, longest=RUN_SECONDS).values())

    def maintain(self, store: Any) -> None:
        from outbox_tasks.feeds.store import Feeds

        Feeds(store).forget(store.settings.inbox_retention, 5_000)

    def checks(self) -> Sequence[Any]:
        from outbox_tasks.feeds.problems import CHECKS

        return CHECKS

    def feeds(self, database: Any) -> Sequence[Any]:
        if not database.settings.feeds:
            return ()
        from outbox_tasks.feeds.store import Feeds

        return Feeds(database).states()
