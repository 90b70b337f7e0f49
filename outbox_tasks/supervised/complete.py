"""`Outbox.complete`: a supervised task ends in its own transaction. Its effect and its end are committed together."""

from __future__ import annotations

import json
from functools import lru_cache, partial
from typing import Any

from outbox_tasks.database.schema import tables
from outbox_tasks.errors import NotSupervised, RunLost
from outbox_tasks.supervised.run import SupervisedRun, current
from outbox_tasks.writing.execution import Verb
from outbox_tasks.writing.transactions import explain, is_awaited, transaction_of, unwrapped

_verb = lru_cache(Verb)


def complete(session: Any, result: Any) -> Any:
    """See `Outbox.complete`."""
    run = current()
    if run is None:
        raise NotSupervised
    session = unwrapped(session)
    if is_awaited(session):
        return session.run_sync(partial(_complete, run, result))
    return _complete(run, result, session)


def _complete(run: SupervisedRun, result: Any, session: Any) -> None:
    transaction = transaction_of(session, "outbox.complete")
    schema = run.settings.database_schema
    messages = tables(schema).messages
    following = run.rows_after(result)
    end = json.dumps([{**run.fence._asdict(), **run.returned(result)}])
    parameters = {"run": end, "row": json.dumps(following), "soon": False}
    try:
        ended = transaction.run(_verb("supervised/end.sql", schema), parameters, messages)
    except Exception as error:  # each driver and framework has errors of its own
        explain(error, schema)
        raise
    if ended:
        transaction.after_commit(run.note_completed)
        if (following or run.frees_key) and run.nudge is not None:
            transaction.after_commit(run.nudge)
        return
    again = {"id": run.fence.id, "committed": run.completed}
    if not transaction.run(_verb("supervised/completed.sql", schema), again, messages):
        raise RunLost(task=run.request.task, id=run.request.id)
