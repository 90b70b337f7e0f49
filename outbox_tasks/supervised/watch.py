"""A worker's main process says on the rows that its runs still run, and notes those that ended without a word.

A thread writes: a task can't hold it up, whatever it does in a process of the pool. In the pools threads, solo and
gevent the tasks share this process with it; there a task that never lets go of the interpreter ends its own lease.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4
from weakref import ref

from billiard.exceptions import WorkerLostError
from celery import signals
from celery.concurrency import prefork
from celery.exceptions import TimeLimitExceeded
from celery.worker import state

from outbox_tasks.database.activity import LATE_SECONDS
from outbox_tasks.database.engine import PIPE
from outbox_tasks.errors import OutboxError
from outbox_tasks.operating.heartbeats import facts_of
from outbox_tasks.supervised.run import Copy
from outbox_tasks.supervised.store import Fence, Runs
from outbox_tasks.supervised.supervisor import AWAY, Supervisor
from outbox_tasks.text import logger
from outbox_tasks.wire.celery_message import RUN

log = logger(__name__)

HEARTBEAT_SECONDS = 5.0
"""Seconds between two heartbeats, and between two renewals at most."""

RENEWALS_A_LEASE = 3
"""A lease is renewed this often before it would run out."""

RETRY_SECONDS = 1.0
"""Seconds until the next try while the database is away, and until a second look."""


class _QuickRuns(Runs):
    """A run that ends in the application's own transaction may lock its row for long. Renewals of other runs don't wait
    for that."""

    session: ClassVar = {**PIPE, "lock_timeout": "500"}


class _Received:
    """A copy of a supervised task that this worker has taken from the broker."""

    def __init__(self, request: Any, copy: Copy) -> None:
        self.request = ref(request)
        self.task_id: str = request.id
        self.fence = copy.fence
        self.lease = copy.lease
        self.active = False
        """Whether it ran at the last look."""
        self.held = False
        """Whether a renewal has found its row, ever."""
        self.missed = False
        """Whether the last renewal has not found its row."""


class Watch:
    """Knows which copies a worker has received. Its thread starts with the worker."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._app = supervisor.app
        self._pid = 0
        self._received: dict[str, _Received] = {}
        """By token."""
        self._acts: deque[Callable[[Runs], object]] = deque()
        """What the thread writes next."""
        self._every, self._soon = HEARTBEAT_SECONDS, False
        self._consumer: Any = None
        self._wanted, self._ended = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._heartbeat: dict[str, Any] = {}
        self._unknown: dict[str, float] = {}
        """Tasks that this worker does not know, with the time at which the last copy of each came."""

    def listen(self) -> None:
        """Called in the main process, as its worker starts."""
        self._pid = os.getpid()
        for signal, receiver in (
            (signals.task_received, self._on_received),
            (signals.task_failure, self._on_failure),
            (signals.task_revoked, self._on_revoked),
            (signals.task_unknown, self._on_unknown),
            (signals.worker_ready, self._on_ready),
            (signals.worker_shutdown, self._on_shutdown),
        ):
            signal.connect(receiver, weak=False)

    def _on_received(self, sender: Any = None, request: Any = None, **_: Any) -> None:
        copy = Copy.read(request.request_dict)
        if copy is None or sender.app is not self._app:
            return
        copy = copy._replace(token=str(uuid4()))  # a token in the header is that of another run
        request.request_dict[RUN] = copy._asdict()
        self._received[copy.token] = _Received(request, copy)
        if copy.lease / RENEWALS_A_LEASE < self._every:
            self._every = copy.lease / RENEWALS_A_LEASE
            self._wanted.set()

    def _on_failure(self, task_id: str | None = None, exception: Any = None, **_: Any) -> None:
        """A process of the pool is gone, or was killed after a hard time limit. Only the main process can report it."""
        if os.getpid() != self._pid or not isinstance(exception, WorkerLostError | TimeLimitExceeded):
            return
        for each in [each for each in list(self._received.values()) if each.task_id == task_id]:
            if isinstance(exception, TimeLimitExceeded):
                error = f"it ran for longer than its hard time limit: {exception}"
                self._do(partial(Runs.dead, fence=each.fence, code="TimeLimitExceeded", error=error, traceback=None))
            else:
                self._do(partial(Runs.lose, fences=[each.fence]))

    def _on_revoked(self, sender: Any = None, request: Any = None, expired: bool = False, **_: Any) -> None:
        copy = Copy.read(vars(request))
        if copy is None or os.getpid() != self._pid or sender.app is not self._app:
            return
        self._do(partial(_discard, copy=copy, code="expired" if expired else "revoked"))

    def _on_unknown(self, sender: Any = None, message: Any = None, name: str | None = None, **_: Any) -> None:
        """Celery has dropped a copy of a task that this worker does not know. Another release may know it."""
        copy = Copy.read(message.headers)
        if copy is None or sender.app is not self._app:
            return
        log.error("task %s is not run: this worker knows no %r; the relay sends it again soon", copy.id, name)
        self._unknown = {**self._unknown, str(name): round(time.time(), 3)}
        # after so many seconds the relay has settled the row of a copy, as a rule
        self._do(partial(self._note_unknown, copy=copy, by=sender.hostname, until=time.monotonic() + 5.0))

    def _note_unknown(self, runs: Runs, copy: Copy, by: str, until: float) -> None:
        noted = copy.of != runs.identity or runs.unknown(copy.id, copy.content, by)
        if not noted and time.monotonic() < until:  # the relay may not have settled the row as handed over yet
            self._acts.append(partial(self._note_unknown, copy=copy, by=by, until=until))
            self._soon = True

    def _do(self, act: Callable[[Runs], object]) -> None:
        self._acts.append(act)
        self._wanted.set()

    def _on_ready(self, sender: Any = None, **_: Any) -> None:
        if sender.app is not self._app or self._thread is not None:
            return
        self._consumer = sender
        facts = facts_of(sender, sender.app.amqp.queues.consume_from)
        self._heartbeat = {"name": f"{sender.hostname} (tasks)", "kind": "tasks", "ago": 0.0, "facts": facts}
        self._thread = threading.Thread(target=self._run, name="outbox-runs", daemon=True)
        self._thread.start()

    def _on_shutdown(self, sender: Any = None, **_: Any) -> None:
        """The worker ends. Its pool has ended, and with the pool all runs."""
        if self._thread is not None and os.getpid() == self._pid:
            self._ended = True
            self._wanted.set()
            self._thread.join(5.0)

    def _run(self) -> None:
        runs = _QuickRuns.connect(self._supervisor.settings)
        beaten, wait = -HEARTBEAT_SECONDS, 0.0
        while not self._ended:
            self._wanted.wait(wait)
            self._wanted.clear()
            try:
                self._write(runs)
                if time.monotonic() - beaten >= HEARTBEAT_SECONDS:
                    beaten = time.monotonic()
                    # A heartbeat names an unknown task for three minutes. The next copy comes earlier.
                    oldest = time.time() - 180.0
                    self._unknown = {name: at for name, at in self._unknown.items() if at > oldest}
                    facts = {**self._heartbeat["facts"], "unknown": self._unknown}
                    runs.ask(
                        "report/beat.sql", seen=json.dumps([{**self._heartbeat, "facts": facts}]), late=LATE_SECONDS
                    )
                wait = RETRY_SECONDS if self._soon else self._every
            except Exception as error:
                is_known = isinstance(error, OutboxError)
                log.warning("the leases of running tasks were not renewed: %s", error, exc_info=not is_known)
                wait = RETRY_SECONDS
            finally:
                # Keep no connection open between two looks: a process that the pool forks would share it.
                runs.close()
        name = {"name": self._heartbeat["name"], "started": self._heartbeat["facts"]["started"]}
        try:
            runs.lose([each.fence for each in self._received.values() if each.active])
            runs.ask("report/stopped.sql", **name)
        except OutboxError as error:
            log.debug("the worker's end was not recorded: %s", error)
        finally:
            runs.close()

    def _write(self, runs: Runs) -> None:
        running, gone = self._seen()
        self._renew(runs, running)
        for _ in range(len(self._acts)):
            act = self._acts.popleft()
            try:
                act(runs)
            except AWAY as error:
                log.warning("the end of a run is not recorded yet: %s", error)
                self._acts.append(act)
                self._soon = True
                break
            except Exception:
                log.exception("the end of a run was not recorded")
        if gone:
            # A run that has recorded its end has no row any more, and is not found.
            runs.lose(gone)

    def _seen(self) -> tuple[list[_Received], list[Fence]]:
        """The copies that run now, and the runs that ran at the last look and have ended since."""
        running, gone = [], []
        for token, each in list(self._received.items()):
            request = each.request()
            if request is not None and request in state.active_requests:
                each.active = True
                running.append(each)
            elif each.active or request is None:
                del self._received[token]
                if each.active:
                    gone.append(each.fence)
        return running, gone

    def _renew(self, runs: Runs, running: list[_Received]) -> None:
        renewed = runs.renew({each.fence: each.lease for each in running}) if running else {}
        for each in running:
            has_row = each.fence.token in renewed
            if not has_row and each.missed and each.held:
                self._look(runs, each)
            each.missed, each.held = not has_row, each.held or has_row
        self._soon = any(each.missed and each.held for each in running) or not all(renewed.values())

    def _look(self, runs: Runs, each: _Received) -> None:
        """A task still runs, but two looks have not found its row with its token. There are two cases.

        1. The task has completed itself: its row is gone, and all is well.
        2. The worker could not renew the lease in time: the row is due again, or another worker runs it. Then the task
           is stopped here."""
        each.held = False
        state, by = runs.whereabouts(each.fence.id) or (None, None)
        if state not in ("leased", "handed over", "running"):
            return
        request = each.request()
        text = "the lease of task %s ran out while it ran; it is %s now (%s), so it is stopped here"
        log.error(text, each.task_id, state, by)
        if request is not None and isinstance(self._consumer.pool, prefork.TaskPool):
            # The main thread talks to the pool, so it must cancel the task. Celery reports the task as retried.
            self._consumer.timer.call_after(0, request.cancel, (self._consumer.pool, "KILL"))


def _discard(runs: Runs, copy: Copy, code: str) -> None:
    """Archive a task that was revoked or has expired, whether or not it had begun."""
    error = "it was to be run before now" if code == "expired" else "it was revoked"
    if not runs.discard(copy.fence, code, error) and runs.begin(copy.fence, copy.content, copy.lease):
        runs.discard(copy.fence, code, error)
