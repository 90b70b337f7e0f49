"""What a worker of the application asks the database for, while it runs tasks that were handed over."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Engine

from outbox_tasks.database import runs
from outbox_tasks.database.compiled import Compiled
from outbox_tasks.database.connection import Database
from outbox_tasks.relay.retry import MAX_CODE, MAX_ERROR
from outbox_tasks.relay.store import processes
from outbox_tasks.settings import Settings
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

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        t, archive = self.tables, settings.archive == "move"
        self._begin = Compiled(partial(runs.begin_run, t), Begun._make)
        self._renew = Compiled(partial(runs.renew_runs, t), tuple)
        self._lose = Compiled(partial(runs.lose_runs, t), itemgetter(0))
        self._end = Compiled(partial(runs.end_run, t, archive=archive), itemgetter(0))
        self._fail = Compiled(partial(runs.fail_run, t), itemgetter(0))
        self._retry = Compiled(partial(runs.retry_run, t), itemgetter(0))
        self._requeue = Compiled(partial(runs.requeue_run, t), itemgetter(0))
        self._unknown = Compiled(partial(runs.unknown_run, t), itemgetter(0))

    def identity(self) -> str:
        """Which outbox this is."""
        return str(self.rows(runs.identity(self.settings.database_schema), {})[0][0])

    def begin(
        self, run: Run, content: str, hold: float, holder: str | None = None, received: Received | None = None
    ) -> Begun | None:
        """Begin a run; None: another copy has begun it, or it is over, or the row is being sent again, or the worker
        has `received` another task (without it: one that the relay made of a message). `content`: as the copy's header
        says. It has `hold` seconds to say that it still runs."""
        received = received or Received("", run.id, "")
        parameters = {
            "id": UUID(run.id),
            "token": UUID(run.token),
            "content": content,
            "task": f'"task": {json.dumps(received.task)}',
            "task_id": f'"id": {json.dumps(received.id)}',
            "made": received.id,
            "body": received.body,
            "hold": hold,
            "holder": holder or processes.holder(),
        }
        return next(iter(self.run(self._begin, parameters)), None)

    def whereabouts(self, id: str) -> tuple[str, str | None] | None:
        """The state of a row that could not begin, and who holds it or held it last. None: there is no such row."""
        found = self.rows(runs.whereabouts(self.tables), {"id": UUID(id)})
        return (found[0].state, found[0].locked_by) if found else None

    def renew(self, holds: Mapping[Run, float]) -> dict[str, bool]:
        """Say that runs still run, each for so many seconds. Returns the tokens of those that were not given up: a
        worker may have an old run and a new one of the same row. False: it was not renewed, because a transaction that
        is open has locked the row; as a rule its own, which ends it."""
        rows = [{**run._asdict(), "hold": hold} for run, hold in holds.items()]
        return dict(self.run(self._renew, {"run": json.dumps(rows)}))

    def lose(self, lost: Iterable[Run]) -> set[str]:
        """Runs whose workers are gone: the next claim sends them again. Returns the ids of those that were theirs."""
        return set(self.run(self._lose, {"run": json.dumps([run._asdict() for run in lost])}))

    def done(self, run: Run, following: Sequence[Row] = (), returned: Mapping[str, Any] | None = None) -> bool:
        """The task has run. `following`: messages to write in the same transaction. `returned`: see `end_run`."""
        return self._ended(self._end, run, following, **(returned or {}))

    def discard(self, run: Run, code: str, error: str) -> bool:
        """Nobody wants the task any more, or it asked not to be recorded."""
        return self._ended(self._end, run, (), state="discarded", **_error(code, error))

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
        return self._ended(self._fail, run, following, **_error(code, error), traceback=trace, ran=ran)

    def retry(self, run: Run, copy: Row, wait: float, code: str, error: str) -> bool:
        """The task asks to be run again after `wait` seconds, as `copy` says."""
        data = copy.get("data") or b64encode(copy["text"].encode()).decode()
        said = {"data": data, "headers": copy["headers"], "content_type": copy["content_type"], "wait": wait}
        return bool(self.run(self._retry, {"run": _rows(run, said | _error(code, error))}))

    def requeue(self, run: Run, within: float) -> bool:
        """The worker has put its copy back into the broker; a worker must begin it `within` so many seconds."""
        return bool(self.run(self._requeue, {"run": _rows(run, {"within": within})}))

    def unknown(self, copy_of: str, content: str, holder: str) -> bool:
        """A worker has dropped a copy, because it does not know the task. False: the row does not wait for it, or is
        due sooner."""
        parameters = {"id": UUID(copy_of), "content": content, "wait": UNKNOWN_WAIT, "holder": holder}
        return bool(self.run(self._unknown, parameters))

    def _ended(self, statement: Compiled[str], run: Run, following: Sequence[Row], **said: Any) -> bool:
        return bool(self.run(statement, {"run": _rows(run, said), "row": json.dumps(list(following))}))


def _error(code: str, error: str) -> dict[str, str | None]:
    return {"code": storable(code[:MAX_CODE]), "error": storable(error[:MAX_ERROR])}


def _rows(run: Run, said: Mapping[str, Any]) -> str:
    return json.dumps([{**run._asdict(), **said}])
