"""What the guard adds: `Outbox.guard`, and the command `check`."""

from __future__ import annotations

from typing import Any, ClassVar

from outbox_tasks.satellites import Command, Satellite


class Guard(Satellite):
    commands: ClassVar = {
        "check": Command(
            "Check your code", "Find calls of tasks that go past the outbox.", "outbox_tasks.guard.command"
        ),
    }

    def guard(self, app: Any, mode: str) -> None:
        """See `Outbox.guard`."""
        from outbox_tasks.guard.calls import guard

        guard(app, mode)
