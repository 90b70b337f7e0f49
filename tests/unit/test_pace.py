"""How far a claim may lead the publish workers."""

from __future__ import annotations

import pytest

from outbox_tasks.relay.pace import MEASURED, SHORT, Pace
from outbox_tasks.settings import Settings


class Workers:
    """A queue, and workers that take so many full bundles of 100 a second, in a time of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
        self.now, self.queued = 1000.0, 0.0
        monkeypatch.setattr("outbox_tasks.relay.pace.time.monotonic", lambda: self.now)
        self.pace = Pace(Settings(**values))

    def claims(self, rate: float, seconds: float) -> float:
        """The longest that a message had to wait while a claim filled the queue as far as it may."""
        longest = 0.0
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1
            self.queued = max(0.0, self.queued - rate * 10)
            bundles = max(0, self.pace.most(int(self.queued)) - int(self.queued)) // 100
            self.pace.sent(bundles)
            self.queued += bundles * 100
            longest = max(longest, self.queued / (rate * 100))
        return longest


def test_an_idle_relay_takes_as_much_as_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Workers(monkeypatch).pace.most(0) == 10_000


@pytest.mark.parametrize(("lease", "rate"), [(60, 1), (60, 10), (60, 300), (5, 2), (5, 20), (5, 300)])
def test_what_is_claimed_waits_for_half_of_its_lease_at_most(
    monkeypatch: pytest.MonkeyPatch, lease: float, rate: float
) -> None:
    """`rate` in full bundles. Few bundles are always allowed."""
    workers = Workers(monkeypatch, queue_lease=lease)
    workers.claims(rate, 200)
    assert workers.claims(rate, 100) <= max(0.6 * lease, (SHORT + 1) / rate)


def test_it_takes_more_again_once_the_workers_can(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(monkeypatch, queue_lease=5)
    workers.claims(0.2, 60)
    assert workers.pace.most(int(workers.queued)) == SHORT * 100
    workers.claims(100, 10 * MEASURED)
    assert workers.pace.most(int(workers.queued)) == 10_000


def test_a_long_queue_of_which_nothing_is_taken_leaves_room_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(monkeypatch)
    assert workers.pace.most(5000) == 10_000
    workers.now += MEASURED
    assert workers.pace.most(5000) == SHORT * 100
