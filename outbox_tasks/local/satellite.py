"""The commands that run the relay on this machine."""

from __future__ import annotations

from typing import ClassVar

from outbox_tasks.satellites import Command, Satellite


class Local(Satellite):
    commands: ClassVar = {
        "up": Command("Run it", "Run the whole relay here, until Ctrl-C.", "outbox_tasks.local.command"),
        "demo": Command("Run it", "Show the relay at work, with failures and a kill -9.", "outbox_tasks.local.command"),
    }
