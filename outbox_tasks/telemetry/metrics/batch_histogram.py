"""A histogram that takes many values at once.

It uses `_upper_bounds`, `_sum` and `_buckets` of prometheus-client's `Histogram`, as seen on 0.21 and 0.26: there is no
public way, and one call of `observe` for each message would cost ten times as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import partial

from prometheus_client import Histogram

LONGEST = 10 * 365 * 86_400.0
"""Seconds. Anybody can write a row: one from the year -4712 must not spoil the sum for good."""


class BatchHistogram(Histogram):
    """A histogram of seconds."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Like `observe` for each, but an amount is at least 0 and at most `LONGEST`."""
        low, high, total = min(amounts), max(amounts), sum(amounts)
        if not (low >= 0 and high <= LONGEST and total >= 0):  # the last is false if one is not a number
            amounts = [min(LONGEST, max(0.0, amount)) for amount in amounts]
            low, high, total = min(amounts), max(amounts), sum(amounts)
        place = partial(bisect_left, self._upper_bounds)
        self._sum.inc(total)
        places = {place(low): len(amounts)} if place(low) == place(high) else Counter(map(place, amounts))
        for found, count in places.items():
            self._buckets[found].inc(count)
