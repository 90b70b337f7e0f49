"""A webhook that refuses some messages for a while: real workers send the others, and those too."""

from __future__ import annotations

import json
import threading
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
    """Answers 503 twice to every fifth order."""

    request_queue_size = 100

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hook

    def do_POST(self) -> None:
        number = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen[number] += 1
        self.send_response(503 if number % 5 == 0 and self.server.seen[number] <= 2 else 204)
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
