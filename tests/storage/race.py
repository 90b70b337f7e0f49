"""Writers and relays at the same time, over the storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import psycopg

from outbox_tasks.relay.drain import drain
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from tests.conftest import eventually
from tests.storage.conftest import Box


class Transaction(NamedTuple):
    """What a writer does at once."""

    messages: Sequence[dict[str, Any]]
    pause: float
    """Seconds before it ends."""
    rolled_back: bool = False


def end_waits(box: Box) -> None:
    """All that waits for its time is due."""
    box.connection.execute("UPDATE outbox_waiting SET due = now()")
    box.connection.execute("UPDATE outbox_held SET since = now()")
    box.connection.execute("UPDATE outbox_keys SET due = now() WHERE token IS NULL AND due < 'infinity'")


def race(
    box: Box,
    storages: Sequence[Store],
    destination: object,
    plans: Sequence[Sequence[Transaction]],
    others: Sequence[Callable[[], None]] = (),
) -> int:
    """Run a writer for each plan, and a drain for each storage, until all that was committed is in the journal. Returns
    how much that is. Waits end at once. `others` run meanwhile, again and
    again."""
    over = threading.Event()

    def write(plan: Sequence[Transaction]) -> int:
        committed = 0
        with psycopg.connect(box.url) as connection:
            for each in plan:
                for fields in each.messages:
                    box.write(1, on=connection, **fields)
                time.sleep(each.pause)
                if each.rolled_back:
                    connection.rollback()
                else:
                    connection.commit()
                    committed += len(each.messages)
        return committed

    def relay(storage: Store) -> None:
        while not over.is_set():
            storage.claims.keep_house()  # as each claim does
            drain(storage, {"orders": destination}, "orders", Listener())  # type: ignore[dict-item]

    def again_and_again(other: Callable[[], None]) -> None:
        while not over.is_set():
            other()

    def all_settled(count: int) -> bool:
        end_waits(box)
        return bool(box.value("SELECT coalesce(sum(count), 0) FROM outbox_journal") == count)

    with ThreadPoolExecutor(len(plans) + len(storages) + len(others)) as pool:
        running = [pool.submit(relay, storage) for storage in storages]
        running += [pool.submit(again_and_again, other) for other in others]
        try:
            written = sum(pool.map(write, plans))
            eventually(lambda: all_settled(written), 45)
        finally:
            over.set()
        for one in running:
            one.result()
    box.check_books()
    return written
