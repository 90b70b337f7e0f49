"""Finds messages, everything about one message, and the error groups of dead letters."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.model import EVENT_ID, sibling
from outbox_tasks.operating import audit
from outbox_tasks.operating.messages import find_statements, waits

COUNTED = find_statements.COUNTED

WAITING = ("pending", "scheduled", "leased", "handed over", "running", "retrying")
DEAD = "dead"
ARCHIVED = ("sent", "discarded")
STATES = (*WAITING, DEAD, *ARCHIVED)
"""All states of a message."""

LOOK = 10_000
"""Rows of an index that are looked at for the wanted messages."""

LANES = 5
"""If each lane of each destination is searched, the search looks at `LOOK` rows divided by this in each."""

UNSORTED = 2_000
"""Rows that are looked at if any message is wanted and applications chose the ids: these are not in the order of
time."""

SKEW = 5.0
"""Seconds by which the clocks behind the ids may be ahead."""

GROUPS, MOST_GROUPS = 500, 5_000
"""Error groups that are read at a time, and in all."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages are wanted; None or empty: any. Ages are seconds since a message was written."""

    states: tuple[str, ...] = ()
    destination: str | None = None
    event_type: str | None = None
    """A pattern: * stands for any characters, ? for one."""
    key: str | None = None
    code: str | None = None
    """Of the last error."""
    group: str | None = None
    """An error group of dead letters."""
    older_than: float | None = None
    newer_than: float | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of `find_statements`."""
        pattern = self.event_type
        if pattern is not None:
            for sign, meaning in (("\\", "\\\\"), ("%", "\\%"), ("_", "\\_"), ("*", "%"), ("?", "_")):
                pattern = pattern.replace(sign, meaning)
        return {
            "states": list(self.states) or None,
            "destination": self.destination,
            "pattern": pattern,
            "key": self.key,
            "code": self.code,
            "older": self.older_than,
            "newer": self.newer_than,
        }

    @property
    def facts(self) -> dict[str, Any]:
        """What it asks for, for the audit."""
        names = ("states", "destination", "event_type", "key", "code", "group", "older_than", "newer_than")
        return {name: value for name in names if (value := getattr(self, name)) not in (None, ())}

    @classmethod
    def recorded(cls, facts: dict[str, Any]) -> Self:
        """The filter with these `facts`, read from JSON."""
        return cls(**{**facts, "states": tuple(facts.get("states", ()))})


@dataclass(frozen=True, slots=True)
class Became:
    """What became of the messages of a redrive; of the first `audit.KEPT` of them, if there are more."""

    kept: int
    """How many are known by their ids."""
    rows: list[Any]
    """state, code (of the last error), count and id (one of them). Dead: dead again."""

    def count(self, *states: str) -> int:
        """How many are in one of these states."""
        return sum(row.count for row in self.rows if row.state in states)

    @property
    def text(self) -> str:
        """Such as `3 sent, 2 waiting, 1 dead again (http_422)`."""
        codes = ", ".join(sorted({row.code for row in self.rows if row.state == DEAD and row.code}))
        numbers = {
            "sent": self.count("sent"),
            "waiting": self.count(*WAITING),
            f"dead again ({codes})" if codes else "dead again": self.count(DEAD),
            "discarded": self.count("discarded"),
            "no longer here": max(0, self.kept - sum(row.count for row in self.rows)),
        }
        first = f"of the first {self.kept:,}: " if self.kept >= audit.KEPT else ""
        return first + ", ".join(f"{number:,} {what}" for what, number in numbers.items() if number)


@dataclass(slots=True)
class Found:
    """Messages, the latest first, and how many rows were looked at."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = True
    """Whether these are all of the wanted ones."""
    looked: int = 0
    back_to: datetime | None = None
    """How far back in time the search got, if it did not get to the end."""


