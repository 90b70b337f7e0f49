"""Which ends of leases a claim has to look at: those before have all been taken back.

While a snapshot is open, an index keeps all leases that are gone. So a claim reads only those that ended lately. Times
are those of the database's clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from math import inf

LONG_AGO = datetime(1, 1, 2, tzinfo=UTC)

LATELY = timedelta(seconds=3)
"""A look goes back so far behind the last one: meanwhile another may have ended a lease early."""

LOOKS_BACK_EVERY = 5.0
"""Seconds between two looks that go back for `OPEN`: what the others have skipped, another may not have taken back."""

OPEN = 60.0
"""Seconds for which another transaction that takes a lease back, or ends it early, may be open: a look has skipped its
lease, or saw it as it was before, and the lease still makes its keys busy."""


class Ends:
    """What one process that claims knows of the ends of leases."""

    def __init__(self, statement_timeout: float) -> None:
        self._open = timedelta(seconds=OPEN + statement_timeout)
        self.clear()

    def clear(self) -> None:
        """The next look begins with the first lease."""
        self.none_before = LONG_AGO
        """There is no lease that ended before."""
        self._last = LONG_AGO
        self._looks_back_at = -inf

    def since(self) -> datetime:
        """From where on the next look must find what has ended."""
        return self.none_before if time.monotonic() >= self._looks_back_at else self._last - LATELY

    def looked(self, since: datetime, at: datetime, *, found_all: bool) -> None:
        """A look was made at that time. Whether it found all there was; else the next one begins where it did."""
        if at < self._last:  # the server's clock was set back: what is leased now may end before `none_before`
            self.clear()
        elif found_all:
            self._last = at
            if since <= self.none_before:
                self.none_before = at - self._open
                self._looks_back_at = time.monotonic() + LOOKS_BACK_EVERY
