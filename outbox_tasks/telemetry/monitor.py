"""Answers /livez, /readyz and /metrics over HTTP, if `monitor_port` is set.

Threads of a worker's main process answer, so a process that is stopped or stuck does not answer. Without a worker,
`outbox-tasks health --serve` answers.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from celery import Celery, bootsteps, signals

from outbox_tasks.errors import OutboxError, PortTaken
from outbox_tasks.operating.problems import OF_THE_DATABASE, Connections, Severity, examine
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry import metrics
from outbox_tasks.worker.resources import Resources, serves

log = logging.getLogger(__name__)

WsgiApp = Callable[[Any, Any], Any]

Pages = Mapping[str, WsgiApp]
"""What answers, by path."""


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


class Monitor(ThreadingMixIn, WSGIServer):
    """Takes its port at once, and answers once it is started. Raises `PortTaken`."""

    daemon_threads = True

    def __init__(self, settings: Settings, pages: Pages) -> None:
        host, port = settings.monitor_host, settings.monitor_port or 0
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._pid, self._thread = os.getpid(), threading.Thread(target=self.serve_forever, daemon=True)
        try:
            super().__init__((host, port), _QuietRequest)
        except OSError as error:
            remedy = (
                "Each worker on a host needs its own port: set OUTBOX_MONITOR_PORT for each, or 0 for any free port. "
                "OUTBOX_MONITOR_HOST must be an address of this host."
            )
            reason = error.strerror or error
            raise PortTaken(what="The monitor", host=host, port=port, reason=reason, remedy=remedy) from error
        self.set_app(_routed(pages))

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's would ask the DNS for our name, which may take long
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    def start(self, *_: Any) -> None:
        """Answer in a thread. (`serve_forever` answers in this one.)"""
        self._thread.start()
        log.info("the monitor answers at %s", self.url)

    def stop(self, *_: Any) -> None:
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def close_inherited(self, **_: Any) -> None:
        """In a process of the pool: close the port, which its parent uses."""
        if os.getpid() != self._pid:
            self.socket.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request to the monitor failed: %s", sys.exception())


class _QuietRequest(WSGIRequestHandler):
    timeout = 5.0  # seconds for a client that connects and says nothing

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def _routed(pages: Pages) -> WsgiApp:
    """A WSGI app with these pages. An error of a page is its answer."""

    def answer(environ: Any, start_response: Any) -> Any:
        def text(status: str, words: object) -> Any:
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{words}\n".encode()]

        page = pages.get(environ["PATH_INFO"])
        if page is None:
            return text("404 Not Found", f"there is: {', '.join(pages)}")
        try:
            return page(environ, start_response)
        except Exception:
            log.exception("the monitor failed at %s", environ["PATH_INFO"])
            return text("500 Internal Server Error", "it failed; see the log")

    return answer


def _probe(look: Callable[[], list[str]]) -> WsgiApp:
    """A page of what is wrong, as JSON: 200 if nothing is, else 503."""

    def answer(_: Any, start_response: Any) -> Any:
        findings = look()
        status = "503 Service Unavailable" if findings else "200 OK"
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps({"ok": not findings, "findings": findings}).encode() + b"\n"]

    return answer


def of_worker(resources: Resources) -> Pages:
    liveness = resources.liveness

    def live() -> list[str]:
        trouble = liveness.trouble()
        if trouble is None or (not liveness.connected and refuses(resources.app)):
            # A new worker would not find a broker that is down either, and would start later than this one reconnects.
            return []
        return [trouble]

    def ready() -> list[str]:
        trouble = liveness.trouble() or (None if liveness.connected else "it is not connected to its broker")
        return [*_errors(resources.settings, OF_THE_DATABASE), *([trouble] if trouble else [])]

    def count(environ: Any, start_response: Any) -> Any:
        return metrics.wsgi_app(metrics.worker_registry())(environ, start_response)

    return {"/livez": _probe(live), "/readyz": _probe(ready), "/metrics": count}


def standalone(settings: Settings) -> Pages:
    """The pages of `outbox-tasks health --serve`. It is alive as long as it answers."""

    def state(environ: Any, start_response: Any) -> Any:
        with closing(Connections(settings)) as connections:
            registry = metrics.database_registry(connections)
        return metrics.wsgi_app(registry)(environ, start_response)

    needed = (*OF_THE_DATABASE, "broker_away", "broker_unknown")
    return {"/livez": _probe(list), "/readyz": _probe(lambda: _errors(settings, needed)), "/metrics": state}


def refuses(app: Celery) -> bool:
    """Whether nobody listens at the broker's address. A broker that accepts connections and says nothing may serve
    others, so it does not count."""
    connection = app.connection_for_read()
    port = connection.port or connection.transport.default_port
    try:
        socket.create_connection((connection.hostname, port), 0.5).close()  # a probe has a second or so
    except OSError as error:
        return isinstance(error, ConnectionRefusedError | socket.gaierror)
    return False


def _errors(settings: Settings, codes: Sequence[str]) -> list[str]:
    return [each.fact for each in examine(settings, only=codes).problems if each.severity is Severity.ERROR]
