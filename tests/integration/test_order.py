"""Messages that share a key: one after the other, whatever fails, whoever overlaps; and no key waits for another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from outbox_tasks.errors import TransientError
from outbox_tasks.model import Bundle, LeasedMessage, Outcome, Step, Ticket, Verdict
from outbox_tasks.operating import overview
from outbox_tasks.relay.claim import claim
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.store import Store
from tests.claims import take
from tests.conftest import MakeStore, Rows, seconds_from_now


@pytest.fixture
def store(new_store: MakeStore) -> Store:
    return new_store(bundle_size=20, backoff_base=100)


class Destination:
    """Answers each event type as it is told, and remembers what it was sent."""

    def __init__(self, **answers: Outcome) -> None:
        self.answers = answers
        self.sent: list[str] = []
        self.calls: list[list[str]] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        outcomes = [self.answers.get(message.event_type, Outcome.sent()) for message in messages]
        self.calls.append([message.id for message in messages])
        self.sent += [m.id for m, o in zip(messages, outcomes, strict=True) if o == Outcome.sent()]
        return outcomes

    def close(self) -> None:
        """Nothing is open."""


def claimed(store: Store) -> list[Bundle]:
    bundles: list[Bundle] = []
    claim(store, bundles.extend, lambda: 0)
    return bundles


def ids(bundles: Sequence[Bundle]) -> list[str]:
    return [ticket.id for bundle in bundles for ticket in bundle.tickets]


def run(store: Store, destination: Destination, bundles: Sequence[Bundle] | None = None) -> dict[str, Step]:
    verdicts: list[Verdict] = []
    for bundle in claimed(store) if bundles is None else bundles:
        verdicts += deliver(store, {bundle.destination: destination}, bundle)
    return {verdict.ticket.id: verdict.step for verdict in verdicts}


def write(connection: Connection, rows: Rows, key: str | None, **columns: object) -> str:
    """Write one message in the connection's transaction."""
    id = str(columns.pop("id", None) or uuid4())
    row = {"id": id, "event_type": "order.created", "destination": "orders", "content_type": "application/json",
           "text": "{}", "key": key, **columns}  # fmt: skip
    said = json.dumps([{name: value for name, value in row.items() if value is not None}])
    call = f"SELECT {rows.tables.messages.schema}.outbox_write(CAST(:row AS json))"
    connection.execute(text(call), {"row": said})
    return id


Two = tuple[Connection, Connection]


@pytest.fixture
def two(engine: Engine) -> Iterator[Two]:
    """Two transactions of the application at the same time."""
    with ExitStack() as stack:
        yield stack.enter_context(engine.connect()), stack.enter_context(engine.connect())


