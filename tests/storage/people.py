"""What people do to messages, and what they look for, verb by verb."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.messages.acts import Action, change
from outbox_tasks.operating.messages.find import LAST_NUMBER


class Person(NamedTuple):
    who: str
    why: str | None = None


class Acting(Database):
    """The verbs of acts."""

    def act_on(
        self, action: Action, ids: Sequence[UUID], by: Person, entry: int, *, states: Sequence[str] = ("dead",),
        until: datetime | str = "infinity",
    ) -> set[UUID]:  # fmt: skip
        """See `acts.change`."""
        act = {"action": action, "as_of": until, "seq": entry, "who": by.who, "why": by.why}
        return change(self.ask, act, list(ids), states)

    def edit(self, id: UUID, digest: bytes, payload: bytes, content_type: str, by: Person) -> int | None:
        """The entry of the audit; None: the message is not dead, or its payload has another digest."""
        said = {"message": id, "digest": digest, "body": payload, "kind": content_type}
        return next((row.entry for row in self.ask("act/edit.sql", **said, person=by.who, reason=by.why)), None)

    def replay(self, copies: Sequence[dict[str, Any]], place: dict[str, Any], entry: int, by: Person) -> set[str]:
        """The ids of the copies that were written."""
        said = {"row": json.dumps(copies), "place": json.dumps({"place": place}), "entry": entry}
        with self.transaction() as run:
            run("archive/replay_alone.sql")
            return {row.id for row in run("archive/replay.sql", **said, person=by.who, reason=by.why)}


class Wanted(NamedTuple):
    """The parameters of the verbs in sql/find."""

    states: list[str] | None = None
    destination: str | None = None
    event_type: str | None = None
    key: str | None = None
    code: str | None = None
    older: float | None = None
    newer_than: float | None = None
    until: datetime | None = None

    @property
    def said(self) -> dict[str, Any]:
        return self._asdict()


ANY = Wanted()


class Looked(NamedTuple):
    """What a look has found, and where it ended."""

    found: Sequence[Any]
    end: Any


class Finding(Database):
    """The verbs that look for messages."""

    def dead(
        self, wanted: Wanted = ANY, *, newer: bool = True, time: Any = None, counted: bool = False, **place: Any
    ) -> Looked:
        verb = "find/dead_counted.sql" if counted else "find/dead.sql"
        time = str(time or ("-infinity" if newer else "infinity"))
        return self._look(verb, wanted, newer, **{"kin": None, "time": time, **place})

    def at_work(self, wanted: Wanted = ANY, *, newer: bool = True, counted: bool = False, **place: Any) -> Looked:
        verb = "find/at_work_counted.sql" if counted else "find/at_work.sql"
        return self._look(verb, wanted, newer, **place)

    def messages(self, wanted: Wanted = ANY, *, newer: bool = False, **place: Any) -> Looked:
        return self._look("find/messages.sql", wanted, newer, **place)

    def one(self, id: UUID, part: int | None = None) -> Sequence[Any]:
        return self.ask("find/one.sql", ids=[id], part=part)

    def ahead(self, key: str, seq: int, *, blocks: bool) -> Any:
        """The first message of the key, if it is before this one."""
        rows = self.ask("find/ahead.sql", destination="orders", key=key, seq=seq, blocks=blocks)
        return rows[0] if rows else None

    def _look(self, verb: str, wanted: Wanted, newer: bool, last: int | None = None, **place: Any) -> Looked:
        last = last if last is not None else 0 if newer else LAST_NUMBER
        *found, end = self.ask(verb, **{**wanted.said, "size": None, "newer": newer, "last": last, **place})
        return Looked(found, end)
