"""Replays messages: writes copies of archived ones, in the order in which they were written. The relay then sends them
like any other message.

Each lot of copies is one statement. It also counts them in the audit, and notes there how far the replay got. So a
replay that was stopped, or killed, goes on behind the last lot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from threading import Event
from typing import Any, Self
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ReplayRefused
from outbox_tasks.operating.archive.export import LOT
from outbox_tasks.operating.archive.replay_copy import Copier
from outbox_tasks.operating.messages.acts import BATCH, STEPS, Done, Operator, Plan
from outbox_tasks.operating.messages.find import FIRST, Filter
from outbox_tasks.operating.wake import wake

EVER = datetime.min.replace(tzinfo=UTC)

LOOK = 5_000
"""Messages that one statement looks at."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What is to be replayed, and how."""

    filter: Filter
    since: datetime | None = None
    """Only messages that were sent from then on."""
    until: datetime | None = None
    """Only messages that were sent until then."""
    ids: tuple[UUID, ...] = ()
    """Only these; the filters don't apply."""
    to: str | None = None
    """Another destination than that of each message."""
    new_ids: bool = False
    limit: int | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """For the audit: all that `resumed` needs."""
        own = {
            **{name: time.isoformat() for name in ("since", "until") if (time := getattr(self, name))},
            **{name: value for name in ("to", "new_ids", "limit") if (value := getattr(self, name))},
            "named": len(self.ids),
        }
        chosen = {} if self.ids else self.filter.facts
        return {**chosen, **{name: value for name, value in own.items() if value}}

    @classmethod
    def resumed(cls, facts: dict[str, Any], seconds: float) -> Self:
        """What an entry of the audit recorded, so many seconds ago."""
        own = {name: facts[name] for name in ("to", "new_ids", "limit") if name in facts}
        since, until = (datetime.fromisoformat(facts[name]) if name in facts else None for name in ("since", "until"))
        ages = {name: facts[name] + seconds for name in ("older_than", "newer_than") if name in facts}
        exact = {name: facts[name] for name in ("destination", "event_type", "key", "code") if name in facts}
        wanted = Filter(states=tuple(facts["states"]), **exact, **ages)
        return cls(wanted, since, until, **own)


