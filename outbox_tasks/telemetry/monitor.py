"""Answers /livez, /readyz and /metrics over HTTP, if `monitor_port` is set.

Threads of a worker's main process answer, so a process that is stopped or stuck does not answer. `outbox-tasks monitor`
answers without a worker.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from celery import Celery, bootsteps, signals

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.errors import BrokerUnreachable, MetricsNotInstalled, MonitorPortTaken, OutboxError
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry import metrics
from outbox_tasks.worker.resources import Resources, serves

log = logging.getLogger(__name__)

BROKER_TIMEOUT = 2.0
"""Seconds that the broker has to answer, as in `status`: on a loaded machine half a second is no sign of trouble."""

CONNECT_TIMEOUT = 0.5
"""Seconds that it has to refuse a connection. A liveness probe has a second or so in all."""

FRESH = 1.0
"""Seconds for which a result is used again."""

Answer = tuple[HTTPStatus, bytes, str]
"""Status, body and content type."""

Page = Callable[[], Answer]


class MonitorStep(bootsteps.StartStopStep):
    """Takes the port before the pool forks, while the worker can still refuse to start. Answers even before the worker
    has found its broker."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, worker: Any) -> bool:
        app = worker.app
        return serves(app) and app.outbox_relay.settings.monitor_port is not None

    def create(self, worker: Any) -> Monitor:
        resources: Resources = worker.app.outbox_relay
        try:
            monitor = Monitor(resources.settings, of_worker(resources))
        except OutboxError as error:
            raise SystemExit(f"outbox_tasks: {error}") from None
        signals.worker_process_init.connect(monitor.close_inherited, weak=False)
        return monitor


def of_worker(resources: Resources) -> dict[str, Page]:
    """The pages of a worker."""
    database = Recent(lambda: database_trouble(resources.settings))

    liveness = resources.liveness

    def live() -> Answer:
        trouble = liveness.trouble()
        if trouble is not None and not liveness.connected and refuses(resources.app):
            # A new worker would not find the broker either, and would start later than this one reconnects.
            return findings_page([], note=f"{trouble}, which is down")
        return findings_page([trouble] if trouble else [])

    def ready() -> Answer:
        broker = liveness.trouble() or (None if liveness.connected else "it is not connected to its broker")
        return findings_page([found for found in (database(), broker) if found])

    return {"/livez": live, "/readyz": ready, "/metrics": lambda: metrics_page(metrics.exposition)}


def standalone(settings: Settings) -> dict[str, Page]:
    """The pages of `outbox-tasks monitor`. It is alive as long as it answers."""
    database, broker = Recent(lambda: database_trouble(settings)), Recent(lambda: broker_trouble(settings))

    def exposition() -> tuple[bytes, str]:
        with closing(Store.connect(settings)) as store:
            return metrics.database_exposition(store)

    return {
        "/livez": lambda: findings_page([]),
        "/readyz": lambda: findings_page([found for found in (database(), broker()) if found]),
        "/metrics": lambda: metrics_page(exposition),
    }


def findings_page(findings: list[str], **more: str) -> Answer:
    """The findings as JSON: 200 if there are none, else 503."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if findings else HTTPStatus.OK
    body = json.dumps({"ok": not findings, "findings": findings, **more}) + "\n"
    return status, body.encode(), "application/json"


def metrics_page(exposition: Callable[[], tuple[bytes, str]]) -> Answer:
    """The metrics, or why there are none."""
    try:
        return HTTPStatus.OK, *exposition()
    except OutboxError as error:
        missing = isinstance(error, MetricsNotInstalled)
        status = HTTPStatus.NOT_FOUND if missing else HTTPStatus.SERVICE_UNAVAILABLE
        return status, f"{error}\n".encode(), "text/plain; charset=utf-8"


def database_trouble(settings: Settings) -> str | None:
    """Why the database can't serve the relay, if it can't."""
    with closing(Store.connect(settings)) as store:
        try:
            store.check_version()
        except OutboxError as error:
            return str(error)
    return None


def broker_trouble(settings: Settings) -> str | None:
    """Why the broker can't serve the relay, if it can't."""
    if settings.broker_url is None:
        return "there is no OUTBOX_BROKER_URL"
    timeout = BROKER_TIMEOUT
    with PinnedCelery("outbox_tasks.monitor", broker=settings.broker_url, settings=settings, timeout=timeout) as app:
        try:
            Broker(app, settings, timeout=timeout).lengths()
        except BrokerUnreachable as error:
            return str(error)
    return None


def refuses(app: Celery) -> bool:
    """Whether nobody listens at the broker's address. A broker that accepts connections and says nothing may serve
    others, so it does not count."""
    connection = app.connection_for_read()
    port = connection.port or connection.transport.default_port
    if not connection.hostname or not port:
        return False
    try:
        socket.create_connection((connection.hostname, port), CONNECT_TIMEOUT).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError | socket.gaierror)
    return False


class Recent:
    """Asks at most once a second, whoever calls it."""

    def __init__(self, ask: Callable[[], str | None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._until = 0.0
        self._answer: str | None = None

    def __call__(self) -> str | None:
        with self._lock:
            if time.monotonic() >= self._until:
                self._answer = self._ask()
                self._until = time.monotonic() + FRESH
            return self._answer


class Monitor:
    """Takes its port at once, and answers once it is started. Raises `MonitorPortTaken`."""

    def __init__(self, settings: Settings, pages: Mapping[str, Page]) -> None:
        address = (settings.monitor_host, settings.monitor_port or 0)
        try:
            self._server = _Server(address, pages)
        except OSError as error:
            raise MonitorPortTaken(host=address[0], port=address[1], reason=error.strerror or error) from error
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Its address."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def start(self, *_: Any) -> None:
        """Answer in a thread."""
        self._thread = threading.Thread(target=self._server.serve_forever, name="outbox-monitor", daemon=True)
        self._thread.start()
        log.info("the monitor answers at %s", self.url)

    def run(self) -> None:
        """Answer in this thread until it is interrupted."""
        self._server.serve_forever()

    def stop(self, *_: Any) -> None:
        """Free the port."""
        if self._thread is not None:
            self._server.shutdown()
        self._server.server_close()

    def close_inherited(self, **_: Any) -> None:
        """In a process of the pool: close the port, which its parent uses."""
        if os.getpid() != self._pid:
            self._server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Page]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.pages = pages
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's would ask the DNS for our name, which may take long

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request to the monitor failed: %s", sys.exception())


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5.0  # for a client that connects and says nothing
    server_version, sys_version = "outbox-tasks", ""

    def do_GET(self) -> None:
        """Answer with the page that the path names."""
        page = self.server.pages.get(self.path.partition("?")[0])
        try:
            status, body, kind = page() if page else self._missing()
        except Exception:
            log.exception("the monitor failed at %s", self.path)
            status, body, kind = HTTPStatus.INTERNAL_SERVER_ERROR, b"it failed; see the log\n", "text/plain"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _missing(self) -> Answer:
        return HTTPStatus.NOT_FOUND, f"there is: {', '.join(self.server.pages)}\n".encode(), "text/plain"

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
