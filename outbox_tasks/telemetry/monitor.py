"""What is answered over HTTP where `monitor_port` is set: /livez, /readyz and /metrics.

By threads of a worker's main process, so that one that is stopped or stuck as a whole does not answer at all. Or by
`outbox-tasks monitor`, without a worker.
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

KNOCK = 0.5
"""Seconds in which the broker's host has to refuse, to count as down. Probes have a second or so in all."""

FRESH = 1.0
"""Seconds for which an answer of the database is good for further askers."""

Answer = tuple[HTTPStatus, bytes, str]
"""Status, body and content type."""

Page = Callable[[], Answer]


def connect(resources: Resources) -> None:
    """Have the workers of this app answer, if the settings say so."""
    resources.app.steps["worker"].add(MonitorStep)


class MonitorStep(bootsteps.StartStopStep):
    """Takes the port before the pool is made, while the worker can still refuse to start, and answers afterwards: also
    while the worker has not found its broker yet."""

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
        signals.worker_process_init.connect(monitor.leave, weak=False)
        return monitor


def of_worker(resources: Resources) -> dict[str, Page]:
    """The pages of a worker."""
    database = Recent(lambda: database_trouble(resources.settings))

    liveness = resources.liveness

    def live() -> Answer:
        trouble = liveness.trouble()
        if trouble is not None and not liveness.connected and refuses(resources.app):
            # To start the worker anew would not bring the broker back, and would only delay it afterwards.
            return verdict([], note=f"{trouble}, which is down")
        return verdict([trouble] if trouble else [])

    def ready() -> Answer:
        broker = liveness.trouble() or (None if liveness.connected else "it is not connected to its broker")
        return verdict([found for found in (database(), broker) if found])

    return {"/livez": live, "/readyz": ready, "/metrics": lambda: exposed(metrics.exposition)}


def standalone(settings: Settings) -> dict[str, Page]:
    """The pages of a monitor that is no worker: it is alive as long as it answers."""
    database, broker = Recent(lambda: database_trouble(settings)), Recent(lambda: broker_trouble(settings))

    def measured() -> tuple[bytes, str]:
        store = Store.connect(settings)
        try:
            return metrics.database_exposition(store)
        finally:
            store.close()

    return {
        "/livez": lambda: verdict([]),
        "/readyz": lambda: verdict([found for found in (database(), broker()) if found]),
        "/metrics": lambda: exposed(measured),
    }


def verdict(findings: list[str], **more: str) -> Answer:
    """200 if nothing was found, else 503; what was found as JSON."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if findings else HTTPStatus.OK
    body = json.dumps({"ok": not findings, "findings": findings, **more}) + "\n"
    return status, body.encode(), "application/json"


def exposed(expose: Callable[[], tuple[bytes, str]]) -> Answer:
    """The metrics, or why there are none."""
    try:
        return HTTPStatus.OK, *expose()
    except OutboxError as error:
        missing = isinstance(error, MetricsNotInstalled)
        status = HTTPStatus.NOT_FOUND if missing else HTTPStatus.SERVICE_UNAVAILABLE
        return status, f"{error}\n".encode(), "text/plain; charset=utf-8"


def database_trouble(settings: Settings) -> str | None:
    """Why the database can't serve the relay, if it can't."""
    store = Store.connect(settings)
    try:
        store.check_version()
    except OutboxError as error:
        return str(error)
    finally:
        store.close()
    return None


def broker_trouble(settings: Settings) -> str | None:
    """Why the broker can't serve the relay, if it can't."""
    if settings.broker_url is None:
        return "there is no OUTBOX_BROKER_URL"
    app = PinnedCelery("outbox_tasks.monitor", broker=settings.broker_url, settings=settings, timeout=KNOCK)
    try:
        Broker(app, settings, timeout=KNOCK).lengths()
    except BrokerUnreachable as error:
        return str(error)
    finally:
        app.close()
    return None


def refuses(app: Celery) -> bool:
    """Whether there is nobody at the broker's address. One that takes connections and says nothing is another matter:
    it may be there for everybody else."""
    connection = app.connection_for_read()
    port = connection.port or connection.transport.default_port
    if not connection.hostname or not port:
        return False
    try:
        socket.create_connection((connection.hostname, port), KNOCK).close()
    except (ConnectionRefusedError, socket.gaierror):
        return True
    except OSError:
        return False
    return False


class Recent:
    """Asks once for all who ask within a second."""

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
    """Listens from the first; answers once it is started. Raises `MonitorPortTaken`."""

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
        """Where it is."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def start(self, *_: Any) -> None:
        """In a thread of its own."""
        self._thread = threading.Thread(target=self._server.serve_forever, name="outbox-monitor", daemon=True)
        self._thread.start()
        log.info("the monitor answers at %s", self.url)

    def run(self) -> None:
        """In this thread, until it is interrupted."""
        self._server.serve_forever()

    def stop(self, *_: Any) -> None:
        """Give the port back."""
        if self._thread is not None:
            self._server.shutdown()
        self._server.server_close()

    def leave(self, **_: Any) -> None:
        """In a process of the pool: the port is its parent's alone."""
        if os.getpid() != self._pid:
            self._server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Page]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.pages = pages
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without asking the DNS for our name, which may take its time

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request to the monitor failed: %s", sys.exception())


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5.0  # for whoever connects and says nothing
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
