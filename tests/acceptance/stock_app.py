"""A stock Celery application, which knows nothing of the outbox. Its task writes down how it was called."""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery

BROKER = os.environ["OUTBOX_BROKER_URL"]

app = Celery("shop", broker=BROKER)
client = redis.Redis.from_url(BROKER)


@app.task(bind=True, name="shop.on_event")
def on_event(self: Any, *args: Any, **kwargs: Any) -> None:
    """Write it all down."""
    record = {"id": self.request.id, "args": args, "kwargs": kwargs, "headers": self.request.headers}
    client.rpush("shop.calls", json.dumps(record))
