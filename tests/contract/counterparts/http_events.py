"""Webhooks, at an HTTP server of the standard library."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import unquote

import httpx

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.model import LeasedMessage
from tests.contract.counterparts import Received, parted
from tests.contract.own_server import ProgramCounterpart
from tests.contract.servers import http_server

TRANSPORTS = {
    "host", "user-agent", "accept-encoding", "authorization", "idempotency-key", "content-type", "content-length",
    "traceparent", "tracestate", "webhook-id", "webhook-timestamp", "webhook-signature",
}  # fmt: skip
"""Headers that every webhook has, or the trace context."""


class Counterpart(ProgramCounterpart):
    name: ClassVar[str] = "http"
    program = http_server
    largest: ClassVar[int | None] = http_server.LARGEST

    def url_on(self, port: int, place: str) -> str:
        return f"http://{LOOPBACK}:{port}/hooks/{place}?outbox_private=allow"

    def locked_url(self, place: str) -> str:
        return self.url(place).replace("/hooks/", "/locked/")

    def wrong_password_url(self, place: str) -> str:
        return self.locked_url(place).replace("://", "://teller:wrong@")

    def change_token(self, token: str) -> None:
        """Whoever posts to the place's locked URL must have this token from now on."""
        httpx.put(self.url(self.place), content=f"Bearer {token}", trust_env=False)

    def unroutable_url(self, place: str) -> str:
        return self.url(place).replace("/hooks/", "/nowhere/")

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, headers={"x-answer": '{"status": 422}'})

    def raw(self) -> list[dict[str, Any]]:
        """The requests as they came."""
        url = f"http://{LOOPBACK}:{self.port}/received/{self.place}"
        posts: list[dict[str, Any]] = httpx.get(url, trust_env=False).json()
        return posts

    def received(self) -> list[Received]:
        """Those with keys as they came, then the others by their ids: of those any order is right."""
        return sorted(super().received(), key=lambda m: "" if "partitionkey" in m.attributes else m.attributes["id"])

    @staticmethod
    def read(arrived: dict[str, Any]) -> Received:
        headers = {name.lower(): value for name, value in arrived["headers"]}
        content_type = headers["content-type"]
        values = {
            name: unquote(value) if name.startswith("ce-") else value
            for name, value in headers.items()
            if name not in TRANSPORTS
        }
        return parted(values, "ce-", base64.b64decode(arrived["body"]), content_type)
