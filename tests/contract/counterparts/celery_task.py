"""Celery tasks, on a Redis-compatible server."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote

from outbox_tasks.model import LeasedMessage
from tests.contract.counterparts import Received, parted
from tests.contract.own_server import ValkeyCounterpart

CELERYS = {
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id",
    "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers",
    "stamps",
}  # fmt: skip
"""Headers that Celery itself gives a task."""

TRACE = {"traceparent", "tracestate"}
"""Given beside ours of CloudEvents, for those that trace Celery."""


class Counterpart(ValkeyCounterpart):
    name: ClassVar[str] = "celery"
    json_only: ClassVar[bool] = True

    def url_of(self, broker: str, place: str) -> str:
        return f"celery://?task=shop.on_event&queue={place}&broker={quote(broker, safe='')}"

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, payload=b"{oops")

    def raw(self) -> list[dict[str, Any]]:
        """The messages as kombu writes them."""
        return [json.loads(message) for message in self.listed()]

    @staticmethod
    def read(arrived: dict[str, Any]) -> Received:
        [argument], _, _ = json.loads(base64.b64decode(arrived["body"]))
        headers = {n: v for n, v in arrived["headers"].items() if n not in CELERYS | TRACE}
        return parted(headers, "ce_", json.dumps(argument, ensure_ascii=False).encode(), None)
