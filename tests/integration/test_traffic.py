"""What one destination may take of the cluster: sends at once, messages a second, places in the queue; and how long a
message is worth delivering."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from uuid import uuid4

import pytest
from sqlalchemy import func, select, text, update

from outbox_tasks.model import Bundle, LeasedMessage, Outcome, Step, Ticket
from outbox_tasks.relay.claim import claim
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.send import begin_and_send
from outbox_tasks.relay.settle import NATIVE_RETRIES, settle
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.processes import holder
from outbox_tasks.relay.store.traffic import SEEN, Share
from outbox_tasks.settings import SLOW
from tests.claims import take
from tests.conftest import MakeStore, Rows, seconds_from_now

TWO = {name: {"url": "a://b"} for name in ("orders", "mails")}


class Destination:
    """Answers as it is told, perhaps only when it is let."""

    def __init__(self, outcome: Outcome | None = None, gate: threading.Event | None = None) -> None:
        self.outcome = outcome or Outcome.sent()
        self.gate = gate
        self.sent: list[str] = []
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        if self.gate is not None:
            assert self.gate.wait(10)
        with self._lock:
            self.at_once -= 1
            self.sent += [message.id for message in messages]
        return [self.outcome] * len(messages)

    def close(self) -> None:
        """Nothing is open."""


def claimed(store: Store, waiting: int = 0) -> list[Bundle]:
    """The bundles of one run of the claim."""
    bundles: list[Bundle] = []
    claim(store, bundles.extend, lambda: waiting if not bundles else store.settings.max_in_flight * 3)
    return bundles


def run(store: Store, destination: Destination, bundle: Bundle) -> list[Step]:
    outcomes = begin_and_send(store, {bundle.destination: destination}, bundle)
    return [verdict.step for verdict in settle(store, bundle, outcomes)]


def processes(rows: Rows, count: int) -> None:
    """So many others publish as well."""
    p = rows.tables.publishers
    with rows.engine.begin() as connection:
        for n in range(count):
            connection.execute(p.insert().values(holder=f"other:{n}", seen_at=func.now()))


def backdate(rows: Rows, seconds: float) -> None:
    """The sends under way have taken so much longer."""
    change(rows, f"begun_at = begun_at - {seconds} * interval '1 second'")


def change(rows: Rows, how: str) -> None:
    with rows.engine.begin() as connection:
        connection.execute(
            text(f"UPDATE {rows.tables.messages.schema}.outbox_leases SET {how} WHERE begun_at IS NOT NULL")
        )


def held(rows: Rows) -> list[str]:
    """The destinations of the sends that run, a name for each."""
    leases = f"{rows.tables.messages.schema}.outbox_leases"
    with rows.engine.connect() as connection:
        return [*connection.scalars(text(f"SELECT destination FROM {leases} WHERE begun_at IS NOT NULL"))]


class TestSlots:
    def test_a_destination_never_holds_all_processes(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations=TWO, bundle_size=1)
        processes(rows, 2)  # and we are the third
        rows.insert(6)
        gate = threading.Event()
        destination = Destination(gate=gate)
        threads = [threading.Thread(target=run, args=(store, destination, bundle)) for bundle in claimed(store)]
        for thread in threads:
            thread.start()
        while len(held(rows)) < 2 or sum(thread.is_alive() for thread in threads) > 2:
            time.sleep(0.005)  # the others give their message back, and are free
        rows.insert(1, destination="mails")
        [mail] = [bundle for bundle in claimed(store) if bundle.destination == "mails"]
        assert run(store, Destination(), mail) == [Step.SENT]
        gate.set()
        for thread in threads:
            thread.join()
        assert destination.most == 2
        assert held(rows) == []

    def test_no_message_waits_until_the_processes_are_counted(
        self, new_store: MakeStore, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = new_store(destinations=TWO, bundle_size=1)
        rows.insert(2)
        first, second = claimed(store)
        deliver(store, {"orders": Destination()}, first)
        monkeypatch.setattr("outbox_tasks.relay.store.traffic.COUNT_EVERY", 0.0)
        processes(rows, 2)
        assert store.traffic.rooms(publishing=True)["orders"] == 1  # as when it was alone
        deliver(store, {"orders": Destination()}, second)
        assert store.traffic.rooms(publishing=True)["orders"] == 2

    @pytest.mark.parametrize("outcome", [Outcome.sent(), Outcome.dead("no", "no"), Outcome.outage("away", "gone")])
    def test_each_end_of_a_send_frees_its_slot(self, new_store: MakeStore, rows: Rows, outcome: Outcome) -> None:
        store = new_store(destinations=TWO)
        rows.insert(1)
        run(store, Destination(outcome), *claimed(store))
        assert held(rows) == []

    def test_any_number_of_workers_keeps_to_the_concurrency(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations={"orders": {"url": "a://b", "concurrency": 3, "bundle_size": 1}})
        processes(rows, 20)
        ids = rows.insert(60)
        destination = Destination()

        def work() -> None:
            while rows.hot():
                for bundle in claimed(store):
                    run(store, destination, bundle)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert destination.most <= 3
        assert Counter(destination.sent) == Counter(ids)

    def test_a_bundle_without_a_slot_is_released_and_due_a_little_later(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations=TWO, bundle_size=1)
        rows.insert(2)
        first, second = claimed(store)
        assert store.begin(first)
        backdate(rows, SLOW)
        assert run(store, Destination(), second) == [Step.STALE]
        row = rows.one(second.tickets[0].id)
        assert (row.lease, row.attempts, row.begun, row.last_error_code) == (None, 0, False, None)
        assert rows.state(row.id) == "scheduled"

    def test_nothing_is_claimed_while_slow_sends_hold_all_slots(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations=TWO, bundle_size=1)
        rows.insert(5)
        rows.insert(1, destination="mails")
        bundles = claimed(store)
        assert store.begin(next(bundle for bundle in bundles if bundle.destination == "orders"))
        backdate(rows, SLOW)
        rows.insert(5)
        rows.insert(1, destination="mails")
        assert {bundle.destination for bundle in claimed(store)} == {"mails"}

    def test_the_slots_of_a_dead_process_of_this_host_are_free_at_once(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations=TWO, bundle_size=1)
        rows.insert(2)
        first, second = claimed(store)
        assert store.begin(first)
        backdate(rows, SLOW)
        gone = f"{holder().rpartition(':')[0]}:{2**22 + 1}"  # no process has such an id
        change(rows, f"holder = '{gone}'")
        assert run(store, Destination(), second) == [Step.SENT]

    @pytest.mark.parametrize("space", ["/000000", ""])
    def test_a_process_in_another_container_with_our_hostname_keeps_its_slots(
        self, new_store: MakeStore, rows: Rows, space: str
    ) -> None:
        """Its number may be no process here, and yet it is at work."""
        store = new_store(destinations=TWO, bundle_size=1)
        rows.insert(2)
        first, second = claimed(store)
        assert store.begin(first)
        backdate(rows, SLOW)
        elsewhere = f"{holder().partition('/')[0]}{space}:{2**22 + 1}"
        change(rows, f"holder = '{elsewhere}'")
        assert run(store, Destination(), second) == [Step.STALE]

    def test_the_slots_of_a_process_elsewhere_are_free_when_their_time_is_over(
        self, new_store: MakeStore, rows: Rows
    ) -> None:
        store = new_store(destinations=TWO, bundle_size=1)
        rows.insert(2)
        first, second = claimed(store)
        assert store.begin(first)
        change(rows, "holder = 'elsewhere:1', locked_until = now() - interval '1 second'")
        assert run(store, Destination(), second) == [Step.SENT]

    def test_a_process_that_ends_is_not_counted(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations=TWO)
        rows.insert(1)
        run(store, Destination(), *claimed(store))
        assert store.ask("traffic/publishers.sql", recent=SEEN)[0].count == 1
        store.close()
        assert store.ask("traffic/publishers.sql", recent=SEEN)[0].count == 0

    def test_old_processes_are_removed(self, store: Store, rows: Rows) -> None:
        processes(rows, 3)
        p = rows.tables.publishers
        with rows.engine.begin() as connection:
            connection.execute(update(p).where(p.c.holder != "other:0").values(seen_at=seconds_from_now(-90_000)))
        assert store.traffic.forget_publishers() == 2
        assert store.ask("traffic/publishers.sql", recent=SEEN)[0].count == 1


class TestRate:
    @pytest.fixture
    def store(self, new_store: MakeStore) -> Store:
        return new_store(destinations={"orders": {"url": "a://b", "rate_limit": 20}, "mails": {"url": "a://b"}})

    def level(self, rows: Rows) -> float:
        with rows.engine.connect() as connection:
            return float(connection.scalar(select(rows.tables.destinations.c.allowance)) or 0)

    def test_a_claim_takes_no_more_than_the_rate_allows(self, store: Store, rows: Rows) -> None:
        rows.insert(100)
        began = time.monotonic()
        taken = sum(len(bundle.tickets) for _ in range(20) for bundle in claimed(store))
        assert 20 <= taken <= 20 + 20 * (time.monotonic() - began) + 1

    def test_other_destinations_are_not_limited(self, store: Store, rows: Rows) -> None:
        rows.insert(100)
        rows.insert(100, destination="mails")
        found = Counter(bundle.destination for bundle in claimed(store) for _ in bundle.tickets)
        assert (found["mails"], found["orders"]) == (100, 20)

    def test_time_fills_the_bucket_up_to_a_second(self, store: Store, rows: Rows) -> None:
        d = rows.tables.destinations
        rows.insert(100)
        claimed(store)
        for seconds, least in ((0.5, 10), (60.0, 20)):
            began = time.monotonic()
            with rows.engine.begin() as connection:
                connection.execute(update(d).values(allowance=0, metered_at=seconds_from_now(-seconds)))
            found = sum(len(bundle.tickets) for bundle in claimed(store))
            assert least <= found <= min(20, least + 20 * (time.monotonic() - began) + 1)

    def test_a_claim_puts_back_what_it_does_not_need(self, store: Store, rows: Rows) -> None:
        claimed(store)
        rows.insert(3)
        claimed(store)
        assert self.level(rows) == pytest.approx(17, abs=1)

    def test_many_claims_at_once_keep_to_the_rate(self, store: Store, rows: Rows) -> None:
        rows.insert(200)
        claimed(store)
        rows.change(locked_until=seconds_from_now(-1), lease=None)
        began, found = time.monotonic(), list[Bundle]()
        with rows.engine.begin() as connection:
            connection.execute(update(rows.tables.destinations).values(allowance=20, metered_at=func.clock_timestamp()))
        threads = [threading.Thread(target=lambda: found.extend(claimed(store))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(len(b.tickets) for b in found) <= 20 + 20 * (time.monotonic() - began) + 1

    def test_below_one_a_second_a_claim_takes_one_message(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations={"orders": {"url": "a://b", "rate_limit": 0.01}})
        rows.insert(3)
        assert [sum(len(bundle.tickets) for bundle in claimed(store)) for _ in range(3)] == [1, 0, 0]

    def test_each_destination_has_its_own_rate(self, new_store: MakeStore, rows: Rows) -> None:
        first = {"orders": {"url": "a://b", "rate_limit": 0.01}}
        rows.insert(20)
        claimed(new_store(destinations=first))
        rows.change(locked_until=seconds_from_now(-1), lease=None)
        rows.insert(20, destination="mails")
        store = new_store(destinations={**first, "mails": {"url": "a://b", "rate_limit": 7}})
        with rows.engine.begin() as connection:
            connection.execute(update(rows.tables.destinations).values(allowance=0, metered_at=func.clock_timestamp()))
        found = Counter(bundle.destination for bundle in claimed(store) for _ in bundle.tickets)
        assert (found["mails"], found["orders"]) == (7, 0)

    def test_a_retry_goes_through_the_table_where_the_claim_counts_it(self, store: Store, rows: Rows) -> None:
        rows.insert(1)
        assert run(store, Destination(Outcome.retry("busy", "later")), *claimed(store)) == [Step.RELEASE]


class TestAge:
    def dead(self, rows: Rows, id: str) -> tuple[str, str | None]:
        row = rows.one(id)
        return row.status, row.last_error_code

    @pytest.fixture
    def store(self, new_store: MakeStore) -> Store:
        return new_store(destinations={"orders": {"url": "a://b", "max_age": 100}})

    def test_a_message_that_is_too_old_is_dead_and_says_why(self, store: Store, rows: Rows) -> None:
        [old] = rows.insert(1, created_at=seconds_from_now(-101), last_error="refused", attempts=3)
        [young] = rows.insert(1, created_at=seconds_from_now(-99))
        [bundle] = claimed(store)
        assert [ticket.id for ticket in bundle.tickets] == [young]
        assert self.dead(rows, old) == ("dead", "too_old")
        assert rows.one(old).last_error == "not delivered within 100 seconds; the last error was: refused"

    def test_the_age_counts_from_deliver_at(self, store: Store, rows: Rows) -> None:
        [late] = rows.insert(1, created_at=seconds_from_now(-1000), locked_until=seconds_from_now(0.05))
        assert rows.one(late).deliver_at is not None
        time.sleep(0.1)
        [bundle] = claimed(store)
        assert bundle.tickets[0].id == late

    def test_without_a_limit_nothing_is_too_old(self, new_store: MakeStore, rows: Rows) -> None:
        rows.insert(1, created_at=seconds_from_now(-1e8))
        assert len(claimed(new_store())) == 1


class TestTheQueue:
    def test_a_destination_with_much_due_goes_behind_others(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations=TWO, bundle_size=100)
        rows.insert(500)
        rows.insert(100, destination="mails")
        assert {bundle.destination: bundle.lane for bundle in claimed(store)} == {"orders": 2, "mails": 0}

    def test_with_a_full_queue_only_destinations_with_little_due_are_claimed(
        self, new_store: MakeStore, rows: Rows
    ) -> None:
        store = new_store(destinations=TWO, max_in_flight=200, bundle_size=10)
        rows.insert(300)
        rows.insert(3, destination="mails")
        claimed(store)
        assert store.traffic.flooding == {"orders"}
        rows.insert(3, destination="mails")
        assert {b.destination for b in claimed(store, store.settings.max_in_flight)} == {"mails"}

    @pytest.mark.parametrize(("more", "sizes"), [(0, [100] * 16), (1, [400] * 4)])
    def test_bundles_are_larger_if_a_claim_has_not_looked_at_all_keys(
        self, new_store: MakeStore, rows: Rows, more: int, sizes: list[int]
    ) -> None:
        """Also if it takes less than its share of 2000, because keys are busy."""
        store = new_store(destinations={"orders": {"url": "redis+stream://localhost/0/orders"}})
        rows.insert(1, key="busy")
        claimed(store)
        rows.insert(400, key="busy")
        for n in range(16):
            rows.insert(100, key=f"free{n}")
        rows.insert(more, key="last")
        assert [len(bundle.tickets) for bundle in claimed(store)] == sizes

    def test_nothing_is_claimed_while_no_worker_works(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations=TWO)
        rows.insert(3)
        assert claimed(store, 3 * store.settings.max_in_flight) == []

    def test_many_retries_of_a_bundle_go_back_to_the_table(self, store: Store, rows: Rows) -> None:
        busy = Destination(Outcome.retry("busy", "later"))
        for count, step in ((NATIVE_RETRIES, Step.RETRY), (NATIVE_RETRIES + 1, Step.RELEASE)):
            ids = rows.insert(count)
            lease = str(uuid4())
            take(store, {"orders": count}, lease)
            bundle = Bundle("orders", lease, tuple(Ticket(id, 0, "e") for id in ids))
            assert set(run(store, busy, bundle)) == {step}


def test_the_share_of_a_destination_with_concurrency_is_what_it_can_send_at_once(new_store: MakeStore) -> None:
    destinations = {"orders": {"url": "a://b", "concurrency": 2, "bundle_size": 10}, "mails": {"url": "a://b"}}
    store = new_store(destinations=destinations)
    found = store.traffic.admit({"orders": 500, "mails": 500}, str(uuid4()))
    assert found == {"orders": Share(20, cut=True), "mails": Share(500)}
