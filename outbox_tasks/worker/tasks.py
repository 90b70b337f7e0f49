"""The relay's Celery tasks, and what happens as their workers start and stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from celery import Celery, Task, signals

from outbox_tasks.broker.names import BUNDLE_TASK, BY_BEAT, CLAIM_TASK, MAINTAIN_TASK, PUBLISH_TASK
from outbox_tasks.errors import (
    BrokerUnreachable,
    CrossedWires,
    DatabaseTooSlow,
    DatabaseUnavailable,
    DeadLetter,
    MaintainedElsewhere,
    OutboxError,
)
from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.operating import retention
from outbox_tasks.operating.heartbeats import LATE_CLAIM
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.relay import claim
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import CLAIM_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.signals import claimed, ran
from outbox_tasks.worker import own_broker, start_checks
from outbox_tasks.worker.base_task import RelayTask
from outbox_tasks.worker.bundles import report, trace_each, verdict_in_hand
from outbox_tasks.worker.claim_task import ClaimTask
from outbox_tasks.worker.dead_processes import end_leases_of_dead_processes
from outbox_tasks.worker.delivery import conclude, deliver_in, report_dead, wake_claim
from outbox_tasks.worker.failed import EndFailed
from outbox_tasks.worker.feed_task import add_feed
from outbox_tasks.worker.message_checks import CheckMessages
from outbox_tasks.worker.reconnect import ReconnectSoon
from outbox_tasks.worker.reserve_process import ReserveProcess
from outbox_tasks.worker.resources import Resources, serves

log = logging.getLogger(__name__)

CALM = 5.0
"""Seconds for which the database must have been back before the claim looks for begins that a crash has undone.
Workers that sent something in the meantime can still settle it."""

CLAIM_LIMIT = 60.0
"""Seconds that a claim may run. Each of its statements and each call of the broker has a limit of its own, so a claim
that takes this long hangs."""


def register(app: Celery, settings: Settings) -> Resources:
    """Add the relay's tasks to an app. Does not look at its configuration."""
    resources = app.outbox_relay = Resources(app, settings)
    # Not shared: Celery would add them to every other app of the process too.
    common: dict[str, Any] = {"base": RelayTask, "broker": resources.broker, "shared": False}
    _add_claim(resources, common)
    publishing = _publishing(resources, common)
    _add_bundle(resources, publishing, _add_publish(resources, publishing))
    _add_maintain(resources, common)
    add_feed(resources, common)
    _connect_signals(app, resources)
    app.steps["consumer"].update((CheckMessages, ReconnectSoon, ReserveProcess))
    app.steps["worker"].add(EndFailed)
    return resources


def _add_claim(resources: Resources, common: dict[str, Any]) -> None:
    app = resources.app

    @app.task(
        name=CLAIM_TASK,
        home=CLAIM_QUEUE,
        once=True,
        resources=resources,
        bind=True,
        Request="outbox_tasks.worker.bundles:ClaimRequest",
        send_events=False,
        soft_time_limit=CLAIM_LIMIT,
        time_limit=CLAIM_LIMIT + resources.given.statement_timeout + 10,
        **{**common, "base": ClaimTask},
    )
    def outbox_claim(self: Task) -> str:
        began = time.monotonic()
        if (self.request.headers or {}).get(BY_BEAT):
            ran.send(sender=app, what="beat")
        try:
            _end_lost_leases(resources)
            resources.lost_tasks.look()
            tally = claim.claim(resources.store, resources.broker.send, resources.broker.waiting)
        except (DatabaseUnavailable, BrokerUnreachable) as error:
            if isinstance(error, DatabaseUnavailable):
                resources.database_away_at = time.monotonic()
            if isinstance(error, DatabaseTooSlow):
                ran.send(sender=app, what=LATE_CLAIM)
            log.warning("nothing is claimed while this is unavailable: %s", error)
            return "unavailable"
        except CrossedWires as error:
            log.error("nothing is claimed: %s", error)
            return "crossed wires"
        for row in tally.buried:
            ticket = Ticket(row.id, row.attempts, row.event_type, row.key)
            report_dead(resources, row.destination, Verdict(ticket, Step.DEAD, 0.0, row.code, row.error))
        claimed.send(sender=app, tally=tally, seconds=time.monotonic() - began)
        with suppress(OutboxError):  # beat's next claim does it
            self.return_in_time()
        return f"claimed {tally.claimed} in {tally.bundles} bundles, {tally.dead} dead"


