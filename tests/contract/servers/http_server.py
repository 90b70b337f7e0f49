"""An HTTP server for webhooks: `python -m tests.contract.servers.http_server PORT`.

It keeps what is posted, in memory, by place (the last part of the path), and gives it out at `GET /received/<place>`.
What it answers is in the request's header `x-answer`, as JSON: `status`, `headers`, `body`, `after` (seconds), and
`body_is`: `endless`, `dripping`, `cut`, or `none`, which is not even a status. Posts to `/locked/<place>` need a login,
which a PUT there changes; `/nowhere/…` does not exist.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections import defaultdict
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGEST = 300_000

logins: dict[str, str] = {}
posts: dict[str, list[dict[str, Any]]] = defaultdict(list)


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.answer(200, json.dumps(posts[self.place]))

    def do_PUT(self) -> None:
        logins[self.place] = self.rfile.read(int(self.headers["content-length"])).decode()
        self.answer(200, "")

    def do_POST(self) -> None:
        arrived = time.time()
        length = int(self.headers["content-length"])
        body = self.rfile.read(length)
        if len(body) < length:  # the client has given up
            return
        wanted = json.loads(self.headers.get("x-answer", "{}"))
        time.sleep(wanted.get("after", 0))
        status = wanted.get("status") or self.status(body)
        if status == 200:
            posts[self.place].append(
                {
                    "path": self.path,
                    "headers": [(n, v.encode("latin-1").decode()) for n, v in self.headers.items()],
                    "body": base64.b64encode(body).decode(),
                    "peer": self.client_address[1],
                    "from": arrived,
                    "until": time.time(),
                }
            )
        echo = f"you sent {self.path} with {self.headers.get('authorization')}"
        self.answer(status, wanted.get("body", echo), wanted.get("headers", {}), wanted.get("body_is"))

    @property
    def place(self) -> str:
        return self.path.partition("?")[0].rpartition("/")[2]

    def status(self, body: bytes) -> int:
        if self.path.startswith("/nowhere/"):
            return 404
        if self.path.startswith("/locked/") and self.headers.get("authorization") != logins.get(self.place):
            return 401
        return 413 if len(body) > LARGEST else 200

    def answer(self, status: int, text: str, headers: dict[str, str] | None = None, body_is: str | None = None) -> None:
        if body_is == "none":
            self.close_connection = True
            return
        body = text.encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if body_is is None:
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("content-length", str(1 << 40))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        self.close_connection = True
        with suppress(OSError):
            while body_is == "endless":
                self.wfile.write(b"x" * 65536)
            while body_is == "dripping":
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.05)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may leave."""


if __name__ == "__main__":
    with Server(("127.0.0.1", int(sys.argv[1])), Endpoint) as server:
        print("ready", flush=True)
        server.serve_forever()