class Lookup:
    """Reads the messages of one outbox."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables

    def find(self, wanted: Filter, size: int, limit: float | None = None) -> Found:
        """The newest `size` of the wanted messages; if only dead letters are wanted, the last to die. `limit`: seconds
        that a statement may run."""
        found = Found()
        parameters = {**wanted.parameters, "size": size, "group": wanted.group, **bounds(wanted.older_than)}
        # An index has these together and in order: the first rows are the wanted ones.
        ready = self._only_dead(wanted) and wanted.facts.keys() <= {"states", "destination", "group"}
        look = size if ready else LOOK if wanted.facts else UNSORTED
        rows: dict[UUID, dict[str, Any]] = {}
        for statement, decides in self._searches(wanted):
            asked = {**parameters, "look": max(size, look if decides else look // LANES)}
            part = self._database.rows(statement, asked, limit)
            found.looked += part[0].looked
            if decides and part[0].cut:
                found.complete = False
                found.back_to = max(filter(None, (found.back_to, part[0].back_to)), default=None)
            own = ("looked", "cut", "back_to")
            for row in part:
                if row.id is not None:
                    rows.setdefault(row.id, {k: v for k, v in row._mapping.items() if k not in own})
        by = "dead_at" if self._only_dead(wanted) else "created_at"
        found.messages = sorted(rows.values(), key=lambda row: (row[by], row["seq"]), reverse=True)[:size]
        found.complete = found.complete and len(found.messages) < size
        return found

    def _only_dead(self, wanted: Filter) -> bool:
        return wanted.group is not None or set(wanted.states) == {DEAD}

    def _searches(self, wanted: Filter) -> Iterator[tuple[Any, bool]]:
        """The statements that may find wanted messages; and for each, whether the search is complete only with it."""
        t, states = self._tables, set(wanted.states) or set(STATES)
        if wanted.group is not None:
            yield find_statements.dead_of_group(t), True
        elif not states.isdisjoint((*WAITING, DEAD)):
            if wanted.key is not None:
                yield find_statements.of_key(t), True
            elif states == {DEAD}:
                yield find_statements.dead_of_destinations(t), True
            else:
                yield find_statements.newest(t), True
                # These indexes find what a backlog would hide.
                narrow = wanted.destination is not None or bool(wanted.states)
                if narrow and not states.isdisjoint(WAITING):
                    yield find_statements.waiting(t), False
                if narrow and DEAD in states:
                    yield find_statements.dead_of_destinations(t), False
        if wanted.group is None and not states.isdisjoint(ARCHIVED):
            yield find_statements.newest_archived(t), True

    def one(self, id: UUID, part: int | None = None, start: int = 0) -> dict[str, Any] | None:
        """Everything about a message; also `ahead`: the first of its key, `waits`: why it is not going out,
        `audit`: people's acts on it, and `elsewhere`: the same event's messages to other destinations.

        `part`: so many bytes of the payload, from `start`. With 0, nothing that the application wrote is read, or that
        quotes it: headers and history are empty too."""
        wanted = {"id": id, "part": part, "start": start}
        rows = self._database.rows(find_statements.everything(self._tables), wanted)
        if not rows:
            return None
        message = latest([dict(row._mapping) for row in rows])
        message["ahead"] = None
        if message["key"] is not None and message["state"] in WAITING:
            place = {name: message[name] for name in ("destination", "key", "seq")}
            place["blocks"] = self._database.settings.dead_blocks(message["destination"])
            before = self._database.rows(find_statements.ahead(self._tables), place)
            message["ahead"] = dict(before[0]._mapping) if before else None
        message["waits"] = waits.why(self._database, message)
        message["history"] = _entries(message["history"])
        named = [entry.get("entry") for entry in message["history"]]
        named = [seq for seq in named if type(seq) is int and 0 <= seq < 1 << 63]
        acts = self._database.rows(audit.about(self._tables), {"target": str(id), "named": named})
        message["audit"] = [dict(row._mapping) for row in acts]
        message["elsewhere"] = self._elsewhere(message)
        return message

    def _elsewhere(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        headers = message["headers"]
        try:
            event = UUID(headers[EVENT_ID])
        except (KeyError, TypeError, ValueError, AttributeError):
            return []
        ids = {event, *(sibling(event, name) for name in self._database.settings.destinations)} - {message["id"]}
        rows = self._database.rows(find_statements.states(self._tables), {"ids": list(ids)})
        return sorted((dict(row._mapping) for row in rows), key=lambda row: str(row["destination"]))

    def states(self, ids: list[UUID]) -> dict[str, str]:
        """The states of these messages, by id."""
        found = self._database.rows(find_statements.states(self._tables), {"ids": ids})
        # If a message was replayed, its copy that waits comes first, and counts.
        return {row.id: row.state for row in reversed(found)}

    def groups(self, destination: str | None = None) -> tuple[list[dict[str, Any]], bool]:
        """The error groups of the dead letters, the largest first; and whether these are all."""
        found: list[dict[str, Any]] = []
        past, read = "", 0
        while read < MOST_GROUPS:
            page = self._database.rows(
                find_statements.groups(self._tables), {"past": past, "most": GROUPS, "destination": destination}
            )
            found += [dict(row._mapping) for row in page if row.count is not None]
            read += len(page)
            if len(page) < GROUPS:
                break
            past = page[-1].group
        found.sort(key=lambda group: (-group["count"], group["group"]))
        return found, read < MOST_GROUPS

    def group(self, name: str) -> dict[str, Any] | None:
        """An error group, as `groups` has it; None: it has no dead letters."""
        before = f"{int(name, 16) - 1:012x}" if int(name, 16) else ""
        rows = self._database.rows(
            find_statements.groups(self._tables), {"past": before, "most": 1, "destination": None}
        )
        return dict(rows[0]._mapping) if rows and rows[0].group == name else None

    def acts(self, size: int, before: int | None = None) -> list[dict[str, Any]]:
        """The latest acts of people, the last one first; those before the act with this seq."""
        rows = self._database.rows(audit.entries(self._tables), {"size": size, "before": before})
        return [dict(row._mapping) for row in rows]

    def became(self, entry: int) -> Became | None:
        """What became of the messages of a redrive; None: it is none, or it has changed nothing."""
        *rows, all_of_them = self._database.rows(find_statements.became(self._tables), {"entry": entry})
        return Became(all_of_them.count, rows) if all_of_them.count else None

    def former_payload(self, entry: int) -> bytes | None:
        """The payload before the edit of this audit entry; None: it is no edit."""
        rows = self._database.rows(audit.former(self._tables), {"entry": entry})
        try:
            return b64decode(rows[0].payload, validate=True) if rows else None
        except ValueError:  # whoever may write into the audit has written it
            return None


def _entries(history: Any) -> list[dict[str, Any]]:
    """The entries of a history, into which a writer may have put anything."""
    return [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []


def latest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the rows of one id: the one that waits, or else the last one. A replay writes a message again."""
    return max(rows, key=lambda row: (row["finished_at"] is None, row["finished_at"]))


def bounds(older_than: float | None) -> dict[str, UUID]:
    """Two bounds for ids with a time in them: the last id that is old enough, and the last id that any host may have
    made by now."""
    now = time.time() + SKEW
    return {"high": _last_of(now - (older_than or -86_400.0)), "top": _last_of(now + 86_400.0)}


def _last_of(seconds: float) -> UUID:
    """The last id with this time."""
    return UUID(int=(max(0, int(seconds * 1000)) << 80) + (1 << 80) - 1)
