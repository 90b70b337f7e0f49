"""Where the pipe meets Celery: the tasks, and what one worker process works with."""

from __future__ import annotations

import logging
import os
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery import Celery, Task, signals
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from outbox_tasks import claim, inbox, publish, settle
from outbox_tasks.broker import (
    BUNDLE_TASK,
    CLAIM_TASK,
    MAINTAIN_TASK,
    PUBLISH_TASK,
    QUEUES,
    Broker,
    RelayTask,
    joined,
)
from outbox_tasks.bundles import report, trace_each, verdict_in_hand
from outbox_tasks.errors import AttemptFailed, BrokerUnreachable, DatabaseUnavailable, DeadLetter, OutboxError
from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.publish import Publishers
from outbox_tasks.retry import backoff
from outbox_tasks.settings import CLAIM_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE, Settings, redacted
from outbox_tasks.store import Store

log = logging.getLogger(__name__)


class Relay:
    """The settings, and the connections of one worker process: opened when first used, after any fork."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self.app = app
        self.broker = Broker(app, settings)
        self.given = settings
        self._pid: int | None = None
        self._store: Store | None = None
        self._publishers: Publishers | None = None

    @cached_property
    def settings(self) -> Settings:
        """Those it was made with. Where they name no broker, the app's is theirs, for `celery://` destinations too.

        Not to be asked for before the app is configured.
        """
        given, conf = self.given, self.app.conf
        url = joined(conf.broker_write_url)
        if given.broker_url is not None or not url:
            return given
        destinations = dict(given.destinations)
        for name, destination in given.destinations.items():
            if destination.scheme == "celery" and "broker" not in parse_qs(urlsplit(destination.url).query):
                options = {**conf.broker_transport_options, **destination.transport_options}
                destinations[name] = destination.model_copy(update={"transport_options": options})
        return given.replace(broker_url=url, destinations=destinations)

    @property
    def store(self) -> Store:
        """The store of this process. Raises a `Schema…` error when the tables are not of this release."""
        self._after_fork()
        if self._store is None:
            store = Store.connect(self.settings)
            store.check_version()
            self._store = store
        return self._store

    @property
    def publishers(self) -> Publishers:
        """The publishers of this process."""
        self._after_fork()
        if self._publishers is None:
            self._publishers = Publishers(self.settings)
        return self._publishers

    def check(self) -> None:
        """At a worker's start, before any fork: raises what would otherwise come up with the first message.

        A database that can't be reached is not one of these: it may come back, and until then nothing is begun.
        """
        self.broker.check()
        store, publishers = Store.connect(self.settings), Publishers(self.settings)
        try:
            for name in publishers:
                publishers[name]
            store.check_version()
        except DatabaseUnavailable as error:
            log.warning("%s", error)
        finally:
            publishers.close()
            store.close()

    def close(self) -> None:
        """Close the connections of this process."""
        if self._publishers is not None:
            self._publishers.close()
            self._publishers = None
        if self._store is not None:
            self._store.close()
            self._store = None

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            if self._store is not None:
                self._store.engine.dispose(close=False)  # the connections belong to the parent
            self._pid, self._store, self._publishers = os.getpid(), None, None


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

    @app.task(name=CLAIM_TASK, home=CLAIM_QUEUE, **common)
    def outbox_claim() -> str:
        try:
            tally = claim.claim(relay.store, relay.broker.send, relay.broker.waiting)
        except (DatabaseUnavailable, BrokerUnreachable) as error:
            log.warning("%s", error)
            return "unavailable"
        return f"claimed {tally.claimed} in {tally.bundles} bundles, {tally.dead} dead"

    @app.task(
        name=PUBLISH_TASK,
        Request="outbox_tasks.bundles:PublishRequest",
        Strategy="outbox_tasks.gather:strategy",
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
        Request="outbox_tasks.bundles:BundleRequest",
        send_events=False,
        resultrepr_maxsize=100_000,
        **publishing,
    )
    def outbox_bundle(self: Task, destination: str, lease: str, rows: list[list[Any]], *, more: bool = False) -> str:
        bundle = Bundle(destination, lease, tuple(Ticket(*row) for row in rows), more)
        verdicts = _deliver(self, relay, bundle)
        trace_each(outbox_publish, bundle, verdicts)
        _wake_claim(relay, bundle)
        return report(verdicts)

    @app.task(name=MAINTAIN_TASK, home=MAINTAIN_QUEUE, **common)
    def outbox_maintain() -> str:
        made = relay.store.prepare_archive()
        forgotten, more = inbox.forget(relay.store)
        if more:
            # A little at a time: on a worker that also claims, the claims that wait come first.
            try:
                outbox_maintain.apply_async()
            except BrokerUnreachable as error:
                log.warning("the inbox is not yet rid of its old marks; beat's next run goes on: %s", error)
        return f"made {made} partitions, forgot {forgotten} marks"

    _connect_signals(app, relay)
    return relay


def _deliver(task: Task, relay: Relay, bundle: Bundle) -> list[Verdict]:
    """Begin, send, settle. While the database is away nothing is begun: Celery tries again, within the lease."""
    try:
        store = relay.store
        outcomes = publish.publish(store, relay.publishers, bundle)
    except DatabaseUnavailable as error:
        wait = backoff(relay.settings, task.request.retries + 1)
        # It still expires when it would have: with its lease.
        raise task.retry(exc=error, countdown=wait) from error
    try:
        return settle.settle(store, bundle, outcomes)
    except SoftTimeLimitExceeded as error:
        reason = "the messages were sent, and the time limit came before they were settled"
        raise DatabaseUnavailable(url=redacted(relay.settings.database_url or ""), reason=reason) from error


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
            log.info("message %s was discarded: %s", ticket.id, verdict.error)
            return f"discarded: {verdict.code}"
        case Step.STALE:
            raise Ignore(f"message {ticket.id} is not ours any more")
        case Step.DEAD:
            raise DeadLetter(id=ticket.id, attempt=ticket.attempt, code=verdict.code, error=verdict.error)
        case Step.RELEASE | Step.OUTAGE:
            raise Retry(f"{verdict.code}: {verdict.error}", when=verdict.wait)
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
            expires=wait + relay.settings.queue_lease,
        )
    except Reject as refused:
        # The broker did not take the retry: give the row back, due when the retry would have been.
        log.warning("message %s goes back to the table, its retry was refused: %s", ticket.id, refused.reason)
        relay.store.release(bundle.lease, [ticket], wait)
        raise Retry(f"{verdict.code}: {verdict.error}", when=wait) from refused


def _connect_signals(app: Celery, relay: Relay) -> None:
    def check(sender: Any = None, **_: Any) -> None:
        # An application's workers that have nothing to do with the relay start without it too.
        if sender.app is app and not app.amqp.queues.consume_from.keys().isdisjoint(QUEUES):
            try:
                relay.check()
            except OutboxError as error:
                raise SystemExit(f"outbox_tasks: {error}") from None

    def close(**_: Any) -> None:
        relay.close()

    signals.worker_init.connect(check, weak=False)
    signals.worker_process_shutdown.connect(close, weak=False)
    signals.worker_shutdown.connect(close, weak=False)
