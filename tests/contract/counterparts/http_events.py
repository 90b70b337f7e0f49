"""Webhooks, at an HTTP server of the standard library."""

from __future__ import annotations

import base64
import sys
from dataclasses import replace
from typing import Any, ClassVar

import httpx
from cloudevents.core.bindings.http import HTTPMessage, from_http_event

from outbox_tasks.local.ports import free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.model import LeasedMessage
from tests.contract import http_server
from tests.contract.counterparts import Received
from tests.contract.own_server import ChildCounterpart

TRANSPORTS = {
    "host", "user-agent", "accept-encoding", "authorization", "idempotency-key", "content-type", "content-length",
    "traceparent", "tracestate", "webhook-id", "webhook-timestamp", "webhook-signature",
}  # fmt: skip
"""Headers that every webhook has, or the trace context."""


class Counterpart(ChildCounterpart):
    name: ClassVar[str] = "http"
    largest: ClassVar[int | None] = http_server.LARGEST

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()

    def launch(self) -> Child:
        return Child.start("HTTP", [sys.executable, http_server.__file__, str(self.port)])

    def answers(self) -> bool:
        try:
            return self._get("nothing") == []
        except httpx.HTTPError:
            return False

    def url(self, place: str) -> str:
        return f"{self.url_at(self.port, '')}/hooks/{place}?outbox_private=allow"

    def url_at(self, port: int, rest: str = "/hooks?outbox_private=allow") -> str:
        return f"http://127.0.0.1:{port}{rest}"

    def wrong_password_url(self, place: str) -> str:
        return self.url(place).replace("://", "://teller:wrong@").replace("/hooks/", "/locked/")

    def unroutable_url(self, place: str) -> str:
        return self.url(place).replace("/hooks/", "/nowhere/")

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, headers={"x-answer": '{"status": 422}'})

    def posts(self) -> list[dict[str, Any]]:
        """The requests as they came."""
        return self._get(self.place)

    def received(self) -> list[Received]:
        """Those with keys as they came, then the others by their ids: of those any order is right."""
        arrived = [_received(post) for post in self.posts()]
        return sorted(arrived, key=lambda m: "" if "partitionkey" in m.attributes else m.attributes["id"])

    def _get(self, place: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.port}/received/{place}"
        found: list[dict[str, Any]] = httpx.get(url, trust_env=False).json()
        return found


def _received(post: dict[str, Any]) -> Received:
    headers = {name.lower(): value for name, value in post["headers"]}
    body = base64.b64decode(post["body"])
    # The SDK parses the payload by its type; here it is to stay bytes.
    event = from_http_event(HTTPMessage({n: v for n, v in headers.items() if n.startswith("ce-")}, b"{}"))
    attributes = {name: value for name, value in event.get_attributes().items() if name != "specversion"}
    attributes["time"] = attributes["time"].isoformat()
    own = {n: v for n, v in headers.items() if not n.startswith("ce-") and n not in TRANSPORTS}
    return Received(attributes, body, own, headers["content-type"])
