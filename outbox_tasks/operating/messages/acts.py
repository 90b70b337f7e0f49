"""What a person may do to messages: see how many an act would change, change them batch by batch, edit one. The audit
records each act, with who and why. `background.Runner` has the acts' batches done."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil, inf
from typing import Any, Literal
from uuid import UUID

from outbox_tasks.database.connection import Database, Run
from outbox_tasks.errors import ActRefused, PayloadTooLarge
from outbox_tasks.operating.messages.find import COUNTED_AT_MOST, DEAD, Filter, Lookup, start
from outbox_tasks.text import storable

Action = Literal["redrive", "try", "discard", "purge", "replay"]

BATCH_MESSAGES = 1_000
"""Messages that one statement changes at most."""

ROWS_A_LOOK = 5_000
"""Rows of an index that one statement looks at."""


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
        verb, place = start(self._database, wanted, newer=True)
        asked = {**wanted.parameters, "until": plan.until, "look": ROWS_A_LOOK, "size": None}
        while True:
            *rows, end = self._database.ask(verb.replace(".sql", "_counted.sql"), **asked, **place)
            for row in rows:
                plan.add(row, row.last_error_code)
            if end.end_seq is None:
                return plan
            if plan.count >= COUNTED_AT_MOST or time.monotonic() > ends:
                plan.more = True
                return plan
            place |= beyond(end.end_seq, end.end_time if "time" in place else None)

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


@dataclass(slots=True)
class Batch:
    """A batch of an act that was done."""

    place: dict[str, Any] | None
    """Where the act goes on; None: it has ended."""
    changed: int = 0
    pause: float = 0.0
    """Seconds until the next one."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Of an act that has ended: more for the audit."""


def do_batch(run: Run, database: Database, act: dict[str, Any]) -> Batch:
    """Do the next batch of an act: see sql/act/one.sql. Nobody else does one of it before the transaction ends.

    Messages that somebody else was changing are tried once more at the end."""
    named, most = act["wanted"]["ids"], act["most"]
    wanted = Filter.recorded(act["wanted"]["filter"])
    place = act["place"] or {"again": False, "ids": named, "at": {}, "missed": 0, "left": []}
    if act["place"] is None and act["action"] == "try" and wanted.whole_destination:
        run("traffic/try_now.sql", destination=wanted.destination)
    size = batch_size(act["rate"])
    size = size if most is None else min(size, most - act["count"])
    if named:
        start_at = place["at"].get("index", 0)
        ids = [UUID(id) for id in place["ids"][start_at : start_at + size]]
        at = {"index": start_at + size} if start_at + size < len(place["ids"]) else None
    else:
        ids, at = _found(run, database, wanted, act["as_of"], size, place["at"])
    changed = change(run, act, ids, wanted.states) if ids else set()
    missed = place["missed"] + len(ids) - len(changed)
    left = place["left"] + [str(id) for id in ids if named and id not in changed]
    pause = len(ids) / act["rate"] if act["rate"] else 0.0
    if most is None or act["count"] + len(changed) < most:
        if at is not None:
            return Batch({**place, "at": at, "missed": missed, "left": left}, len(changed), pause)
        if missed and not place["again"]:
            again = {"again": True, "ids": left, "at": {}, "missed": 0, "left": []}
            return Batch(again, len(changed), pause)
    facts = {"missed": missed, **({"not_changed": left[:100]} if left else {})} if missed else {}
    return Batch(None, len(changed), facts=facts)


def _found(
    run: Run, database: Database, wanted: Filter, until: datetime, size: int, at: dict[str, Any]
) -> tuple[list[UUID], dict[str, Any] | None]:
    """The ids of some of the wanted messages that were there, or dead, at that time, and where to look on; None: these
    were all. They come by the time of their death, or the oldest first if not all of them are dead."""
    verb, place = start(database, wanted, newer=True)
    asked = {**wanted.parameters, "until": until, "look": ROWS_A_LOOK, "size": size}
    *rows, end = run(verb, **asked, **{**place, **at})
    ids = [row.id for row in rows]
    is_of_dead = "time" in place
    if len(ids) == size:
        return ids, beyond(rows[-1].seq, rows[-1].dead_at if is_of_dead else None)
    return ids, None if end.end_seq is None else beyond(end.end_seq, end.end_time if is_of_dead else None)


def beyond(seq: int, died: datetime | None) -> dict[str, Any]:
    """A place of a list, for the verbs that `start` names."""
    return {"last": seq} if died is None else {"last": seq, "time": str(died)}


def change(run: Run, act: dict[str, Any], ids: list[UUID], states: Iterable[str]) -> set[UUID]:
    """Change these messages, and count them in the act's entry of the audit. Returns the ids of those that were."""
    action = act["action"]
    asked = {"ids": ids, "until": act["as_of"], "entry": act["seq"], "person": act["who"], "reason": act["why"]}
    if action in ("redrive", "try"):
        rows = run(f"act/{action}.sql", **asked)
    elif action in ("discard", "purge"):
        kinds = sorted({DEAD if state == DEAD else "waiting" for state in states})
        rows = run("act/discard.sql", **asked, states=kinds, kept=action == "discard")
    else:  # somebody has written this entry of the audit by hand
        raise KeyError(action)
    return {UUID(row.id) for row in rows}


def is_json(content_type: str) -> bool:
    """Whether a content type is JSON, or a format that is written as JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def batch_size(rate: float | None) -> int:
    """Messages of a batch, at `rate` messages a second: ten batches a second, so that the sends are spread evenly."""
    return BATCH_MESSAGES if rate is None else min(BATCH_MESSAGES, max(1, ceil(rate / 10)))
