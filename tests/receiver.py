"""A webhook as people have one: it takes JSON by HTTP, and its path is its password."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from outbox_tasks.local.ports import LOOPBACK


class Receiver:
    """What the webhook has got, and how it answers."""

    secret = "hook-5ecr3t"

    def __init__(self) -> None:
        self.url = ""
        self.status, self.answer = 200, b"ok"
        self.echo = False
        """Answer with what it got."""
        self.hang = False
        """Take requests, and never answer, until it is told not to hang."""
        self.got: list[dict[str, Any]] = []
        """Those that were answered with success."""
        self.headers: list[Any] = []
        self.tries = 0
        self.over = threading.Event()

    def problems(self) -> list[dict[str, Any]]:
        """The alerts that it has got."""
        return [problem for posted in self.got for problem in posted["problems"]]


@contextmanager
def receiver(port: int = 0) -> Iterator[Receiver]:
    """Listens on loopback."""
    made = Receiver()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.tries += 1
            made.headers.append(self.headers)
            while made.hang and not made.over.wait(0.02):
                pass
            if made.over.is_set():
                return
            if made.status < 300:
                made.got.append(json.loads(body))
            self.send_response(made.status)
            if made.status // 100 == 3:
                self.send_header("location", made.url)
            self.end_headers()
            self.wfile.write(body if made.echo else made.answer)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Whoever hung up has waited long enough."""

    with Server((LOOPBACK, port), Answer) as server:
        made.url = f"http://{LOOPBACK}:{server.server_port}/{made.secret}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.over.set()
        server.shutdown()
