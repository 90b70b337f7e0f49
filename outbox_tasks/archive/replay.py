"""Replays messages: writes copies of archived ones, in the order in which they were written. The relay then sends them
like any other message.

A replay is an act of `background.Runner`. The statement that writes copies also counts them in the audit, and notes
there how far the replay got: there the next batch goes on, and another replay if somebody has stopped this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

from outbox_tasks.archive.replay_copy import Copier
from outbox_tasks.database.connection import Database, Run
from outbox_tasks.errors import ActRefused
from outbox_tasks.operating.messages.acts import Batch, Plan, batch_size
from outbox_tasks.operating.messages.find import Filter

EVER = datetime.min.replace(tzinfo=UTC)

MESSAGES_A_READ = 2_000
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


def do_batch(run: Run, database: Database, act: dict[str, Any]) -> Batch:
    """Write the next copies: see `acts.do_batch`. `missed`: copies that wait already, and were not written again."""
    wanted, seq, rate = act["wanted"], act["seq"], act["rate"]
    ids = tuple(UUID(id) for id in wanted["ids"])
    replay = Replay.recorded(Filter.recorded(wanted["filter"]), ids, wanted["more"])
    reached = act["facts"].get("place", {"seq": replay.after, "passed": 0})
    after = (act["place"] or {"after": reached["seq"]})["after"]
    size = batch_size(rate)
    size = size if act["most"] is None else min(size, act["most"] - reached["passed"])
    _check(database, replay.to)
    if ids:
        rows, end = [row for row in _named(run, ids) if row.seq > after], None
    else:
        *rows, last = _page(run, replay, act["as_of"], after)
        end = last.end_seq
    lot = _lot(rows, size)
    count = act["count"]
    if lot:
        for row in rows[: len(lot)]:
            _check(database, replay.to or row.destination, takes_tasks=row.task)
        copier = Copier(replay.to, replay.new_ids, replay.resumes or seq, replay.began or act["at"])
        copies = [copier.copy(original) for original in run("find/originals.sql", seqs=lot)]
        reached = {"seq": lot[-1], "passed": reached["passed"] + len(lot)}
        written = {"row": json.dumps(copies), "place": json.dumps({"place": reached}), "entry": seq}
        run("archive/replay_alone.sql")
        count += len(run("archive/replay.sql", **written, person=act["who"], reason=act["why"]))
    after = lot[-1] if len(lot) < len(rows) and lot else end
    if after is None or act["most"] == reached["passed"]:
        missed = reached["passed"] - count
        return Batch(None, count - act["count"], facts={"missed": missed} if missed else {})
    return Batch({"after": after}, count - act["count"], len(lot) / rate if rate else 0.0)


def _chosen(database: Database, replay: Replay, as_of: datetime, after: int) -> Iterator[Any]:
    """The messages that are to be replayed, beyond a number, in their order. Raises `ActRefused`."""
    _check(database, replay.to)
    for row in _named(database.ask, replay.ids) if replay.ids else _archived(database, replay, as_of, after):
        if row.seq > after:
            _check(database, replay.to or row.destination, takes_tasks=row.task)
            yield row


def _named(run: Run, ids: tuple[UUID, ...]) -> list[Any]:
    """The last message of the archive with each of these ids."""
    found = {row.id: row for row in run("find/named.sql", ids=list(ids))}
    if missing := sorted(set(ids) - found.keys()):
        some = ", ".join(map(str, missing[:3]))
        raise ActRefused(reason=f"{len(missing)} of the messages are not in the archive: {some}")
    return sorted(found.values(), key=lambda row: row.seq)


def _archived(database: Database, replay: Replay, as_of: datetime, last: int | None) -> Iterator[Any]:
    while last is not None:
        *rows, end = _page(database.ask, replay, as_of, last)
        yield from rows
        last = end.end_seq


def _page(run: Run, replay: Replay, as_of: datetime, last: int) -> Sequence[Any]:
    # Without a bound it could meet its own copies in the archive.
    span = {"since": replay.since or EVER, "to": min(replay.until or as_of, as_of), "until": as_of}
    asked = {**replay.filter.parameters, **span, "newer": True, "look": MESSAGES_A_READ, "last": last}
    return run("find/archived.sql", **asked)


def _lot(rows: Iterable[Any], most: int) -> list[int]:
    """The numbers of the first ones, as many as fit into memory with their payloads."""
    lot: list[int] = []
    size = 0
    for row in rows:
        size += row.size
        if len(lot) == most or (lot and size > LOT_BYTES):
            break
        lot.append(row.seq)
    return lot


def _check(database: Database, name: str | None, *, takes_tasks: bool = False) -> None:
    known = database.settings.destinations
    if name is not None and name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise ActRefused(reason=f"{name!r} is not a configured destination (known: {listed}); choose one by --to")
    if name is not None and takes_tasks and known[name].scheme != "celery":
        raise ActRefused(reason=f"some of the messages are stored tasks, and {name!r} is no celery:// destination")
