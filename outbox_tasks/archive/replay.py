"""Replays messages: writes copies of archived ones, in the order in which they were written. The relay then sends them
like any other message.

A replay is an act of `background.Runner`. The statement that writes copies also counts them in the audit, and notes
there how far the replay got: there the next batch goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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

    @property
    def facts(self) -> dict[str, Any]:
        """What is not in the filter, for the audit; `recorded` reads it."""
        times = {name: time.isoformat() for name in ("since", "until") if (time := getattr(self, name))}
        return {**times, **{name: value for name in ("to", "new_ids") if (value := getattr(self, name))}}

    def planned(self, database: Database) -> Plan:
        """Counts what would be replayed. Raises `ActRefused`."""
        plan = Plan(database.ask("act/now.sql")[0].now)
        for row in _chosen(database, self, plan.until):
            plan.add(row)
        return plan

    @classmethod
    def recorded(cls, filter: Filter, ids: tuple[UUID, ...], facts: dict[str, Any]) -> Self:
        """The replay with these `facts`."""
        times = {name: datetime.fromisoformat(facts[name]) for name in ("since", "until") if name in facts}
        return cls(filter, ids=ids, to=facts.get("to"), new_ids=facts.get("new_ids", False), **times)


def do_batch(run: Run, database: Database, act: dict[str, Any]) -> Batch:
    """Write the next copies: see `acts.do_batch`. `missed`: copies that wait already, and were not written again."""
    wanted, seq, rate = act["wanted"], act["seq"], act["rate"]
    ids = tuple(UUID(id) for id in wanted["ids"])
    replay = Replay.recorded(Filter.recorded(wanted["filter"]), ids, wanted["more"])
    passed = act["facts"].get("place", {"passed": 0})["passed"]
    after = (act["place"] or {"after": 0})["after"]
    size = batch_size(rate)
    size = size if act["most"] is None else min(size, act["most"] - passed)
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
        copier = Copier(replay.to, replay.new_ids, seq, act["at"])
        copies = [copier.copy(original) for original in run("find/originals.sql", seqs=lot)]
        passed += len(lot)
        written = {"row": json.dumps(copies), "place": json.dumps({"place": {"passed": passed}}), "entry": seq}
        run("archive/replay_alone.sql")
        count += len(run("archive/replay.sql", **written, person=act["who"], reason=act["why"]))
    after = lot[-1] if len(lot) < len(rows) else end
    if after is None or act["most"] == passed:
        missed = passed - count
        return Batch(None, count - act["count"], facts={"missed": missed} if missed else {})
    return Batch({"after": after}, count - act["count"], len(lot) / rate if rate else 0.0)


def _chosen(database: Database, replay: Replay, as_of: datetime) -> Iterator[Any]:
    """The messages that are to be replayed, in their order. Raises `ActRefused`."""
    _check(database, replay.to)
    for row in _named(database.ask, replay.ids) if replay.ids else _archived(database, replay, as_of):
        _check(database, replay.to or row.destination, takes_tasks=row.task)
        yield row


def _named(run: Run, ids: tuple[UUID, ...]) -> list[Any]:
    """The last message of the archive with each of these ids."""
    found = {row.id: row for row in run("find/named.sql", ids=list(ids))}
    if missing := sorted(set(ids) - found.keys()):
        some = ", ".join(map(str, missing[:3]))
        raise ActRefused(reason=f"{len(missing)} of the messages are not in the archive: {some}")
    return sorted(found.values(), key=lambda row: row.seq)


def _archived(database: Database, replay: Replay, as_of: datetime) -> Iterator[Any]:
    last: int | None = 0
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
