"""What people do to messages: each message once, nothing lost, and all of it noted."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from outbox_tasks.model import Outcome, Step, Verdict
from outbox_tasks.relay.store import Store, takes
from outbox_tasks.settings import Settings
from outbox_tasks.supervised.store import Runs
from tests.claims import begin, take, take_batch
from tests.conftest import MakeSettings
from tests.storage.conftest import Box
from tests.storage.people import Acting, Person
from tests.storage.relaying import Receiver, drained, end_waits, numbers
from tests.storage.relaying import storage as storage
from tests.supervised.verbs import begun, hand_over

ANN = Person("ann", "the shop is back")
BUSY = Receiver(lambda message: Outcome.retry("http_429", "come back later", retry_after=900))


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


def bury(box: Box, storage: Store, count: int = 1, code: str = "http_400", **fields: Any) -> list[UUID]:
    """Messages that are dead letters, because their destination has refused them."""
    before = box.value("SELECT coalesce(max(seq), 0) FROM outbox_messages")
    box.write(count, **fields)
    drained(storage, Receiver(lambda message: Outcome.dead(code, "no such order 42")))
    found = box.rows("SELECT id FROM outbox_messages JOIN outbox_dead USING (seq) WHERE seq > %s ORDER BY seq", before)
    assert len(found) == count
    return [id for [id] in found]


def skipping(box: Box, settings: MakeSettings) -> Store:
    """Dead letters hold up nothing."""
    destination: dict[str, Any] = {"url": "redis+stream://localhost/x", "on_dead": "skip"}
    return Store.connect(settings(database_schema=box.schema, destinations={"orders": destination}))


def history(box: Box, seq: int) -> Any:
    return box.value("SELECT history FROM outbox_trouble WHERE seq = %s", seq)


class TestRedrive:
    def test_makes_a_dead_letter_due_with_all_its_attempts(self, box: Box, storage: Store, acting: Acting) -> None:
        dead = bury(box, storage)
        box.connection.execute("UPDATE outbox_trouble SET spared = 5, outages = 2, unheard = 3")
        number = entry(box)
        assert acting.act_on("redrive", dead, ANN, number) == set(dead)
        assert box.where(1) == ["ready"]
        assert box.rows("SELECT attempts, alone FROM outbox_ready") == [(0, False)]
        assert box.rows("SELECT attempts, spared, outages, unheard, code FROM outbox_trouble") == [
            (0,) * 4 + ("http_400",)
        ]
        note = history(box, 1)[-1]
        assert (note["what"], note["by"], note["why"], note["attempts"]) == ("redriven", "ann", "the shop is back", 1)
        assert (note["entry"], counted(box, number)) == (number, 1)
        assert box.value("SELECT facts->'changed' FROM outbox_audit") == [str(dead[0])]
        receiver = Receiver()
        assert drained(storage, receiver)[Step.SENT] == 1
        assert receiver.got[0].attempts == 1
        box.check_books()

    def test_the_audit_keeps_the_first_thousand_ids(self, box: Box, storage: Store, acting: Acting) -> None:
        dead = bury(box, storage, 1100)
        number = entry(box)
        for some in (dead[:600], dead[600:]):
            assert acting.act_on("redrive", some, ANN, number) == set(some)
        [(count, kept)] = box.rows("SELECT count, facts->'changed' FROM outbox_audit")
        assert (count, len(kept), len(set(kept))) == (1100, 1000, 1000)

    def test_its_age_counts_from_the_redrive_also_after_it_has_failed(
        self, box: Box, storage: Store, acting: Acting
    ) -> None:
        dead = bury(box, storage)
        box.connection.execute("UPDATE outbox_messages SET created_at = now() - interval '9 days'")
        acting.act_on("redrive", dead, ANN, entry(box))
        receiver = Receiver(lambda message: Outcome.retry("busy", "later"))
        drained(storage, receiver)
        assert receiver.got[0].age < 60
        assert box.value("SELECT since > now() - interval '1 minute' FROM outbox_waiting")

    def test_a_message_that_may_have_killed_its_worker_still_travels_alone(
        self, box: Box, storage: Store, acting: Acting
    ) -> None:
        acting.act_on("redrive", bury(box, storage, code="unsettled"), ANN, entry(box))
        assert box.value("SELECT alone FROM outbox_ready")

    def test_changes_only_dead_letters_that_were_dead_by_then(self, box: Box, storage: Store, acting: Acting) -> None:
        early = bury(box, storage, 2)
        until = box.value("SELECT max(dead_at) FROM outbox_dead")
        late = bury(box, storage)
        box.write(1)
        number = entry(box)
        asked = [*ids(box), uuid4()]
        assert acting.act_on("redrive", asked, ANN, number, until=until) == set(early)
        assert acting.act_on("redrive", asked, ANN, number) == set(late)
        assert acting.act_on("redrive", asked, ANN, number) == set()
        assert counted(box, number) == 3
        box.check_books()

    def test_skips_what_somebody_else_changes(self, box: Box, storage: Store, acting: Acting) -> None:
        dead = bury(box, storage, 2)
        with psycopg.connect(box.url) as other:
            other.execute(f"SELECT FROM {box.schema}.outbox_dead WHERE seq = 1 FOR UPDATE".encode())
            assert acting.act_on("redrive", dead, ANN, entry(box)) == {dead[1]}
        assert acting.act_on("redrive", dead, ANN, entry(box)) == {dead[0]}

    def test_goes_on_with_its_key_though_a_later_one_is_dead(self, box: Box, storage: Store, acting: Acting) -> None:
        box.write(2, key="a")
        drained(storage, Receiver(lambda message: Outcome.dead("no", "never")))
        box.connection.execute("DELETE FROM outbox_held")
        box.connection.execute("INSERT INTO outbox_dead (seq, destination, key, kin) VALUES (2, 'orders', 'a', 'x')")
        acting.act_on("redrive", ids(box, 1), ANN, entry(box))
        assert drained(storage, Receiver()) == {Step.SENT: 1}
        box.check_books()

    def test_before_a_message_on_its_way_is_seen_once_that_has_failed(
        self, box: Box, settings: MakeSettings, acting: Acting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However long that took: takes do not look again at keys that became free long ago."""
        monkeypatch.setattr(takes, "FREED_LATELY", timedelta(0))
        with closing(skipping(box, settings)) as store:
            box.write(key="a")
            drained(store, Receiver(lambda message: Outcome.dead("no", "never")))
            box.write(key="a")
            batch = take_batch(store)
            acting.act_on("redrive", ids(box, 1), ANN, entry(box))
            assert not take_batch(store)
            store.leases.settle(batch.token, "orders", [Verdict(batch.messages[0], Step.LATER, 60.0, "busy", "later")])
            assert drained(store, Receiver()) == {Step.SENT: 1}