class TestOneKey:
    def test_messages_of_a_key_travel_together_in_order(self, store: Store, rows: Rows) -> None:
        written = rows.insert(15, key="a")
        [bundle] = claimed(store)
        assert ids([bundle]) == written
        destination = Destination()
        run(store, destination, [bundle])
        assert destination.calls == [[id] for id in written]

    def test_a_second_bundle_of_a_key_waits_for_the_first(self, store: Store, rows: Rows) -> None:
        written = rows.insert(120, key="a")
        first = claimed(store)
        assert ids(first) == written[:100]  # a Redis Stream takes five bundles of 20 at once
        assert claimed(store) == []
        assert [bundle.more for bundle in first] == [True]  # whoever ends it wakes the claim
        run(store, Destination(), first)
        assert ids(claimed(store)) == written[100:]

    @pytest.mark.parametrize(
        "answer", [Outcome.retry("busy", "later"), Outcome.outage("away", "gone"), Outcome.dead("no", "no")]
    )
    def test_the_first_failure_stops_a_key_and_the_rest_loses_no_attempt(
        self, store: Store, rows: Rows, answer: Outcome
    ) -> None:
        before = rows.insert(2, key="a")
        [bad] = rows.insert(1, key="a", event_type="bad")
        after = rows.insert(3, key="a")
        destination = Destination(bad=answer)
        steps = run(store, destination)
        assert destination.sent == before
        assert [steps[id] for id in after] == [Step.BEHIND] * 3
        assert {(row.attempts, row.begun, row.lease, row.last_error_code) for row in map(rows.one, after)} == {
            (0, False, None, None)
        }
        assert claimed(store) == []
        if answer.result != "dead":
            rows.change([bad], event_type="good", locked_until=seconds_from_now(-1))
            run(store, destination)
            assert destination.sent == [*before, bad, *after]

    def test_no_message_behind_a_failed_one_is_retried_by_itself(self, store: Store, rows: Rows) -> None:
        """Not even if the publisher keeps the order itself, and one exception holds for all messages."""

        class KeepsOrder(Destination):
            keeps_order = True

            def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
                raise TransientError("later", code="busy")

        written = rows.insert(3, key="a")
        steps = run(store, KeepsOrder())
        assert [steps[id] for id in written] == [steps[written[0]], Step.RELEASE, Step.RELEASE]

    def test_with_skip_the_others_pass_a_dead_head(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations={"orders": {"url": "a://b", "on_dead": "skip"}})
        [bad] = rows.insert(1, key="a", event_type="bad")
        after = rows.insert(2, key="a")
        destination = Destination(bad=Outcome.dead("no", "no"))
        assert list(run(store, destination).values()) == [Step.DEAD, Step.SENT, Step.SENT]
        assert destination.sent == after
        more = rows.insert(2, key="a")
        run(store, destination)
        assert destination.sent == after + more
        assert rows.one(bad).status == "dead"

    def test_a_message_that_may_have_killed_its_worker_travels_alone(self, store: Store, rows: Rows) -> None:
        [first, second, third] = rows.insert(3, key="a")
        rows.change([second], last_error_code="unsettled", attempts=1)
        destination = Destination()
        assert [ids([bundle]) for bundle in claimed(store)] == [[first]]
        rows.change(locked_until=seconds_from_now(-1), lease=None)
        run(store, destination)
        alone = claimed(store)
        assert [ids([bundle]) for bundle in alone] == [[second]]
        run(store, destination, alone)
        run(store, destination)
        assert destination.sent == [first, second, third]

    @pytest.mark.parametrize("gone", [[0], [1], [0, 1, 2]])
    def test_a_message_behind_one_that_was_not_begun_is_not_sent(
        self, store: Store, rows: Rows, gone: list[int]
    ) -> None:
        """Its lease ran out a moment before theirs; or a claim gave it back while the bundle was on its way."""
        written = rows.insert(4, key="a")
        [bundle] = claimed(store)
        lost = [written[n] for n in gone]
        rows.change(lost, locked_until=seconds_from_now(-1))
        destination = Destination()
        steps = run(store, destination, [bundle])
        assert destination.sent == written[: gone[0]]
        assert {steps[id] for id in written[max(gone) + 1 :]} == {Step.BEHIND}
        left = [row for row in rows.hot() if str(row.id) not in lost]
        assert [(row.attempts, row.lease, row.begun) for row in left] == [(0, None, False)] * len(left)
        while rows.hot():
            run(store, destination)
        assert destination.sent == written

    def test_a_bundle_of_which_nothing_was_sent_does_not_close_the_breaker(self, store: Store, rows: Rows) -> None:
        written = rows.insert(2, key="a")
        [bundle] = claimed(store)
        rows.change(written[:1], locked_until=seconds_from_now(-1))
        store.traffic.tripped("orders", bundle.lease, "away", "gone")
        run(store, Destination(), [bundle])
        assert [state.failures for state in store.traffic.states()] == [1]

    def test_a_message_without_a_key_is_sent_though_others_were_not_begun(self, store: Store, rows: Rows) -> None:
        written = rows.insert(5)
        bundle = Bundle("orders", str(uuid4()), tuple(Ticket(id, 0, "order.created") for id in written))
        take(store, {"orders": 5}, bundle.lease)
        rows.change(written[:2], locked_until=seconds_from_now(-1))
        run(store, destination := Destination(), [bundle])
        assert destination.sent == written[2:]

    def test_all_leases_of_a_run_end_at_the_same_time_on_a_slow_server(
        self, store: Store, rows: Rows, engine: Engine, schema: str
    ) -> None:
        rows.insert(5, key="a")
        rows.insert(5)
        with engine.begin() as connection:
            connection.execute(
                text(
                    f"CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                    f"PERFORM pg_sleep(0.01); RETURN NEW; END $$; CREATE TRIGGER slow BEFORE UPDATE ON "
                    f"{schema}.outbox_messages FOR EACH ROW EXECUTE FUNCTION {schema}.slow()"
                )
            )
        claimed(store)
        assert len({row.locked_until for row in rows.hot() if row.key}) == 1
        assert len({row.locked_until for row in rows.hot() if not row.key}) == 1

    def test_messages_of_different_priorities_travel_together(self, store: Store, rows: Rows) -> None:
        written = [*rows.insert(key="a", priority=-1), *rows.insert(key="a", priority=1), *rows.insert(key="a")]
        [bundle] = claimed(store)
        assert ids([bundle]) == written

    def test_a_key_belongs_to_one_destination(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations={name: {"url": "a://b"} for name in ("orders", "mails")})
        rows.insert(1, key="a", locked_until=seconds_from_now(100))
        other = rows.insert(1, key="a", destination="mails")
        assert ids(claimed(store)) == other


