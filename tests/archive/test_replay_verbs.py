"""Copies of messages that were sent or discarded."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outbox_tasks.relay.store import Store
from tests.storage.conftest import Box
from tests.storage.people import Acting
from tests.storage.relaying import Receiver, drained
from tests.storage.relaying import storage as storage
from tests.storage.test_acts import ANN, counted, entry
from tests.storage.test_acts import acting as acting
from tests.storage.test_find import finding as finding


def copy_of(box: Box, seq: int, **changed: Any) -> dict[str, Any]:
    names = "id::text, destination, aggregate_id, headers"
    [row] = box.rows(f"SELECT {names} FROM outbox_messages WHERE seq = %s", seq)
    return {"original": seq, **dict(zip(names.replace("::text", "").split(", "), row, strict=True)), **changed}


class TestReplay:
    def test_writes_no_copy_of_what_is_at_work(self, box: Box, storage: Store, acting: Acting) -> None:
        box.write(1)
        drained(storage, Receiver())
        box.write(1)
        copies = [copy_of(box, 1), copy_of(box, 2), copy_of(box, 1)]
        number = entry(box, "replay")
        assert acting.replay(copies, {}, number, ANN) == {copies[0]["id"]}
        assert acting.replay(copies, {}, number, ANN) == set()
        assert counted(box, number) == 1
        box.check_books()

    def test_two_at_once_write_each_copy_once(self, box: Box, storage: Store, acting: Acting) -> None:
        box.write(50)
        drained(storage, Receiver())
        copies, number = [copy_of(box, seq) for seq in range(1, 51)], entry(box, "replay")
        barrier = threading.Barrier(2)

        def replay(_: int) -> int:
            barrier.wait()
            return len(acting.replay(copies, {}, number, ANN))

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(replay, range(2))) == [0, 50]
        box.check_books()
