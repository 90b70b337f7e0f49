"""A stock Celery application that knows nothing of the outbox: its task writes down how it was called."""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery

app = Celery("shop", broker=os.environ["SHOP_BROKER"])


@app.task(bind=True, name="shop.on_event")
def on_event(self: Any, *args: Any, **kwargs: Any) -> None:
    """Write it all down."""
    record = {"id": self.request.id, "args": args, "kwargs": kwargs, "headers": self.request.headers}
    with redis.Redis.from_url(os.environ["SHOP_BROKER"]) as client:
        client.rpush("shop.calls", json.dumps(record))
