"""Finds messages, everything about one message, and the error groups of dead letters."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import asdict, dataclass
from typing import Any, Self
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ActConflict, UnknownMessage
from outbox_tasks.model import EVENT_ID, sibling
from outbox_tasks.operating import audit
from outbox_tasks.operating.messages.waits import Examined, Reasons

COUNTED_AT_MOST = 100_000
"""Messages are counted up to this."""

LAST_NUMBER = (1 << 63) - 1
"""After the numbers of all messages."""

MESSAGES = "find/messages.sql"
"""The verb for a list of all messages."""

WAITING = ("pending", "scheduled", "leased", "handed over", "running", "retrying")
DEAD = "dead"
ARCHIVED = ("sent", "discarded")
STATES = (*WAITING, DEAD, *ARCHIVED)
"""All states of a message."""

GROUPS_A_PAGE, GROUPS_AT_MOST = 500, 5_000
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
        """The parameters of the verbs in sql/find. `until`: only what was written, or dead, by then."""
        pattern = self.event_type
        if pattern is not None:
            for sign, meaning in (("\\", "\\\\"), ("%", "\\%"), ("_", "\\_"), ("*", "%"), ("?", "_")):
                pattern = pattern.replace(sign, meaning)
        return {
            "states": list(self.states) or None,
            "destination": self.destination,
            "event_type": pattern,
            "key": self.key,
            "code": self.code,
            "older": self.older_than,
            "newer_than": self.newer_than,
            "until": None,
        }

    @property
    def facts(self) -> dict[str, Any]:
        """What it asks for, for the audit."""
        given = {**asdict(self), "states": list(self.states) or None}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def whole_destination(self) -> bool:
        """Whether it names a destination, and beside states nothing else."""
        return self.facts.keys() - {"states"} == {"destination"}

    @classmethod
    def recorded(cls, facts: dict[str, Any]) -> Self:
        """The filter with these `facts`, read from JSON."""
        return cls(**{**facts, "states": tuple(facts.get("states", ()))})


@dataclass(frozen=True, slots=True)
class Became:
    """What became of the messages of a redrive; of the first `audit.CHANGED_KEPT` of them, if there are more."""

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
        first = f"of the first {self.kept:,}: " if self.kept >= audit.CHANGED_KEPT else ""
        return first + ", ".join(f"{number:,} {what}" for what, number in numbers.items() if number)


class Lookup:
    """Reads the messages of one outbox. `examined`: see `Reasons`."""

    def __init__(self, database: Database, examined: Examined | None = None) -> None:
        self._database = database
        self._reasons = Reasons(database, examined)

    def stored(self, id: UUID, part: int | None = None) -> dict[str, Any]:
        """A message as it is stored. Raises `UnknownMessage`.

        `part`: so many bytes of the payload. With 0, nothing that the application wrote is read, or that
        quotes it: headers and history are empty too."""
        rows = self._database.ask("find/one.sql", ids=[id], part=part)
        if not rows:
            raise UnknownMessage(id=id)
        message = latest([row._asdict() for row in rows])
        message["history"] = _entries(message["history"])
        return message

    def one(self, id: UUID, part: int | None = None) -> dict[str, Any]:
        """Everything about a message: as `stored` has it, and `ahead`: the first of its key, `waits`: why it is where
        it is, `audit`: people's acts on it, and `elsewhere`: the same event's messages to other destinations."""
        message = self.stored(id, part)
        message["ahead"] = None
        if message["key"] is not None and message["state"] in WAITING:
            place = {name: message[name] for name in ("destination", "key", "seq")}
            place["blocks"] = self._database.settings.dead_blocks(message["destination"])
            before = self._database.ask("find/ahead.sql", **place)
            message["ahead"] = before[0]._asdict() if before else None
        message["waits"] = self._reasons.of(message)
        named = [entry["entry"] for entry in message["history"] if type(entry.get("entry")) is int]
        acts = self._database.ask("audit/about.sql", target=str(id), named=named)
        message["audit"] = [row._asdict() for row in acts]
        message["elsewhere"] = self._elsewhere(message)
        return message

    def dead_letter(self, id: UUID) -> dict[str, Any]:
        """The same of a dead letter. Raises `UnknownMessage` or `ActConflict`."""
        message = self.one(id)
        if message["state"] != DEAD:
            raise ActConflict(reason=f"message {id} is {message['state']}, and only a dead letter can be edited")
        return message

    def _elsewhere(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        if (event := event_of(message["headers"])) is None:
            return []
        ids = {event, *(sibling(event, name) for name in self._database.settings.destinations)} - {message["id"]}
        rows = self._database.ask("find/states.sql", ids=list(ids))
        siblings = [{**row._asdict(), "id": str(row.id)} for row in rows]
        return sorted(siblings, key=lambda row: str(row["destination"]))

    def groups(self, destination: str | None = None) -> tuple[list[dict[str, Any]], bool]:
        """The error groups of the dead letters, the largest first; and whether these are all."""
        groups: list[dict[str, Any]] = []
        past, read = "", 0
        while read < GROUPS_AT_MOST:
            page = self._database.ask("find/groups.sql", past=past, most=GROUPS_A_PAGE, destination=destination)
            groups += [row._asdict() for row in page if row.count is not None]
            read += len(page)
            if len(page) < GROUPS_A_PAGE:
                break
            past = page[-1].group
        groups.sort(key=lambda group: (-group["count"], group["group"]))
        return groups, read < GROUPS_AT_MOST

    def acts(self, size: int, before: int | None = None) -> list[dict[str, Any]]:
        """The latest acts of people, the last one first. `before`: only acts with a lower seq."""
        return [row._asdict() for row in self._database.ask("audit/latest.sql", size=size, before=before)]

    def became(self, entry: int) -> Became | None:
        """What became of the messages of a redrive; None: it is none, or it has changed nothing."""
        changed = self._database.ask("audit/changed.sql", entry=entry)
        if not (ids := [row.id for row in changed if row.id is not None]):
            return None
        return Became(len(ids), list(self._database.ask("find/became.sql", ids=ids, since=changed[0].at)))

    def former_payload(self, entry: int) -> bytes | None:
        """The payload before the edit of this audit entry; None: it is no edit."""
        rows = self._database.ask("audit/former.sql", entry=entry)
        return b64decode(rows[0].payload) if rows else None


def event_of(headers: Any) -> UUID | None:
    """The id of a message's event, if it has several destinations. A writer may have put anything into the headers."""
    try:
        return UUID(headers[EVENT_ID])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _entries(history: Any) -> list[dict[str, Any]]:
    """The entries of a history, into which a writer may have put anything."""
    return [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []


def latest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the rows of one id: the one that waits, or else the last one. A replay writes a message again."""
    return max(rows, key=lambda row: (row["finished_at"] is None, row["finished_at"]))


def start(database: Database, wanted: Filter, *, newer: bool) -> tuple[str, dict[str, Any]]:
    """The verb that walks through the wanted messages, and where it begins. If only dead letters are wanted, it goes by
    their death."""
    place: dict[str, Any] = {"newer": newer, "last": 0 if newer else LAST_NUMBER}
    if wanted.group is not None or set(wanted.states) == {DEAD}:
        return "find/dead.sql", {**place, "time": "-infinity" if newer else "infinity", "kin": wanted.group}
    if wanted.states and set(wanted.states).isdisjoint(ARCHIVED):
        return "find/at_work.sql", place
    if wanted.older_than is not None and not newer:
        place["last"] = database.ask("find/aged.sql", age=wanted.older_than)[0].last
    return MESSAGES, place


def shown(row: Any) -> dict[str, Any]:
    own = ("looked", "end_time", "end_seq", "place")
    return {name: value for name, value in row._asdict().items() if name not in own}
