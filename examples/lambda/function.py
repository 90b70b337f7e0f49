"""A function of AWS Lambda that sends what is due, each minute: `outbox-tasks drain`, within the function's time."""

from __future__ import annotations

from typing import Any

from outbox_tasks.cli import outbox

LAST_SEND = 15.0
"""Seconds before the end of its time from which it begins no other batch: what is being sent may take `send_timeout`
(10), and is settled then."""


def run(event: object, context: Any) -> None:
    """Fails, so that an alarm sees it, if a message is dead or a destination takes none. The log has the counts."""
    seconds = max(1.0, context.get_remaining_time_in_millis() / 1000 - LAST_SEND)
    try:
        outbox.main(["drain", "--for", str(seconds), "--json"], standalone_mode=False)
    except SystemExit as end:
        if end.code:
            raise RuntimeError("messages are dead, or could not be sent: see the line above") from None
