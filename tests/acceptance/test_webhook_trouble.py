"""A webhook that refuses some messages for a while: real workers send the others, and those too."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster

from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, eventually

COUNT = 200


class Hook(ThreadingHTTPServer):
    """Answers 503 twice to every fifth order. While it is busy, it answers 429 to all, to come back much later."""

    request_queue_size = 100

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()
        self.busy = False
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hook

    def do_POST(self) -> None:
        number = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen[number] += 1
        usual = 503 if number % 5 == 0 and self.server.seen[number] <= 2 else 204
        self.send_response(429 if self.server.busy else usual)
        self.send_header("retry-after", "900" if self.server.busy else "1")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    with Hook() as made:
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def destinations(hook: Hook) -> dict[str, Any]:
    return {"hook": {"url": f"http://127.0.0.1:{hook.server_port}/?outbox_private=allow"}}


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    relay.beat()
    return cluster(relay, [relay.claim(), *(relay.publish(n, 2) for n in range(1, 4))])


def test_a_webhook_that_refuses_some_orders_twice_gets_all_of_them(
    celery_setup: CeleryTestSetup, rows: Rows, hook: Hook
) -> None:
    """Its circuit stays closed. While it opened this took ten minutes and more."""
    for number in range(COUNT):
        rows.insert(destination="hook", payload=str(number).encode())
    eventually(lambda: not rows.pending(), 60)
    assert hook.seen == {number: 3 if number % 5 == 0 else 1 for number in range(COUNT)}
    assert {row.attempts for row in rows.archived()} == {1, 3}


def test_what_waits_as_long_as_the_receiver_asked_is_tried_now(
    relay: Relay, celery_setup: CeleryTestSetup, rows: Rows, hook: Hook
) -> None:
    """Orders with a key come in their order, and their attempts go on counting."""
    hook.busy = True
    numbers = [number for number in range(1001, 1020) if number % 5]
    for number in numbers:
        rows.insert(destination="hook", payload=str(number).encode(), key="k" if number % 2 else None)
    eventually(lambda: {row.place for row in rows.hot()} <= {"waiting", "held"} and hook.seen[1001], 60)
    hook.busy = False
    command = [sys.executable, "-m", "outbox_tasks", "try", "--destination", "hook", "--yes", "--json"]
    done = subprocess.run(command, env=relay.env(), capture_output=True, text=True, check=True)
    began = time.monotonic()
    eventually(lambda: not rows.pending(), 60)
    assert time.monotonic() - began < 10, "not after 900 seconds"
    assert json.loads(done.stdout)["made_due"] == len([number for number in numbers if not number % 2]) + 1
    sent = [row for row in rows.archived() if int(row.payload) > 1000]
    assert [row.attempts for row in sent if int(row.payload) % 2 == 0 or int(row.payload) == 1001] == [2] * 9
    assert len(sent) == len(numbers)
