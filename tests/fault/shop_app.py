"""An application as the docs make one: it has installed the relay, and says nothing of how safe its tasks are to be."""

from __future__ import annotations

import os
import time

import redis
from celery import Celery

from outbox_tasks import Outbox

app = Celery("shop", broker=os.environ.get("OUTBOX_BROKER_URL"))
outbox = Outbox(celery=app)
outbox.install(app)


@app.task(name="shop.mail")
def mail(number: int, url: str, mailbox: str) -> None:
    """Takes long enough to be killed in the middle. The mailbox is a list in a Redis that nobody kills."""
    time.sleep(0.05)
    with redis.Redis.from_url(url) as client:
        client.rpush(mailbox, number)
