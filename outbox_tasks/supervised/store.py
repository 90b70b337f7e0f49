"""What a worker of the application asks the database for, while it runs tasks that were handed over."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from outbox_tasks.database.connection import Database
from outbox_tasks.relay.retry import MAX_CODE, MAX_ERROR
from outbox_tasks.relay.store import processes
from outbox_tasks.text import storable


class Fence(NamedTuple):
    """Whose run it is: the id of its row, and the token that it began with. The row is this run's while it has them."""

    id: str
    token: str


class Begun(NamedTuple):
    """What the row of a run says as it begins."""

    attempts: int
    destination: str
    key: str | None
    waited: float
    """Seconds since it was handed over."""


UNKNOWN_WAIT_SECONDS = 1.0
"""Seconds until a task that a worker does not know is sent again. They double with each time that nobody began it."""

TRACEBACK_CHARACTERS = 4000
"""The row keeps so many characters of a traceback, the last ones."""

Row = Mapping[str, Any]
"""A message to write, as `writing.rows` makes it."""


class Runs(Database):
    """The statements of runs. Each says whether the run was still its own."""

    application_name = "outbox_tasks worker"

    @cached_property
    def identity(self) -> str:
        """Which outbox this is."""
        return str(self.ask("deliver/identity.sql")[0].identity)

    def begin(self, fence: Fence, content: str, hold: float, holder: str | None = None) -> Begun | None:
        """Begin a run. None: another copy has begun it, it is over, or its row is being sent again. `content`: as the
        copy's header says. Within `hold` seconds the run must be renewed."""
        parameters = {**fence._asdict(), "content": content, "hold": hold, "holder": holder or processes.holder()}
        # The first look finds no row while the relay moves it from its lease to the runs. The second look finds it.
        rows = self.ask("supervised/begin.sql", **parameters) or self.ask("supervised/begin.sql", **parameters)
        return next((Begun._make(row) for row in rows), None)

    def whereabouts(self, id: str) -> tuple[str, str | None] | None:
        """The state of a row that could not begin, and its last holder. None: there is no such row."""
        rows = self.ask("supervised/whereabouts.sql", ids=[id])
        return (rows[0].state, rows[0].locked_by) if rows else None

    def renew(self, holds: Mapping[Fence, float]) -> dict[str, bool]:
        """Extend the leases of runs, each by its own seconds. Returns, by token, the runs that still have their rows: a
        worker may have an old and a new run of one row. False: the run was not renewed, because an open transaction
        has locked its row. As a rule this is the transaction that ends the run."""
        rows = [{**fence._asdict(), "hold": hold} for fence, hold in holds.items()]
        return {row.token: row.renewed for row in self.ask("supervised/renew.sql", run=json.dumps(rows))}

    def lose(self, fences: Iterable[Fence]) -> set[str]:
        """Give up runs whose workers are gone: the next claim sends them again. Returns the ids of the runs that still
        had their rows."""
        return {
            row.id for row in self.ask("supervised/lose.sql", run=json.dumps([fence._asdict() for fence in fences]))
        }

    def done(self, fence: Fence, following: Sequence[Row] = (), returned: Mapping[str, Any] | None = None) -> bool:
        """The task has run. `following`: messages to write in the same transaction. `returned`: see its SQL file."""
        return self._ended("supervised/end.sql", fence, following, returned or {}, soon=True)

    def discard(self, fence: Fence, code: str, error: str) -> bool:
        """The task was revoked, has expired, or raised Ignore or Reject."""
        return self._ended("supervised/end.sql", fence, (), {"state": "discarded", **_error(code, error)}, soon=True)

    def dead(
        self,
        fence: Fence,
        code: str,
        error: str,
        traceback: str | None,
        following: Sequence[Row] = (),
        ran: float | None = None,
    ) -> bool:
        """The task has failed for good, after so many seconds. `code`: the name of the exception's type."""
        trace = storable(traceback[-TRACEBACK_CHARACTERS:]) if traceback else None
        facts = {**_error(code, error), "traceback": trace, "ran": ran}
        blocks = [name for name in self.settings.destinations if self.settings.dead_blocks(name)]
        return self._ended("supervised/fail.sql", fence, following, facts, blocks=blocks)

    def retry(self, fence: Fence, copy: Row, wait: float, code: str, error: str) -> bool:
        """The task asks to be run again after `wait` seconds, as `copy` says."""
        data = copy.get("data") or b64encode(copy["text"].encode()).decode()
        facts = {"data": data, "headers": copy["headers"], "content_type": copy["content_type"], "wait": wait}
        return bool(self.ask("supervised/retry.sql", run=_rows(fence, facts | _error(code, error))))

    def requeue(self, fence: Fence) -> bool:
        """The worker has put its copy back into the broker."""
        return bool(self.ask("supervised/requeue.sql", run=_rows(fence, {})))

    def unknown(self, copy_of: str, content: str, holder: str) -> bool:
        """A worker has dropped a copy of a task that it does not know. False: the row does not wait for this copy, or
        it is sent again sooner than in `UNKNOWN_WAIT_SECONDS`."""
        return bool(
            self.ask("supervised/unknown.sql", id=copy_of, content=content, wait=UNKNOWN_WAIT_SECONDS, holder=holder)
        )

    def _ended(self, verb: str, fence: Fence, following: Sequence[Row], facts: Mapping[str, Any], **more: Any) -> bool:
        return bool(self.ask(verb, run=_rows(fence, facts), row=json.dumps(list(following)), **more))


def _error(code: str, error: str) -> dict[str, str | None]:
    return {"code": storable(code[:MAX_CODE]), "error": storable(error[:MAX_ERROR])}


def _rows(fence: Fence, facts: Mapping[str, Any]) -> str:
    return json.dumps([{**fence._asdict(), **facts}])
