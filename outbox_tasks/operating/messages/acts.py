"""What a person may do to messages: see how many an act would change, change a batch, edit. The audit records each act,
with who and why. `background.Runner` does whole acts, batch by batch."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from math import ceil, inf
from typing import Any, Literal
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ActRefused, PayloadTooLarge
from outbox_tasks.operating.messages.find import COUNTED_AT_MOST, DEAD, Filter, Lookup, start
from outbox_tasks.operating.wake import wake
from outbox_tasks.text import storable

Action = Literal["redrive", "try", "discard", "purge", "replay"]

BATCH_MESSAGES = 1_000
"""Messages that one statement changes at most."""

ROWS_A_LOOK = 5_000
"""Rows of an index that one statement looks at."""

Steps = Generator[float, None, dict[str, Any] | None]
"""The batches of an act. Each yields how many seconds to wait before it. In the end: facts for the audit; None: the act
has ended, or another process has its lease."""


@dataclass(slots=True)
class Kind:
    """Messages with the same destination, event type, state and code of the last error."""

    destination: str
    event_type: str
    state: str
    code: str | None
    example: UUID
    """One of them."""
    count: int = 0


@dataclass(slots=True)
class Plan:
    """The messages that an act would change, as of `until`."""

    until: datetime
    count: int = 0
    more: bool = False
    """Whether there may be more: counting ended at `COUNTED_AT_MOST`, or when its time was over."""
    _kinds: dict[tuple[str | None, ...], Kind] = field(default_factory=dict)

    def add(self, row: Any, code: str | None = None) -> None:
        """Count `row.count` messages of a kind."""
        kind = Kind(row.destination, row.event_type, row.state, code, row.id)
        self._kinds.setdefault((kind.destination, kind.event_type, kind.state, code), kind).count += row.count
        self.count += row.count

    @property
    def kinds(self) -> list[Kind]:
        """The largest first."""
        return sorted(self._kinds.values(), key=lambda kind: -kind.count)


@dataclass(slots=True)
class Done:
    """What came of an act."""

    entry: int
    """The seq of its entry in the audit."""
    count: int = 0
    """How many messages were changed."""
    stopped: bool = False
    """Whether somebody stopped it before its end."""
    error: str | None = None
    """Why it ended before its end, if nobody stopped it."""
    missed: int = 0
    """How many were not changed: somebody else had changed them, or they were on the way."""
    not_changed: list[UUID] = field(default_factory=list)
    """Their ids, if they were named; the first ones."""


class Operator:
    """A person who acts on the messages of an outbox."""

    def __init__(self, database: Database, who: str, why: str | None = None) -> None:
        self._database = database
        self._settings = database.settings
        self._person = {"person": storable(who), "reason": storable(why)}

    def plan(self, wanted: Filter, seconds: float = inf) -> Plan:
        """Counts the messages that an act would change now, for so many seconds."""
        ends = time.monotonic() + seconds
        plan = Plan(self._database.ask("act/now.sql")[0].now)
        for row in self._walk(wanted, plan.until, counted=True, ends=ends):
            if row is not None:
                plan.add(row, row.last_error_code)
            if row is None or plan.count >= COUNTED_AT_MOST:
                plan.more = True
                break
        return plan

    def chosen(self, wanted: Filter, until: datetime) -> Iterator[UUID]:
        """The ids of the wanted messages that were there, or dead, at that time: by the time of their death, or the
        oldest first if not all of them are dead."""
        for row in self._walk(wanted, until, counted=False):
            yield row.id

    def _walk(self, wanted: Filter, until: datetime, *, counted: bool, ends: float = inf) -> Iterator[Any]:
        """The wanted messages, or with `counted` their kinds; None: there are more, but the time is over."""
        verb, place = start(self._database, wanted, newer=True)
        verb = verb.replace(".sql", "_counted.sql") if counted else verb
        parameters = {**wanted.parameters, "until": until, "look": ROWS_A_LOOK, "size": None}
        while True:
            *rows, end = self._database.ask(verb, **{**parameters, **place})
            yield from rows
            if end.end_seq is None:
                return
            if time.monotonic() > ends:
                yield None
                return
            place["last"] = end.end_seq
            if "time" in place:
                place["time"] = str(end.end_time)

    def change(
        self,
        action: Action,
        ids: list[UUID],
        states: Iterable[str],
        until: datetime | None,
        entry: int,
        token: UUID | None = None,
        duration: float = 0.0,
    ) -> set[UUID] | None:
        """Change these messages, and count them in this entry of the audit. Returns the ids of those that were changed;
        None: the act has ended, or another process has its lease. `token`, `duration`: that lease, and for how many
        seconds it is prolonged."""
        parameters = {"ids": ids, "until": until, "entry": entry, "token": token, "duration": duration, **self._person}
        if action in ("redrive", "try"):
            rows = self._database.ask(f"act/{action}.sql", **parameters)
        elif action not in ("discard", "purge"):  # somebody has written this entry of the audit by hand
            raise KeyError(action)
        else:
            kinds = sorted({DEAD if state == DEAD else "waiting" for state in states})
            rows = self._database.ask("act/discard.sql", **parameters, states=kinds, kept=action == "discard")
        changed = {UUID(str(row.id)) for row in rows if row.id is not None} if rows else None
        if changed:
            wake(self._settings)
        return changed

    def try_destination(self, name: str) -> bool:
        """Let an open circuit be tried at once. Returns whether it would have waited. A pause by a person stays."""
        tried = bool(self._database.ask("traffic/try_now.sql", destination=name))
        if tried:
            wake(self._settings)
        return tried

    def edit(self, id: UUID, former: bytes, payload: bytes, content_type: str) -> int:
        """Replace the `former` payload of a dead letter. Returns the entry of the audit.

        Raises `ActRefused`, `PayloadTooLarge`, `ActConflict` or `UnknownMessage`.
        """
        lookup = Lookup(self._database)
        self.check(lookup.dead_letter(id), payload, content_type)
        edited = {"message": id, "digest": hashlib.sha256(former).digest(), "body": payload, "kind": content_type}
        rows = self._database.ask("act/edit.sql", **edited, **self._person)
        if not rows:
            lookup.dead_letter(id)
            raise ActRefused(reason="somebody else has changed its payload meanwhile; look at it again")
        return int(rows[0].entry)

    def check(self, message: dict[str, Any], payload: bytes, content_type: str) -> None:
        """Raises `ActRefused` or `PayloadTooLarge` if the destination could not take this payload."""
        configured = self._settings.destinations.get(message["destination"])
        if configured is not None and len(payload) > configured.largest:
            facts = {"event_type": message["event_type"], "destination": message["destination"]}
            raise PayloadTooLarge(size=len(payload), limit=configured.largest, **facts)
        if is_json(content_type):
            try:
                json.loads(payload)
            except (ValueError, RecursionError) as error:
                raise ActRefused(reason=f"it is not {content_type}: {error}") from None


def steps(database: Database, act: dict[str, Any], token: UUID, lease: float) -> Steps:
    """Do what is left of an act, batch by batch, under this token, and prolong its lease by `lease` seconds each time.
    `act`: see sql/act/one.sql."""
    operator, seq = Operator(database, act["who"], act["why"]), act["seq"]
    wanted = Filter.recorded(act["wanted"]["filter"])
    rest = ids = [UUID(id) for id in act["wanted"]["ids"]]
    count, most, missed = act["count"], act["most"], 0
    if act["action"] == "try" and not ids and wanted.whole_destination:
        operator.try_destination(str(wanted.destination))
    for _ in range(2):  # messages that somebody else was changing are tried once more at the end
        missed, again = 0, list[UUID]()
        chosen = iter(rest) if ids else operator.chosen(wanted, act["as_of"])
        left = None if most is None else max(0, most - count)
        for batch, wait in paced(islice(chosen, left), act["rate"]):
            yield max(0.0, wait)
            changed = operator.change(act["action"], batch, wanted.states, act["as_of"], seq, token, lease)
            if changed is None:
                return None
            count += len(changed)
            missed += len(batch) - len(changed)
            again += [id for id in batch if id not in changed] if ids else ()
        rest = again
        if not missed:
            break
    missed = len(ids) - count if ids else missed
    known = len(rest) == missed  # else another process has changed some of them before
    named = {"not_changed": [str(id) for id in rest[:100]]} if known and rest else {}
    return {"missed": missed, **named} if missed else {}


def is_json(content_type: str) -> bool:
    """Whether a content type is JSON, or a format that is written as JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def batch_size(rate: float | None) -> int:
    """Messages of a batch, at `rate` messages a second: ten batches a second, so that the sends are spread evenly."""
    return BATCH_MESSAGES if rate is None else min(BATCH_MESSAGES, max(1, ceil(rate / 10)))


def paced(ids: Iterable[UUID], rate: float | None) -> Iterator[tuple[list[UUID], float]]:
    """Batches of these ids; and for each, how many seconds to wait before it, at `rate` messages a second."""
    size = batch_size(rate)
    rest, asked, began = iter(ids), 0, time.monotonic()
    while batch := list(islice(rest, size)):
        yield batch, began + asked / rate - time.monotonic() if rate else 0.0
        asked += len(batch)