class Replayer(Operator):
    """A person who replays messages. Raises `ReplayRefused` before anything is written."""

    def __init__(self, database: Database, who: str, why: str | None, wanted: Replay, entry: int | None = None) -> None:
        """`entry`: go on with this replay of the audit, in place of `wanted`."""
        super().__init__(database, who, why)
        self._entry, self._after, self._passed = entry, FIRST, 0
        self._began = now = self._now()
        if entry is not None:
            wanted = self._resumed(entry, now)
        # Without a bound it could meet its own copies in the archive.
        self.wanted = wanted = replace(wanted, until=min(wanted.until or now, now))
        self._check_destination(wanted.to)
        self._named = self._of_ids(wanted.ids) if wanted.ids else None

    def _resumed(self, entry: int, now: datetime) -> Replay:
        found = self._database.ask("audit/entry.sql", entry=entry)
        if not found or found[0].action != "replay" or "named" in found[0].facts:
            raise ReplayRefused(reason=f"no. {entry} of `outbox-tasks audit` is no replay that can go on")
        facts, self._began = found[0].facts, found[0].at
        if place := facts.get("place"):
            self._passed, self._after = place["passed"], place["seq"]
        return Replay.resumed(facts, (now - found[0].at).total_seconds())

    def _of_ids(self, ids: tuple[UUID, ...]) -> list[Any]:
        """The last message of the archive with each of these ids."""
        found = {row.id: row for row in self._database.ask("find/named.sql", ids=list(ids))}
        if missing := sorted(set(ids) - found.keys()):
            some = ", ".join(map(str, missing[:3]))
            raise ReplayRefused(reason=f"{len(missing)} of the messages are not in the archive: {some}")
        return sorted(found.values(), key=lambda row: row.seq)

    def _chosen(self) -> Iterator[Any]:
        """The messages that are left to be replayed, in their order."""
        if self._named is not None:
            yield from self._named
            return
        wanted, last = self.wanted, self._after
        span = {"since": wanted.since or EVER, "to": wanted.until}
        while last is not None:
            asked = {**wanted.filter.parameters, **span, "newer": True, "look": LOOK, "last": last}
            *rows, end = self._database.ask("find/archived.sql", **asked)
            yield from rows
            last = end.end_seq

    def _lots(self, most: int) -> Iterator[list[int]]:
        """Their numbers, in lots whose payloads fit into memory."""
        lot: list[int] = []
        size = 0
        for row in self._chosen():
            if lot and (len(lot) == most or size + row.size > LOT):
                yield lot
                lot, size = [], 0
            lot.append(row.seq)
            size += row.size
        if lot:
            yield lot

    def planned(self) -> Plan:
        """Counts what would be replayed, at most up to the limit."""
        plan = Plan(self._began)
        for row in self._chosen():
            self._check_destination(self.wanted.to or row.destination, takes_tasks=row.task)
            plan.add(row)
        return plan

    @property
    def left(self) -> int | None:
        """How many are left of the limit."""
        return None if self.wanted.limit is None else max(0, self.wanted.limit - self._passed)

    def _check_destination(self, name: str | None, *, takes_tasks: bool = False) -> None:
        known = self._settings.destinations
        if name is not None and name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise ReplayRefused(
                reason=f"{name!r} is not a configured destination (known: {listed}); choose one by --to"
            )
        if name is not None and takes_tasks and known[name].scheme != "celery":
            raise ReplayRefused(
                reason=f"some of the messages are stored tasks, and {name!r} is no celery:// destination"
            )

    def replay(
        self,
        rate: float | None = None,
        stop: Event | None = None,
        progress: Callable[[int], object] = lambda count: None,
    ) -> Done:
        """Write the copies, lot by lot, `rate` of them a second, until `stop` is set. `not_changed`: the messages
        whose copies wait already, and were not written again."""
        stop = stop or Event()
        if self._entry is None:
            target = str(self.wanted.ids[0]) if len(self.wanted.ids) == 1 else None
            self._entry = self._open_entry("replay", target, self.wanted.facts)
        done = Done(self._entry)
        copier = Copier(self.wanted.to, self.wanted.new_ids, self._entry, self._began)
        size = BATCH if rate is None else min(BATCH, max(1, ceil(rate / STEPS)))
        began, asked, left = time.monotonic(), 0, self.left
        for lot in self._lots(size):
            lot = lot if left is None else lot[: left - asked]
            if not lot:
                break
            wait = began + asked / rate - time.monotonic() if rate else 0.0
            if stop.wait(wait) if wait > 0 else stop.is_set():
                done.stopped = True
                break
            asked += len(lot)
            before = done.count
            self._write(copier, lot, self._passed + asked, done)
            progress(done.count - before)
        if not done.stopped:  # else it may go on
            self._close_entry(done.entry)
        return done

    def _write(self, copier: Copier, lot: list[int], passed: int, done: Done) -> None:
        originals = self._database.ask("find/originals.sql", seqs=lot)
        copies = [copier.copy(original) for original in originals]
        reached = {"place": {"seq": lot[-1], "passed": passed}}
        parameters = {"row": json.dumps(copies), "place": json.dumps(reached), "entry": done.entry, **self._person}
        with self._database.transaction() as run:
            run("act/replay_alone.sql")
            written = {str(row.id) for row in run("act/replay.sql", **parameters)}
        if written:
            wake(self._settings)
        done.count += len(written)
        pairs = zip(originals, copies, strict=True)
        done.not_changed += [original.id for original, copy in pairs if copy["id"] not in written]
