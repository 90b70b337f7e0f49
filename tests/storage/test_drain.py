"""The relay over the storage, in one process: what is written arrives, and the books balance."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from outbox_tasks.model import Bundle, LeasedMessage, Outcome, Step, Ticket, Verdict
from outbox_tasks.relay.claim import bundled
from outbox_tasks.relay.drain import Drained, drain
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings
from tests.storage.conftest import Box

Answer = Callable[[LeasedMessage], Outcome]


class Receiver:
    """A destination that takes down what it gets, and answers as it is told."""

    def __init__(self, answer: Answer = lambda message: Outcome.sent()) -> None:
        self.answer = answer
        self.got: list[LeasedMessage] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        self.got += messages
        return [self.answer(message) for message in messages]

    def get(self, destination: str) -> Receiver:
        return self


@pytest.fixture
def storage(next_settings: Settings) -> Iterator[Store]:
    made = Store.connect(next_settings)
    yield made
    made.close()


def drained(storage: Store, receiver: Receiver) -> Drained:
    return drain(storage, receiver)  # type: ignore[arg-type]


def test_all_that_was_written_arrives_once(box: Box, storage: Store) -> None:
    box.write(1234)
    receiver = Receiver()
    assert drained(storage, receiver).sent == 1234
    assert len({message.id for message in receiver.got}) == len(receiver.got) == 1234
    assert box.value("SELECT sum(count) FROM outbox_journal WHERE state = 'sent'") == 1234
    assert [box.value(f"SELECT count(*) FROM outbox_{table}") for table in ("ready", "leases", "trouble")] == [0, 0, 0]
    box.check_books()


def test_a_message_arrives_as_it_was_written(box: Box, storage: Store) -> None:
    fields: dict[str, Any] = {"event_type": "a.b", "text": '{"ä": 1}', "content_type": "text/x", "headers": {"h": "v"}}
    box.write(1, **fields, aggregate_type="order", aggregate_id="7")
    receiver = Receiver()
    drained(storage, receiver)
    [message] = receiver.got
    assert (message.event_type, message.payload, message.content_type) == ("a.b", '{"ä": 1}'.encode(), "text/x")
    assert (message.headers, message.aggregate_type, message.aggregate_id) == ({"h": "v"}, "order", "7")
    assert (message.attempts, message.destination, message.key) == (1, "orders", None)


def test_what_an_open_transaction_wrote_is_found_when_it_commits(box: Box, storage: Store) -> None:
    with psycopg.connect(box.url) as early, psycopg.connect(box.url) as later:
        box.write(1, on=early)
        box.write(5, on=later)
        later.commit()
        assert drained(storage, Receiver()).sent == 5
        assert drained(storage, Receiver()).sent == 0
        early.commit()
    assert storage.anything_due()
    assert drained(storage, Receiver()).sent == 1
    assert not storage.anything_due()


def test_a_bundle_that_failed_in_part_is_settled_in_part(box: Box, storage: Store) -> None:
    box.write(6)
    fates = itertools.cycle(
        [
            Outcome.sent(),
            Outcome.retry("busy", "later"),
            Outcome.dead("bad", "never"),
            Outcome.discarded("gone", "no one"),
        ]
    )
    drained(storage, Receiver(lambda message: next(fates)))
    places = sorted(box.where(seq)[0] for seq in range(1, 7))
    assert places == ["dead", "discarded", "sent", "sent", "waiting", "waiting"]
    assert (
        box.rows("SELECT attempts, code, error FROM outbox_trouble WHERE seq IN (SELECT seq FROM outbox_waiting)")
        == [(1, "busy", "later")] * 2
    )
    box.check_books()


def test_a_failed_message_is_sent_again_when_its_wait_is_over(box: Box, storage: Store) -> None:
    box.write(1)
    drained(storage, Receiver(lambda message: Outcome.retry("busy", "later")))
    assert drained(storage, Receiver()).sent == 0
    box.rows("UPDATE outbox_waiting SET due = now() RETURNING 1")
    receiver = Receiver()
    assert drained(storage, receiver).sent == 1
    assert receiver.got[0].attempts == 2
    box.check_books()


def test_a_message_without_attempts_left_is_a_dead_letter(box: Box, storage: Store, next_settings: Settings) -> None:
    box.write(1)
    for _ in range(next_settings.destinations["orders"].max_attempts):
        drained(storage, Receiver(lambda message: Outcome.retry("busy", "later")))
        box.rows("UPDATE outbox_waiting SET due = now() RETURNING 1")
    assert box.where(1) == ["dead"]
    history = box.value("SELECT history FROM outbox_trouble")
    assert [entry["what"] for entry in history][-1] == "dead"


def test_an_outage_spends_no_attempt(box: Box, storage: Store) -> None:
    box.write(1)
    drained(storage, Receiver(lambda message: Outcome.outage("down", "no answer")))
    assert box.rows("SELECT attempts, spared, outages FROM outbox_trouble") == [(1, 1, 1)]
    assert box.where(1) == ["waiting"]


def test_a_lease_that_ran_out_is_claimed_again_with_its_cause(box: Box, storage: Store) -> None:
    box.write(3)
    [bundle] = _claim(storage)
    storage.begin(bundle)
    box.rows("UPDATE outbox_leases SET locked_until = now() RETURNING 1")
    receiver = Receiver()
    assert drained(storage, receiver).sent == 3
    assert {message.attempts for message in receiver.got} == {2}
    causes = {entry["code"] for [history] in box.rows("SELECT history FROM outbox_trouble") for entry in history}
    assert causes == {"unsettled"}
    box.check_books()


def _claim(storage: Store) -> list[Bundle]:
    lease = "00000000-0000-4000-8000-000000000002"
    return storage.claim({"orders": 10}, lease, lambda rows: list(bundled(storage.settings, rows, lease, spread=1)))[1]


def test_a_late_worker_changes_nothing(box: Box, storage: Store, next_settings: Settings) -> None:
    box.write(2)
    [bundle] = _claim(storage)
    begun = storage.begin(bundle)
    box.rows("UPDATE outbox_leases SET locked_until = now() RETURNING 1")
    assert drained(storage, Receiver()).sent == 2
    late = [Verdict(Ticket(message.id, 1, message.event_type), Step.SENT) for message in begun.values()]
    assert storage.settle(bundle.lease, "orders", late) == set()
    assert storage.begin(bundle) == {}
    assert storage.release(bundle.lease, bundle.tickets) == set()
    box.check_books()


@pytest.mark.parametrize("column", ["paused_at", "opened_at"])
def test_nothing_begins_for_a_destination_that_gets_nothing(box: Box, storage: Store, column: str) -> None:
    box.write(2)
    [bundle] = _claim(storage)
    box.rows(f"INSERT INTO outbox_destinations (name, {column}) VALUES ('orders', now()) RETURNING 1")
    assert storage.begin(bundle) == {}
    assert storage.give_back(bundle) == 2
    assert box.where(1) == ["ready"]


def test_so_many_sends_run_at_once_as_there_is_room(box: Box, settings: MakeSettings) -> None:
    destinations = {"orders": {"url": "redis+stream://localhost/x", "concurrency": 2, "bundle_size": 1}}
    storage = Store.connect(settings(database_schema=box.schema, destinations=destinations))
    box.write(3)
    bundles = _claim(storage)
    assert [len(storage.begin(bundle)) for bundle in bundles] == [1, 1, 0]
    assert storage.traffic.slots_for(bundles[2]) == "quick"
    storage.close()


def test_a_scheduled_message_waits(box: Box, storage: Store) -> None:
    box.write(1, delay=3600)
    assert box.where(1) == ["waiting"]
    assert drained(storage, Receiver()).sent == 0
    assert 3500 < (storage.until_next_due(7200) or 0) <= 3600
    box.rows("UPDATE outbox_waiting SET due = now() RETURNING 1")
    assert drained(storage, Receiver()).sent == 1


def test_a_message_that_another_has_leased_is_no_claims_until_the_lease_runs_out(box: Box, storage: Store) -> None:
    box.lease(1)
    assert box.where(1) == ["leases"]
    assert drained(storage, Receiver()).sent == 0
    box.rows("UPDATE outbox_leases SET locked_until = now() RETURNING 1")
    assert drained(storage, Receiver()).sent == 1
    assert box.value("SELECT history -> 0 ->> 'code' FROM outbox_trouble") == "lease_expired"


def test_priorities_share_what_is_taken(box: Box, storage: Store) -> None:
    for priority in ("low", "normal", "high"):
        box.write(100, priority=priority)
    rows, _ = storage.claim({"orders": 100}, "00000000-0000-4000-8000-000000000004", lambda rows: [])
    counts = [sum(row.priority == rank for row in rows) for rank in (1, 0, -1)]
    assert counts == [60, 30, 10]


def test_messages_to_an_unknown_destination_die_after_a_while(box: Box, storage: Store) -> None:
    box.write(1, destination="nowhere")
    assert storage.bury_unroutable() == []
    box.rows("UPDATE outbox_ready SET since = now() - interval '2 hours' RETURNING 1")
    [row] = storage.bury_unroutable()
    assert (row.code, box.where(1)) == ("unknown_destination", ["dead"])
