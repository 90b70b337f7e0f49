"""`outbox.complete`: a supervised task ends in its own transaction."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery, chain
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.errors import NotInTransaction, NotSupervised, RunLost, SchemaMissing
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage
from tests.conftest import Rows
from tests.integration.sessions import KINDS, Driver, driver
from tests.supervised.running import Call, Worker, app, away, call, outbox, worker

__all__ = ["app", "call", "outbox", "worker"]


def completing(driven: Driver, result: Any = None) -> None:
    """Complete, awaited where the session is asynchronous."""
    driven._done(driven.outbox.complete(driven.session, result))


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_is_committed_with_the_transaction(
    kind: str, app: Celery, outbox: Outbox, worker: Worker, call: Call, rows: Rows, engine: Engine
) -> None:
    seen: list[int] = []

    def act(task: Any, n: int) -> None:
        with driver(kind, outbox, engine) as driven:
            driven.begin()
            completing(driven, "half")
            seen.append(len(rows.hot()))
            driven.rollback()
        if n == 1:
            raise ValueError("rolled back")
        with driver(kind, outbox, engine) as driven:
            driven.begin()
            completing(driven, "whole")
            completing(driven, "whole")  # a second time, to no effect
            driven.commit()
            seen.append(len(rows.hot()))
            driven.close()
            if driven.reusable:
                driven.begin()
                completing(driven, "late")
                driven.commit()

    app.act = act
    following = app.tasks["next"]
    failed, done = (
        call(1),
        call(task=chain(app.tasks["act"].s(2).set(link=following.s()), following.s(), following.s())),
    )
    worker.run(failed)
    assert rows.one(failed).status == "dead"
    app.conf.task_inherit_parent_priority = True
    copy = {**worker.copy(done), "root_id": "root"}
    copy["delivery_info"]["priority"] = 5
    worker.trace(copy)
    assert rows.state(done) == "sent"
    [_, *after] = rows.hot()
    said = [(*json.loads(row.payload), TaskMessage.loads(row.headers[ENVELOPE])) for row in after]
    assert [(args, len(embed["chain"] or ())) for args, _, embed, _ in said] == [(["whole"], 0), (["whole"], 1)]
    assert [(task.headers["root_id"], task.priority) for *_, task in said] == [("root", 5)] * 2
    assert seen == [2, 2, 3]


def test_what_follows_is_written_once_after_a_completion_that_was_rolled_back(
    app: Celery, outbox: Outbox, worker: Worker, call: Call, rows: Rows, engine: Engine
) -> None:
    def act(task: Any) -> None:
        with Session(engine) as session, session.begin() as transaction:
            outbox.complete(session)
            transaction.rollback()

    app.act = act
    id = call(link=app.tasks["next"].si())
    worker.run(id)
    assert (rows.state(id), len(rows.hot())) == ("sent", 1)


def test_a_completed_task_that_fails_afterwards_stays_done(
    app: Celery, outbox: Outbox, worker: Worker, call: Call, rows: Rows, engine: Engine, caplog: Any
) -> None:
    def act(task: Any) -> None:
        with Session(engine) as session, session.begin():
            outbox.complete(session)
        raise ValueError("too late")

    app.act = act
    id = call(link_error=app.tasks["next"].si())
    worker.run(id)
    assert [str(row.id) for row in rows.archived()] == [id]
    assert rows.hot() == []
    assert "ended as FAILURE after it was completed" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_savepoint_keeps_or_undoes_it_and_then_the_lease_is_asked_again(
    kind: str, app: Celery, outbox: Outbox, worker: Worker, call: Call, rows: Rows, engine: Engine, caplog: Any
) -> None:
    def act(task: Any, lost: bool) -> None:
        with driver(kind, outbox, engine) as driven:
            driven.begin()
            driven.savepoint()
            completing(driven, "undone")
            driven.undo()
            if lost:  # another run of the task ends it
                rows.settle(ids[1])
            driven.savepoint()
            completing(driven, "done")
            driven.release()
            completing(driven, "again")
            driven.commit()

    app.act = act
    woken: list[bool] = []
    worker.supervisor.nudge = lambda *_: woken.append(True)  # type: ignore[assignment]
    ids = kept, lost = call(False), call(True)
    rows.change([kept], key="order:1")
    worker.run(kept)
    assert rows.state(kept) == "sent"
    assert woken == [True], "the next one of its key may be due"
    assert "lease had run out" not in caplog.text
    error = worker.run(lost).exception
    assert isinstance(error, RunLost)
    assert "its lease ran out while it ran" in str(error)
    assert rows.state(lost) == "sent"


def test_outside_a_supervised_task_or_a_transaction_it_is_refused(
    app: Celery, outbox: Outbox, worker: Worker, call: Call, engine: Engine, rows: Rows, schema: str
) -> None:
    with Session(engine) as session, session.begin(), pytest.raises(NotSupervised, match=r"outbox.supervise"):
        outbox.complete(session)

    def act(task: Any) -> None:
        with Session(engine) as session, pytest.raises(NotInTransaction):
            outbox.complete(session)
        with away(engine, schema, "journal"), Session(engine) as session, session.begin(), pytest.raises(SchemaMissing):
            outbox.complete(session)

    app.act = act
    id = call()
    worker.run(id)
    assert rows.state(id) == "sent"
