"""What the archive adds to the relay: exports of its days, and replays of its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from outbox_tasks.satellites import Command, Satellite


class Archive(Satellite):
    commands: ClassVar = {
        "export": Command(
            "Keep it small", "Write days of the archive to files, without dropping them.",
            "outbox_tasks.archive.export_command",
        ),
        "replay": Command(
            "Find and mend messages", "Send messages of the archive again.", "outbox_tasks.archive.replay_command"
        ),
    }  # fmt: skip

    def export(self, database: Any, day: Any, url: str) -> Any:
        """Write a day to a verified file: see `archive.export.export`."""
        from outbox_tasks.archive.export import export

        return export(database, day, url)

    def acts(self) -> Mapping[str, Any]:
        from outbox_tasks.archive.replay import do_batch

        return {"replay": do_batch}
