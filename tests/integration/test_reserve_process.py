"""What a worker takes from its queue while a destination has all the slots it may have: a real queue in Redis."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery.worker import state
from kombu import Connection, Queue

from outbox_tasks.celery import make_app
from outbox_tasks.model import Bundle, Ticket
from outbox_tasks.settings import PUBLISH_QUEUE, Settings
from outbox_tasks.worker.reserve_process import ReserveProcess
from outbox_tasks.worker.slots_full import HOLDS, SlotsFull

LITTLE, MUCH = "little", "much"


class Running:
    """Stands for a request that one of the worker's processes has: Celery keeps no more than a weak reference."""


@pytest.fixture
def connection(broker_url: str) -> Iterator[Connection]:
    """With one bundle of a backlog in the queue, and a small one that came later."""
    settings = Settings(broker_url=broker_url, destinations={name: {"url": "celery://"} for name in (LITTLE, MUCH)})
    broker = make_app(settings).outbox_relay.broker
    tickets = tuple(Ticket(str(uuid4()), 0, "order.created") for _ in range(2))
    broker.send([Bundle(MUCH, str(uuid4()), tickets, lane=2)])
    broker.send([Bundle(LITTLE, str(uuid4()), tickets)])
    with broker.connection() as made:
        yield made
        made.default_channel.queue_purge(PUBLISH_QUEUE)


@pytest.fixture
def take(connection: Connection) -> Iterator[Callable[[int, int], str | None]]:
    """What a worker takes next, with so many processes of which so many are busy: whose bundle, or None."""
    taken: list[str] = []
    with connection.Consumer(
        [Queue(PUBLISH_QUEUE)], callbacks=[lambda body, message: taken.append(body[0][0])], no_ack=True
    ) as tasks:
        consumer: Any = SimpleNamespace(
            app=SimpleNamespace(outbox_relay=SimpleNamespace(slots_full=SlotsFull())),
            task_consumer=tasks,
            controller=SimpleNamespace(),
            pool=SimpleNamespace(num_processes=4),
        )
        ReserveProcess(consumer).start(consumer)

        def look(processes: int, busy: int, *, full: bool = True) -> str | None:
            consumer.pool.num_processes = processes
            if full:
                consumer.app.outbox_relay.slots_full.note()
            requests = [Running() for _ in range(busy)]
            state.reserved_requests.update(requests)
            taken.clear()
            try:
                connection.drain_events(timeout=HOLDS / 2)
            except TimeoutError:
                return None
            finally:
                state.reserved_requests.difference_update(requests)
            return taken[0]

        yield look


def test_the_last_free_process_takes_only_what_goes_first(take: Any) -> None:
    assert take(4, 3) == LITTLE
    assert take(4, 3) is None
    assert take(4, 2) == MUCH


def test_while_slots_are_free_it_takes_anything(take: Any) -> None:
    assert take(4, 3, full=False) == LITTLE
    assert take(4, 3, full=False) == MUCH


def test_a_single_process_takes_anything(take: Any) -> None:
    assert [take(1, 0), take(1, 0)] == [LITTLE, MUCH]


def test_a_forked_process_can_note_that_slots_are_full() -> None:
    slots_full = SlotsFull()
    assert not slots_full.noted
    if (pid := os.fork()) == 0:
        slots_full.note()
        os._exit(0)
    os.waitpid(pid, 0)
    assert slots_full.noted
