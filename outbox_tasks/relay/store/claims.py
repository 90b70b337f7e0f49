"""What a claim asks the database for."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import inf
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine

from outbox_tasks.database.connection import Database, Run
from outbox_tasks.database.schema import DEAD, PENDING
from outbox_tasks.model import TOO_LARGE, UNKNOWN_DESTINATION, Bundle
from outbox_tasks.relay.store import processes
from outbox_tasks.relay.store.claimed import Claimed
from outbox_tasks.relay.store.ends import Ends
from outbox_tasks.relay.store.keyed import Keys
from outbox_tasks.relay.store.lanes import Lanes, Snapshot
from outbox_tasks.relay.store.queues import Window
from outbox_tasks.settings import Settings

BUNDLES, MESSAGES = 1000, 10_000
"""Leases that have run out, and waits that are over, that one claim looks after."""

MOST_NOTED = 10_000
"""Messages that are marked after a failover: more have hardly been sent in the moment that it undid."""

BURIED_AT_ONCE = 1000
"""Messages to unknown destinations that become dead letters at once, with a key and without."""

DESTINATIONS_AT_ONCE = 1000
"""Destinations that are looked at for such messages at once."""

STRANGE_EVERY = 30.0
"""Seconds between two looks for messages to destinations that are not configured."""

GRACE = 3600.0
"""Seconds for which due messages wait for an unknown destination: writers may know of it before the relay does."""


@dataclass(frozen=True, slots=True)
class Dead:
    """A message that a claim makes a dead letter."""

    row: Claimed
    code: str | None
    error: str | None


class Claims(Database):
    """The verbs of a claim."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self._lanes, self._keys = Lanes(), Keys(settings)
        self.unread: Set[str] = self._keys.unread
        self._keys_first = False
        self._ends = Ends(settings.statement_timeout)
        self._strange_at = -inf
        """When messages to destinations that are not configured were last looked for: by `anything_due`,"""
        self._buried_at = -inf
        """and by `bury_unroutable`,"""
        self._buried_past = ""
        """which goes on after this destination."""

    def claim(
        self,
        shares: Mapping[str, int],
        lease: str,
        pack: Callable[[Sequence[Claimed]], list[Bundle]],
        tries: Collection[str] = (),
    ) -> tuple[list[Claimed], list[Bundle]]:
        """Take up to `shares[destination]` due messages of each destination, and lease the bundles that `pack` makes of
        them. Each bundle has a lease of its own; the first probe has the claim's. `tries`: the destinations that
        give one message only, a probe; it is one that has never failed, if there is any.

        What can't be sent any more becomes a dead letter: it is returned, and in no bundle.
        """
        causes = self._look_after()
        self._keys_first = not self._keys_first  # in turns, so that neither kind starves the other
        try:
            with self.transaction() as run:
                if self._keys_first:
                    keyed, windows = self._keys.take(run, shares, self._ends.none_before, tries)
                    left = _left(shares, keyed)
                    found, looked = self._take(run, left, tries)
                else:
                    left = dict(shares)
                    found, looked = self._take(run, left, tries)
                    keyed, windows = self._keys.take(run, _left(shares, found), self._ends.none_before, tries)
                rows = [self._claimed(row) for row in found] + keyed
                rows = [row._replace(cause=causes.get(row.seq)) for row in rows] if causes else rows
                rows = self._parted(run, sorted(rows, key=lambda row: row.seq), windows)
                bundles = self._leased(run, pack(rows), rows, lease)
                self._keys.put_aside(run, windows, self._ends.none_before)
        except BaseException:
            self._lanes.clear()
            self._keys.clear()
            raise
        read = [(row.destination, row.priority, int(row.at), row.seq) for row in found]
        left = {name: size for name, size in left.items() if name not in tries}
        self._lanes.read(left, read, Snapshot.read(looked.at), life=looked.id)
        self._keys.committed()
        return rows, bundles

    def _take(self, run: Run, shares: Mapping[str, int], tries: Collection[str]) -> tuple[list[Any], Any]:
        """Take messages without a key; returns them, and what the look says of itself."""
        *found, looked = run("claim/take.sql", span=json.dumps(self._lanes.spans(shares, tries)))
        return found, looked

    def _look_after(self) -> dict[int, str]:
        """Take back what has run out, and wake what waits no longer. Returns why, by message."""
        since = self._ends.since()
        *ended, looked = self.ask("claim/expire.sql", most=BUNDLES, messages=MESSAGES, since=since)
        self._ends.looked(since, looked.at, found_all=looked.bundles < BUNDLES and len(ended) < MESSAGES)
        ended += self.ask("run/expire.sql", most=MESSAGES)
        self.ask("claim/wake.sql", most=MESSAGES)
        return {row.seq: row.cause for row in ended}

    def _claimed(self, row: Any) -> Claimed:
        return Claimed(
            row.seq, row.id, row.destination, row.event_type, row.attempts, PENDING, row.alone, None, row.priority,
            size=row.size, age=row.age,
        )  # fmt: skip

    def _parted(self, run: Run, rows: list[Claimed], windows: list[Window]) -> list[Claimed]:
        """The rows. Those that have no attempts left, or are too old or too large, are dead now; those that a newer
        message of their key replaces are discarded."""
        worn = [row.seq for row in rows if row.attempts >= self.settings.destinations[row.destination].max_attempts]
        spared = {row.seq: row.spared for row in run("claim/spared.sql", seqs=worn)} if worn else {}
        judged = (self._judged(row, spared.get(row.seq, 0)) for row in rows)
        dead = {one.row.seq: one for one in judged if one is not None}
        replaced = [row for row in rows if row.superseded and row.seq not in dead]
        if dead or replaced:  # these may free their keys, for what is behind them
            self._keys.put_aside(run, windows, self._ends.none_before)
        if replaced:
            run("claim/supersede.sql", message=json.dumps([_named(row) for row in replaced]))
        if not dead:
            return rows
        why = {died.seq: died for died in self._bury(run, dead.values())}
        return [
            row._replace(status=DEAD, code=why[row.seq].code, error=why[row.seq].error) if row.seq in why else row
            for row in rows
        ]

    def _judged(self, row: Claimed, spared: int) -> Dead | None:
        limits = self.settings.destinations[row.destination]
        if limits.max_age is not None and row.age > limits.max_age:
            return Dead(row, "too_old", f"not delivered within {limits.max_age:g} seconds")
        if row.size > limits.largest:
            error = f"its payload has {row.size} bytes, and the destination takes {limits.largest}: see max_bytes"
            return Dead(row, TOO_LARGE, error)
        return Dead(row, None, None) if row.attempts - spared >= limits.max_attempts else None

    def _bury(self, run: Run, dead: Iterable[Dead]) -> Sequence[Any]:
        said = [{**_named(one.row), "code": one.code, "error": one.error} for one in dead]
        return run("claim/bury.sql", message=json.dumps(said))

    def _leased(self, run: Run, packed: list[Bundle], rows: Sequence[Claimed], lease: str) -> list[Bundle]:
        if not packed:
            return []
        numbers: dict[tuple[str, str], list[Claimed]] = defaultdict(list)  # a writer may have given two messages one id
        for row in rows:
            if row.status != DEAD and not row.superseded:
                numbers[row.destination, row.id].append(row)
        bundles, said = [], []
        probes: dict[str, str] = {}
        for bundle in packed:
            token = str(uuid4())
            if bundle.probe:  # the breaker knows the claim's own lease; a second probe tells it another one
                token = probes[bundle.destination] = token if probes else lease
            bundles.append(replace(bundle, lease=token))
            of_it = [numbers[bundle.destination, ticket.id].pop(0) for ticket in bundle.tickets]
            keys = sorted({row.key for row in of_it if row.key is not None})
            seqs = [row.seq for row in of_it]
            said.append({"token": token, "destination": bundle.destination, "seqs": seqs, "keys": keys or None})
        hold = self.settings.queue_lease
        run("claim/lease.sql", bundle=json.dumps(said), holder=processes.holder(), hold=hold)
        if len(probes) > 1:
            probe = [{"destination": name, "token": token} for name, token in sorted(probes.items())]
            run("traffic/probes.sql", probe=json.dumps(probe), granted=lease)
        return bundles

    def bury_unroutable(self, pause: float = 0.0) -> list[Claimed]:
        """Make dead letters of messages that have been due for `GRACE` seconds for destinations that are not
        configured. Each call buries up to `BURIED_AT_ONCE`. If it found fewer, calls in the next `pause` seconds bury
        none."""
        now = time.monotonic()
        if now < self._buried_at + pause:
            return []
        self._buried_at = now
        asked = {"known": list(self.settings.destinations), "grace": GRACE, "past": self._buried_past}
        with self.transaction() as run:
            *found, end = run("claim/unroutable.sql", **asked, look=DESTINATIONS_AT_ONCE, most=BURIED_AT_ONCE)
            rows = [_unroutable(row) for row in found]
            if rows:
                self._bury(run, [Dead(row, row.code, row.error) for row in rows])
        if len(rows) >= BURIED_AT_ONCE:
            self._buried_at = -inf
        else:
            self._buried_past = end.destination
        return rows

    def anything_due(self, ahead: float = 0.0) -> bool:
        """Whether a claim may find something to do, or something is due within `ahead` seconds."""
        configured = self.settings.destinations
        front, now, known = json.dumps(self._lanes.fronts(configured)), time.monotonic(), None
        if now - self._strange_at > STRANGE_EVERY:
            self._strange_at, known = now, [*configured]
        keyed = json.dumps(self._keys.fronts(configured))
        asked = {"front": front, "keyed": keyed, "since": self._ends.none_before, "known": known, "ahead": ahead}
        [[found]] = self.ask("claim/due.sql", **asked)
        return found or self._keys.must_go_back(self.ask)

    def until_next_due(self, ahead: float) -> float | None:
        """In how many seconds the next message is due, if that is within `ahead` seconds."""
        seconds: float | None = self.ask("claim/next_due.sql", ahead=ahead)[0][0]
        return seconds

    def note_timeline(self) -> int | None:
        """If the database is on another timeline than before, note on messages that are due that they may have been
        delivered; returns on how many. None: it is not."""
        changed = self.ask("report/timeline.sql")
        if not changed or changed[0].before is None:
            return None
        return int(self.ask("claim/timeline.sql", most=MOST_NOTED)[0][0])

    def recall(self, gone: str | None = None, *, crashed: bool = False) -> int:
        """End leases that nobody will use; returns of how many messages: those of the process `gone`, or else those of
        all bundles that are not begun. `crashed`: only leases from before the last crash of the database server."""
        [[count]] = self.ask("claim/recall.sql", gone=gone, crashed=crashed, hold=self.settings.queue_lease)
        return int(count)


def _left(shares: Mapping[str, int], taken: Sequence[Any]) -> dict[str, int]:
    """What is left of the shares."""
    found = Counter(row.destination for row in taken)
    return {name: size - found[name] for name, size in shares.items() if size > found[name]}


def _named(row: Claimed) -> dict[str, Any]:
    return {"seq": row.seq, "destination": row.destination, "key": row.key}


def _unroutable(row: Any) -> Claimed:
    error = f"no destination '{row.destination[:100]}' is configured"
    fields = (row.seq, row.id, row.destination, row.event_type, row.attempts, DEAD, False, row.key, row.priority)
    return Claimed(*fields, UNKNOWN_DESTINATION, error)
