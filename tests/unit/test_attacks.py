"""What whoever can write to the queues may try. SQL from parts, eval and pickle in the code are found by ruff."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from kombu.message import Message

from outbox_tasks.broker.names import CLAIM_TASK, DRAIN_TASK, MAINTAIN_TASK, PUBLISH_TASK, WAIT
from outbox_tasks.settings import PUBLISH_QUEUE, Settings
from outbox_tasks.web.command import web
from outbox_tasks.worker.message_checks import checked


def test_what_listens_if_it_is_told_to_listens_on_loopback() -> None:
    settings = Settings()
    page = {option.name: option.default for option in web.params}
    assert (settings.monitor_host, page["host"]) == ("127.0.0.1", "127.0.0.1")
    assert (settings.monitor_port, settings.web_users) == (None, {})


class Evil:
    """Runs code as it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


ID, LEASE = str(uuid4()), str(uuid4())
SINGLE = ["order.created", "orders", 0, LEASE]

Task = tuple[str, dict[str, Any]]
"""The body and the headers of a message."""


def task(name: str, arguments: Any, keywords: Any = None, embedded: Any = None, **headers: Any) -> Task:
    """A message as Celery writes it, but for what is given."""
    body = json.dumps([arguments, {} if keywords is None else keywords, embedded or {}])
    return body, {"id": ID, "task": name, "retries": 0, **headers}


def publish(*arguments: Any, **more: Any) -> Task:
    """A publish task whose arguments end as they should after those that are given."""
    return task(PUBLISH_TASK, [*arguments, *SINGLE[len(arguments) :]], **more)


CALL = publish()[1]
FORGED: dict[str, Task] = {
    "protocol 1": (json.dumps({"id": ID, "task": PUBLISH_TASK, "args": SINGLE, "kwargs": {}}), {}),
    "arguments in a body of both protocols": (json.dumps({"args": SINGLE, "kwargs": {}}), CALL),
    "no JSON": ("{", CALL),
    "a huge nesting": ("[" * 100_000, CALL),
    "an endless id": publish(id="x" * 10_000),
    "no id": (publish()[0], {"task": PUBLISH_TASK}),
    "an id with a newline at its end": publish(id=f"{ID}\n"),
    "a task that nobody knows": task("shop.pay", SINGLE),
    "unknown keywords": publish(keywords={"more": True, "__class__": "x"}),
    "an attempt that is no number": publish("a", "orders", "first"),
    "an attempt that is true": publish("a", "orders", True),
    "an attempt beyond all numbers": publish("a", "orders", 2**31),
    "a lease with SQL in it": publish("a", "orders", 0, "' OR true --"),
    "a destination that no database takes": publish("a", "or\0ders"),
    "an event type that is a table": publish({"a": 1}),
    "an ETA that is none": publish(eta="tomorrow"),
    "a wait that is no number": publish(**{WAIT: float("nan")}),
    "time limits of its own": publish(timelimit=[1, None]),
    "retries that can't be counted": publish(retries=None),
    "a task to call afterwards": publish(embedded={"callbacks": [{"task": CLAIM_TASK}]}),
    "a drain of a destination that no database takes": task(DRAIN_TASK, ["or\0ders"]),
    "a slot with SQL in it": task(DRAIN_TASK, ["orders", f"{LEASE}' OR true --"]),
    "a drain with keywords": task(DRAIN_TASK, ["orders", LEASE], {"seconds": 10**9}),
    "a claim with arguments": task(CLAIM_TASK, [1000]),
    "maintenance with keywords": task(MAINTAIN_TASK, [], {"older_than": 0}),
}
"""Each is refused. tests/fault/test_rubbish.py sends them to workers."""


def arrival(sent: Task) -> Message:
    """A message as it comes from the queue of an app that accepts anything."""
    body, headers = sent
    return Message(
        body, accept=None, content_type="application/json", content_encoding="utf-8", headers=headers,
        delivery_info={"routing_key": PUBLISH_QUEUE},
    )  # fmt: skip


@pytest.fixture
def run() -> list[Message]:
    """The messages that reached Celery."""
    return []


def take(message: Message, run: list[Message]) -> None:
    """Have it taken as a worker takes it."""
    message.channel = SimpleNamespace(basic_reject=lambda *_, **__: None)
    consumer = SimpleNamespace(app=SimpleNamespace(tasks={}), connection_errors=())
    checked(consumer, run.append)(message)


def test_a_forged_task_is_refused_in_a_short_line(run: list[Message], caplog: pytest.LogCaptureFixture) -> None:
    for name, forged in FORGED.items():
        caplog.clear()
        message = arrival(forged)
        for _ in range(2):  # the second time it is acknowledged, as by whoever ran it
            take(message, run)
        assert (run, message._state) == ([], "REJECTED"), name
        for line in caplog.messages:
            assert line.startswith("refused message"), name
            assert len(line) < 600, name
        assert len(caplog.messages) == 2, name


def test_tasks_as_the_relay_writes_them_are_taken(run: list[Message], caplog: pytest.LogCaptureFixture) -> None:
    tasks = [
        publish(), publish(keywords={"more": True}), task(DRAIN_TASK, ["orders", LEASE]), task(DRAIN_TASK, ["orders"]),
        task(CLAIM_TASK, []), task(MAINTAIN_TASK, []),
    ]  # fmt: skip
    good = [arrival(sent) for sent in [*tasks, task("shop.pay", [1], {"any": 2}, id="of the application's")]]
    good[-1].delivery_info = {"routing_key": "shop"}
    for message in good:
        take(message, run)
    assert run == good
    assert caplog.messages == []


@pytest.mark.parametrize("name", [PUBLISH_TASK, DRAIN_TASK, CLAIM_TASK, MAINTAIN_TASK])
def test_a_pickled_task_of_ours_is_refused_and_not_run_also_where_the_app_accepts_pickle(
    name: str, run: list[Message], tmp_path: Path
) -> None:
    body = pickle.dumps([Evil(tmp_path / "owned"), {}, {}])
    sent = {"content_type": "application/x-python-serialize", "content_encoding": "binary"}
    message = Message(body, accept={sent["content_type"]}, headers={"id": ID, "task": name}, delivery_info={}, **sent)
    take(message, run)
    assert run == []
    assert not (tmp_path / "owned").exists()
