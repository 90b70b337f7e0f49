"""Where the pipe meets Celery: the tasks, and what one worker process works with."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

from celery import Celery, Task, signals
from celery.concurrency import ALIASES
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from outbox_tasks.broker.names import BUNDLE_TASK, BY_BEAT, CLAIM_TASK, MAINTAIN_TASK, PUBLISH_TASK, QUEUES
from outbox_tasks.errors import (
    AttemptFailed,
    BrokerUnreachable,
    DatabaseTooSlow,
    DatabaseUnavailable,
    DeadLetter,
    MaintainedElsewhere,
    OutboxError,
)
from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.operating import retention
from outbox_tasks.redaction import redacted
from outbox_tasks.relay import claim, send, settle
from outbox_tasks.relay.retry import backoff
from outbox_tasks.settings import CLAIM_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.signals import breaker_opened, claimed, dead_letter, key_blocked, ran, settled
from outbox_tasks.worker import arrivals, reconnect, reserve
from outbox_tasks.worker.bundles import report, trace_each, verdict_in_hand
from outbox_tasks.worker.process import Relay
from outbox_tasks.worker.task import RelayTask

log = logging.getLogger(__name__)

CALM = 5.0
"""Seconds for which the database must have been there before what it has forgotten is looked for. Those who have sent
something in the meantime can still settle it."""

CLAIM_LIMIT = 60.0
"""Seconds that a claim may run: many times what one takes when everything is slow."""


def register(app: Celery, settings: Settings) -> Relay:
    """Add the relay's tasks to an app. Does not look at its configuration."""
    relay = app.outbox_relay = Relay(app, settings)
    # Not shared: Celery would add them to every other app of the process too.
    common: dict[str, Any] = {"base": RelayTask, "broker": relay.broker, "shared": False}
    publishing = {
        **common,
        "home": PUBLISH_QUEUE,
        "bind": True,
        # The row's attempts decide when it ends, not Celery's count.
        "max_retries": None,
        "soft_time_limit": settings.soft_time_limit,
        "time_limit": settings.hard_time_limit,
        "throws": (DeadLetter, DatabaseUnavailable),
    }

    # Every statement of it, and every word with the broker, has a limit of its own: one that runs for so long hangs.
    limits = {"soft_time_limit": CLAIM_LIMIT, "time_limit": CLAIM_LIMIT + settings.statement_timeout + 10}

    claiming = {"once": True, "bind": True, "Request": "outbox_tasks.worker.bundles:LeasingRequest"}

    @app.task(name=CLAIM_TASK, home=CLAIM_QUEUE, **claiming, **limits, **common)
    def outbox_claim(self: Task) -> str:
        began = time.monotonic()
        if (self.request.headers or {}).get(BY_BEAT):
            ran.send(sender=app, what="beat")
        try:
            _recall(relay)
            tally = claim.claim(relay.store, relay.broker.send, relay.broker.waiting)
        except (DatabaseUnavailable, BrokerUnreachable) as error:
            if isinstance(error, DatabaseUnavailable):
                relay.shaken = time.monotonic()
            log.warning("nothing is claimed while this is unavailable: %s", error)
            return "unavailable"
        for row in tally.buried:
            _tell_dead(relay, row.destination, row.id, row.event_type, row.key, row.attempts, row.code, row.error)
        claimed.send(sender=app, tally=tally, seconds=time.monotonic() - began)
        return f"claimed {tally.claimed} in {tally.bundles} bundles, {tally.dead} dead"

    @app.task(
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
            [verdict] = _deliver(self, relay, bundle)
            _wake_claim(relay, bundle)
        return _conclude(self, relay, bundle, verdict)

    @app.task(
        name=BUNDLE_TASK,
        Request="outbox_tasks.worker.bundles:BundleRequest",
        send_events=False,
        resultrepr_maxsize=1_000_000,  # Celery cuts longer reports; the longest has fewer characters
        **publishing,
    )
    def outbox_bundle(self: Task, destination: str, lease: str, rows: list[list[Any]], *, more: bool = False) -> str:
        bundle = Bundle(destination, lease, tuple(Ticket(*row) for row in rows), more)
        verdicts = _deliver(self, relay, bundle)
        trace_each(outbox_publish, bundle, verdicts)
        _wake_claim(relay, bundle)
        return report(verdicts)

    @app.task(name=MAINTAIN_TASK, home=MAINTAIN_QUEUE, once=True, **common)
    def outbox_maintain() -> str:
        try:
            done = retention.maintain(relay.store)
        except (DatabaseUnavailable, MaintainedElsewhere) as error:
            log.warning("%s", error)
            return "not done"
        log.info("maintenance: %s", done)
        ran.send(sender=app, what="maintain")
        if done.more:
            # A little at a time: on a worker that also claims, the claims that wait come first.
            try:
                outbox_maintain.apply_async()
            except BrokerUnreachable as error:
                log.warning("there is more to clear away; beat's next run goes on: %s", error)
        return str(done)

    _connect_signals(app, relay)
    reserve.connect(relay)
    arrivals.connect(relay)
    reconnect.connect(relay)
    return relay


def _recall(relay: Relay) -> None:
    """End the leases of what is not begun, as far as the database knows, and is in no queue any more. It is tried once:
    with very many rows it may take too long, and then the leases run out by themselves."""
    try:
        if relay.broker.has_forgotten():
            log.warning("the broker was emptied, or is new: %d leases end now", relay.store.recall())
        if relay.shaken is not None and time.monotonic() - relay.shaken > CALM:
            relay.shaken = None
            if count := relay.store.recall(crashed=True):
                log.warning("the database has crashed, and may have forgotten begins: %d leases end now", count)
    except DatabaseTooSlow as error:
        log.warning("leases that nobody will use were not ended: %s", error)


def _deliver(task: Task, relay: Relay, bundle: Bundle) -> list[Verdict]:
    """Begin, send, settle. While the database is away nothing is begun: Celery tries again, within the lease."""
    began = time.monotonic()
    # A single message that was tried more often than it was begun has all the time there is.
    unhurried = len(bundle.tickets) == 1 and task.request.retries > bundle.tickets[0].attempt
    try:
        store = relay.store
        outcomes = send.publish(store, relay.publishers, bundle, relay.crowd.note, unhurried=unhurried)
    except DatabaseUnavailable as error:
        wait = backoff(relay.settings, task.request.retries + 1)
        smaller = _halved(relay, bundle) if isinstance(error, DatabaseTooSlow) else None
        raise task.retry(args=smaller, exc=error, countdown=wait) from error
    try:
        verdicts = settle.settle(store, bundle, outcomes, partial(_tell_open, relay, bundle.destination))
    except SoftTimeLimitExceeded as error:
        reason = "the messages were sent, and the time limit came before they were settled"
        raise DatabaseUnavailable(url=redacted(relay.settings.database_url or ""), reason=reason) from error
    for verdict in verdicts:
        if verdict.step is Step.DEAD:
            _, attempt, event_type, key, *_ = ticket = verdict.ticket
            _tell_dead(relay, bundle.destination, ticket.id, event_type, key, attempt, verdict.code, verdict.error)
    seconds = time.monotonic() - began
    settled.send(sender=relay.app, bundle=bundle, verdicts=verdicts, seconds=seconds)
    return verdicts


def _halved(relay: Relay, bundle: Bundle) -> tuple[Any, ...] | None:
    """The arguments of a bundle with the first half of these messages, the rest of which are given back: all of them
    were too much for a begin. None: it stays as it is."""
    kept = len(bundle.tickets) // 2
    if not kept:
        return None
    try:
        relay.store.release(bundle.lease, bundle.tickets[kept:])
    except DatabaseUnavailable:  # it is slow whatever it is asked for
        return None
    log.warning("a bundle of %d messages to %s is halved", len(bundle.tickets), bundle.destination)
    return bundle.destination, bundle.lease, [ticket[:3] for ticket in bundle.tickets[:kept]]


def _tell_open(relay: Relay, destination: str, code: str | None, error: str | None) -> None:
    breaker_opened.send(sender=relay.app, destination=destination, code=code, error=error)


def _tell_dead(
    relay: Relay,
    destination: str,
    id: str,
    event_type: str,
    key: str | None,
    attempts: int,
    code: str | None,
    error: str | None,
) -> None:
    facts = {"message_id": id, "event_type": event_type, "key": key, "attempts": attempts, "code": code, "error": error}
    told = {"destination": destination, **{name: value for name, value in facts.items() if name != "error"}}
    text = "message %s (%s) to %s is dead after attempt %d: %s"
    log.warning(text, id, event_type, destination, attempts, code, extra=told)
    dead_letter.send(sender=relay.app, destination=destination, **facts)
    configured = relay.settings.destinations.get(destination)
    if key is None or configured is None or configured.on_dead != "block":
        return
    log.warning("dead message %s (%s) holds up the key %r of %s", id, code, key, destination, extra=told)
    key_blocked.send(sender=relay.app, destination=destination, key=key, message_id=id, code=code)


def _wake_claim(relay: Relay, bundle: Bundle) -> None:
    """There was more due than was claimed: claim on, before the queue has run dry. Beat would do it a little later."""
    if bundle.more:
        try:
            relay.broker.wake_claim()
        except (BrokerUnreachable, SoftTimeLimitExceeded) as error:
            log.warning("could not wake the claim: %s", error)


def _conclude(task: Task, relay: Relay, bundle: Bundle, verdict: Verdict) -> str:
    """End a message's task as its verdict says; what the row needs has been settled before."""
    ticket = verdict.ticket
    match verdict.step:
        case Step.SENT:
            return "sent"
        case Step.DISCARDED:
            return f"discarded: {verdict.code}"
        case Step.STALE | Step.BEHIND:
            raise Ignore(f"message {ticket.id} is not ours any more")
        case Step.DEAD:
            raise DeadLetter(id=ticket.id, attempt=ticket.attempt, code=verdict.code, error=verdict.error)
        case Step.RELEASE | Step.OUTAGE:
            raise Retry(f"{verdict.code}", when=verdict.wait)
        case Step.RETRY:
            return _retry(task, relay, bundle, verdict)


def _retry(task: Task, relay: Relay, bundle: Bundle, verdict: Verdict) -> str:
    """Celery's own retry. The row's lease covers it already: if the task is lost, the row is claimed again."""
    ticket, wait = verdict.ticket, verdict.wait
    try:
        raise task.retry(
            args=(ticket.event_type, bundle.destination, ticket.attempt, bundle.lease),
            kwargs={},
            exc=AttemptFailed(code=verdict.code, error=verdict.error),
            countdown=wait,
        )
    except Reject as refused:
        # The broker did not take the retry: give the row back, due when the retry would have been.
        facts = {"message_id": ticket.id, "destination": bundle.destination, "lease": bundle.lease}
        text = "message %s to %s goes back to the table, lease %s: its retry was refused: %s"
        log.warning(text, ticket.id, bundle.destination, bundle.lease, refused.reason, extra=facts)
        relay.store.release(bundle.lease, [ticket], wait)
        raise Retry(f"{verdict.code}", when=wait) from refused


def _pool_of(worker: Any) -> str:
    """The name by which Celery knows a worker's pool."""
    kind = worker.pool_cls
    path = ALIASES.get(kind, kind) if isinstance(kind, str) else f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in ALIASES.items() if known == path), path)


def _connect_signals(app: Celery, relay: Relay) -> None:
    def is_ours(sender: Any) -> bool:
        # An application's workers that have nothing to do with the relay start without it too.
        return sender.app is app and not app.amqp.queues.consume_from.keys().isdisjoint(QUEUES)

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

    def close(**_: Any) -> None:
        relay.close()

    signals.worker_init.connect(check, weak=False)
    signals.worker_ready.connect(tell, weak=False)
    signals.worker_process_shutdown.connect(close, weak=False)
    signals.worker_shutdown.connect(close, weak=False)
