"""Runs people's acts, of the page and of commands: in batches, at a rate if wanted, whatever happens to the process.

An act has a row in `outbox_acts` as long as there is something left to do. A process leases the row, and each batch
holds it: so the batch, its number in the audit and the lease are one transaction. If the process dies, another one
leases the row when the lease has run out, and looks for the same messages again: that of a page, or the worker that
does the relay's housekeeping. Those that were changed are not found any more, so none is changed twice. A limit counts
what the audit has. To stop an act is to delete its row: from then on no batch is done.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ActConflict, DatabaseTooSlow, DatabaseUnavailable, OutboxError, SchemaMissing
from outbox_tasks.operating import audit
from outbox_tasks.operating.messages.acts import Action, Done, Steps, steps
from outbox_tasks.operating.messages.find import Filter
from outbox_tasks.relay.store.processes import holder
from outbox_tasks.satellites import satellites
from outbox_tasks.text import storable

log = logging.getLogger(__name__)

LEASE_SECONDS = 15.0
"""After this time another process takes over. A batch renews the lease, and so does the runner in a third of it."""

LOOK_SECONDS = 5.0
"""A process looks so often for acts that nobody runs, while there are acts; otherwise half as often."""

RETRY_SECONDS = 2.0
"""A process looks again so long after trouble with the database."""


@dataclass(slots=True)
class _Running:
    """An act that this process runs."""

    steps: Steps
    due: float = 0.0


class Runner:
    """Begins acts, stops them, and runs them: in a thread of its own, or in `follow`. One for each process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._only: list[int] | None = None
        """The acts that it may run; None: all that nobody runs."""
        self._token = uuid4()
        self._running: dict[int, _Running] = {}
        self._slow: dict[int, int] = {}
        self._look_at = self._renew_at = 0.0
        self._woken, self._closed, self._troubled = threading.Event(), False, False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(
        self,
        action: Action,
        wanted: Filter,
        ids: Sequence[UUID] = (),
        *,
        who: str,
        why: str | None,
        token: UUID,
        until: datetime | None = None,
        rate: float | None = None,
        limit: int | None = None,
        total: int | None = None,
        more: dict[str, Any] | None = None,
        wake: bool = True,
    ) -> int:
        """Begin to change the messages of a filter; or these `ids`, if they have the states of the filter. Returns the
        entry in the audit. A `token` begins one act only: if it is given again, nothing more is done. Raises
        `ActConflict` if that was another act.

        `until`: only messages that were there, or dead, by then; now, if it is not given. `total`: how many there are.
        `more`: what an act of a satellite also needs, see `AddedChoice.facts`. `wake`: this
        process's thread runs it; else see `follow`.
        """
        facts: dict[str, Any] = {"named": len(ids)} if len(ids) > 1 else {} if ids else wanted.facts
        how = {name: value for name, value in (("rate", rate), ("limit", limit)) if value}
        more = more or {}
        same = [who, action, wanted.facts, sorted(map(str, ids)), rate, limit, more]
        form = sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
        values = {
            "person": storable(who),
            "reason": storable(why),
            "action": action,
            "target": str(ids[0]) if len(ids) == 1 else None,
            "facts": json.dumps({**facts, **more, **how, audit.FORM: form}),
            "token": token,
            "chosen": json.dumps({"filter": wanted.facts, "ids": [str(id) for id in ids], "more": more}),
            "moment": until,
            "pace": rate,
            "limit": limit,
            "expected": total,
        }
        entries = self._database.ask("act/begin.sql", **values)
        if not entries:
            entries = self._database.ask("act/begun_by.sql", token=token)
            if entries[0].form not in (form, None):
                begun = f"this request has begun act {entries[0].entry} already, which is another one"
                raise ActConflict(reason=f"{begun}. Begin with a new preview")
        if wake:
            self.wake()
        return int(entries[0].entry)

    def follow(
        self, entry: int, who: str, stop: threading.Event | None = None,
        progress: Callable[[int], object] = lambda count: None,
    ) -> Done:  # fmt: skip
        """Run this act, and no other, in this thread, until it has ended, here or in another process. If `stop` is set,
        or this is interrupted, it ends after its current batch. `progress` is called with the number of messages that
        were changed since."""
        self._only, count = [entry], 0
        stop = stop or threading.Event()
        try:
            while True:
                act = self.act(entry) or {"wanted": None, "count": count, "facts": {}}
                progress(act["count"] - count)
                count = act["count"]
                if act["wanted"] is None:
                    break
                if stop.is_set():
                    self.stop(entry, who)
                elif (wait := self._turn()) > 0:
                    stop.wait(min(wait, 0.5))
        except KeyboardInterrupt:
            self.stop(entry, who)
            raise
        facts = act["facts"]
        not_changed = [UUID(id) for id in facts.get("not_changed", ())]
        return Done(entry, count, "stopped" in facts, facts.get("error"), facts.get("missed", 0), not_changed)

    def stop(self, entry: int, who: str) -> bool:
        """End an act after its current batch; when this returns, no more is done. Returns whether it was going on."""
        return bool(self._end(entry, None, stopped=storable(who)))

    def act(self, entry: int) -> dict[str, Any] | None:
        """An act as the audit has it, and what is left to do: `wanted` is null if nothing is, or if it does not go on
        in the background."""
        rows = self._database.ask("act/one.sql", entry=entry)
        return rows[0]._asdict() if rows else None

    def going(self, size: int = 100) -> list[dict[str, Any]]:
        """The acts that go on, the oldest first."""
        return [row._asdict() for row in self._database.ask("act/going.sql", size=size)]

    def start(self) -> None:
        """Start the thread, if it does not run yet. It looks for acts that nobody runs."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="outbox_tasks acts", daemon=True)
                self._thread.start()

    def wake(self) -> None:
        """Look for acts now."""
        self.start()
        self._woken.set()

    def ended(self, entry: int, seconds: float) -> bool:
        """Wait until an act has ended, but not for long. Returns whether it has."""
        until = time.monotonic() + seconds
        while (act := self.act(entry)) is not None and act["wanted"] is not None:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        """End after the current batch, and leave the acts to other processes."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        self._woken.set()
        if thread is not None:
            thread.join(LEASE_SECONDS)
        try:
            self._renewed(0.0)
        except OutboxError as error:
            log.info("the leases of acts could not be given back, and run out: %s", error)

    def _work(self) -> None:
        while not self._closed:
            if self._woken.wait(self._turn()):
                self._woken.clear()
                self._look_at = 0.0

    def _turn(self) -> float:
        """Do what is due, if the database is there. Returns after how many seconds something is due again."""
        try:
            return self._round()
        except OutboxError as error:
            self._running.clear()
            return self._later(error)
        except Exception:
            log.exception("acts are looked at again soon")
            return RETRY_SECONDS

    def _round(self) -> float:
        """Do what is due. Returns after how many seconds something is due again."""
        if self._running and time.monotonic() >= self._renew_at:
            self._renew()
        if time.monotonic() >= self._look_at:
            self._take()
        for entry, act in list(self._running.items()):
            if act.due <= time.monotonic():
                self._step(entry, act)
        times = [self._look_at, *(act.due for act in self._running.values()), *([self._renew_at] * bool(self._running))]
        return max(0.0, min(times) - time.monotonic())

    def _renew(self) -> None:
        self._renew_at = time.monotonic() + LEASE_SECONDS / 3
        kept = self._renewed(LEASE_SECONDS)
        self._running = {entry: act for entry, act in self._running.items() if entry in kept}

    def _renewed(self, duration: float) -> set[int]:
        return {row.entry for row in self._database.ask("act/renew.sql", token=self._token, duration=duration)}

    def _take(self) -> None:
        values = {
            "token": self._token,
            "holder": holder(),
            "duration": LEASE_SECONDS,
            "running": list(self._running),
            "only": self._only,
            "place": self._database.settings.database_schema,
            "size": max(0, 20 - len(self._running)),  # further acts wait for their turn
        }
        for row in self._database.ask("act/take.sql", **values):
            # Read only now: the former process may have done a batch while we took the lease.
            act = self.act(row.entry)
            if act is not None and act["wanted"] is not None:
                run: Callable[..., Steps] = _added_steps().get(act["action"], steps)
                self._running[row.entry] = _Running(run(self._database, act, self._token, LEASE_SECONDS))
        self._look_at = time.monotonic() + LOOK_SECONDS * (1 if self._running or self.going(1) else 2)
        if not self._running:
            self._troubled = False

    def _step(self, entry: int, act: _Running) -> None:
        try:
            act.due = time.monotonic() + next(act.steps)
            self._troubled = False
            self._slow.pop(entry, None)
            return
        except StopIteration as over:
            self._look_at = 0.0  # there may be more than there was room for
            if over.value is not None:
                self._end(entry, self._token, **over.value)
        except (DatabaseUnavailable, SchemaMissing) as error:
            slow = self._slow.pop(entry, 0) + isinstance(error, DatabaseTooSlow)
            if slow < 5:  # so many times in a row the database may be too slow for a batch
                self._slow[entry] = slow
                self._later(error)
            else:
                self._end(entry, self._token, error=storable(str(error)))
        except Exception as error:
            log.exception("act %d has failed", entry)
            self._end(entry, self._token, error=storable(f"{type(error).__name__}: {error}"))
        self._running.pop(entry, None)

    def _later(self, error: OutboxError) -> float:
        """After trouble the acts are taken again, and go on as if their process had died."""
        log.log(logging.DEBUG if self._troubled else logging.WARNING, "acts wait: %s", error)
        self._troubled = True
        self._look_at = time.monotonic() + RETRY_SECONDS
        return RETRY_SECONDS

    def _end(self, entry: int, token: UUID | None, **facts: Any) -> Sequence[Any]:
        """End an act if it has the lease of this token, or with None in any case. Returns a row if it was going on."""
        return self._database.ask("act/end.sql", entry=entry, token=token, found=json.dumps(facts))


@cache
def _added_steps() -> dict[str, Callable[..., Steps]]:
    """The acts that satellites add, by name: see `acts.steps`."""
    return {name: run for each in satellites().values() for name, run in each.acts().items()}
