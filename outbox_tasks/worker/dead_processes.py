"""Ends the leases of processes that have died, so that their messages need not wait until the leases run out."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.processes import alive, holder, is_gone, neighbourhood
from outbox_tasks.settings import Settings

log = logging.getLogger(__name__)

WAITS = (0.5, 4.0, 10.0)
"""Seconds before each look for dead processes. Celery kills a process a moment after its time limit. The children of a
worker that was killed end a little after it. And the server may still run the last statement of a dead process, which
locks its rows meanwhile."""


def end_leases_of_dead_processes(settings: Settings, pid: int | None = None) -> None:
    """End the leases of `pid`, which was one of this worker's pool, and of other dead processes of this
    host. In the background: the worker goes on meanwhile."""
    threading.Thread(target=_end_leases, args=(settings, pid), name="outbox-leases", daemon=True).start()


def _end_leases(settings: Settings, pid: int | None) -> None:
    store = Store.connect(settings)
    for wait in WAITS:
        time.sleep(wait)
        with suppress(DatabaseUnavailable):
            seen = store.holders(neighbourhood())
            dead = {name for name in seen if is_gone(name)}
            # The system gives its number to no other process until its parent has waited for it.
            dead |= {holder(pid)} if pid is not None and not alive(pid) else set()
            for name in sorted(dead):
                if count := store.recall(name):
                    log.warning("the process %s is gone: %d leases end now", name, count)
        # Keep no connection open meanwhile: a process that the pool forks must not share it.
        store.engine.dispose()
