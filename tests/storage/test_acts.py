"""What people do to messages of the next storage: each message once, nothing lost, and all of it noted."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outbox_tasks.model import Outcome
from outbox_tasks.settings import Settings
from outbox_tasks.storage.acts import Acting, Lease, Person
from outbox_tasks.storage.store import Storage
from tests.storage.conftest import Box
from tests.storage.test_drain import Receiver, _claim, drained
from tests.storage.test_drain import storage as storage
from tests.storage.test_keys import numbers

ANN = Person("ann", "the shop is back")


@pytest.fixture
def acting(next_settings: Settings) -> Iterator[Acting]:
    made = Acting.connect(next_settings)
    yield made
    made.close()


def ids(box: Box, *seqs: int) -> list[UUID]:
    """The ids of these messages; of all, if none is named."""
    found = dict(box.rows("SELECT seq, id FROM outbox_messages ORDER BY seq"))
    return [found[seq] for seq in seqs or found]


def entry(box: Box, action: str = "redrive") -> int:
    return int(box.value("INSERT INTO outbox_audit (who, action, count) VALUES ('ann', %s, 0) RETURNING seq", action))


def counted(box: Box, number: int) -> int:
    return int(box.value("SELECT count FROM outbox_audit WHERE seq = %s", number))


def bury(box: Box, storage: Storage, count: int = 1, code: str = "http_400", **fields: Any) -> list[UUID]:
    """Messages that are dead letters, because their destination has refused them."""
    before = box.value("SELECT coalesce(max(seq), 0) FROM outbox_messages")
    box.write(count, **fields)
    drained(storage, Receiver(lambda message: Outcome.dead(code, "no such order 42")))
    found = box.rows("SELECT id FROM outbox_messages JOIN outbox_dead USING (seq) WHERE seq > %s ORDER BY seq", before)
    assert len(found) == count
    return [id for [id] in found]


def history(box: Box, seq: int) -> Any:
    return box.value("SELECT history FROM outbox_trouble WHERE seq = %s", seq)


class TestRedrive:
    def test_makes_a_dead_letter_due_with_all_its_attempts(self, box: Box, storage: Storage, acting: Acting) -> None:
        dead = bury(box, storage)
        number = entry(box)
        assert acting.act_on("redrive", dead, ANN, number) == set(dead)
        assert box.where(1) == ["ready"]
        assert box.rows("SELECT attempts, alone FROM outbox_ready") == [(0, False)]
        assert box.rows("SELECT attempts, outages, code FROM outbox_trouble") == [(0, 0, "http_400")]
        note = history(box, 1)[-1]
        assert (note["what"], note["by"], note["why"], note["attempts"]) == ("redriven", "ann", "the shop is back", 1)
        assert (note["entry"], counted(box, number)) == (number, 1)
        assert box.value("SELECT facts->'changed' FROM outbox_audit") == [str(dead[0])]
        receiver = Receiver()
        assert drained(storage, receiver).sent == 1
        assert receiver.got[0].attempts == 1
        box.check_books()

    def test_the_audit_keeps_the_first_thousand_ids(self, box: Box, storage: Storage, acting: Acting) -> None:
        dead = bury(box, storage, 1100)
        number = entry(box)
        for some in (dead[:600], dead[600:]):
            assert acting.act_on("redrive", some, ANN, number) == set(some)
        [(count, kept)] = box.rows("SELECT count, facts->'changed' FROM outbox_audit")
        assert (count, len(kept), len(set(kept))) == (1100, 1000, 1000)

    def test_its_age_counts_from_the_redrive_also_after_it_has_failed(
        self, box: Box, storage: Storage, acting: Acting
    ) -> None:
        dead = bury(box, storage)
        box.connection.execute("UPDATE outbox_messages SET created_at = now() - interval '9 days'")
        acting.act_on("redrive", dead, ANN, entry(box))
        receiver = Receiver(lambda message: Outcome.retry("busy", "later"))
        drained(storage, receiver)
        assert receiver.got[0].age < 60
        assert box.value("SELECT since > now() - interval '1 minute' FROM outbox_waiting")

    def test_a_message_that_may_have_killed_its_worker_still_travels_alone(
        self, box: Box, storage: Storage, acting: Acting
    ) -> None:
        acting.act_on("redrive", bury(box, storage, code="unsettled"), ANN, entry(box))
        assert box.value("SELECT alone FROM outbox_ready")

    def test_changes_only_dead_letters_that_were_dead_by_then(self, box: Box, storage: Storage, acting: Acting) -> None:
        early = bury(box, storage, 2)
        until = box.value("SELECT now()")
        late = bury(box, storage)
        box.write(1)
        number = entry(box)
        asked = [*ids(box), uuid4()]
        assert acting.act_on("redrive", asked, ANN, number, until=until) == set(early)
        assert acting.act_on("redrive", asked, ANN, number) == set(late)
        assert acting.act_on("redrive", asked, ANN, number) == set()
        assert counted(box, number) == 3
        box.check_books()

    def test_two_at_once_take_each_message_once(self, box: Box, storage: Storage, acting: Acting) -> None:
        dead = bury(box, storage, 400)
        numbers = entry(box), entry(box)
        barrier = threading.Barrier(2)

        def redrive(number: int) -> int:
            barrier.wait()
            batches = (dead[n : n + 20] for n in range(0, 400, 20))
            return sum(len(acting.act_on("redrive", batch, ANN, number) or ()) for batch in batches)

        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(redrive, numbers))
        assert sum(done) == 400
        assert done == [counted(box, number) for number in numbers]
        assert box.value("SELECT count(*) FROM outbox_ready") == 400
        box.check_books()

    def test_skips_what_somebody_else_changes(self, box: Box, storage: Storage, acting: Acting) -> None:
        dead = bury(box, storage, 2)
        with psycopg.connect(box.url) as other:
            other.execute(f"SELECT FROM {box.schema}.outbox_dead WHERE seq = 1 FOR UPDATE".encode())
            assert acting.act_on("redrive", dead, ANN, entry(box)) == {dead[1]}
        assert acting.act_on("redrive", dead, ANN, entry(box)) == {dead[0]}

    def test_waits_for_a_claim_that_looks_at_its_key(self, box: Box, storage: Storage, acting: Acting) -> None:
        dead = bury(box, storage, key="a")
        with psycopg.connect(box.url) as claim, ThreadPoolExecutor(1) as pool:
            claim.execute(f"SELECT FROM {box.schema}.outbox_dead FOR KEY SHARE".encode())
            redriven = pool.submit(acting.act_on, "redrive", dead, ANN, entry(box))
            with pytest.raises(TimeoutError):
                redriven.result(0.2)
            claim.commit()
            assert redriven.result(10) == set(dead)

    def test_beside_claims_delivers_each_message_once(self, box: Box, storage: Storage, acting: Acting) -> None:
        dead = [*bury(box, storage, 200), *(id for n in range(50) for id in bury(box, storage, key=f"k{n}"))]
        over, number, receiver = threading.Event(), entry(box), Receiver()

        def relay() -> None:
            finished = False
            while not finished:
                finished = over.is_set()
                drained(storage, receiver)

        with ThreadPoolExecutor(1) as pool:
            relaying = pool.submit(relay)
            for n in range(0, 250, 10):
                assert acting.act_on("redrive", dead[n : n + 10], ANN, number) == set(dead[n : n + 10])
            over.set()
            relaying.result(60)
        assert sorted(message.id for message in receiver.got) == sorted(map(str, dead))
        box.check_books()

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        dead=st.lists(st.booleans(), min_size=6, max_size=6),
        keys=st.lists(st.sampled_from(["a", "b"]), min_size=6, max_size=6),
        shuffled=st.permutations(range(6)),
    )
    def test_the_order_of_keys_is_kept(
        self, box: Box, storage: Storage, acting: Acting, dead: list[bool], keys: list[str], shuffled: Sequence[int]
    ) -> None:
        """Whichever are dead, and in whatever order they are redriven, each by itself."""
        box.connection.execute(
            "TRUNCATE outbox_messages, outbox_ready, outbox_held, outbox_dead, outbox_trouble, outbox_journal"
        )
        first = box.value("SELECT nextval('outbox_seq')") + 1
        for key in keys:
            box.write(1, key=key)
        for n in range(6):
            if dead[n]:
                dying = "DELETE FROM outbox_ready WHERE seq = %s RETURNING seq, destination, key"
                [row] = box.rows(dying, first + n)
                box.connection.execute(
                    "INSERT INTO outbox_dead (seq, destination, key, kin) VALUES (%s, %s, %s, 'x')", row
                )
        receiver, number = Receiver(), entry(box)
        for n in [n for n in shuffled if dead[n]]:
            acting.act_on("redrive", ids(box, first + n), ANN, number)
            drained(storage, receiver)
        drained(storage, receiver)
        got = numbers(box, receiver)
        for key in ("a", "b"):
            own = [first + n for n in range(6) if keys[n] == key]
            assert [seq for seq in got if seq in own] == own


class TestDiscard:
    BOTH = ("dead", "waiting")

    def test_moves_messages_to_the_journal(self, box: Box, storage: Storage, acting: Acting) -> None:
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
        self, box: Box, storage: Storage, acting: Acting, states: tuple[str, ...], gone: set[int]
    ) -> None:
        bury(box, storage)
        box.write(1)
        acting.act_on("discard", ids(box), ANN, entry(box, "discard"), states=states)
        assert {seq for seq in (1, 2) if box.where(seq) == ["discarded"]} == gone

    def test_leaves_what_died_later(self, box: Box, storage: Storage, acting: Acting) -> None:
        early, until = bury(box, storage), box.value("SELECT now()")
        late = bury(box, storage)
        number = entry(box, "discard")
        assert acting.act_on("discard", early + late, ANN, number, until=until) == set(early)
        box.check_books()

    def test_a_message_on_its_way_is_left(self, box: Box, storage: Storage, acting: Acting) -> None:
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
            ("holder = NULL", True),
            ("locked_until = now()", True),
            ("holder = 'w', locked_until = now() + interval '1 minute'", False),
            ("holder = NULL, begun_at = now()", False),
        ],
    )
    def test_a_lease_that_is_not_begun_may_be_taken(self, box: Box, storage: Storage, row: str, taken: bool) -> None:
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
    def test_frees_its_key(self, box: Box, storage: Storage, acting: Acting, first: str) -> None:
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

    def test_and_claims_share_the_messages(self, box: Box, storage: Storage, acting: Acting) -> None:
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

    def test_a_discard_and_a_begin_share_the_leases(self, box: Box, storage: Storage, acting: Acting) -> None:
        """A worker takes over what a writer has leased, while a person discards it."""
        for _ in range(60):
            box.write(1, lease=str(uuid4()), delay=60)
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

    def test_a_purge_leaves_nothing(self, box: Box, storage: Storage, acting: Acting) -> None:
        dead = bury(box, storage, 2)
        number = entry(box, "purge")
        assert acting.act_on("purge", dead[:1], ANN, number) == set(dead[:1])
        assert box.rows("SELECT seq FROM outbox_messages") == box.rows("SELECT seq FROM outbox_trouble") == [(2,)]
        assert (counted(box, number), box.value("SELECT count(*) FROM outbox_journal")) == (1, 0)
        box.check_books()


class TestInTheBackground:
    def begun(self, box: Box, lease: Lease) -> int:
        number = entry(box)
        box.connection.execute(
            "INSERT INTO outbox_acts (act, wanted, as_of, lease) VALUES (%s, '{}', now(), %s)", (number, lease.token)
        )
        return number

    @pytest.mark.parametrize("action", ["redrive", "discard"])
    def test_a_batch_prolongs_its_lease(self, box: Box, storage: Storage, acting: Acting, action: Any) -> None:
        dead, lease = bury(box, storage), Lease(uuid4(), 15.0)
        number = self.begun(box, lease)
        assert acting.act_on(action, dead, ANN, number, lease=lease) == set(dead)
        assert acting.act_on(action, dead, ANN, number, lease=lease) == set()
        assert box.value("SELECT locked_until > now() + interval '10 seconds' FROM outbox_acts")

    @pytest.mark.parametrize("action", ["redrive", "discard"])
    def test_a_batch_without_the_lease_does_nothing(
        self, box: Box, storage: Storage, acting: Acting, action: Any
    ) -> None:
        dead, lease = bury(box, storage), Lease(uuid4(), 15.0)
        number = self.begun(box, lease)
        assert acting.act_on(action, dead, ANN, number, lease=Lease(uuid4(), 15.0)) is None
        box.connection.execute("DELETE FROM outbox_acts")
        assert acting.act_on(action, dead, ANN, number, lease=lease) is None
        assert (box.where(1), counted(box, number)) == (["dead"], 0)


class TestCancel:
    def test_takes_back_what_is_not_on_its_way(self, box: Box, storage: Storage) -> None:
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

    def test_says_so_of_a_message_that_had_failed(self, box: Box, storage: Storage) -> None:
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


class TestEdit:
    def test_replaces_the_payload_of_a_dead_letter(self, box: Box, storage: Storage, acting: Acting) -> None:
        [dead] = bury(box, storage, text='{"a": 1}')
        digest = hashlib.sha256(b'{"a": 1}').digest()
        number = acting.edit(dead, digest, b'{"a": 2}', "text/x", ANN)
        [(action, target, facts, closed)] = box.rows(
            "SELECT action, target, facts, closed_at IS NOT NULL FROM outbox_audit WHERE seq = %s", number
        )
        assert (action, target, closed) == ("edit", str(dead), True)
        assert base64.b64decode(facts["former"]) == b'{"a": 1}'
        assert (facts["size"], facts["former_size"], facts["former_content_type"]) == (8, 8, "application/json")
        assert history(box, 1)[-1]["what"] == "edited"
        assert acting.edit(dead, digest, b"{}", "text/x", ANN) is None
        acting.act_on("redrive", [dead], ANN, entry(box))
        receiver = Receiver()
        drained(storage, receiver)
        assert (receiver.got[0].payload, receiver.got[0].content_type) == (b'{"a": 2}', "text/x")

    def test_leaves_what_is_not_dead(self, box: Box, acting: Acting) -> None:
        box.write(1)
        assert acting.edit(ids(box)[0], hashlib.sha256(b"{}").digest(), b"[]", "text/x", ANN) is None
        assert box.value("SELECT payload FROM outbox_messages") == b"{}"

    def test_a_redrive_that_comes_first_wins(self, box: Box, storage: Storage, acting: Acting) -> None:
        [dead] = bury(box, storage)
        with psycopg.connect(box.url) as other, ThreadPoolExecutor(1) as pool:
            other.execute(f"DELETE FROM {box.schema}.outbox_dead".encode())
            edited = pool.submit(acting.edit, dead, hashlib.sha256(b"{}").digest(), b"[]", "text/x", ANN)
            with pytest.raises(TimeoutError):
                edited.result(0.2)
            other.commit()
            assert edited.result(10) is None


def copy_of(box: Box, seq: int, **changed: Any) -> dict[str, Any]:
    names = "id::text, event_type, aggregate_type, aggregate_id, destination, key, content_type, headers"
    [row] = box.rows(f"SELECT {names}, payload, created_at FROM outbox_messages WHERE seq = %s", seq)
    *values, payload, created_at = row
    fields = dict(zip(names.replace("::text", "").split(", "), values, strict=True))
    more = {"of": fields["id"], "data": base64.b64encode(payload).decode(), "created_at": created_at.isoformat()}
    return {**fields, **more, **changed}


class TestReplay:
    def test_writes_copies_that_are_sent_like_any_message(self, box: Box, storage: Storage, acting: Acting) -> None:
        box.write(1, key="a", text='{"a": 1}', aggregate_id="7")
        box.write(1)
        drained(storage, Receiver())
        number, other = entry(box, "replay"), str(uuid4())
        copies = [copy_of(box, 1), copy_of(box, 2, id=other)]
        assert acting.replay(copies, {"seq": 2}, number, ANN) == {copies[0]["id"], other}
        assert box.rows("SELECT count, facts FROM outbox_audit") == [(2, {"place": {"seq": 2}})]
        note = history(box, 3)[0]
        assert (note["what"], note["of"], note["by"], note["entry"]) == ("replayed", copies[0]["of"], "ann", number)
        receiver = Receiver()
        assert drained(storage, receiver).sent == 2
        first = next(message for message in receiver.got if message.key == "a")
        assert (first.payload, first.id, first.aggregate_id, first.age < 60) == (
            b'{"a": 1}',
            copies[0]["id"],
            "7",
            True,
        )
        assert box.rows("SELECT priority FROM outbox_messages WHERE seq > 2") == [(-1,), (-1,)]
        box.check_books()

    def test_keeps_the_order_of_the_rows(self, box: Box, storage: Storage, acting: Acting) -> None:
        box.write(20, key="a")
        drained(storage, Receiver())
        copies = [copy_of(box, seq) for seq in range(20, 0, -1)]
        acting.replay(copies, {}, entry(box, "replay"), ANN)
        again = [str(id) for [id] in box.rows("SELECT id FROM outbox_messages WHERE seq > 20 ORDER BY seq")]
        assert again == [copy["id"] for copy in copies]

    def test_writes_no_copy_of_what_is_at_work(self, box: Box, storage: Storage, acting: Acting) -> None:
        box.write(1)
        drained(storage, Receiver())
        box.write(1)
        copies = [copy_of(box, 1), copy_of(box, 2), copy_of(box, 1)]
        number = entry(box, "replay")
        assert acting.replay(copies, {}, number, ANN) == {copies[0]["id"]}
        assert acting.replay(copies, {}, number, ANN) == set()
        assert counted(box, number) == 1
        box.check_books()

    def test_two_at_once_write_each_copy_once(self, box: Box, storage: Storage, acting: Acting) -> None:
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
