"""What a worker checks at its start, before it forks: otherwise it would fail with the first message. Each claim checks
the broker again."""

from __future__ import annotations

import json
import logging
from contextlib import closing, suppress
from typing import Any

from celery.concurrency import ALIASES

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.places import joined, same_place
from outbox_tasks.database.activity import CROSSED, LATE_SECONDS
from outbox_tasks.destinations import is_green
from outbox_tasks.errors import BrokerUnreachable, ConfigurationError, CrossedWires, DatabaseUnavailable
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, PUBLISH_QUEUE
from outbox_tasks.text import redacted
from outbox_tasks.worker.resources import Resources

POOLS = ("prefork", "solo", "threads", "gevent")
"""Not eventlet: its development has ended, and psycopg does not cooperate with it."""

log = logging.getLogger(__name__)


def check(resources: Resources) -> None:
    """Check the settings, the publishers, the tables, the broker and its stamp. Raises an `OutboxError`, but not if the
    database or the broker is away: it may come back, and until then nothing is begun."""
    resources.broker.check()
    _check_same_broker(resources)
    settings = resources.settings
    if not resources.app.amqp.queues.consume_from.keys().isdisjoint((CLAIM_QUEUE, PUBLISH_QUEUE, DRAIN_QUEUE)):
        settings.check_destinations()
    store, publishers = Store.connect(settings), Publishers(settings)
    try:
        for name in publishers:
            publishers[name]
        store.check_version()
        # This broker has connections of its own, so that no process of the pool inherits one.
        with closing(Broker(resources.app, settings)) as broker:
            broker.check_server()
            check_broker(resources, broker, store)
    except (BrokerUnreachable, DatabaseUnavailable) as error:
        log.warning("%s", error)
    finally:
        publishers.close()
        store.close()


def _check_same_broker(resources: Resources) -> None:
    relay_url, app = resources.given.broker_url, resources.app
    app_url = getattr(app, "pinned_broker", None) or joined(app.conf.broker_read_url)
    if relay_url is not None and app_url and not same_place(relay_url, app_url):
        rule = (
            f"it is the relay's broker, and the workers of this app take the relay's tasks from {redacted(app_url)}. "
            "Unset OUTBOX_BROKER_URL, or run the relay's workers and beat as celery -A outbox_tasks"
        )
        raise ConfigurationError(setting="broker_url", value=redacted(relay_url), rule=rule)


def check_broker(resources: Resources, broker: Broker, store: Store) -> None:
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
            store.ask("report/beat.sql", seen=json.dumps(seen), late=LATE_SECONDS)
        raise
    if resources.crossed:
        store.ask("report/stopped.sql", name=CROSSED, started="")
        resources.crossed = False
    if forgotten:
        log.warning("the broker was emptied, or is new: %d leases end now", store.claims.recall())


def check_pool(resources: Resources, worker: Any) -> None:
    """Raises `ConfigurationError` if the relay can't run in the pool of this worker."""
    pool = _pool_of(worker)
    if pool not in POOLS:
        rule = f"the relay's tasks run in the pools {', '.join(POOLS)}"
        raise ConfigurationError(setting="worker_pool", value=pool, rule=rule)
    if pool != "gevent":
        return
    for name, destination in resources.settings.destinations.items():
        if not is_green(destination):
            rule = (
                f"it would block: the client for {destination.scheme}:// (destination {name!r}) does not cooperate "
                "with gevent; take prefork or threads"
            )
            raise ConfigurationError(setting="worker_pool", value=pool, rule=rule)


def _pool_of(worker: Any) -> str:
    """The name by which Celery knows a worker's pool."""
    kind = worker.pool_cls
    path = ALIASES.get(kind, kind) if isinstance(kind, str) else f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in ALIASES.items() if known == path), path)
