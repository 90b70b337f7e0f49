"""Messages that nobody wants any more: each is taken once, and its key is free then."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from outbox_tasks.model import Outcome
from outbox_tasks.relay.store import Store
from tests.storage.conftest import Box
from tests.storage.people import Acting
from tests.storage.test_acts import ANN, bury, counted, entry, history, ids
from tests.storage.test_acts import acting as acting
from tests.storage.test_drain import Receiver, _claim, drained
from tests.storage.test_drain import storage as storage
from tests.storage.test_keys import numbers


class TestDiscard:
    BOTH = ("dead", "waiting")

    def test_moves_messages_to_the_journal(self, box: Box, storage: Store, acting: Acting) -> None:
        dead = bury(box, storage)
        box.write(1)
        box.write(1, deliver_at=str(datetime.now(UTC) + timedelta(hours=1)))
        number = entry(box, "discard")
        assert acting.act_on("discard", ids(box), ANN, number, states=self.BOTH) == set(ids(box))
        assert [box.where(seq) for seq in (1, 2, 3)] == [["discarded"]] * 3
        assert box.rows("SELECT code, error FROM outbox_trouble ORDER BY seq") == [
            ("http_400", "no such order 42"),
            *[("discarded", "discarded by ann: the shop is back")] * 2,
        ]
        note = history(box, 2)[0]
        assert (note["what"], note["by"], note["why"], note["entry"]) == ("discarded", "ann", ANN.why, number)
        assert (counted(box, number), len(dead)) == (3, 1)
        box.check_books()

    @pytest.mark.parametrize(("states", "gone"), [(("dead",), {1}), (("waiting",), {2}), ((), set())])
    def test_takes_only_the_wanted_states(
        self, box: Box, storage: Store, acting: Acting, states: tuple[str, ...], gone: set[int]
    ) -> None:
        bury(box, storage)
        box.write(1)
        acting.act_on("discard", ids(box), ANN, entry(box, "discard"), states=states)
        assert {seq for seq in (1, 2) if box.where(seq) == ["discarded"]} == gone

    def test_leaves_what_died_later(self, box: Box, storage: Store, acting: Acting) -> None:
        early, until = bury(box, storage), box.value("SELECT now()")
        late = bury(box, storage)
        number = entry(box, "discard")
        assert acting.act_on("discard", early + late, ANN, number, until=until) == set(early)
        box.check_books()

    def test_a_message_on_its_way_is_left(self, box: Box, storage: Store, acting: Acting) -> None:
        box.write(2)
        [bundle] = _claim(storage)
        number = entry(box, "discard")
        assert acting.act_on("discard", ids(box), ANN, number, states=self.BOTH) == set()
        assert len(storage.begin(bundle)) == 2
        box.connection.execute("UPDATE outbox_leases SET locked_until = now()")
        assert acting.act_on("discard", ids(box), ANN, number, states=self.BOTH) == set()
        assert box.where(1) == ["leases"]

    @pytest.mark.parametrize(
        ("row", "taken"),
        [
            ("locked_until = now()", True),
            ("locked_until = now() + interval '1 minute'", False),
            ("begun_at = now()", False),
            ("begun_at = now(), locked_until = now()", False),
        ],
    )
    def test_what_was_leased_may_be_taken_once_the_lease_has_run_out_before_the_begin(
        self, box: Box, storage: Store, row: str, taken: bool
    ) -> None:
        box.write(3)
        [bundle] = _claim(storage)
        box.connection.execute(f"UPDATE outbox_leases SET {row}".encode())
        box.rows("SELECT outbox_cancel(%s)", ids(box, 2))
        assert box.where(2) == (["discarded"] if taken else ["leases"])
        assert box.value("SELECT cardinality(seqs) FROM outbox_leases") == (2 if taken else 3)
        box.rows("SELECT outbox_cancel(%s)", ids(box, 1, 3))
        assert box.value("SELECT count(*) FROM outbox_leases") == (0 if taken else 1)
        assert taken or bundle.lease
        box.check_books()

    def test_a_supervised_task_can_be_taken_until_it_runs(self, box: Box, acting: Acting) -> None:
        box.write(2)
        for state in ("handed over", "running"):
            [[seq]] = box.rows("DELETE FROM outbox_ready WHERE seq = (SELECT min(seq) FROM outbox_ready) RETURNING seq")
            box.connection.execute(
                "INSERT INTO outbox_runs (seq, state, token, locked_until, attempts, id, destination)"
                " VALUES (%s, %s, %s, now(), 1, gen_random_uuid(), 'orders')",
                (seq, state, uuid4() if state == "running" else None),
            )
        asked = ids(box)
        assert acting.act_on("discard", asked, ANN, entry(box), states=self.BOTH) == {asked[0]}
        assert [box.where(seq) for seq in (1, 2)] == [["discarded"], ["runs"]]

    @pytest.mark.parametrize("first", ["dead", "waiting"])
    def test_frees_its_key(self, box: Box, storage: Store, acting: Acting, first: str) -> None:
        outcome = Outcome.dead("bad", "never") if first == "dead" else Outcome.retry("busy", "later")
        box.write(3, key="a")
        drained(storage, Receiver(lambda message: outcome))
        drained(storage, Receiver())
        assert box.value("SELECT count(*) FROM outbox_held") == 2
        box.connection.execute("UPDATE outbox_held SET free = false")
        acting.act_on("discard", ids(box, 1), ANN, entry(box, "discard"), states=self.BOTH)
        receiver = Receiver()
        assert drained(storage, receiver).sent == 2
        assert numbers(box, receiver) == [2, 3]
        box.check_books()

    def test_and_claims_share_the_messages(self, box: Box, storage: Store, acting: Acting) -> None:
        box.write(300)
        for n in range(100):
            box.write(1, key=f"k{n % 7}")
        asked, receiver, number = ids(box)[::-1], Receiver(), entry(box, "discard")
        with ThreadPoolExecutor(1) as pool:
            relaying = pool.submit(drained, storage, receiver)
            done: set[UUID] = set()
            for n in range(0, 400, 20):
                done |= acting.act_on("discard", asked[n : n + 20], ANN, number, states=self.BOTH) or set()
            relaying.result(60)
        drained(storage, receiver)
        got = {UUID(message.id) for message in receiver.got}
        assert len(receiver.got) == len(got) == 400 - len(done)
        assert not got & done
        assert counted(box, number) == len(done)
        box.check_books()

    def test_a_discard_and_a_begin_share_the_leases(self, box: Box, storage: Store, acting: Acting) -> None:
        """A worker begins what waits for Celery's retry, while a person discards it."""
        box.lease(*[1] * 60)
        box.connection.execute("INSERT INTO outbox_trouble (seq, attempts) SELECT seqs[1], 1 FROM outbox_leases")
        asked, number = ids(box), entry(box, "discard")
        barrier = threading.Barrier(2)

        def begin() -> set[str]:
            barrier.wait()
            tokens = box.rows("SELECT token FROM outbox_leases ORDER BY seqs")
            begins = {"destination": "orders", "holder": "w", "hold": 60, "room": None, "keep": 20}
            return {row[1] for [token] in tokens for row in box.run("deliver/begin.sql", token=token, **begins)}

        def discard() -> set[str]:
            barrier.wait()
            return {
                str(id)
                for one in reversed(asked)
                for id in acting.act_on("discard", [one], ANN, number, states=self.BOTH) or ()
            }

        with ThreadPoolExecutor(2) as pool:
            begun, gone = pool.submit(begin), pool.submit(discard)
            assert begun.result(30).isdisjoint(gone.result(30))
            assert len(begun.result()) + len(gone.result()) == 60
        box.check_books()

    def test_a_purge_leaves_nothing(self, box: Box, storage: Store, acting: Acting) -> None:
        dead = bury(box, storage, 2)
        number = entry(box, "purge")
        assert acting.act_on("purge", dead[:1], ANN, number) == set(dead[:1])
        assert box.rows("SELECT seq FROM outbox_messages") == box.rows("SELECT seq FROM outbox_trouble") == [(2,)]
        assert (counted(box, number), box.value("SELECT count(*) FROM outbox_journal")) == (1, 0)
        box.check_books()


