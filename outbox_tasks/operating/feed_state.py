"""What people see of a feed, on each surface."""

from __future__ import annotations

from typing import NamedTuple

from outbox_tasks.text import span


class FeedState(NamedTuple):
    """What people see of a feed. Ages are in seconds."""

    name: str
    holder: str | None
    copied: int
    """Rows, in all."""
    waiting: int
    """Rows at the source, as of the last run; counted to 10,000."""
    age: float
    """Of the oldest of them."""
    failures: int
    """Runs in a row that failed."""
    error: str | None
    looked: float | None
    """Since it was last read."""
    not_before: float | None
    """Until the next run may begin: its source fails, or its rate allows no more."""
    failing: float | None
    """Since it began to fail."""

    def state(self, stale_after: float) -> str:
        """How it is, in words."""
        if self.failing is not None:
            return f"fails for {span(self.failing)}"
        return "overdue" if self.age > stale_after else "in service"