class TestManyKeys:
    def test_keys_are_sent_in_waves(self, store: Store, rows: Rows) -> None:
        written = {key: rows.insert(3, key=key) for key in "abc"}
        free = rows.insert(2)
        destination = Destination()
        lease = str(uuid4())
        take(store, {"orders": 100}, lease)
        tickets = tuple(Ticket(str(row.id), row.attempts, row.event_type) for row in rows.hot())
        bundle = Bundle("orders", lease, tickets)
        run(store, destination, [bundle])
        waves = [[written[key][n] for key in "abc"] for n in range(3)]
        assert [sorted(call) for call in destination.calls] == [sorted(waves[0] + free), *map(sorted, waves[1:])]

    def test_all_keys_are_reached_however_many_are_blocked(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(max_in_flight=10, bundle_size=5)
        rows.insert(60, key=text("'blocked ' || generate_series"), locked_until=seconds_from_now(100))
        [last] = rows.insert(1, key="z")
        assert ids(claimed(store)) == [last]

    def test_a_claim_that_begins_in_the_middle_of_the_keys_looks_at_the_first_ones_too(
        self, new_store: MakeStore, rows: Rows
    ) -> None:
        store = new_store()
        written = {key: rows.insert(1, key=key) for key in "abc"}
        assert [row.key for row in take(store, {"orders": 1}, str(uuid4()))] == ["a"]  # the next one begins behind it
        written["A"] = rows.insert(1, key="A")
        rest = [id for key in "Abc" for id in written[key]]
        assert sorted(ids(claimed(store))) == sorted(rest)


class TestOverlappingWriters:
    def test_a_writer_that_rolls_back_is_not_waited_for(self, store: Store, rows: Rows, two: Two) -> None:
        one, other = two
        write(one, rows, "a")
        second = write(other, rows, "a")
        other.commit()
        one.rollback()
        assert ids(claimed(store)) == [second]

    def test_a_savepoint_that_is_rolled_back_is_not_waited_for(self, store: Store, rows: Rows, two: Two) -> None:
        one, other = two
        one.begin()
        savepoint = one.begin_nested()
        write(one, rows, "a")
        savepoint.rollback()
        second = write(other, rows, "a")
        other.commit()
        assert ids(claimed(store)) == [second]
        third = write(one, rows, "a")
        one.commit()
        run(store, destination := Destination())
        assert destination.sent == []  # the second is under way
        rows.change(locked_until=seconds_from_now(-1), lease=None)
        run(store, destination)
        assert destination.sent == [second, third]

    def test_an_exception_block_is_such_a_savepoint(self, store: Store, rows: Rows, two: Two, schema: str) -> None:
        """In functions and triggers: what it undoes is not waited for, what it keeps is."""
        one, other = two
        publish = f"PERFORM {schema}.outbox_publish('a', '{{}}'::text, key => 'a', destination => 'orders')"
        kept, undone = (
            f"BEGIN {publish}; {fails} EXCEPTION WHEN raise_exception THEN NULL; END;" for fails in ("", "RAISE 'no';")
        )
        one.exec_driver_sql(f"DO $$ BEGIN {undone} END $$")
        second = write(other, rows, "a")
        other.commit()
        assert ids(claimed(store)) == [second]
        rows.change(locked_until=seconds_from_now(-1), lease=None)
        one.exec_driver_sql(f"DO $$ BEGIN {kept} {undone} END $$")
        fourth = write(other, rows, "a")
        other.commit()
        run(store, destination := Destination())
        assert destination.sent == [second]
        one.commit()
        while rows.hot():
            run(store, destination)
        assert len(destination.sent) == 3
        assert (destination.sent[0], destination.sent[2]) == (second, fourth)

    def test_other_keys_and_messages_without_a_key_go_on(self, store: Store, rows: Rows, two: Two) -> None:
        one, other = two
        write(one, rows, "a")
        free = [write(other, rows, "b"), write(other, rows, None)]
        other.commit()
        assert sorted(ids(claimed(store))) == sorted(free)
        one.rollback()

    def test_messages_that_were_committed_before_go_on(self, store: Store, rows: Rows, two: Two) -> None:
        one, _ = two
        before = rows.insert(2, key="a")
        write(one, rows, "a")
        assert ids(claimed(store)) == before
        one.rollback()

    @pytest.mark.parametrize(("keys", "go"), [(40, 0), (32, 1)], ids=["all keys", "its few keys only"])
    def test_a_writer_of_many_messages_holds_up(self, store: Store, rows: Rows, two: Two, keys: int, go: int) -> None:
        """A transaction of many keys has one mark for all of them, and not one each."""
        one, other = two
        for n in range(100):
            write(one, rows, f"key {n % keys}")
        write(other, rows, f"key {keys - 1}")
        free = [write(other, rows, "another")]
        other.commit()
        assert ids(claimed(store)) == free[:go]
        one.commit()
        assert len(ids(claimed(store))) >= keys

    def test_writers_of_keys_in_any_order_never_wait_for_each_other(self, rows: Rows, two: Two) -> None:
        one, other = two
        keys = [str(n) for n in range(50)]
        for here, there in zip(keys, reversed(keys), strict=True):
            write(one, rows, here)
            write(other, rows, there)
        one.commit()
        other.commit()
        assert len(rows.hot()) == 100

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_a_prepared_transaction_is_waited_for_too(self, store: Store, rows: Rows, engine: Engine, end: str) -> None:
        with engine.connect() as one:
            if one.exec_driver_sql("SHOW max_prepared_transactions").scalar_one() == "0":
                pytest.skip("this PostgreSQL takes no prepared transactions")
            one.rollback()
            two_phase = one.begin_twophase()
            first = write(one, rows, "a")
            two_phase.prepare()
            second = rows.insert(1, key="a")
            assert claimed(store) == []
            getattr(two_phase, end)()
        assert ids(claimed(store)) == ([first, *second] if end == "commit" else second)


class TestPriority:
    def test_the_others_get_what_one_priority_does_not_need(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store()
        rows.insert(5, priority=1)
        rows.insert(100, priority=-1)
        taken = [row.priority for row in take(store, {"orders": 50}, str(uuid4()))]
        assert (taken.count(1), taken.count(-1)) == (5, 45)

    def test_a_higher_priority_goes_first_in_the_queue(self, store: Store, rows: Rows) -> None:
        for priority in (-1, 0, 1):
            rows.insert(100, priority=priority)
        with rows.engine.connect() as connection:
            m = rows.tables.messages
            of = {str(id): n for id, n in connection.execute(m.select().with_only_columns(m.c.id, m.c.priority)).all()}
        lanes = {of[bundle.tickets[0].id]: bundle.lane for bundle in claimed(store)}
        assert lanes[1] < lanes[0] < lanes[-1]


class TestLatest:
    """Of state-like events only the newest matters: what has failed is not tried again once there is a newer one."""

    @pytest.fixture
    def failed(self, store: Store, rows: Rows) -> str:
        [id] = rows.insert(1, key="a", event_type="bad", latest=True)
        assert list(run(store, Destination(bad=Outcome.retry("busy", "later"))).values()) == [Step.RELEASE]
        rows.change(locked_until=seconds_from_now(-1))
        return id

    def test_a_retry_is_discarded_for_a_newer_one(self, store: Store, rows: Rows, failed: str) -> None:
        newer = rows.insert(2, key="a", latest=True)
        run(store, destination := Destination())
        assert destination.sent == newer
        assert {(str(row.id), row.state, row.last_error_code) for row in rows.archived()} == {
            (failed, "discarded", "superseded"), (newer[0], "sent", None), (newer[1], "sent", None),
        }  # fmt: skip

    def test_the_newest_is_tried_again(self, store: Store, rows: Rows, failed: str) -> None:
        rows.insert(1, key="b", latest=True)
        run(store, destination := Destination())
        assert failed in destination.sent

    def test_a_dead_newer_one_replaces_nothing(self, store: Store, rows: Rows, failed: str) -> None:
        rows.insert(1, key="a", latest=True, status="dead")
        run(store, destination := Destination())
        assert destination.sent == [failed]

    def test_one_that_is_not_due_yet_replaces_nothing(self, store: Store, rows: Rows, failed: str) -> None:
        """It may be cancelled: then neither would arrive."""
        rows.insert(1, key="a", latest=True, locked_until=seconds_from_now(86400 * 365))
        rows.change([failed], locked_until=seconds_from_now(-1))
        destination = Destination()
        assert run(store, destination) == {failed: Step.SENT}
        assert destination.sent == [failed]

    def test_messages_that_have_not_failed_are_all_sent(self, store: Store, rows: Rows) -> None:
        written = rows.insert(3, key="a", latest=True)
        run(store, destination := Destination())
        assert destination.sent == written

    def test_without_it_every_retry_is_made(self, store: Store, rows: Rows) -> None:
        [id] = rows.insert(1, key="a", event_type="bad", attempts=1)
        newer = rows.insert(1, key="a")
        run(store, destination := Destination())
        assert destination.sent == [id, *newer]


class TestBlocked:
    def test_lists_who_blocks_whom_if_anything_waits_for_it(self, store: Store, rows: Rows) -> None:
        [dead] = rows.insert(1, key="a", status="dead", dead_at=seconds_from_now(-60), last_error_code="no")
        rows.insert(1, key="a", status="dead", dead_at=seconds_from_now(-50))
        rows.insert(1, key="b")
        rows.insert(1, status="dead", dead_at=seconds_from_now(-10))
        assert (overview.blocked_keys(store, 10), overview.count_blocked_keys(store, 10)) == ([], 0)
        rows.insert(3, key="a")
        [found] = overview.blocked_keys(store, 10)
        assert (found.destination, found.key, found.id, found.waiting) == ("orders", "a", dead, 3)
        assert (found.last_error_code, overview.count_blocked_keys(store, 10)) == ("no", 1)

    def test_lists_only_destinations_where_dead_messages_block(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations={"orders": {"url": "a://b", "on_dead": "skip"}})
        rows.insert(1, key="a", status="dead", dead_at=seconds_from_now(-60))
        assert overview.blocked_keys(store, 10) == []


def test_a_run_of_large_messages_is_cut_and_goes_on_where_it_was_cut(new_store: MakeStore, rows: Rows) -> None:
    store = new_store(destinations={"orders": {"url": "a://b", "max_bytes": 8 << 20}})
    mib = b"x" * 1024 * 1024
    ids_of_key = rows.insert(6, key="order:1", payload=mib) + rows.insert(1, key="order:1")
    [large] = rows.insert(1, key="order:2", payload=mib * 5)
    rest = rows.insert(2, key="order:2")
    bundles = claimed(store)
    assert sorted(ids([bundle]) for bundle in bundles) == sorted([ids_of_key[:4], [large]])
    destination = Destination()
    run(store, destination, bundles)
    run(store, destination)
    assert [id for id in destination.sent if id in ids_of_key] == ids_of_key
    assert [id for id in destination.sent if id not in ids_of_key] == [large, *rest]