class TestCancel:
    def test_takes_back_what_is_not_on_its_way(self, box: Box, storage: Store) -> None:
        dead = bury(box, storage)
        box.write(2)
        box.write(1, key="a", headers={"x": "y"})
        assert {id for [id] in box.rows("SELECT outbox_cancel(%s)", ids(box))} == set(ids(box, 2, 3, 4))
        assert box.rows("SELECT code, error FROM outbox_trouble WHERE seq = 4") == [
            ("cancelled", "it was taken back before it was delivered")
        ]
        assert history(box, 4)[0]["what"] == "cancelled"
        assert (box.where(1), len(dead)) == (["dead"], 1)
        box.check_books()

    def test_says_so_of_a_message_that_had_failed(self, box: Box, storage: Store) -> None:
        box.write(1)
        drained(storage, Receiver(lambda message: Outcome.retry("busy", "later")))
        box.rows("SELECT outbox_cancel(%s)", ids(box))
        assert box.rows("SELECT code, error, attempts FROM outbox_trouble") == [("cancelled", "later", 1)]

    def test_a_journal_row_has_numbers_that_lie_close_together(self, box: Box) -> None:
        box.write(1)
        box.rows("SELECT setval('outbox_seq', 65535)")
        box.write(2)
        box.rows("SELECT outbox_cancel(%s)", ids(box))
        found = box.rows("SELECT first, seqs::text FROM outbox_journal ORDER BY first")
        assert found == [(1, "{[1,2)}"), (65536, "{[65536,65538)}")]
