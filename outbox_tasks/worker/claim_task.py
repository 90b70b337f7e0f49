"""The claim task."""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import Task

from outbox_tasks.broker.names import BY_BEAT, CLAIM_TASK
from outbox_tasks.errors import BrokerUnreachable, CrossedWires, DatabaseTooSlow, DatabaseUnavailable
from outbox_tasks.operating.heartbeats import LATE_CLAIM
from outbox_tasks.relay.claim import claim
from outbox_tasks.settings import CLAIM_QUEUE
from outbox_tasks.signals import claimed, ran
from outbox_tasks.worker.listener import TaskListener
from outbox_tasks.worker.requests import NOTHING_CLAIMED
from outbox_tasks.worker.resources import Resources
from outbox_tasks.worker.start_checks import check_broker

log = logging.getLogger(__name__)

CLAIM_LIMIT_SECONDS = 60.0
"""Each statement of a claim and each call of the broker has a limit of its own, so a claim that takes this long
hangs."""


def add_claim(resources: Resources, common: dict[str, Any]) -> None:
    """Add the claim task to the app."""
    listener = TaskListener(resources)

    @resources.app.task(
        name=CLAIM_TASK,
        home=CLAIM_QUEUE,
        once=True,
        bind=True,
        Request="outbox_tasks.worker.requests:ClaimRequest",
        send_events=False,
        soft_time_limit=CLAIM_LIMIT_SECONDS,
        time_limit=CLAIM_LIMIT_SECONDS + resources.given.statement_timeout + 10,
        **common,
    )
    def outbox_claim(self: Task) -> str:
        began = time.monotonic()
        if (self.request.headers or {}).get(BY_BEAT):
            ran.send(sender=resources.app, what="beat")
        try:
            _end_lost_leases(resources)
            for prepare in resources.before_claim:
                prepare()
            tally = claim(resources.store, resources.broker.send, resources.broker.queued, resources.pace)
        except (DatabaseUnavailable, BrokerUnreachable) as error:
            if isinstance(error, DatabaseUnavailable):
                resources.database_was_away = True
            if isinstance(error, DatabaseTooSlow):
                ran.send(sender=resources.app, what=LATE_CLAIM)
            log.warning("nothing is claimed while this is unavailable: %s", error)
            return "unavailable"
        except CrossedWires as error:
            log.error("nothing is claimed: %s", error)
            return "crossed wires"
        for message in tally.buried:
            listener.buried(message)
        claimed.send(sender=resources.app, tally=tally, seconds=time.monotonic() - began)
        return str(tally) if tally.did_something else NOTHING_CLAIMED


def _end_lost_leases(resources: Resources) -> None:
    """If the broker has lost its queues, end the leases that nobody will use. If the database may have lost its last
    commits, note that on the messages that are due; this is tried once, because with very many rows it may take too
    long."""
    try:
        check_broker(resources, resources.broker, resources.store)
        if resources.database_was_away:
            resources.database_was_away = False
            if count := resources.store.claims.note_lost_commits():
                log.warning("the database may have lost its last commits: %d messages may be delivered again", count)
    except DatabaseTooSlow as error:
        log.warning("leases that nobody will use were not ended: %s", error)
