"""Begins and ends the runs of an app's supervised tasks, in the processes that run them."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import chain, repeat
from typing import Any, TypeVar
from uuid import uuid4

from celery import Celery, states
from celery.exceptions import Ignore, MaxRetriesExceededError

from outbox_tasks.broker.places import joined
from outbox_tasks.errors import ConfigurationError, DatabaseUnavailable, OutboxError, SchemaMissing
from outbox_tasks.per_process import PerProcess
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.signals import dead_letter, key_blocked, task_ran
from outbox_tasks.supervised.run import Copy, SupervisedRun
from outbox_tasks.supervised.store import Begun, Fence, Runs
from outbox_tasks.text import said, without_secrets
from outbox_tasks.wire.celery_message import RUN
from outbox_tasks.writing.broker_nudge import broker_nudge
from outbox_tasks.writing.capture import supervised
from outbox_tasks.writing.rows import Row

log = logging.getLogger(__name__)

R = TypeVar("R")

PAUSES_SECONDS = (0.1, 0.3, 0.6, 1.0)
"""Pauses between tries while the database is away. The last one repeats."""

BEGIN_TRIES_SECONDS, END_TRIES_SECONDS = 3.0, 15.0
"""For so long a begin and an end are tried. A task that could not begin goes back to the broker. A task whose end could
not be recorded runs again, so its end is tried for longer."""

CANNOT_SUPERVISE = "this worker can't run supervised tasks, and puts them off: %s"

PUT_OFF_SECONDS = 10.0
"""Seconds after which a task that could not begin is tried again."""

AWAY = (DatabaseUnavailable, SchemaMissing, ConfigurationError)
"""Errors after which a begin or an end is tried again: the database is away, its tables are missing or of another
release, a right is missing, or no database is configured."""


class Supervisor:
    """Begins and ends the supervised tasks of one app."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self.nudge = broker_nudge(settings, app)
        self._runs = PerProcess(lambda: Runs.connect(settings), lambda parents: parents.engine.dispose(close=False))

    @cached_property
    def broker(self) -> str:
        """Where the app's workers get their tasks. Kept, because Celery's configuration takes long to read."""
        return joined(self.app.conf.broker_write_url)

    def close(self) -> None:
        """Close the connections of this process."""
        if (runs := self._runs.take()) is not None:
            runs.close()

    def check(self) -> bool:
        """Log an error if this worker can't run supervised tasks; it runs its other tasks all the same. False: no
        database is configured, so it can't run them later either."""
        try:
            runs = Runs.connect(self.settings)
        except ConfigurationError as error:
            log.error(CANNOT_SUPERVISE, error)
            return False
        nobody = Fence(str(uuid4()), str(uuid4()))
        try:
            Store(runs.engine, self.settings).check_version()
            for use in (runs.lose, runs.renew):  # they find no row, but need the rights
                use({nobody: 1.0})
            runs.done(nobody)
        except OutboxError as error:
            log.error(CANNOT_SUPERVISE, error)
        finally:
            runs.close()
        return True

    def begin(self, task: Any, copy: Copy | None) -> None:
        """Begin the run of a copy. `copy` is None if its header can't be read. Raises `Ignore` if it must not run here
        and now."""
        if copy is None:
            log.error("task %s is not run: this worker can't read its header %r", task.request.id, RUN)
            raise Ignore
        try:
            begun = _until_answered(partial(self._begin, copy), BEGIN_TRIES_SECONDS)
        except AWAY as error:
            self._put_off(task, error)
            raise Ignore from None
        supervised.set(SupervisedRun(self.settings, self.nudge, copy.fence, task, begun))

    def _begin(self, copy: Copy, again: bool) -> Begun | None:
        """What the row says as it begins; None: the answer of a first try was lost, and nobody knows. Raises `Ignore`
        unless the database has begun this run."""
        runs = self._runs.get()
        if copy.of != runs.identity:
            text = "task %s is not run: it is of another outbox (%s) than the one of this worker (%s)"
            log.error(text, copy.id, copy.of, runs.identity)
            raise Ignore
        begun = runs.begin(copy.fence, copy.content, copy.lease)
        if begun is not None:
            return begun
        place = runs.whereabouts(copy.id)
        if again and place is not None and runs.renew({copy.fence: copy.lease}):
            return None  # the first try has begun the run, and its answer was lost
        state, by = place or ("forgotten", None)
        log.info("a copy of task %s is not run: the task is %s%s", copy.id, state, f" ({by})" if by else "")
        raise Ignore

    def _put_off(self, task: Any, error: Exception) -> None:
        """Send a copy to the queue that this one came from."""
        request = task.request
        log.error("task %s waits for %g s, because it can't begin: %s", request.id, PUT_OFF_SECONDS, error)
        try:
            task.signature_from_request(request, countdown=PUT_OFF_SECONDS).apply_async()
        except Exception:
            log.exception("task %s could not be put off; the relay sends it again when its time is over", request.id)

    def end(self, run: SupervisedRun, state: str | None, retval: Any) -> None:
        """Record how a run ended, and write what follows it."""
        following = run.rows if state != states.RETRY else []
        facts = {"destination": run.destination, "state": state, "waited": run.waited, "seconds": run.ran}
        task_ran.send(sender=self.app, task=run.task.name, **facts)
        try:
            is_recorded = _until_answered(partial(self._end, run, state, retval), END_TRIES_SECONDS)
        except AWAY as error:
            text = "the end of task %s (%s) could not be recorded, so it will run again: %s"
            log.error(text, run.request.id, state, error)
            return
        if not is_recorded and run.completed:
            if state != states.SUCCESS:
                log.warning("task %s ended as %s after it was completed, which counts", run.request.id, state)
        elif not is_recorded:
            text = "task %s ended as %s, but its lease had run out: the task runs again, or has run again"
            log.warning(text, run.request.id, state)
        elif (following or run.frees_key) and self.nudge is not None:
            self.nudge()

    def _end(self, run: SupervisedRun, state: str | None, retval: Any, again: bool) -> bool:
        runs = self._runs.get()
        if run.unwritable is not None:
            return self._die(runs, run, *_described(run.unwritable))
        if state == states.SUCCESS or (state == states.IGNORED and run.replaced):
            ended = runs.done(run.fence, run.rows, run.returned(retval))
        elif state == states.FAILURE:
            ended = self._die(runs, run, *_described(retval), run.rows)
        elif state == states.RETRY:
            ended = self._retry(runs, run, retval)
        elif state == states.IGNORED:
            ended = runs.discard(run.fence, "ignored", said(retval) if retval.args else "the task raised Ignore")
        elif state == states.REJECTED and not retval.requeue:
            ended = runs.discard(
                run.fence, "rejected", said(retval.reason) if retval.reason else "the task raised Reject"
            )
        elif state == states.REJECTED:
            ended = runs.requeue(run.fence)
        else:
            ended = bool(runs.lose([run.fence]))  # no state: the process ends
        # An earlier try may have recorded the end, and its answer was lost.
        return ended or again

    def _retry(self, runs: Runs, run: SupervisedRun, retval: Any) -> bool:
        code, error, trace = _described(retval.exc or retval)
        copy = run.retry
        if copy is None:
            return self._die(runs, run, code, f"it raised Retry, but sent no copy of itself: {error}", trace)
        due = copy.get("deliver_at")
        wait = (datetime.fromisoformat(due) - datetime.now(UTC)).total_seconds() if due else 0.0
        return runs.retry(run.fence, copy, max(0.0, wait), code, error)

    def _die(
        self, runs: Runs, run: SupervisedRun, code: str, error: str, trace: str, following: Sequence[Row] = ()
    ) -> bool:
        """The run has failed for good. Its signals are sent here: no process of the relay sees the end of a run."""
        if not runs.dead(run.fence, code, error, trace, following, run.ran):
            return False
        begun = run.begun or Begun(0, "", None, 0.0)
        about = {"destination": begun.destination, "message_id": run.fence.id, "key": begun.key, "code": code}
        facts = {"event_type": run.task.name, "attempts": begun.attempts, "error": error}
        dead_letter.send(sender=self.app, **about, **facts)
        if begun.key is not None and self.settings.dead_blocks(begun.destination):
            key_blocked.send(sender=self.app, **about)
        return True


def _described(error: BaseException) -> tuple[str, str, str]:
    """The type, the text and the traceback of an exception, for the row."""
    trace = without_secrets("".join(traceback.format_exception(error)))
    if isinstance(error, MaxRetriesExceededError) and error.__context__ is not None:
        error = error.__context__
    return type(error).__name__, without_secrets(said(error)), trace


def _until_answered(act: Callable[[bool], R], seconds: float) -> R:
    """Call `act` until it raises none of `AWAY`, for so many seconds. Its argument says whether this is not the first
    call."""
    deadline = time.monotonic() + seconds
    for number, pause in enumerate(chain(PAUSES_SECONDS, repeat(PAUSES_SECONDS[-1]))):
        try:
            return act(number > 0)
        except AWAY:
            if time.monotonic() + pause > deadline:
                raise
            time.sleep(pause)
    raise AssertionError  # the pauses have no end
