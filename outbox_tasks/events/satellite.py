"""What typed events add: a check of payloads at publish, and the command `events`."""

from __future__ import annotations

from typing import Any, ClassVar

from outbox_tasks.satellites import Command, Satellite


class Events(Satellite):
    commands: ClassVar = {
        "events": Command(
            "Check your code", "Describe the declared events, and refuse changes that break consumers.",
            "outbox_tasks.events.command",
        ),
    }  # fmt: skip

    def event(self, event_type: str, model: Any) -> Any:
        """The event as it is declared: see `events.event.Event`. Raises `InvalidArgument`."""
        from outbox_tasks.events.event import event

        return event(event_type, model)
