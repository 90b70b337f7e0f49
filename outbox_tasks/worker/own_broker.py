"""Whether the broker is this outbox's, and still has its queues: at the start of a worker, and before each claim."""

from __future__ import annotations

import json
import logging
from contextlib import suppress

from outbox_tasks.broker.broker import Broker
from outbox_tasks.database.activity import CROSSED, LATE
from outbox_tasks.errors import CrossedWires, DatabaseUnavailable
from outbox_tasks.relay.store import Store
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)


def check(resources: Resources, broker: Broker, store: Store) -> None:
    """Leave the stamp of this outbox on the broker. If a Redis has lost its queues, end the leases that nobody will
    use. Raises `CrossedWires` if the broker has another outbox's stamp; the table then says so to `status` and
    `health`."""
    try:
        forgotten = broker.has_forgotten(store.identity)
    except CrossedWires as crossed:
        resources.crossed = True
        facts = {"started": "", "broker": crossed.broker, "owner": crossed.owner}
        seen = [{"name": CROSSED, "kind": CROSSED, "ago": 0, "facts": facts}]
        with suppress(DatabaseUnavailable):  # CrossedWires matters more
            store.ask("report/beat.sql", seen=json.dumps(seen), late=LATE)
        raise
    if resources.crossed:
        store.ask("report/stopped.sql", name=CROSSED, started="")
        resources.crossed = False
    if forgotten:
        log.warning("the broker was emptied, or is new: %d leases end now", store.recall())
