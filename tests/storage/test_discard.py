"""Messages that nobody wants any more: each is taken once, and its key is free then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest

from outbox_tasks.model import Outcome, Step, Verdict
from outbox_tasks.relay.store import Store
from tests.claims import take
from tests.storage.conftest import Box
from tests.storage.people import Acting
from tests.storage.relaying import Receiver, drained
from tests.storage.relaying import storage as storage
from tests.storage.test_acts import ANN, bury, counted, entry, history, ids
from tests.storage.test_acts import acting as acting


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

    def test_takes_only_the_wanted_states_and_leaves_what_died_later(
        self, box: Box, storage: Store, acting: Acting
    ) -> None:
        early, until = bury(box, storage), box.value("SELECT dead_at FROM outbox_dead")
        bury(box, storage)
        box.write(1)
        number = entry(box, "discard")
        assert acting.act_on("discard", ids(box), ANN, number, states=()) == set()
        assert acting.act_on("discard", ids(box), ANN, number, until=until) == set(early)
        assert acting.act_on("discard", ids(box), ANN, number, states=("waiting",)) == set(ids(box, 3))
        assert acting.act_on("discard", ids(box), ANN, number) == set(ids(box, 2))
        box.check_books()

    def test_a_single_may_be_taken_that_waits_for_another_try_or_whose_lease_ran_out_before_the_begin(
        self, box: Box
    ) -> None:
        singles = [
            ("locked_until = now()", 0, True),
            ("locked_until = now() + interval '1 minute'", 0, False),
            ("locked_until = now() + interval '1 minute'", 1, True),
            ("begun_at = now()", 1, False),
            ("begun_at = now(), locked_until = now()", 1, False),
        ]
        for seq, (row, attempts, taken) in enumerate(singles, 1):
            box.lease()
            box.connection.execute(f"UPDATE outbox_leases SET {row} WHERE seqs = '{{{seq}}}'".encode())
            box.connection.execute("INSERT INTO outbox_trouble (seq, attempts) VALUES (%s, %s)", (seq, attempts))
            box.rows("SELECT outbox_cancel(%s)", ids(box, seq))
            assert box.where(seq) == (["discarded"] if taken else ["leases"]), row
        box.check_books()

    @pytest.mark.parametrize("state", ["leased", "handed over"])
    def test_what_had_its_key_leaves_it_to_the_next(self, box: Box, storage: Store, acting: Acting, state: str) -> None:
        box.write(2, key="a")
        [single] = take(storage, {"orders": 9})
        verdict = Verdict(storage.leases.begin(single.token, "orders"), Step.RETRY, 60.0, "busy", "later")  # type: ignore[arg-type]
        if state == "handed over":
            verdict.step = Step.HANDED
        storage.leases.settle(single.token, "orders", [verdict])
        assert drained(storage, Receiver()) == {}
        assert acting.act_on("discard", ids(box, 1), ANN, entry(box), states=self.BOTH) == set(ids(box, 1))
        assert drained(storage, Receiver()) == {Step.SENT: 1}
        assert box.value("SELECT count(*) FROM outbox_keys") == 0
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
        box.write(1)
        drained(storage, Receiver(lambda message: Outcome.retry("busy", "later")))
        box.rows("SELECT outbox_cancel(%s)", ids(box, 5))
        assert box.rows("SELECT code, error, attempts FROM outbox_trouble WHERE seq = 5") == [("cancelled", "later", 1)]
        box.check_books()

    def test_of_the_first_of_a_key_lets_the_next_one_go(self, box: Box, storage: Store) -> None:
        """Also if a take looks at the key just then."""
        box.write(1, key="a", delay=3600)
        box.write(3, key="a")
        assert drained(storage, Receiver()) == {}
        with box.transaction() as looking, closing(psycopg.connect(box.url)) as other, ThreadPoolExecutor(1) as pool:
            looking.execute("SELECT FROM outbox_keys FOR UPDATE")
            cancel = f"SELECT {box.schema}.outbox_cancel(%s)"
            cancelled = pool.submit(lambda: other.execute(cancel.encode(), (ids(box, 1, 3),)).fetchall())
            with pytest.raises(TimeoutError):
                cancelled.result(0.2)
            looking.rollback()
            assert len(cancelled.result(10)) == 2
            other.commit()
        assert drained(storage, Receiver()) == {Step.SENT: 2}
        box.check_books()

    def test_waits_for_no_other_cancel(self, box: Box, storage: Store) -> None:
        """Wherever the messages are; and of a key only who takes the first one back changes its row."""
        bury(box, storage)
        box.write(1, key="a", delay=3600)
        box.write(2, key="a")
        assert drained(storage, Receiver()) == {}
        box.lease(seconds=-1)
        box.write(1, delay=3600)
        box.write(2)
        box.connection.execute(
            "WITH gone AS (DELETE FROM outbox_ready WHERE seq = 7 RETURNING seq) "
            "INSERT INTO outbox_runs (seq, state, locked_until, attempts, id, destination) "
            "SELECT seq, 'handed over', 'infinity', 1, gen_random_uuid(), 'orders' FROM gone"
        )
        discard = "SELECT outbox_discard(%s, true, 'infinity', '{}', 'gone', 'gone')"
        with box.transaction() as first, box.transaction() as second:
            for writer, asked, count in ((first, (1, 2, 5, 6, 7, 8), 6), (second, (1, 2, 3, 5, 6, 7, 8), 1)):
                assert len({id for [id] in writer.execute(discard, (ids(box, *asked),))}) == count
            second.commit()
            assert drained(storage, Receiver()) == {}
            first.commit()
        assert drained(storage, Receiver()) == {Step.SENT: 1}
        assert box.where(4) == ["sent"]

    def test_behind_a_dead_letter_lets_nothing_go(self, box: Box, storage: Store) -> None:
        box.write(3, key="a")
        drained(storage, Receiver(lambda message: Outcome.dead("bad", "never")))
        box.rows("SELECT outbox_cancel(%s)", ids(box, 2))
        assert drained(storage, Receiver()) == {}
        assert box.where(3) == ["held"]

    def test_a_journal_row_has_numbers_that_lie_close_together(self, box: Box) -> None:
        box.write(1)
        box.rows("SELECT setval('outbox_seq', 65535)")
        box.write(2)
        box.rows("SELECT outbox_cancel(%s)", ids(box))
        found = box.rows("SELECT first, seqs::text FROM outbox_journal ORDER BY first")
        assert found == [(1, "{[1,2)}"), (65536, "{[65536,65538)}")]
