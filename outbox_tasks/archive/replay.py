"""Replays messages: writes copies of archived ones, in the order in which they were written. The relay then sends them
like any other message.

A replay is an act of `background.Runner`. Each lot of copies is one statement. It also counts them in the audit, and
notes there how far the replay got: there another process goes on, and another replay if somebody has stopped this one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

from outbox_tasks.archive.replay_copy import Copier
from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ActRefused
from outbox_tasks.operating.messages.acts import Plan, Steps, batch_size
from outbox_tasks.operating.messages.find import Filter
from outbox_tasks.operating.wake import wake
from outbox_tasks.text import storable

EVER = datetime.min.replace(tzinfo=UTC)

MESSAGES_A_READ = 5_000
"""Messages that one statement looks at."""

LOT_BYTES = 16 << 20
"""Of the payloads of a lot, if it is more than one."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What is to be replayed, and how."""

    filter: Filter = field(default_factory=Filter)
    since: datetime | None = None
    """Only messages that were sent from then on."""
    until: datetime | None = None
    """Only messages that were sent until then."""
    ids: tuple[UUID, ...] = ()
    """Only these; the filters don't apply."""
    to: str | None = None
    """Another destination than that of each message."""
    new_ids: bool = False
    resumes: int | None = None
    """It goes on with this replay of the audit, which began at `began`, and its copies are those of that one."""
    began: datetime | None = None
    after: int = 0
    """Only messages with higher numbers."""
    limit: int | None = None
    """How many of its limit the former replay has left."""

    @property
    def facts(self) -> dict[str, Any]:
        """What is not in the filter, for the audit; `recorded` reads it."""
        times = {name: time.isoformat() for name in ("since", "until", "began") if (time := getattr(self, name))}
        names = ("to", "new_ids", "resumes", "after")
        return {**times, **{name: value for name in names if (value := getattr(self, name))}}

    def planned(self, database: Database) -> Plan:
        """Counts what would be replayed. Raises `ActRefused`."""
        plan = Plan(self.began or database.ask("act/now.sql")[0].now)
        for row in _chosen(database, self, plan.until, self.after):
            plan.add(row)
        return plan

    @classmethod
    def recorded(cls, filter: Filter, ids: tuple[UUID, ...], facts: dict[str, Any]) -> Self:
        """The replay with these `facts`."""
        given: dict[str, Any] = {name: facts[name] for name in ("to", "new_ids", "resumes", "after") if name in facts}
        given |= {name: datetime.fromisoformat(facts[name]) for name in ("since", "until", "began") if name in facts}
        return cls(filter, ids=ids, **given)

    @classmethod
    def resumed(cls, database: Database, entry: int) -> Self:
        """The rest of a replay that somebody has stopped. Raises `ActRefused`."""
        found = database.ask("act/one.sql", entry=entry)
        facts = found[0].facts if found else {}
        if not found or found[0].action != "replay" or "named" in facts or "states" not in facts:
            raise ActRefused(reason=f"no. {entry} of `outbox-tasks audit` is no replay that can go on")
        if found[0].wanted is not None:
            raise ActRefused(reason=f"no. {entry} is under way; to end it: outbox-tasks audit --stop {entry}")
        names = [name for name in Filter.__slots__ if name in facts]
        place = facts.get("place", {"seq": 0, "passed": 0})
        rest = {"resumes": entry, "began": found[0].at.isoformat(), **facts, "after": place["seq"]}
        replay = cls.recorded(Filter.recorded({name: facts[name] for name in names}), (), rest)
        return replay if "limit" not in facts else replace(replay, limit=max(0, facts["limit"] - place["passed"]))


def steps(database: Database, act: dict[str, Any], token: UUID, lease: float) -> Steps:
    """Write what is left of the copies, lot by lot: see `acts.steps`. `missed`: copies that wait already, and were not
    written again."""
    wanted, seq, rate = act["wanted"], act["seq"], act["rate"]
    ids = tuple(UUID(id) for id in wanted["ids"])
    replay = Replay.recorded(Filter.recorded(wanted["filter"]), ids, wanted["more"])
    place = act["facts"].get("place", {"seq": replay.after, "passed": 0})
    copier = Copier(replay.to, replay.new_ids, replay.resumes or seq, replay.began or act["at"])
    person = {"person": storable(act["who"]), "reason": storable(act["why"])}
    left = None if act["most"] is None else act["most"] - place["passed"]
    count, asked, began = act["count"], 0, time.monotonic()
    for lot in _lots(_chosen(database, replay, act["as_of"], place["seq"]), batch_size(rate)):
        lot = lot if left is None else lot[: left - asked]
        if not lot:
            break
        yield max(0.0, began + asked / rate - time.monotonic()) if rate else 0.0
        asked += len(lot)
        copies = [copier.copy(original) for original in database.ask("find/originals.sql", seqs=lot)]
        reached = {"place": {"seq": lot[-1], "passed": place["passed"] + asked}}
        said = {"row": json.dumps(copies), "place": json.dumps(reached), "entry": seq, **person}
        with database.transaction() as run:
            run("archive/replay_alone.sql")
            written = run("archive/replay.sql", **said, token=token, duration=lease)
        if not written:
            return None
        count += sum(row.id is not None for row in written)
        wake(database.settings)
    missed = place["passed"] + asked - count
    return {"missed": missed} if missed else {}


def _chosen(database: Database, replay: Replay, as_of: datetime, after: int) -> Iterator[Any]:
    """The messages that are to be replayed, beyond a number, in their order. Raises `ActRefused`."""
    _check(database, replay.to)
    for row in _named(database, replay.ids) if replay.ids else _archived(database, replay, as_of, after):
        if row.seq > after:
            _check(database, replay.to or row.destination, takes_tasks=row.task)
            yield row


def _named(database: Database, ids: tuple[UUID, ...]) -> list[Any]:
    """The last message of the archive with each of these ids."""
    found = {row.id: row for row in database.ask("find/named.sql", ids=list(ids))}
    if missing := sorted(set(ids) - found.keys()):
        some = ", ".join(map(str, missing[:3]))
        raise ActRefused(reason=f"{len(missing)} of the messages are not in the archive: {some}")
    return sorted(found.values(), key=lambda row: row.seq)


def _archived(database: Database, replay: Replay, as_of: datetime, last: int | None) -> Iterator[Any]:
    # Without a bound it could meet its own copies in the archive.
    span = {"since": replay.since or EVER, "to": min(replay.until or as_of, as_of)}
    while last is not None:
        asked = {
            **replay.filter.parameters,
            **span,
            "until": as_of,
            "newer": True,
            "look": MESSAGES_A_READ,
            "last": last,
        }
        *rows, end = database.ask("find/archived.sql", **asked)
        yield from rows
        last = end.end_seq


def _lots(chosen: Iterator[Any], most: int) -> Iterator[list[int]]:
    """Their numbers, in lots whose payloads fit into memory."""
    lot: list[int] = []
    size = 0
    for row in chosen:
        if lot and (len(lot) == most or size + row.size > LOT_BYTES):
            yield lot
            lot, size = [], 0
        lot.append(row.seq)
        size += row.size
    if lot:
        yield lot


def _check(database: Database, name: str | None, *, takes_tasks: bool = False) -> None:
    known = database.settings.destinations
    if name is not None and name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise ActRefused(reason=f"{name!r} is not a configured destination (known: {listed}); choose one by --to")
    if name is not None and takes_tasks and known[name].scheme != "celery":
        raise ActRefused(reason=f"some of the messages are stored tasks, and {name!r} is no celery:// destination")
