"""Supervised tasks in the application's queue, and who sends them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import redis

from outbox_tasks.supervised.store import Fence, Runs

QUEUE = "shop"

Send = Callable[[], dict[str, int]]
"""Sends what is due; returns how many messages took which step."""


class Tasks:
    """The tasks in the application's queue, and the row of each as a worker would ask it."""

    def __init__(self, url: str, runs: Runs) -> None:
        self.client = redis.Redis.from_url(url)
        self.runs = runs

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in reversed(self.client.lrange(QUEUE, 0, -1))]  # type: ignore[arg-type]

    def headers(self) -> list[dict[str, Any]]:
        return [task["headers"]["outbox"] for task in self.all()]

    def take(self) -> dict[str, Any] | None:
        """The header of the next task, which leaves the queue."""
        text: Any = self.client.rpop(QUEUE)
        return None if text is None else json.loads(text)["headers"]["outbox"]

    def begin(self, header: dict[str, Any]) -> Fence | None:
        run = Fence(header["id"], str(uuid4()))
        return run if self.runs.begin(run, header["content"], header["lease"]) else None


def supervised(broker: str, **values: Any) -> dict[str, Any]:
    """Destinations with one whose tasks are supervised."""
    url = f"celery://?task=shop.on_event&queue={QUEUE}&broker={quote(broker, safe='')}"
    return {"orders": {"url": url, "confirm": "run", **values}}
