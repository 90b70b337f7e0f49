"""Finds messages for people: see `outbox_tasks/sql/find/`.

Each list has an order that does not change while messages are sent, so no message comes twice or is left out. Each verb
looks at some rows only, and says where it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from outbox_tasks.database.connection import Database

FIRST, LAST = 0, (1 << 63) - 1
"""Numbers before and after all messages."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages are wanted; None: any. Ages are seconds since a message was written."""

    states: Sequence[str] | None = None
    destination: str | None = None
    event_type: str | None = None
    """A pattern for LIKE."""
    key: str | None = None
    code: str | None = None
    """Of the last error."""
    older: float | None = None
    newer_than: float | None = None
    until: datetime | None = None
    """Only messages that were written, or dead, by then. Ages count from there."""

    @property
    def said(self) -> dict[str, Any]:
        """The parameters of a verb."""
        own = {name: getattr(self, name) for name in self.__slots__}
        return {**own, "states": None if self.states is None else list(self.states)}


ANY = Wanted()


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look has found, and where it ended."""

    found: Sequence[Any]
    end: Any
    """`end_seq`, with `end_time` of dead letters: null if there is nothing more. In some: `looked` and `created_at`."""


class Finding(Database):
    """The verbs that look for messages. `limit`: seconds that a look may take."""

    def dead(
        self,
        wanted: Wanted = ANY,
        *,
        newer: bool = True,
        time: datetime | str | None = None,
        last: int | None = None,
        kin: str | None = None,
        look: int,
        size: int | None = None,
        counted: bool = False,
        limit: float | None = None,
    ) -> Looked:
        """The dead letters beyond a place, by their death; of one group (`kin`), if given. `counted`: their kinds."""
        place = {
            "time": str(time or ("-infinity" if newer else "infinity")),
            "last": (FIRST if newer else LAST) if last is None else last,
        }
        verb = "find/dead_counted.sql" if counted else "find/dead.sql"
        return self._look(verb, limit, **place, newer=newer, kin=kin, look=look, size=size, **wanted.said)

    def at_work(
        self,
        wanted: Wanted = ANY,
        *,
        newer: bool = True,
        last: int | None = None,
        look: int,
        size: int | None = None,
        counted: bool = False,
        limit: float | None = None,
    ) -> Looked:
        """The messages that are not yet sent, beyond a number. `counted`: their kinds."""
        verb = "find/at_work_counted.sql" if counted else "find/at_work.sql"
        return self._look(verb, limit, newer=newer, last=_beyond(newer, last), look=look, size=size, **wanted.said)

    def messages(
        self,
        wanted: Wanted = ANY,
        *,
        newer: bool = False,
        last: int | None = None,
        look: int,
        size: int | None = None,
        limit: float | None = None,
    ) -> Looked:
        """All messages beyond a number, sent or not."""
        place = {"newer": newer, "last": _beyond(newer, last)}
        return self._look("find/messages.sql", limit, **place, look=look, size=size, **wanted.said)

    def archived(self, wanted: Wanted, since: datetime, to: datetime, *, last: int = FIRST, look: int) -> Looked:
        """What was sent or discarded in this time, beyond a number: what a replay copies."""
        span = {"since": since, "to": to, "newer": True, "last": last, "look": look}
        return self._look("find/archived.sql", None, **span, **wanted.said)

    def named(self, ids: Sequence[UUID]) -> Sequence[Any]:
        """What was sent or discarded of these, as of `archived`; of several with one id, the last one last."""
        return self.ask("find/named.sql", ids=list(ids))

    def originals(self, seqs: Sequence[int]) -> Sequence[Any]:
        """These messages, which were sent or discarded, with the columns of an export."""
        return self.ask("find/originals.sql", seqs=list(seqs))

    def states(self, ids: Sequence[UUID]) -> Sequence[Any]:
        """id, state and destination; of several with one id, the one that counts first."""
        return self.ask("find/states.sql", ids=list(ids))

    def became(self, ids: Sequence[UUID], since: datetime) -> Sequence[Any]:
        """What became of messages that were redriven then: state, code, count and id (one of them)."""
        return self.ask("find/became.sql", ids=list(ids), since=since)

    def groups(self, past: str, most: int, destination: str | None = None) -> Sequence[Any]:
        """The error groups of dead letters after this one, by name."""
        return self.ask("find/groups.sql", past=past, most=most, destination=destination)

    def one(self, id: UUID, part: int | None = None, start: int = 0) -> Sequence[Any]:
        """Everything about a message, once for each time that it was written."""
        return self.ask("find/one.sql", id=id, part=part, start=start)

    def ahead(self, destination: str, key: str, seq: int, *, blocks: bool) -> Any | None:
        """The first message of a key that is before this one; None: it waits for no other."""
        rows = self.ask("find/ahead.sql", destination=destination, key=key, seq=seq, blocks=blocks)
        return rows[0] if rows else None

    def _look(self, verb: str, limit: float | None, **parameters: Any) -> Looked:
        *found, end = self.ask(verb, limit, **parameters)
        return Looked(found, end)


def _beyond(newer: bool, last: int | None) -> int:
    return last if last is not None else FIRST if newer else LAST
