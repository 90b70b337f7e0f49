"""What a worker of the application asks the database for, while it runs tasks that were handed over."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from outbox_tasks.database.connection import Database
from outbox_tasks.relay.retry import MAX_CODE, MAX_ERROR
from outbox_tasks.relay.store import processes
from outbox_tasks.text import storable


class Run(NamedTuple):
    """One run of a task: the id of its row, and the token that it began with."""

    id: str
    token: str


class Received(NamedTuple):
    """What a worker has received: a task, beside what the header of a copy says. Anybody can copy a header."""

    task: str
    id: str
    body: str
    """A digest: see `model.content`. Empty: it has not seen the body."""


class Begun(NamedTuple):
    """What the row of a run says as it begins."""

    attempts: int
    destination: str
    key: str | None
    waited: float
    """Seconds since it was handed over."""


UNKNOWN_WAIT = 1.0
"""Seconds until a task is sent again that a worker does not know, at first."""

MAX_TRACEBACK = 4000
"""How many characters of a traceback the row keeps, the last ones."""

Row = Mapping[str, Any]
"""A message to write, as `writing.rows` makes it."""


class Runs(Database):
    """The statements of runs. Each says whether the run was still its own."""

    application_name = "outbox_tasks worker"

    def identity(self) -> str:
        """Which outbox this is."""
        return str(self.ask("deliver/identity.sql")[0].identity)

    def begin(
        self, run: Run, content: str, hold: float, holder: str | None = None, received: Received | None = None
    ) -> Begun | None:
        """Begin a run; None: another copy has begun it, or it is over, or the row is being sent again, or the worker
        has `received` another task (without it: one that the relay made of a message). `content`: as the copy's header
        says. It has `hold` seconds to say that it still runs."""
        received = received or Received("", run.id, "")
        parameters = {
            "id": run.id,
            "token": run.token,
            "content": content,
            "task": f'"task": {json.dumps(received.task)}',
            "task_id": f'"id": {json.dumps(received.id)}',
            "made": received.id,
            "body": received.body,
            "hold": hold,
            "holder": holder or processes.holder(),
        }
        # The relay may have been just settling it: then a second look finds it.
        rows = self.ask("supervised/begin.sql", **parameters) or self.ask("supervised/begin.sql", **parameters)
        return next((Begun._make(row) for row in rows), None)

    def whereabouts(self, id: str) -> tuple[str, str | None] | None:
        """The state of a row that could not begin, and who holds it or held it last. None: there is no such row."""
        found = self.ask("supervised/whereabouts.sql", ids=[id])
        return (found[0].state, found[0].locked_by) if found else None

    def renew(self, holds: Mapping[Run, float]) -> dict[str, bool]:
        """Say that runs still run, each for so many seconds. Returns the tokens of those that were not given up: a
        worker may have an old run and a new one of the same row. False: it was not renewed, because a transaction that
        is open has locked the row; as a rule its own, which ends it."""
        rows = [{**run._asdict(), "hold": hold} for run, hold in holds.items()]
        return {row.token: row.renewed for row in self.ask("supervised/renew.sql", run=json.dumps(rows))}

    def lose(self, lost: Iterable[Run]) -> set[str]:
        """Runs whose workers are gone: the next claim sends them again. Returns the ids of those that were theirs."""
        return {row.id for row in self.ask("supervised/lose.sql", run=json.dumps([run._asdict() for run in lost]))}

    def done(self, run: Run, following: Sequence[Row] = (), returned: Mapping[str, Any] | None = None) -> bool:
        """The task has run. `following`: messages to write in the same transaction. `returned`: see run/end.sql."""
        return self._ended("supervised/end.sql", run, following, returned or {}, soon=True)

    def discard(self, run: Run, code: str, error: str) -> bool:
        """Nobody wants the task any more, or it asked not to be recorded."""
        return self._ended("supervised/end.sql", run, (), {"state": "discarded", **_error(code, error)}, soon=True)

    def dead(
        self,
        run: Run,
        code: str,
        error: str,
        traceback: str | None,
        following: Sequence[Row] = (),
        ran: float | None = None,
    ) -> bool:
        """The task has failed for good, after so many seconds. `code`: the name of the exception's type."""
        trace = storable(traceback[-MAX_TRACEBACK:]) if traceback else None
        said = {**_error(code, error), "traceback": trace, "ran": ran}
        blocks = [name for name in self.settings.destinations if self.settings.dead_blocks(name)]
        return self._ended("supervised/fail.sql", run, following, said, blocks=blocks)

    def retry(self, run: Run, copy: Row, wait: float, code: str, error: str) -> bool:
        """The task asks to be run again after `wait` seconds, as `copy` says."""
        data = copy.get("data") or b64encode(copy["text"].encode()).decode()
        said = {"data": data, "headers": copy["headers"], "content_type": copy["content_type"], "wait": wait}
        return bool(self.ask("supervised/retry.sql", run=_rows(run, said | _error(code, error))))

    def requeue(self, run: Run, within: float) -> bool:
        """The worker has put its copy back into the broker; a worker must begin it `within` so many seconds."""
        return bool(self.ask("supervised/requeue.sql", run=_rows(run, {"within": within})))

    def unknown(self, copy_of: str, content: str, holder: str) -> bool:
        """A worker has dropped a copy, because it does not know the task. False: the row does not wait for it, or is
        due sooner."""
        return bool(self.ask("supervised/unknown.sql", id=copy_of, content=content, wait=UNKNOWN_WAIT, holder=holder))

    def _ended(self, verb: str, run: Run, following: Sequence[Row], said: Mapping[str, Any], **more: Any) -> bool:
        return bool(self.ask(verb, run=_rows(run, said), row=json.dumps(list(following)), **more))


def _error(code: str, error: str) -> dict[str, str | None]:
    return {"code": storable(code[:MAX_CODE]), "error": storable(error[:MAX_ERROR])}


def _rows(run: Run, said: Mapping[str, Any]) -> str:
    return json.dumps([{**run._asdict(), **said}])
