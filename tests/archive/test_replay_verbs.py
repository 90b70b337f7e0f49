"""Copies of messages that were sent or discarded."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from outbox_tasks.model import Step
from outbox_tasks.relay.store import Store
from tests.storage.conftest import Box
from tests.storage.people import Acting, Finding, Wanted
from tests.storage.relaying import Receiver, drained
from tests.storage.relaying import storage as storage
from tests.storage.test_acts import ANN, bury, counted, entry, history, ids
from tests.storage.test_acts import acting as acting
from tests.storage.test_find import finding as finding
from tests.storage.test_find import seqs

EVER = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


def copy_of(box: Box, seq: int, **changed: Any) -> dict[str, Any]:
    names = "id::text, destination, aggregate_id, headers"
    [row] = box.rows(f"SELECT {names} FROM outbox_messages WHERE seq = %s", seq)
    return {"original": seq, **dict(zip(names.replace("::text", "").split(", "), row, strict=True)), **changed}


class TestReplay:
    def test_writes_copies_that_are_sent_like_any_message(self, box: Box, storage: Store, acting: Acting) -> None:
        box.write(1, key="a", text='{"a": 1}', aggregate_id="7")
        box.write(1)
        drained(storage, Receiver())
        number, other = entry(box, "replay"), str(uuid4())
        copies = [copy_of(box, 1), copy_of(box, 2, id=other)]
        assert acting.replay(copies, {"seq": 2}, number, ANN) == {copies[0]["id"], other}
        assert box.rows("SELECT count, facts FROM outbox_audit") == [(2, {"place": {"seq": 2}})]
        note = history(box, 3)[0]
        assert (note["what"], note["of"], note["by"], note["entry"]) == ("replayed", copies[0]["id"], "ann", number)
        receiver = Receiver()
        assert drained(storage, receiver)[Step.SENT] == 2
        first = next(message for message in receiver.got if message.key == "a")
        assert (first.payload, first.id, first.aggregate_id, first.age < 60) == (
            b'{"a": 1}',
            copies[0]["id"],
            "7",
            True,
        )
        assert box.rows("SELECT priority FROM outbox_messages WHERE seq > 2") == [(-1,), (-1,)]
        box.check_books()

    def test_keeps_the_order_of_the_rows(self, box: Box, storage: Store, acting: Acting) -> None:
        box.write(20, key="a")
        drained(storage, Receiver())
        copies = [copy_of(box, seq) for seq in range(20, 0, -1)]
        acting.replay(copies, {}, entry(box, "replay"), ANN)
        again = [str(id) for [id] in box.rows("SELECT id FROM outbox_messages WHERE seq > 20 ORDER BY seq")]
        assert again == [copy["id"] for copy in copies]

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


def test_what_a_replay_copies(box: Box, storage: Store, finding: Finding) -> None:
    box.write(3, headers={"celery-message": "x"}, text='{"a": 1}')
    box.rows("SELECT outbox_cancel(%s)", ids(box, 2))
    drained(storage, Receiver())
    bury(box, storage)
    box.write(1)
    page = finding.archived(Wanted(), *EVER, look=2)
    rows = [(row.seq, row.state, row.size, row.task) for row in page.found]
    found = finding.archived(Wanted(), *EVER, last=page.end.end_seq, look=10)
    rows += [(row.seq, row.state, row.size, row.task) for row in found.found]
    states = dict(box.rows("SELECT seq, state FROM outbox_archive"))
    assert rows == [(seq, states[seq], 8, True) for seq in sorted(states)]
    assert seqs(finding.archived(Wanted(states=["discarded"]), *EVER, look=10)) == [
        seq for seq in sorted(states) if states[seq] == "discarded"
    ]
    assert seqs(finding.archived(Wanted(), EVER[0], EVER[0], look=10)) == []
    assert [row.seq for row in finding.ask("find/named.sql", ids=[*ids(box), uuid4()])] == [
        seq for [seq] in box.rows("SELECT seq FROM outbox_archive ORDER BY finished_at, seq")
    ]
    first = finding.ask("find/originals.sql", seqs=[1])[0]
    assert (first.seq, first.id, first.destination, json.loads(first.headers)) == (
        1, ids(box, 1)[0], "orders", {"celery-message": "x"},
    )  # fmt: skip
