"""What a soak runs on, and what its faults act on: servers, proxies before them, a relay, and an application."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kombu import Connection
from sqlalchemy import Engine, NullPool, create_engine

from lab.proxy import Proxy, through
from lab.soak.applications import Applications
from lab.soak.database import Database, own_database
from lab.soak.ledger import table
from lab.soak.options import Options
from lab.soak.places import empty_redis, only_these, own_tables
from lab.trace import Trace
from outbox_tasks.broker.names import ALL_QUEUES, STAMP
from outbox_tasks.database.connection import migrating
from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.relay import Relay, relay_programs
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings
from outbox_tasks.settings.sources import PREFIX

CARRIED = (
    "claim_interval", "nudge", "send_timeout", "statement_timeout", "queue_lease", "backoff_base", "backoff_cap",
    "breaker_failures", "breaker_pause",
)  # fmt: skip
"""The settings that a soak takes from yours. Your destinations, routes and alerts have no part in it."""

SHORT_LEASES = {
    "claim_interval": 0.5, "send_timeout": 1.0, "statement_timeout": 1.0, "queue_lease": 5.0, "backoff_base": 0.2,
    "backoff_cap": 1.0, "breaker_pause": 0.5,
}  # fmt: skip
"""What a killed process held comes back after 7.5 seconds: a short run sees many recoveries."""

SINGLES: dict[str, int | str] = {"mixed": 20, "single": "all", "drained": 0}
"""The destinations, each with its dial."""

ATTEMPTS = 10_000
"""A message that can be delivered never dies of its attempts here."""

CLAIMERS, PUBLISHERS, CONCURRENCY = 2, 2, 2


@dataclass(frozen=True)
class Stage:
    """Everything that is on it. Servers that are None are somebody else's: nobody hurts them."""

    options: Options
    settings: Settings
    """Those of the relay: it goes through the proxies."""
    database_url: str
    """Past proxy and pooler."""
    broker_url: str
    """Past the proxy."""
    engine: Engine
    trace: Trace
    database: Database | None
    valkey: EmbeddedValkey | None
    destination: EmbeddedValkey
    to_database: Proxy | None
    to_broker: Proxy
    to_destination: Proxy
    relay: Relay
    applications: Applications


@contextmanager
def stage(options: Options) -> Iterator[Stage]:
    """Start it all; none of it outlives the block. The data of our own servers stay in the directory."""
    yours = Settings()
    values: dict[str, Any] = {name: getattr(yours, name) for name in CARRIED}
    values |= SHORT_LEASES if options.short_leases else {}
    name = f"outbox_soak_{secrets.token_hex(4)}"
    with ExitStack() as stack:
        database = None if yours.database_url else stack.enter_context(own_database(options))
        valkey = None if yours.broker_url else stack.enter_context(EmbeddedValkey(options.directory / "broker"))
        destination = stack.enter_context(EmbeddedValkey(options.directory / "destination"))
        database_url = database.url if database else str(yours.database_url)
        pooler = database and database.pooler
        values |= {"statement_timeout": 0} if pooler else {}
        broker_url = valkey.url if valkey else stack.enter_context(_given_broker(str(yours.broker_url), name))
        relays_url = pooler.url if pooler else database_url
        to_database = _before(stack, relays_url, 5432) if _may_be_led_round(relays_url) else None
        to_broker, to_destination = _before(stack, broker_url, 5672), _before(stack, destination.url, 6379)
        values |= {
            "database_url": through(relays_url, to_database) if to_database else relays_url,
            "database_schema": name,
            "broker_url": through(broker_url, to_broker),
            "destinations": _destinations(through(destination.url, to_destination)),
        }
        stack.enter_context(only_these(_variables(values)))
        settings = Settings()
        _tables(stack, settings.replace(database_url=database_url), kept=database is not None)
        engine = create_engine(engine_url(database_url), poolclass=NullPool, connect_args={"connect_timeout": 5})
        stack.callback(engine.dispose)
        table(name).create(engine)
        trace = Trace(engine, name)
        trace.install()
        logs = options.directory / "logs"
        logs.mkdir()
        applications = Applications(options, {f"{PREFIX}DATABASE_URL": database_url})
        relay = stack.enter_context(Relay({}, logs))
        relay.run(*relay_programs(PUBLISHERS, CONCURRENCY, CLAIMERS))
        stack.callback(applications.stop)
        yield Stage(
            options, settings, database_url, broker_url, engine, trace, database, valkey, destination, to_database,
            to_broker, to_destination, relay, applications,
        )  # fmt: skip


def _given_broker(url: str, name: str) -> AbstractContextManager[str]:
    """A place of our own on your server: a database of a Redis, or the virtual host that the URL names."""
    return _given_rabbitmq(url) if url.startswith("amqp") else empty_redis(url, name)


@contextmanager
def _given_rabbitmq(url: str) -> Iterator[str]:
    try:
        yield url
    finally:
        with Connection(url) as connection, connection.channel() as channel:
            for queue in ALL_QUEUES:
                channel.queue_delete(queue)
            channel.exchange_delete(STAMP)


def _before(stack: ExitStack, url: str, port: int) -> Proxy:
    """A proxy before the server of `url`."""
    parts = urlsplit(url)
    return stack.enter_context(Proxy(parts.port or port, parts.hostname or "localhost"))


def _may_be_led_round(url: str) -> bool:
    """Whether a proxy can stand before the server: it has one address, and its certificate need not have that name."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    return bool(parts.hostname) and "," not in parts.netloc and query.get("sslmode") != ["verify-full"]


def _destinations(url: str) -> dict[str, dict[str, Any]]:
    stream = url.replace("redis://", "redis+stream://")
    return {
        name: {"url": f"{stream}/{name}", "max_attempts": ATTEMPTS, "singles": singles}
        for name, singles in SINGLES.items()
    }


def _variables(values: Mapping[str, Any]) -> dict[str, str]:
    """The settings as processes take them."""
    texts = {
        f"{PREFIX}{name.upper()}": json.dumps(value) if isinstance(value, dict | bool) else str(value)
        for name, value in values.items()
    }
    return {**texts, "OUTBOX_CONFIG": os.devnull}


def _tables(stack: ExitStack, settings: Settings, *, kept: bool) -> None:
    """The outbox tables. Those in a database of our own go with it, or stay to be looked at."""
    if not kept:
        stack.enter_context(own_tables(settings))
        return
    with migrating(settings) as connection:
        upgrade(connection, settings.database_schema)
