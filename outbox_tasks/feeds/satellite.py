"""What feeds add to the relay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from outbox_tasks.satellites import Command, Satellite


class Feeds(Satellite):
    tables = "feeds/tables.sql"
    commands: ClassVar = {
        "feed": Command("Run it", "Copy messages from applications' own databases.", "outbox_tasks.feeds.command")
    }

    def checks(self) -> Sequence[Any]:
        from outbox_tasks.feeds.problems import CHECKS

        return CHECKS
