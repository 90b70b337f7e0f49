"""Runs people's acts, of the page and of commands: in batches, at a rate if wanted, whatever happens to the process.

An act has a row in `outbox_acts` as long as there is something left to do. A batch is one transaction: it locks the
row, changes the messages, counts them in the audit, and notes in the row where the act goes on and when. So none is
changed twice, whichever process does the next batch. Mostly that is the one that has begun the act. If a batch is
overdue, another process does it, and those after it: a page's, or the worker that does the relay's housekeeping. To
stop an act is to delete its row: from then on no batch is done.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from hashlib import sha256
from math import inf
from typing import Any
from uuid import UUID

from outbox_tasks.database.connection import Database, Run
from outbox_tasks.errors import ActConflict, DatabaseTooSlow, DatabaseUnavailable, OutboxError, SchemaMissing
from outbox_tasks.operating import audit
from outbox_tasks.operating.messages.acts import Action, Batch, Done, do_batch
from outbox_tasks.operating.messages.find import Filter
from outbox_tasks.operating.wake import wake as wake_claim
from outbox_tasks.satellites import satellites
from outbox_tasks.text import storable

log = logging.getLogger(__name__)

OVERDUE_SECONDS = 15.0
"""A batch that is overdue for so long is done by any process."""

LOOK_SECONDS = 5.0
"""A process looks so often for what is overdue."""

RETRY_SECONDS = 2.0
"""A process looks again so long after trouble with the database."""


DoBatch = Callable[[Run, Database, dict[str, Any]], Batch]


class Runner:
    """Begins acts, stops them, and runs them: in a thread of its own, or in `follow`. One for each process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._own: set[int] = set()
        """The acts that this process runs."""
        self._slow: dict[int, int] = {}
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
        `more`: what an act of a satellite also needs, see `Choice.added`. `wake`: this
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
        entry = int(entries[0].entry)
        if wake:
            self._own.add(entry)
            self.start()
            self._woken.set()
        return entry

    def follow(self, entry: int, who: str, stop: threading.Event | None = None) -> Done:
        """Run this act, and no other, in this thread, until it has ended, here or in another process. If `stop` is set,
        or this is interrupted, it ends after its current batch."""
        count, stop = 0, stop or threading.Event()
        try:
            while True:
                act = self.act(entry) or {"wanted": None, "count": count, "facts": {}}
                count = act["count"]
                if act["wanted"] is None:
                    break
                if stop.is_set():
                    self.stop(entry, who)
                elif (wait := self._turn({entry}, inf)) > 0:
                    stop.wait(min(wait, 0.5))
        except KeyboardInterrupt:
            self.stop(entry, who)
            raise
        facts = act["facts"]
        not_changed = [UUID(id) for id in facts.get("not_changed", ())]
        return Done(entry, count, "stopped" in facts, facts.get("error"), facts.get("missed", 0), not_changed)

    def stop(self, entry: int, who: str) -> bool:
        """End an act after its current batch; when this returns, no more is done. Returns whether it was going on."""
        return bool(self._end(entry, stopped=storable(who)))

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
            thread.join(OVERDUE_SECONDS)

    def _work(self) -> None:
        while not self._closed:
            if self._woken.wait(self._turn(self._own, OVERDUE_SECONDS)):
                self._woken.clear()

    def _turn(self, own: set[int], overdue: float) -> float:
        """Do the batch that is due, if the database is there: of our own acts, or of one whose batch is overdue for so
        many seconds. Returns after how many seconds to look again."""
        try:
            wait = self._batch(own, overdue)
            self._troubled = False
            return wait
        except OutboxError as error:
            log.log(logging.DEBUG if self._troubled else logging.WARNING, "acts wait: %s", error)
            self._troubled = True
        except Exception:  # the thread lives as long as its process
            log.exception("acts are looked at again soon")
        return RETRY_SECONDS

    def _batch(self, own: set[int], overdue: float) -> float:
        asked = {"own": sorted(own), "overdue": min(overdue, 1e9), "place": self._database.settings.database_schema}
        entry = None
        try:
            with self._database.transaction() as run:
                [due] = run("act/take.sql", **asked)
                if due.entry is None:
                    return LOOK_SECONDS if due.wait is None else min(LOOK_SECONDS, max(0.05, due.wait))
                entry = due.entry
                # Read only now: another process may have done a batch while we took the row.
                act = run("act/one.sql", entry=entry)[0]._asdict()
                do: DoBatch = _added_batches().get(act["action"], do_batch)
                batch = do(run, self._database, act)
                if batch.place is None:
                    run("act/end.sql", entry=entry, found=json.dumps(batch.facts))
                else:
                    run("act/go_on.sql", entry=entry, place=json.dumps(batch.place), pause=batch.pause)
        except (DatabaseUnavailable, SchemaMissing) as error:
            if entry is None:
                raise
            self._slow[entry] = self._slow.get(entry, 0) + isinstance(error, DatabaseTooSlow)
            if self._slow[entry] < 5:  # so many times in a row the database may be too slow for a batch
                raise
            self._end(entry, error=storable(str(error)))
        except Exception as error:
            if entry is None:
                raise
            log.exception("act %d has failed", entry)
            self._end(entry, error=storable(f"{type(error).__name__}: {error}"))
        else:
            (own.discard if batch.place is None else own.add)(entry)
            if batch.changed or act["place"] is None:
                wake_claim(self._database.settings)
        self._slow.pop(entry, None)
        return 0.0

    def _end(self, entry: int, **facts: Any) -> Sequence[Any]:
        """End an act. Returns a row if it was going on."""
        return self._database.ask("act/end.sql", entry=entry, found=json.dumps(facts))


@cache
def _added_batches() -> dict[str, DoBatch]:
    """The acts that satellites add, by name: see `acts.do_batch`."""
    return {name: do for each in satellites().values() for name, do in each.acts().items()}
