"""The relay's Celery tasks, and what happens as their workers start and stop."""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import Celery, Task, signals
from celery.concurrency import ALIASES

from outbox_tasks.broker.names import BUNDLE_TASK, BY_BEAT, CLAIM_TASK, MAINTAIN_TASK, PUBLISH_TASK
from outbox_tasks.errors import (
    BrokerUnreachable,
    DatabaseTooSlow,
    DatabaseUnavailable,
    DeadLetter,
    MaintainedElsewhere,
    OutboxError,
)
from outbox_tasks.model import Bundle, Ticket
from outbox_tasks.operating import retention
from outbox_tasks.relay import claim
from outbox_tasks.settings import CLAIM_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.signals import claimed, ran
from outbox_tasks.worker import arrivals, reconnect, reserve
from outbox_tasks.worker.bundles import report, trace_each, verdict_in_hand
from outbox_tasks.worker.delivery import conclude, deliver_in, tell_dead, wake_claim
from outbox_tasks.worker.process import Relay, serves
from outbox_tasks.worker.task import RelayTask

log = logging.getLogger(__name__)

CALM = 5.0
"""Seconds for which the database must have been back before the claim looks for begins that a crash has undone.
Workers that sent something in the meantime can still settle it."""

CLAIM_LIMIT = 60.0
"""Seconds that a claim may run. Each of its statements and each call of the broker has a limit of its own, so a claim
that takes this long hangs."""


def register(app: Celery, settings: Settings) -> Relay:
    """Add the relay's tasks to an app. Does not look at its configuration."""
    relay = app.outbox_relay = Relay(app, settings)
    # Not shared: Celery would add them to every other app of the process too.
    common: dict[str, Any] = {"base": RelayTask, "broker": relay.broker, "shared": False}
    _add_claim(relay, common)
    _add_publish(relay, common)
    _add_maintain(relay, common)
    _connect_signals(app, relay)
    reserve.connect(relay)
    arrivals.connect(relay)
    reconnect.connect(relay)
    return relay


def _add_claim(relay: Relay, common: dict[str, Any]) -> None:
    app = relay.app

    @app.task(
        name=CLAIM_TASK,
        home=CLAIM_QUEUE,
        once=True,
        bind=True,
        Request="outbox_tasks.worker.bundles:LeasingRequest",
        soft_time_limit=CLAIM_LIMIT,
        time_limit=CLAIM_LIMIT + relay.given.statement_timeout + 10,
        **common,
    )
    def outbox_claim(self: Task) -> str:
        began = time.monotonic()
        if (self.request.headers or {}).get(BY_BEAT):
            ran.send(sender=app, what="beat")
        try:
            _end_lost_leases(relay)
            tally = claim.claim(relay.store, relay.broker.send, relay.broker.waiting)
        except (DatabaseUnavailable, BrokerUnreachable) as error:
            if isinstance(error, DatabaseUnavailable):
                relay.shaken = time.monotonic()
            log.warning("nothing is claimed while this is unavailable: %s", error)
            return "unavailable"
        for row in tally.buried:
            tell_dead(relay, row.destination, row.id, row.event_type, row.key, row.attempts, row.code, row.error)
        claimed.send(sender=app, tally=tally, seconds=time.monotonic() - began)
        return f"claimed {tally.claimed} in {tally.bundles} bundles, {tally.dead} dead"


def _end_lost_leases(relay: Relay) -> None:
    """End the leases that nobody will use, if the broker has lost its queues or the database has lost begins. This is
    tried once: with very many rows it may take too long, and then the leases run out by themselves."""
    try:
        if relay.broker.has_forgotten():
            log.warning("the broker was emptied, or is new: %d leases end now", relay.store.recall())
        if relay.shaken is not None and time.monotonic() - relay.shaken > CALM:
            relay.shaken = None
            if count := relay.store.recall(crashed=True):
                log.warning("the database has crashed, and may have forgotten begins: %d leases end now", count)
    except DatabaseTooSlow as error:
        log.warning("leases that nobody will use were not ended: %s", error)


