"""What the archive adds to the relay: exports of its days, and replays of its messages."""

from __future__ import annotations

from typing import ClassVar

from outbox_tasks.satellites import Command, Satellite


class Archive(Satellite):
    commands: ClassVar = {
        "replay": Command(
            "Find and mend messages", "Send messages of the archive again.", "outbox_tasks.archive.command"
        )
    }
