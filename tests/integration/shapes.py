"""A stock Celery application with routes, and twenty ways of calling its tasks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from celery import Celery, chain, group
from kombu import Exchange, Queue

CONFIG = {
    "accept_content": ["json", "pickle"],
    "task_queues": [Queue("main"), Queue("side"), Queue("topical", Exchange("events", "topic"), "order.#")],
    "task_default_queue": "main",
    "task_routes": {"shapes.routed": {"queue": "side", "priority": 4}},
    "task_send_sent_event": True,
    "worker_prefetch_multiplier": 1,
    "broker_transport_options": {"socket_connect_timeout": 2, "priority_steps": [0, 3, 6, 9]},
}


def make_app(broker: str) -> Celery:
    """The application, at a broker."""
    made = Celery("shapes", broker=broker, set_as_current=False)
    made.conf.update(CONFIG)
    made.task(name="shapes.note", shared=False)(note)
    made.task(name="shapes.routed", shared=False, serializer="pickle")(note)
    return made


def note(*args: Any, **kwargs: Any) -> None: ...


def calls(app: Celery, now: datetime) -> list[tuple[str, Callable[[int], Any]]]:
    """The shapes, by name; each is called with a number. `now` is when relative times count from."""
    task, routed = app.tasks["shapes.note"], app.tasks["shapes.routed"]
    return [
        ("delay", lambda n: task.delay(n)),
        ("keywords", lambda n: task.delay(n, name="Zoë", nested={"a": [1, None, 2.5]})),
        ("headers", lambda n: task.apply_async((n,), headers={"tenant": "t1", "depth": {"a": 1}})),
        ("countdown", lambda n: task.apply_async((n,), countdown=1)),
        ("eta", lambda n: task.apply_async((n,), eta=now + timedelta(seconds=1))),
        ("queue", lambda n: task.apply_async((n,), queue="side")),
        ("priority", lambda n: task.apply_async((n,), priority=6)),
        ("compression", lambda n: task.apply_async((n, "long " * 50), compression="zlib")),
        ("serializer", lambda n: task.apply_async((n, {"set": (1, 2)}), serializer="pickle")),
        ("both", lambda n: task.apply_async((n,), serializer="pickle", compression="gzip")),
        ("chain", lambda n: chain(task.s(n), task.s("second"), task.si("third"))()),
        ("group", lambda n: group(task.s(n), task.s(n, "b"), routed.s(n))()),
        ("link", lambda n: task.apply_async((n,), link=task.s("linked"), link_error=routed.s())),
        ("stamps", lambda n: stamped(task.s(n), n).apply_async()),
        ("expires", lambda n: task.apply_async((n,), expires=3600)),
        ("limits", lambda n: task.apply_async((n,), time_limit=50, soft_time_limit=40, shadow="shadowed")),
        ("by name", lambda n: app.send_task("shapes.routed", (n,), {"k": n}, reply_to="answers", ignore_result=True)),
        ("route", lambda n: routed.delay(n)),
        ("topic", lambda n: task.apply_async((n,), queue="topical", routing_key="order.created")),
        ("own id", lambda n: task.apply_async((n,), task_id=f"order {n}", expires=now + timedelta(hours=2))),
    ]


def stamped(signature: Any, n: int) -> Any:
    """With a stamp of the user's."""
    signature.stamp(tenant=f"t{n}", append_stamps=True)
    return signature
