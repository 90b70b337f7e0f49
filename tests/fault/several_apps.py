"""An application with two Celery apps, on one RabbitMQ, each with a queue of its own. Neither runs the relay."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery

BROKER = os.environ.get("OUTBOX_BROKER_URL", "memory://")
CALLS = os.environ.get("OUTBOX_APPS_CALLS_URL", "")

shop = Celery("shop", broker=BROKER, set_as_current=False)
shop.conf.task_default_queue = "shop"
mail = Celery("mail", broker=BROKER, set_as_current=False)
mail.conf.task_default_queue = "mail"


def _write(queue: str, task: Any, value: int) -> None:
    with redis.Redis.from_url(CALLS) as client:
        client.rpush(f"calls.{queue}", f"{task.app.main} {value}")


@shop.task(bind=True, name="shop.pay", shared=False)
def pay(self: Any, value: int) -> None:
    """Write it down."""
    _write("shop", self, value)


@mail.task(bind=True, name="mail.send", shared=False)
def send(self: Any, value: int) -> None:
    """Write it down."""
    _write("mail", self, value)
