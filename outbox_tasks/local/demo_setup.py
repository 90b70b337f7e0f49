"""What the demo runs on: servers of its own, or an empty place on the servers that the environment names."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import redis

from outbox_tasks.local import demo_destination
from outbox_tasks.local.demo_app import DESTINATION
from outbox_tasks.local.places import empty_redis, only_these, own_tables
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from outbox_tasks.settings import Settings
from outbox_tasks.settings.sources import PREFIX

FAILING_SHARE = 0.06
"""Of the requests with messages to the destination."""

TIMES = {
    "CLAIM_INTERVAL": 0.5,
    "STATEMENT_TIMEOUT": 1,
    "SEND_TIMEOUT": 1.5,
    "QUEUE_LEASE": 9,
    "BACKOFF_BASE": 0.2,
}
"""Shorter than in production: here the messages of a killed worker come back within seconds."""

IN_FLIGHT, BUNDLE = 5000, 50
"""Few enough that no lease ends in the queue, even on a slow machine."""

LIMITS = {"bundle_size": BUNDLE, "max_attempts": 1000}
"""Many attempts: on a busy machine sends may take too long, and that must not make dead letters."""


@dataclass(frozen=True)
class DemoSetup:
    """Settings, broker and destination of the demo."""

    settings: Settings
    redis: redis.Redis
    stream: str
    failures: Counter[str]
    """What the destination did to requests, and how often."""
    hold: Callable[[], None]
    """Make the destination slow with the next request, so that its sender can be killed meanwhile."""


@contextmanager
def demo_setup() -> Iterator[DemoSetup]:
    """Start or borrow database and broker, make tables and a failing destination. All of it goes at the end."""
    name = f"outbox_demo_{secrets.token_hex(4)}"
    failures: Counter[str] = Counter()
    with ExitStack() as stack:
        database_url = os.environ.get("OUTBOX_DATABASE_URL") or stack.enter_context(EmbeddedPostgres()).url
        given = os.environ.get("OUTBOX_BROKER_URL") or stack.enter_context(EmbeddedValkey()).url
        broker_url = stack.enter_context(empty_redis(given, "demo", name))
        destination, hold = stack.enter_context(_destination(broker_url, name, failures))
        variables = {f"{PREFIX}{setting}": str(value) for setting, value in TIMES.items()} | {
            "OUTBOX_DATABASE_URL": database_url,
            "OUTBOX_DATABASE_SCHEMA": name,
            "OUTBOX_BROKER_URL": broker_url,
            "OUTBOX_DESTINATIONS": json.dumps({DESTINATION: {"url": destination, **LIMITS}}),
            "OUTBOX_BUNDLE_SIZE": str(BUNDLE),
            "OUTBOX_MAX_IN_FLIGHT": str(IN_FLIGHT),
            "OUTBOX_CONFIG": os.devnull,
        }
        stack.enter_context(only_these(variables))
        settings = Settings()
        stack.enter_context(own_tables(settings))
        client = stack.enter_context(redis.Redis.from_url(broker_url, decode_responses=True))
        yield DemoSetup(settings, client, name, failures, hold)


@contextmanager
def _destination(broker_url: str, stream: str, failures: Counter[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    """The URL of a Redis Stream whose connections fail sometimes, and the function that makes it slow."""
    parts = urlsplit(broker_url)
    with socket.create_server((LOOPBACK, 0)) as listening:
        argv = [sys.executable, "-I", "-S", str(Path(demo_destination.__file__)), str(listening.fileno())]
        argv += [parts.hostname or LOOPBACK, str(parts.port or 6379), str(FAILING_SHARE)]
        child = Child.start(
            "destination",
            argv,
            pass_fds=[listening.fileno()],
            on_line=lambda _, failure: failures.update([failure]),
        )
        port = listening.getsockname()[1]
    with child:
        login, at, _ = parts.netloc.rpartition("@")
        url = f"redis+stream://{login}{at}{LOOPBACK}:{port}{parts.path}/{stream}"
        yield url, lambda: child.send_signal(signal.SIGUSR1)