class TestEdit:
    def test_replaces_the_payload_of_a_dead_letter(self, box: Box, storage: Store, acting: Acting) -> None:
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

    def test_a_redrive_that_comes_first_wins(self, box: Box, storage: Store, acting: Acting) -> None:
        [dead] = bury(box, storage)
        with psycopg.connect(box.url) as other, ThreadPoolExecutor(1) as pool:
            other.execute(f"DELETE FROM {box.schema}.outbox_dead".encode())
            edited = pool.submit(acting.edit, dead, hashlib.sha256(b"{}").digest(), b"[]", "text/x", ANN)
            with pytest.raises(TimeoutError):
                edited.result(0.2)
            other.commit()
            assert edited.result(10) is None


class TestTry:
    """What waits for another attempt is due at once, and nothing of a key overtakes."""

    @pytest.mark.parametrize("key", [None, "a"])
    def test_what_waits_for_a_retry_is_due_at_once(
        self, box: Box, storage: Store, acting: Acting, key: str | None
    ) -> None:
        box.write(2, key=key)
        drained(storage, BUSY)
        assert drained(storage, Receiver()) == {}
        number = entry(box, "try")
        for hours, tried in ((-1, []), (1, ids(box, 1))):  # not if it is due
            for time in ("waiting SET due = due", "held SET since = since"):
                box.connection.execute(f"UPDATE outbox_{time} + interval '{hours} hour'".encode())
            assert acting.act_on("try", ids(box, 1), ANN, number) == {*tried}
        note = history(box, 1)[-1]
        assert (note["what"], note["by"], note["why"], note["entry"]) == ("tried", "ann", "the shop is back", number)
        assert counted(box, number) == 1
        box.check_books()
        receiver = Receiver()
        drained(storage, receiver)
        assert [(message.attempts, *numbers(box, receiver)[:1]) for message in receiver.got[:1]] == [(2, 1)]
        assert len(receiver.got) == (2 if key else 1), "of a key, what is behind it goes on; another one still waits"
        box.check_books()

    def test_a_single_that_waits_for_celerys_retry_is_taken_anew(
        self, box: Box, storage: Store, acting: Acting
    ) -> None:
        box.write(2, key="a")
        [single] = take(storage, {"orders": 9})
        verdict = Verdict(begin(storage, single), Step.RETRY, 60.0, "busy", "later")  # type: ignore[arg-type]
        storage.leases.settle(single.token, "orders", [verdict])
        assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box, 1)}
        assert storage.leases.begin(str(verdict.token), "orders") is None, "Celery's own task comes too late"
        receiver = Receiver()
        drained(storage, receiver)
        assert numbers(box, receiver) == [1, 2]
        assert box.value("SELECT count(*) FROM outbox_keys") == 0
        box.check_books()

    def test_the_probe_of_an_open_circuit_and_a_send_that_has_begun_keep_their_lease(
        self, box: Box, acting: Acting
    ) -> None:
        box.lease()
        box.connection.execute("INSERT INTO outbox_trouble (seq, attempts, code) VALUES (1, 1, 'away')")
        box.connection.execute(
            "INSERT INTO outbox_destinations (name, opened_at, probe) SELECT 'orders', now(), token FROM outbox_leases"
        )
        assert acting.act_on("try", ids(box), ANN, entry(box)) == set()
        box.connection.execute("DELETE FROM outbox_destinations")
        for own in ("begun_at = now()", "begun_at = NULL, locked_until = now()"):
            box.connection.execute(f"UPDATE outbox_leases SET {own}".encode())
            assert acting.act_on("try", ids(box), ANN, entry(box)) == set(), own
        box.connection.execute("UPDATE outbox_leases SET locked_until = now() + interval '1 minute'")
        assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box)}

    def test_a_supervised_task_that_waits_for_its_own_retry_is_tried(
        self, box: Box, storage: Store, acting: Acting
    ) -> None:
        box.write()
        hand_over(storage)
        runs = Runs(storage.engine, storage.settings)
        copy = {"text": "[1]", "headers": {}, "content_type": "text/x"}
        assert runs.retry(begun(box, runs, 1), copy, 3600, "OSError", "busy")
        assert box.value("SELECT state FROM outbox_at_work") == "retrying"
        assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box)}
        assert box.where(1) == ["ready"]

    def test_changes_nothing_else(self, box: Box, storage: Store, acting: Acting) -> None:
        """Neither what is new, scheduled, dead or behind, nor what waits behind a dead letter."""
        box.write(2, key="a")
        drained(storage, Receiver(lambda message: Outcome.dead("no", "never")))
        box.write()
        box.write(deliver_at="2099-01-01T00:00:00Z")
        box.write(2, key="b")
        take(storage, {"orders": 1})
        table = "SELECT k::text FROM outbox_keys k UNION ALL SELECT h::text FROM outbox_held h ORDER BY 1"
        before = box.rows(table)
        number = entry(box)
        assert acting.act_on("try", [*ids(box), uuid4()], ANN, number) == set()
        assert (box.rows(table), counted(box, number)) == (before, 0)
        box.check_books()

    def test_behind_a_lease_of_its_key_it_still_waits(self, box: Box, settings: MakeSettings, acting: Acting) -> None:
        """A dead letter that held up nothing was redriven, and is under way again."""
        with closing(skipping(box, settings)) as store:
            box.write(key="a")
            drained(store, Receiver(lambda message: Outcome.dead("no", "never")))
            box.write(key="a")
            for _ in range(2):  # the second time it is taken from behind
                drained(store, BUSY)
                end_waits(box)
            drained(store, BUSY)
            acting.act_on("redrive", ids(box, 1), ANN, entry(box))
            [single] = take(store, {"orders": 9})
            assert acting.act_on("try", ids(box, 2), ANN, entry(box)) == {*ids(box, 2)}
            assert take(store, {"orders": 9}) == []
            message = begin(store, single)
            assert message is not None
            store.leases.settle(single.token, "orders", [Verdict(message, Step.SENT)])
            assert drained(store, Receiver()) == {Step.SENT: 1}
        box.check_books()

    def test_an_act_tries_a_message_once(self, box: Box, storage: Store, acting: Acting) -> None:
        """Also if it fails again meanwhile, and another process goes on with the act."""
        box.write()
        drained(storage, BUSY)
        number = entry(box)
        assert acting.act_on("try", ids(box), ANN, number) == {*ids(box)}
        drained(storage, BUSY)
        assert acting.act_on("try", ids(box), ANN, number) == set()
        assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box)}
        assert box.value("SELECT attempts FROM outbox_trouble") == 2, "the attempts stay"

    def test_skips_what_somebody_else_changes(self, box: Box, storage: Store, acting: Acting) -> None:
        box.write(2)
        box.write(key="a")
        drained(storage, BUSY)
        with psycopg.connect(box.url) as other:
            other.execute(f"SELECT FROM {box.schema}.outbox_waiting WHERE seq = 1 FOR UPDATE".encode())
            other.execute(f"SELECT FROM {box.schema}.outbox_held FOR UPDATE".encode())
            assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box, 2)}
        assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box, 1, 3)}

    def test_a_destination_ends_its_own_pause_but_not_that_of_a_person(self, box: Box, acting: Acting) -> None:
        box.connection.execute(
            "INSERT INTO outbox_destinations (name, opened_at, pause_until) "
            "VALUES ('orders', now(), now() + interval '1 hour')"
        )
        assert acting.ask("traffic/try_now.sql", destination="orders")
        assert box.value("SELECT pause_until <= clock_timestamp() AND opened_at IS NOT NULL FROM outbox_destinations")
        assert not acting.ask("traffic/try_now.sql", destination="orders"), "it is due"
        for own in ("paused_at = now()", "paused_at = NULL, probe = gen_random_uuid()"):
            box.connection.execute(
                f"UPDATE outbox_destinations SET pause_until = now() + interval '1 hour', {own}".encode()
            )
            assert not acting.ask("traffic/try_now.sql", destination="orders"), own


def test_an_act_in_the_background_begins_and_ends_once_and_closes_its_entry(box: Box) -> None:
    nothing = dict.fromkeys(("reason", "target", "pace", "limit", "expected"))
    begin = {"person": "ann", "action": "try", "facts": "{}", "chosen": "{}", "moment": "infinity", "token": uuid4()}
    [[number]] = box.run("act/begin.sql", **begin, **nothing)
    assert box.run("act/begin.sql", **begin, **nothing) == []
    assert [box.run("act/end.sql", entry=number, found="{}") for _ in range(2)] == [[(number,)], []]
    assert box.value("SELECT closed_at IS NOT NULL AND facts ? 'seconds' FROM outbox_audit")
