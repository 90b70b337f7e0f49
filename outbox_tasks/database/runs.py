"""The statements of a task's run: a worker of the application begins it, says that it still runs, and ends it.

A row that was handed over stays until its task has run. All copies of a handed-over task are equal: the first to begin
gets the run, with a token of its own, and the others find that they can't begin. What a run says later is compared with
its token, so a run that was given up changes nothing.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    Boolean,
    Float,
    LargeBinary,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    false,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql import ColumnElement, CompoundSelect, FromClause, Select
from sqlalchemy.sql.dml import ReturningUpdate

from outbox_tasks.database.pieces import SECOND, brief, commit_soon, elapsed, finished, json_rows, noted, probe, seconds
from outbox_tasks.database.schema import DEAD, Tables, function
from outbox_tasks.database.settle import DOUBLINGS
from outbox_tasks.database.states import state_of
from outbox_tasks.database.write import publish
from outbox_tasks.model import TASK_HEADER

COMPLETED = "outbox.completed"
"""A setting of the transaction that has completed a task: the id of its row. Like the effect, it goes when a savepoint
is rolled back."""

REQUEUED = "requeued"
"""The code of a task whose run ended with its copy back in the queue: it began, so it may run twice."""


def begin_run(t: Tables) -> ReturningUpdate[Any]:
    """The compare-and-set before a task's body: the first copy to ask gets the run.

    The row is handed over; or the relay is just sending it, and its worker was quicker than the relay's settle. A copy
    of other content, from before a retry or an edit, does not begin; nor does another task that has the header of a
    copy. Parameters: id, content (as `content_of`), task, task_id, made and body (as `_is_that_task`), token (the
    run's), holder, hold (seconds that the run has to say that it still runs).
    """
    m = t.messages
    return (
        update(m)
        .where(
            probe(m.c.id, bindparam("id", type_=Uuid)),
            m.c.begun == m.c.handed_at.is_(None),  # only one of the two: no waiting, running or dead row
            content_of(t) == bindparam("content", type_=Text),
            _is_that_task(t),
            commit_soon(),
        )
        .values(
            lease=bindparam("token", type_=Uuid),
            begun=true(),
            handed_at=func.coalesce(m.c.handed_at, func.clock_timestamp()),
            locked_by=bindparam("holder", type_=Text),
            locked_until=func.clock_timestamp() + seconds("hold"),
            outages=0,
        )
        .returning(m.c.attempts, m.c.destination, m.c.key, elapsed(m.c.handed_at, func.clock_timestamp()))
    )


def content_of(t: Tables) -> ColumnElement[str]:
    """A digest of what a copy of the task says: see `model.content`."""
    m = t.messages
    envelope = func.coalesce(m.c.headers[literal_column(f"'{TASK_HEADER}'", Text)].astext, literal_column("''"))
    return _digest(m.c.payload.op("||", return_type=LargeBinary)(func.convert_to(envelope, literal_column("'UTF8'"))))


def _is_that_task(t: Tables) -> ColumnElement[bool]:
    """Whether what a worker has received is the row's task, by what it has received beside the header of a copy: the
    task's name, its id and a digest of its body (an empty text: it has not seen that). The relay makes a task of a row
    that is none: it has the row's id. A compressed body, and the fields of Celery's first protocol, can't be seen
    here."""
    m = t.messages
    task, id, body = (bindparam(name, type_=Text) for name in ("task", "task_id", "body"))
    envelope = m.c.headers[literal_column(f"'{TASK_HEADER}'", Text)].astext

    def says(text: ColumnElement[str]) -> ColumnElement[bool]:
        # As a text: what Python writes as JSON, PostgreSQL can't always read (\\u0000, NaN).
        return func.strpos(envelope, text) > literal_column("0")

    stored = and_(
        or_(says(literal_column("'\"task\": '")).is_(False), says(task) & says(id)),
        or_(says(literal_column('\'"compression": "\'')), _digest(m.c.payload) == body, body == literal_column("''")),
    )
    return case((envelope.is_(None), cast(m.c.id, Text) == bindparam("made", type_=Text)), else_=stored)


def _digest(said: ColumnElement[bytes]) -> ColumnElement[str]:
    return func.left(func.encode(func.sha256(said), literal_column("'hex'")), literal_column("16"))


def renew_runs(t: Tables) -> Select[Any]:
    """Say that runs still run. Returns the tokens of those that were not given up, and whether each was renewed: a row
    that somebody has locked is just being ended by its own run, and no run waits for another. Parameter: run (JSON rows
    of id, token and hold: seconds until it must be said again)."""
    m = t.messages
    run = json_rows("run", id=Uuid, token=Uuid, hold=Float)
    ours = select(m.c.id, m.c.lease, run.c.hold).where(*_ours(t, run)).cte("ours")
    free = _free(t, ours.c.id, ours.c.lease, ours.c.hold)
    renewed = (
        update(m)
        .where(probe(m.c.id, free.c.id), commit_soon())
        .values(locked_until=func.clock_timestamp() + free.c.hold * SECOND)
        .returning(m.c.lease)
        .cte("renewed")
    )
    said: tuple[ColumnElement[Any], ...] = (cast(ours.c.lease, Text).label("token"), renewed.c.lease.is_not(None))
    return select(*said).select_from(ours.outerjoin(renewed, renewed.c.lease == ours.c.lease))


def lose_runs(t: Tables) -> ReturningUpdate[Any]:
    """End the leases of runs whose workers are gone: the next claim finds them. A row that is just being ended keeps
    its lease. Returns their ids. Parameter: run (JSON rows of id and token)."""
    m = t.messages
    run = json_rows("run", id=Uuid, token=Uuid)
    free = _free(t, run.c.id, run.c.token)
    return (
        update(m)
        .where(probe(m.c.id, free.c.id), commit_soon())
        .values(locked_until=func.clock_timestamp())
        .returning(cast(m.c.id, Text).label("id"))
    )


def end_run(t: Tables, *, archive: bool, soon: bool = True) -> Select[Any]:
    """A task has run, or is discarded: its row goes to the archive, and what follows it is written. Returns its id.

    Parameters: run (JSON rows of id and token; if it was discarded, state, code and error; if the archive is to keep
    what the task returned, value (as JSON) and ran (seconds)); row (JSON rows as in `write.ROW`: what follows, or
    `[]`). Both are texts, because the statement also runs in an application's transaction, by any driver. Then it is
    not `soon`: how that transaction commits is the application's choice; and that transaction remembers the end, see
    `completed`.
    """
    m = t.messages
    run = json_rows("run", id=Uuid, token=Uuid, state=Text, code=Text, error=Text, value=Text, ran=Float)
    returned = noted(m, literal_column("'returned'"), by=m.c.locked_by, value=run.c.value, ran=run.c.ran)
    history = case((run.c.ran.is_not(None), returned), else_=m.c.history)
    gone = delete(m).where(*_ours(t, run), *([commit_soon()] if soon else []))
    also: tuple[ColumnElement[Any], ...] = ()
    ended = finished(t, gone, run, m.c.attempts, archive=archive, history=history).cte("ended")
    if not soon:
        also = (func.set_config(COMPLETED, ended.c.id, true()),)
    return _followed(t, ended, *also)


def completed(t: Tables) -> Select[Any]:
    """A row, if this transaction has completed the task, or an earlier one that was committed: then the task's row is
    gone. Parameters: id, committed (whether an earlier one has, as its session says)."""
    m, id = t.messages, bindparam("id", type_=Text)
    here = func.current_setting(COMPLETED, true(), type_=Text) == id
    gone = ~exists(select(m.c.id).where(probe(m.c.id, cast(id, Uuid))))
    return select(true()).where(or_(here, and_(bindparam("committed", type_=Boolean), gone)))


def fail_run(t: Tables) -> Select[Any]:
    """A task has failed for good: its row is a dead letter, and what follows its failure is written. Returns its id.

    Parameters: run (JSON rows of id, token, code, error, traceback and ran: seconds); row as for `end_run`.
    """
    m = t.messages
    run = json_rows("run", id=Uuid, token=Uuid, code=Text, error=Text, traceback=Text, ran=Float)
    failed = (
        update(m)
        .where(*_ours(t, run), commit_soon())
        .values(
            status=DEAD,
            dead_at=func.clock_timestamp(),
            locked_until=func.clock_timestamp(),
            **_LEFT,
            **_said(t, run, "dead", traceback=run.c.traceback, ran=run.c.ran),
        )
        .returning(cast(m.c.id, Text).label("id"))
    )
    return _followed(t, failed.cte("ended"))


def retry_run(t: Tables) -> ReturningUpdate[Any]:
    """A task asks to be run again: its row is due after a wait, and says what the next copy says. Celery's own limit
    counts these, so the attempt does not. Returns its id.

    Parameter: run (JSON rows of id, token, wait: seconds, data: the payload in base64, headers, content_type, code and
    error).
    """
    m = t.messages
    copy = {"wait": Float, "data": Text, "headers": JSONB, "content_type": Text}
    run = json_rows("run", id=Uuid, token=Uuid, **copy, code=Text, error=Text)
    due = func.clock_timestamp() + run.c.wait * SECOND
    return (
        update(m)
        .where(*_ours(t, run), commit_soon())
        .values(
            attempts=m.c.attempts - 1,
            locked_until=due,
            deliver_at=due,  # max_age counts from here
            payload=func.decode(run.c.data, literal_column("'base64'")),
            headers=run.c.headers,
            content_type=run.c.content_type,
            **_LEFT,
            **_said(t, run, "retried"),
        )
        .returning(cast(m.c.id, Text).label("id"))
    )


def requeue_run(t: Tables) -> ReturningUpdate[Any]:
    """A worker has put its copy back into the broker: the row is handed over again. Returns its id. Parameter: run
    (JSON rows of id, token and within: seconds)."""
    m = t.messages
    run = json_rows("run", id=Uuid, token=Uuid, within=Float)
    return (
        update(m)
        .where(*_ours(t, run), commit_soon())
        .values(
            begun=false(),
            handed_at=func.clock_timestamp(),
            locked_until=func.clock_timestamp() + run.c.within * SECOND,
            last_error_code=REQUEUED,
            last_error=literal("its worker put it back into the queue"),
            history=noted(m, REQUEUED, attempt=m.c.attempts, by=m.c.locked_by),
        )
        .returning(cast(m.c.id, Text).label("id"))
    )


def unknown_run(t: Tables) -> ReturningUpdate[Any]:
    """A worker does not know the task, and has dropped its copy: the row is due in `wait` seconds, twice as long after
    each time that nobody began it. Returns its id. Parameters: id, content, wait, holder."""
    m = t.messages
    times = func.power(2, -func.greatest(func.least(m.c.outages, 0), -DOUBLINGS))
    due = func.clock_timestamp() + bindparam("wait", type_=Float) * times * SECOND
    return (
        update(m)
        .where(
            probe(m.c.id, bindparam("id", type_=Uuid)),
            m.c.handed_at.is_not(None),
            ~m.c.begun,
            m.c.locked_until > due,
            content_of(t) == bindparam("content", type_=Text),
            commit_soon(),
        )
        .values(locked_until=due, history=noted(m, literal_column("'not known'"), by=bindparam("holder", type_=Text)))
        .returning(cast(m.c.id, Text).label("id"))
    )


def whereabouts(t: Tables) -> CompoundSelect[Any]:
    """Why a copy can't begin: the state of its row. No row: it is not of this outbox, or was forgotten. Parameter:
    id."""
    m, a, id = t.messages, t.archive, bindparam("id", type_=Uuid)
    return union_all(
        select(state_of(m).label("state"), m.c.locked_by).where(m.c.id == id),
        select(a.c.state, a.c.locked_by).where(a.c.id == id),
    )


def identity(schema: str | None) -> Select[Any]:
    """Which outbox this is."""
    return select(cast(function(schema, "outbox_identity")(), Text))


_LEFT: dict[str, Any] = {"lease": null(), "begun": false(), "handed_at": null()}
"""The columns of a row whose run is over."""


def _ours(t: Tables, run: FromClause) -> list[ColumnElement[bool]]:
    """The fence: the row is still this run's."""
    m = t.messages
    return [probe(m.c.id, run.c.id), m.c.lease == run.c.token, m.c.begun == true()]


def _free(t: Tables, id: ColumnElement[Any], token: ColumnElement[Any], *also: ColumnElement[Any]) -> CTE:
    """The rows of runs that nobody else has locked, now locked."""
    m = t.messages
    fence = (probe(m.c.id, id), m.c.lease == token, m.c.begun == true())
    return select(m.c.id, *also).where(*fence).with_for_update(of=m, skip_locked=True).cte("free")


def _said(t: Tables, run: FromClause, what: str, **facts: ColumnElement[Any]) -> dict[str, Any]:
    m = t.messages
    entry = {"attempt": m.c.attempts, "code": run.c.code, "error": brief(run.c.error), "by": m.c.locked_by, **facts}
    return {"last_error_code": run.c.code, "last_error": run.c.error, "history": noted(m, what, **entry)}


def _followed(t: Tables, ended: CTE, *also: ColumnElement[Any]) -> Select[Any]:
    """Write what follows, if the run was still ours."""
    following = publish(t, exists(select(ended.c.id)))
    return select(ended.c.id, *also).add_cte(following.cte("following"))
