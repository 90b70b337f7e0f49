"""What people do to messages: see `outbox_tasks/sql/act/`. The audit counts it in the same statement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from outbox_tasks.database.connection import Database

Action = Literal["redrive", "discard", "purge"]


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of an act in the background: its token, and for how many seconds each batch prolongs it."""

    token: UUID
    duration: float


@dataclass(frozen=True, slots=True)
class Person:
    """Who acts, and why."""

    who: str
    why: str | None = None

    @property
    def said(self) -> dict[str, Any]:
        """The parameters of a verb."""
        return {"person": self.who, "reason": self.why}


class Acting(Database):
    """The verbs of people's acts on messages."""

    def act_on(
        self,
        action: Action,
        ids: Sequence[UUID],
        by: Person,
        entry: int,
        *,
        states: Sequence[str] = ("dead",),
        until: datetime | None = None,
        lease: Lease | None = None,
    ) -> set[UUID] | None:
        """Change these messages, and count them in this entry of the audit. Returns the ids of those that were changed;
        None: the act in the background has ended, or another process has its lease.

        `states`: dead, waiting, or both: a redrive changes only dead letters. `until`: only what was dead by then.
        """
        parameters = {"ids": list(ids), "until": until, "entry": entry, **by.said, **_held(lease)}
        if action == "redrive":
            rows = self.ask("act/redrive.sql", **parameters)
        else:
            rows = self.ask("act/discard.sql", **parameters, states=list(states), kept=action == "discard")
        return {UUID(row.id) for row in rows if row.id is not None} if rows else None

    def edit(self, id: UUID, digest: bytes, payload: bytes, content_type: str, by: Person) -> int | None:
        """Replace the payload of a dead letter, if the SHA-256 of the former one is `digest`. Returns the entry of the
        audit."""
        said = {"message": id, "digest": digest, "body": payload, "kind": content_type, **by.said}
        return next((int(row.entry) for row in self.ask("act/edit.sql", **said)), None)

    def replay(self, copies: Sequence[dict[str, Any]], place: dict[str, Any], entry: int, by: Person) -> set[str]:
        """Write copies of archived messages, in this order, and note in the audit how far the replay got. Returns the
        ids of the written ones: not of those that are at work already."""
        with self.transaction() as run:
            run("act/replay_alone.sql")
            said = {"row": json.dumps(copies), "place": json.dumps({"place": place}), "entry": entry, **by.said}
            return {row.id for row in run("act/replay.sql", **said)}


def _held(lease: Lease | None) -> dict[str, Any]:
    return {"token": lease and lease.token, "duration": lease.duration if lease else 0.0}
