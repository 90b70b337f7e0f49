"""A destination out of reach: its circuit is open for the whole cluster, one message tries it, no attempt is spent."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import Mock
from uuid import uuid4

import pytest
from sqlalchemy import func, insert, text, update

from outbox_tasks.model import Outcome, Single, Step, Verdict
from outbox_tasks.relay.claim import _probes
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.settle import Listener, settle
from outbox_tasks.relay.store import Store
from tests import claims
from tests.claims import begin, keep_house, take_batch
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.storage.relaying import Receiver

OUT = Outcome.outage("connection", "re\0fused \ud800")


@pytest.fixture
def store(new_store: MakeStore) -> Store:
    return new_store(
        breaker_failures=3,
        breaker_pause=100,
        backoff_base=0.001,
        backoff_cap=0.001,
    )


class Destination(Receiver):
    """Answers each message with this outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(lambda message: outcome)
        self.listener = Mock(spec=Listener)

    @property
    def sent(self) -> list[str]:
        return [message.id for message in self.got]


def claimed(store: Store) -> list[Single]:
    """The singles of one claim."""
    keep_house(store)
    return claims.claimed(store)[0]


def run(store: Store, destination: Destination, singles: Sequence[Single] | None = None) -> list[Step | None]:
    """What the relay does, once. None: a single was given back."""
    steps: list[Step | None] = []
    for single in claimed(store) if singles is None else singles:
        name = single.destination
        published = publish(store, {name: destination}, name, single.token, destination.listener)
        steps.append(published.verdict.step if published else None)
    return steps


def state(store: Store) -> str:
    found = [row.state for row in store.traffic.states()]
    return str(found[0]) if found else "closed"


def elapse(rows: Rows) -> None:
    """The pause is over, and so is every wait of a message."""
    with rows.engine.begin() as connection:
        connection.execute(update(rows.tables.destinations).values(pause_until=seconds_from_now(-1)))
    due(rows)


def due(rows: Rows) -> None:
    rows.change(locked_until=seconds_from_now(-1))


def open_it(store: Store, rows: Rows) -> None:
    """At least three sends in a row that fail, of three messages or more."""
    for _ in range(3):
        due(rows)
        run(store, Destination(OUT))
    assert state(store) == "open"
    due(rows)


class TestOpening:
    def test_needs_as_many_failures_in_a_row_as_the_setting_says(self, store: Store, rows: Rows) -> None:
        for expected in ("closed", "closed", "open"):
            rows.insert(1, attempts=1, last_error_code="busy")  # an error, but no outage
            destination = Destination(OUT)
            assert {*run(store, destination)} - {None} == {Step.OUTAGE}
            assert state(store) == expected
            assert destination.listener.circuit_opened.called is (expected == "open")
        due(rows)
        assert claimed(store) == []

    def test_one_message_that_fails_again_and_again_does_not_open_it(self, new_store: MakeStore, rows: Rows) -> None:
        """Its repetitions say nothing about the destination. While it hears of no other answer, they say nothing about
        the message either: each is counted, and none is spent."""
        destinations = {"orders": {"url": "a://b", "max_attempts": 4}}
        store = new_store(breaker_failures=3, backoff_base=0.001, backoff_cap=0.001, destinations=destinations)
        [id] = rows.insert(1)
        for _ in range(9):
            due(rows)
            assert run(store, Destination(OUT)) == [Step.OUTAGE]
        assert state(store) == "closed"
        assert (rows.one(id).attempts, rows.state(id)) == (9, "retrying")
        due(rows)
        assert run(store, Destination(Outcome.sent())) == [Step.SENT]
        assert [row.attempts for row in rows.archived()] == [10]

    @pytest.mark.parametrize("answer", [Outcome.sent(), Outcome.dead("no", "no"), Outcome.retry("busy", "later")])
    def test_an_answer_in_between_begins_the_count_anew(self, store: Store, rows: Rows, answer: Outcome) -> None:
        rows.insert(3)
        for outcome in (OUT, OUT, answer, OUT, OUT):
            due(rows)
            run(store, Destination(outcome), claimed(store)[:1])
        assert state(store) == "closed"

    def test_after_an_answer_different_messages_are_counted_anew(self, store: Store, rows: Rows) -> None:
        for outcome in (OUT, OUT, Outcome.sent()):
            rows.insert(1)
            run(store, Destination(outcome))
        rows.clear_work()
        rows.insert(1)
        for _ in range(3):
            due(rows)
            run(store, Destination(OUT))
        assert state(store) == "closed"

    def test_a_message_that_was_not_sent_says_nothing(self, store: Store, rows: Rows) -> None:
        rows.insert(1)
        run(store, Destination(OUT))
        rows.clear_work()
        rows.insert(1)
        [single] = claimed(store)
        message = begin(store, single)
        assert message
        settle(
            store,
            single.token,
            "orders",
            [Verdict(message, Step.DISCARDED, 0, "superseded", "newer", sent=False)],
            Listener(),
            0.0,
        )
        assert [row.failures for row in store.traffic.states()] == [1]

    def test_sends_from_before_do_not_prolong_the_pause(self, store: Store, rows: Rows) -> None:
        rows.insert(4)
        *first, late = claimed(store)
        message = begin(store, late)
        assert message
        run(store, Destination(OUT), first)
        [before] = store.traffic.states()
        settle(store, late.token, "orders", [Verdict(message, Step.OUTAGE, 1, "connection", "late")], Listener(), 0.0)
        [after] = store.traffic.states()
        assert before.state == "open"
        assert (before.failures, before.pause_until) == (after.failures, after.pause_until)