def _end_lost_leases(resources: Resources) -> None:
    """End the leases that nobody will use, if the broker has lost its queues or the database has lost begins. This is
    tried once: with very many rows it may take too long, and then the leases run out by themselves."""
    try:
        own_broker.check(resources, resources.broker, resources.store)
        if resources.database_away_at is not None and (count := resources.store.note_timeline()) is not None:
            log.warning("the database is on another timeline: %d messages may be delivered again", count)
        if resources.database_away_at is not None and time.monotonic() - resources.database_away_at > CALM:
            resources.database_away_at = None
            if count := resources.store.recall(crashed=True):
                log.warning("the database has crashed, and may have forgotten begins: %d leases end now", count)
    except DatabaseTooSlow as error:
        log.warning("leases that nobody will use were not ended: %s", error)


def _publishing(resources: Resources, common: dict[str, Any]) -> dict[str, Any]:
    """The options of a task that sends messages."""
    return {
        **common,
        "home": PUBLISH_QUEUE,
        "bind": True,
        # The row's attempts decide when it ends, not Celery's count.
        "max_retries": None,
        "soft_time_limit": resources.given.soft_time_limit,
        "time_limit": resources.given.hard_time_limit,
        "throws": (DeadLetter, DatabaseUnavailable),
    }


def _add_publish(resources: Resources, publishing: dict[str, Any]) -> Task:
    @resources.app.task(
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
            [verdict] = deliver_in(self, resources, bundle)
            wake_claim(resources, bundle)
        return conclude(self, resources, bundle, verdict)

    return outbox_publish


def _add_bundle(resources: Resources, publishing: dict[str, Any], publish: Task) -> None:
    """Add the bundle task, which is several publish tasks in one."""

    @resources.app.task(
        name=BUNDLE_TASK,
        Request="outbox_tasks.worker.bundles:BundleRequest",
        send_events=False,
        resultrepr_maxsize=1_000_000,  # Celery cuts longer reports; the longest has fewer characters
        **publishing,
    )
    def outbox_bundle(
        self: Task,
        destination: str,
        lease: str,
        rows: list[list[Any]],
        *,
        more: bool = False,
        leases: Sequence[str] = (),
    ) -> str:
        bundle = Bundle(destination, lease, tuple(Ticket(*row) for row in rows), more, leases=tuple(leases))
        verdicts = deliver_in(self, resources, bundle)
        trace_each(publish, bundle, verdicts)
        wake_claim(resources, bundle)
        return report(verdicts)


def _add_maintain(resources: Resources, common: dict[str, Any]) -> None:
    @resources.app.task(name=MAINTAIN_TASK, home=MAINTAIN_QUEUE, once=True, **common)
    def outbox_maintain() -> str:
        try:
            done = retention.maintain(resources.store)
        except (DatabaseUnavailable, MaintainedElsewhere) as error:
            log.warning("%s", error)
            return "not done"
        log.info("maintenance: %s", done)
        ran.send(sender=resources.app, what="maintain")
        if done.more:
            # In small steps, so that claims come in between on a worker that also claims.
            try:
                outbox_maintain.apply_async()
            except BrokerUnreachable as error:
                log.warning("there is more to clear away; beat's next run goes on: %s", error)
        return str(done)


def _connect_signals(app: Celery, resources: Resources) -> None:
    def is_ours(sender: Any) -> bool:
        # An application's workers that have nothing to do with the relay start without it too.
        return sender.app is app and serves(app)

    def check(sender: Any = None, **_: Any) -> None:
        if is_ours(sender):
            try:
                start_checks.check(resources)
                start_checks.check_pool(resources, sender)
            except OutboxError as error:
                raise SystemExit(f"outbox_tasks: {error}") from None

    def tell(sender: Any = None, **_: Any) -> None:
        if is_ours(sender):
            names = ", ".join(sorted(resources.settings.destinations)) or "none"
            log.info("%s; destinations: %s", resources.settings.origin, names)
            # It may take the place of a worker that was killed.
            end_leases_of_dead_processes(resources.settings)
            if MAINTAIN_QUEUE in app.amqp.queues.consume_from:
                # Acts that a page has begun go on when its process has ended.
                resources.acts = Runner(Store.connect(resources.settings))
                resources.acts.start()

    def close(**_: Any) -> None:
        resources.close()

    signals.worker_init.connect(check, weak=False)
    signals.worker_ready.connect(tell, weak=False)
    signals.worker_process_shutdown.connect(close, weak=False)
    signals.worker_shutdown.connect(close, weak=False)
