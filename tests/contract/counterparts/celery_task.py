"""Celery tasks, on a Redis-compatible server."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote

import redis

from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import LeasedMessage
from tests.contract import counterparts
from tests.contract.counterparts import Received

CELERYS = {
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id",
    "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers",
    "stamps",
}  # fmt: skip
"""Headers that Celery itself gives a task."""


class Counterpart(counterparts.Counterpart):
    name: ClassVar[str] = "celery"
    json_only: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.server = EmbeddedValkey()

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    @property
    def pids(self) -> list[int]:
        return [self.server.pid]

    def url(self, place: str) -> str:
        return f"celery://?task=shop.on_event&queue={place}&broker={quote(self.server.url, safe='')}"

    def url_at(self, port: int) -> str:
        broker = f"redis://127.0.0.1:{port}/0"
        return f"celery://?task=shop.on_event&queue={self.place}&broker={quote(broker, safe='')}"

    def wrong_password_url(self, place: str) -> str:
        with redis.Redis.from_url(self.server.url) as client:
            client.acl_setuser("teller", enabled=True, passwords=["+right"], keys=["*"], categories=["+@all"])
        broker = self.server.url.replace("://", "://teller:wrong@")
        return f"celery://?queue={place}&broker={quote(broker, safe='')}"

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, payload=b"{oops")

    def raw(self) -> list[dict[str, Any]]:
        """The messages as kombu writes them."""
        with redis.Redis.from_url(self.server.url) as client:
            messages: Any = client.lrange(self.place, 0, -1)
        return [json.loads(message) for message in reversed(messages)]

    def received(self) -> list[Received]:
        return [_received(message) for message in self.raw()]


def _received(message: dict[str, Any]) -> Received:
    [argument], _, _ = json.loads(base64.b64decode(message["body"]))
    headers = message["headers"]
    body = json.dumps(argument, ensure_ascii=False).encode()
    return Received(
        {n.removeprefix("ce_"): v for n, v in headers.items() if n.startswith("ce_")},
        body,
        {n: v for n, v in headers.items() if not n.startswith("ce_") and n not in CELERYS},
    )