def _add_publish(relay: Relay, common: dict[str, Any]) -> None:
    """Add the publish task and the bundle task, which is several publish tasks in one."""
    publishing = {
        **common,
        "home": PUBLISH_QUEUE,
        "bind": True,
        # The row's attempts decide when it ends, not Celery's count.
        "max_retries": None,
        "soft_time_limit": relay.given.soft_time_limit,
        "time_limit": relay.given.hard_time_limit,
        "throws": (DeadLetter, DatabaseUnavailable),
    }

    @relay.app.task(
        name=PUBLISH_TASK,
        Request="outbox_tasks.worker.bundles:PublishRequest",
        Strategy="outbox_tasks.worker.gather:strategy",
        **publishing,
    )
    def outbox_publish(
        self: Task,
        event_type: str,
        destination: str,
        attempt: int,
        lease: str,
        *,
        more: bool = False,
        gather: bool = False,
    ) -> str:
        verdict = verdict_in_hand.get()
        bundle = Bundle(destination, lease, (Ticket(self.request.id, attempt, event_type),), more)
        if verdict is None:
            [verdict] = deliver_in(self, relay, bundle)
            wake_claim(relay, bundle)
        return conclude(self, relay, bundle, verdict)

    @relay.app.task(
        name=BUNDLE_TASK,
        Request="outbox_tasks.worker.bundles:BundleRequest",
        send_events=False,
        resultrepr_maxsize=1_000_000,  # Celery cuts longer reports; the longest has fewer characters
        **publishing,
    )
    def outbox_bundle(self: Task, destination: str, lease: str, rows: list[list[Any]], *, more: bool = False) -> str:
        bundle = Bundle(destination, lease, tuple(Ticket(*row) for row in rows), more)
        verdicts = deliver_in(self, relay, bundle)
        trace_each(outbox_publish, bundle, verdicts)
        wake_claim(relay, bundle)
        return report(verdicts)


def _add_maintain(relay: Relay, common: dict[str, Any]) -> None:
    @relay.app.task(name=MAINTAIN_TASK, home=MAINTAIN_QUEUE, once=True, **common)
    def outbox_maintain() -> str:
        try:
            done = retention.maintain(relay.store)
        except (DatabaseUnavailable, MaintainedElsewhere) as error:
            log.warning("%s", error)
            return "not done"
        log.info("maintenance: %s", done)
        ran.send(sender=relay.app, what="maintain")
        if done.more:
            # A little at a time: on a worker that also claims, the claims that wait come first.
            try:
                outbox_maintain.apply_async()
            except BrokerUnreachable as error:
                log.warning("there is more to clear away; beat's next run goes on: %s", error)
        return str(done)


def _pool_of(worker: Any) -> str:
    """The name by which Celery knows a worker's pool."""
    kind = worker.pool_cls
    path = ALIASES.get(kind, kind) if isinstance(kind, str) else f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in ALIASES.items() if known == path), path)


def _connect_signals(app: Celery, relay: Relay) -> None:
    def is_ours(sender: Any) -> bool:
        # An application's workers that have nothing to do with the relay start without it too.
        return sender.app is app and serves(app)

    def check(sender: Any = None, **_: Any) -> None:
        if is_ours(sender):
            try:
                relay.check()
                relay.check_pool(_pool_of(sender), sender.concurrency if isinstance(sender.concurrency, int) else 1)
            except OutboxError as error:
                raise SystemExit(f"outbox_tasks: {error}") from None

    def tell(sender: Any = None, **_: Any) -> None:
        if is_ours(sender):
            names = ", ".join(sorted(relay.settings.destinations)) or "none"
            log.info("%s; destinations: %s", relay.settings.origin, names)
            # It may take the place of a worker that was killed.
            relay.end_leases_of_the_dead()

    def close(**_: Any) -> None:
        relay.close()

    signals.worker_init.connect(check, weak=False)
    signals.worker_ready.connect(tell, weak=False)
    signals.worker_process_shutdown.connect(close, weak=False)
    signals.worker_shutdown.connect(close, weak=False)