class TestWhileItIsOpen:
    def test_queued_singles_are_given_back_and_not_sent(self, store: Store, rows: Rows) -> None:
        rows.insert(20)
        singles = claimed(store)
        for _ in range(3):
            store.traffic.tripped("orders", str(uuid4()), "connection", "refused")
        destination = Destination(Outcome.sent())
        assert {*run(store, destination, singles)} == {None}
        assert destination.sent == []
        assert not take_batch(store)
        assert {(row.lease, row.attempts, row.begun) for row in rows.hot()} == {(None, 0, False)}
        assert {rows.state(row.id) for row in rows.hot()} == {"pending"}


class TestTrying:
    def test_after_the_pause_one_message_probes_and_closes_it(self, store: Store, rows: Rows) -> None:
        rows.insert(25)
        for left in (25, 25):  # and so it does the second time
            open_it(store, rows)
            elapse(rows)
            keep_house(store)
            rows.insert(1)  # it has never failed, so it is the first to try
            assert len(claimed(store)) == 1  # and its worker dies
            elapse(rows)
            [single] = claimed(store)
            assert state(store) == "trying"
            store.traffic.untried("orders", str(uuid4()))  # another claim had the right to try, long ago
            assert store.ask("traffic/try_now.sql", destination="orders") == []
            assert claimed(store) == []
            assert run(store, Destination(Outcome.sent()), [single]) == [Step.SENT]
            assert state(store) == "closed"
            due(rows)
            assert len(rows.hot()) == left
        assert len(claimed(store)) == 25

    def test_of_two_claims_that_see_a_pause_end_one_sends_a_probe(self, store: Store, rows: Rows) -> None:
        rows.insert(25)
        open_it(store, rows)
        elapse(rows)
        [due] = store.claims.due(1)
        assert [len(_probes(store, [due])) for _ in range(2)] == [1, 0]

    def test_one_claim_probes_each_destination_whose_circuit_is_open(self, new_store: MakeStore, rows: Rows) -> None:
        names = ("copies", "mails", "orders")
        store = new_store(destinations={name: {"url": "a://b"} for name in names})
        for name in names[1:]:
            rows.insert(5, destination=name)
        rows.insert(1, destination="copies", attempts=1, last_error_code="unsettled")  # it travels alone
        opened = [{"name": name, "failures": 9, "opened_at": func.now(), "pause_until": func.now()} for name in names]
        with rows.engine.begin() as connection:
            for row in opened:
                connection.execute(insert(rows.tables.destinations).values(row))
        singles = claimed(store)
        assert sorted(single.destination for single in singles) == [*names]
        assert len({single.token for single in singles}) == 3
        assert claimed(store) == []
        assert run(store, Destination(Outcome.sent()), singles) == [Step.SENT] * 3
        assert {row.state for row in store.traffic.states()} == {"closed"}

    def test_three_tries_that_fail_double_the_pause_up_to_the_longest(self, store: Store, rows: Rows) -> None:
        rows.insert(1)
        for _ in range(2):  # of one message, so the circuit opens after five failures, not three
            due(rows)
            run(store, Destination(OUT))
        rows.insert(2)
        open_it(store, rows)
        pauses = []
        for _ in range(6):
            [row] = store.traffic.states()
            pauses.append(round((row.pause_until - row.failed_at).total_seconds()))
            elapse(rows)
            assert [len(run(store, Destination(OUT))) for _ in range(4)] == [1, 1, 1, 0]
            assert state(store) == "open"
        assert pauses == [100, 200, 400, 800, 1200, 1200]

    @pytest.mark.parametrize("keyed", [False, True])
    def test_messages_that_have_never_failed_try_first(self, store: Store, rows: Rows, keyed: bool) -> None:
        for n in range(3):
            rows.insert(1, key=f"old {n}" if keyed else None)
        open_it(store, rows)
        elapse(rows)
        new = [*rows.insert(1, key="a" if keyed else None), *rows.insert(1, key="b" if keyed else None)]
        destination = Destination(OUT)
        for _ in range(3):
            assert len(run(store, destination)) == 1
        assert destination.sent[:2] == new
        assert len({*destination.sent}) == 3
        assert claimed(store) == []

    @pytest.mark.parametrize("seems_due", [False, True])
    def test_if_nothing_is_due_the_next_message_may_probe_at_once(
        self, store: Store, rows: Rows, seems_due: bool
    ) -> None:
        rows.insert(3)
        open_it(store, rows)
        rows.change(locked_until=seconds_from_now(1000))
        with rows.engine.begin() as connection:
            connection.execute(update(rows.tables.destinations).values(pause_until=seconds_from_now(-1)))
            if seems_due:  # a key became free of which nothing is left
                schema = store.settings.database_schema
                connection.execute(text(f"INSERT INTO {schema}.outbox_keys (destination, key) VALUES ('orders', 'a')"))
        assert claimed(store) == []
        rows.insert(1)
        assert len(claimed(store)) == 1
