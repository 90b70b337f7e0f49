"""What a drain takes: batches of one destination, each under a lease, whose send has begun."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine

from outbox_tasks.database.connection import Database
from outbox_tasks.destinations import batch_size_of, keeps_order
from outbox_tasks.errors import DatabaseTooSlow
from outbox_tasks.model import BATCH_BYTES, LeasedMessage, as_time
from outbox_tasks.relay.store import processes
from outbox_tasks.relay.store.lanes import FREED_LATELY, Progress, Snapshot
from outbox_tasks.relay.store.traffic import Traffic
from outbox_tasks.settings import Settings

MESSAGES_OF_A_KEY = 100
"""At most so many of one key are in a batch, and at most half of the batch."""

NO_PAYLOAD = -1
"""No payload is so small: messages come without theirs."""

BATCHES_WITHOUT_LOOK = 4
"""If a kind of messages was missing twice in a row, so many batches are taken of the other kinds before it is looked
for again."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one take has taken."""

    token: str = ""
    messages: list[LeasedMessage] = field(default_factory=list)
    moved: bool = False
    """It has moved messages that must wait to held, and there may be more messages behind them."""

    def __bool__(self) -> bool:
        return bool(self.messages) or self.moved


class Takes(Database):
    """The takes of one process. Each goes on reading where the one before ended."""

    def __init__(self, engine: Engine, settings: Settings, progress: Progress, traffic: Traffic) -> None:
        super().__init__(engine, settings)
        self._progress, self._traffic = progress, traffic
        self._kinds = deque((self._take_keyless, self._take_held, self._take_new))
        self._misses: Counter[tuple[str, Any]] = Counter()
        self._rests: Counter[tuple[str, Any]] = Counter()
        self._sizes: dict[str, tuple[int, int]] = {}

    def take(self, destination: str) -> Batch:
        """Take the next batch: of messages without a key, of held ones, and of new ones with a key, in turns. An empty
        batch: nothing is due."""
        resting = []
        for kind in list(self._kinds):
            self._kinds.rotate(-1)
            if self._rests[destination, kind] > 0:
                self._rests[destination, kind] -= 1
                resting.append(kind)
            elif batch := self._take(kind, destination):
                return batch
        for kind in resting:
            if batch := self._take(kind, destination):
                return batch
        return Batch()

    def _take(self, kind: Callable[..., Batch], destination: str) -> Batch:
        """Take one batch. If the database can't return it in time, take one message with more time; if that is too
        slow too, take one without its payload."""
        most = self._traffic.grant(destination, self._size(destination)[0])
        if not most:
            return Batch()
        largest = self.settings.destinations[destination].largest
        with self._progress.or_anew():
            for lot, limit in ((most, None), (1, self.settings.unhurried)):
                with suppress(DatabaseTooSlow):
                    batch = kind(destination, lot, largest, limit)
                    break
            else:
                batch = kind(destination, 1, NO_PAYLOAD, None)
        self._traffic.return_unused(destination, most - len(batch.messages))
        misses = self._misses[destination, kind] = 0 if batch else self._misses[destination, kind] + 1
        self._rests[destination, kind] = BATCHES_WITHOUT_LOOK if misses > 1 else 0
        return batch

    def _parameters(self, destination: str, most: int, largest: int) -> dict[str, Any]:
        return {
            "destination": destination,
            "token": str(uuid4()),
            "holder": processes.holder(),
            "hold": self.settings.send_lease,
            "most": most,
            "bytes": BATCH_BYTES,
            "largest": largest,
        }

    def _size(self, destination: str) -> tuple[int, int]:
        """Messages of a batch, and of one key in it. Of supervised tasks that is one: the next task of a key waits
        until that one has run. A publisher that keeps the order itself gets any number of a key."""
        if destination not in self._sizes:
            configured = self.settings.destinations[destination]
            size = batch_size_of(configured)
            of_key = size if keeps_order(configured) else max(1, min(MESSAGES_OF_A_KEY, size // 2))
            self._sizes[destination] = size, 1 if configured.supervised else of_key
        return self._sizes[destination]

    def _take_keyless(self, destination: str, most: int, largest: int, limit: float | None) -> Batch:
        parameters, lanes = self._parameters(destination, most, largest), self._progress.lanes
        span = json.dumps(lanes.spans(destination))
        messages, [looked] = _parted(self.ask("claim/take_keyless.sql", limit, **parameters, span=span))
        if not looked.shut and (looked.looked or not messages):  # else it was shut, or took a message that goes alone
            taken = [(destination, priority, int(xid), seq) for priority, xid, seq in looked.reached or ()]
            ends = {destination} if len(messages) == looked.looked < most else set()
            lanes.note([destination], taken, Snapshot.parsed(looked.snapshot), life=looked.life, ends=ends)
        return Batch(parameters["token"], messages)

    def _take_held(self, destination: str, most: int, largest: int, limit: float | None) -> Batch:
        parameters, place = self._parameters(destination, most, largest), self._progress.places.of(destination)
        where = {"free_since": place.free_since, "blocks": self.settings.dead_blocks(destination)}
        rows = self.ask("claim/take_held.sql", limit, **parameters, of_key=self._size(destination)[1], **where)
        messages, looked = _parted(rows)
        for row in looked:
            place.free_since = max(place.free_since, row.all_before - FREED_LATELY)
        return Batch(parameters["token"], messages)

    def _take_new(self, destination: str, most: int, largest: int, limit: float | None) -> Batch:
        parameters, place = self._parameters(destination, most, largest), self._progress.places.of(destination)
        where = {"start": place.start, "life": place.life, "reach": 2 * most if place.few_keys else most}
        rows = self.ask("claim/take_new.sql", limit, **parameters, of_key=self._size(destination)[1], **where)
        messages, looked = _parted(rows)
        moved = False
        for row in looked:
            moved = not row.whole and row.next_start > place.start
            place.go_on(row.next_start, row.life)
        keys = {message.key for message in messages}
        place.few_keys = 2 * len(messages) < most or 2 * len(keys) <= len(messages)
        return Batch(parameters["token"], messages, moved)


def _parted(rows: Sequence[Any]) -> tuple[list[LeasedMessage], list[Any]]:
    """The messages that a take has taken, and the row without a message: how far it looked."""
    return [leased_message(row) for row in rows if row.seq is not None], [row for row in rows if row.seq is None]


def leased_message(row: Any) -> LeasedMessage:
    """A row of `outbox_leased_messages`."""
    return LeasedMessage(
        row.id, row.event_type, row.destination, row.key, row.payload or b"", row.content_type,
        row.headers or {}, row.aggregate_type, row.aggregate_id, as_time(row.created_at),
        row.attempts + 1, row.latest, row.age if isfinite(row.age) else 0.0, None, row.spared, row.seq, row.newer,
        row.size, row.payload is None,
    )  # fmt: skip
