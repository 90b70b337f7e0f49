"""`Outbox.complete`: a supervised task ends in its own transaction. Its effect and its end are committed together."""

from __future__ import annotations

import json
from functools import lru_cache, partial
from typing import Any

from outbox_tasks.database import runs, write
from outbox_tasks.database.schema import tables
from outbox_tasks.errors import NotSupervised, RunLost
from outbox_tasks.running.run import SupervisedRun, current
from outbox_tasks.writing.direct import lease
from outbox_tasks.writing.transactions import explain, is_awaited, transaction, unwrapped

_end = lru_cache(partial(runs.end_run, soon=False))
_completed = lru_cache(runs.completed)
_like = lru_cache(write.publish)


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
    settings = run.settings
    opened = transaction(session, "outbox.complete")
    t = tables(settings.database_schema)
    following = run.rows_after(result)
    dispatch = None
    if following and run.nudge is not None and opened.ends_with_the_session(_like(t)):
        dispatch = lease(settings, run.nudge.grants, following)
    parameters = {"run": json.dumps([{**run.run._asdict(), **run.returned(result)}]), "row": json.dumps(following)}
    try:
        ended = opened.run(_end(t, archive=settings.archive == "move"), parameters, _like(t))
    except Exception as error:  # each driver and framework has errors of its own
        explain(error, settings.database_schema)
        raise
    if ended:
        opened.wake(run.is_completed)
        if following and run.nudge is not None:
            opened.wake(run.nudge if dispatch is None else partial(run.nudge, dispatch=dispatch))
    elif not opened.run(_completed(t), {"id": run.run.id, "committed": run.completed}, _like(t)):
        raise RunLost(task=run.request.task, id=run.request.id)
