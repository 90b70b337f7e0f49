"""Acts that go on in the background: each message once, none left out, whatever happens to the process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from outbox_tasks.errors import ActConflict
from outbox_tasks.operating.messages import acts as batches
from outbox_tasks.operating.messages import background
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.find import Filter, Lookup
from outbox_tasks.relay.store import Store
from tests.conftest import MakeStore, Rows, eventually, seconds_from_now
from tests.integration.conftest import environment
from tests.integration.test_redrive import DEAD, acts, bury

Begin = Callable[..., int]
MakeRunner = Callable[[], Runner]


@pytest.fixture
def new_runner(new_store: MakeStore) -> Iterator[MakeRunner]:
    """Makes runners, each as if in a process of its own."""
    made: list[Runner] = []

    def make() -> Runner:
        made.append(Runner(new_store()))
        return made[-1]

    yield make
    for runner in made:
        runner.close()


@pytest.fixture
def runner(new_runner: MakeRunner) -> Runner:
    return new_runner()


@pytest.fixture
def asleep(new_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A process that begins acts, but dies before it does anything."""
    made = new_runner()
    monkeypatch.setattr(made, "wake", lambda: None)
    return made


def begin(runner: Runner, wanted: Filter = DEAD, action: Any = "redrive", **given: Any) -> int:
    return runner.begin(action, wanted, **{"who": "ann", "why": "the shop is back", "token": uuid4(), **given})


def ended(runner: Runner, entry: int) -> dict[str, Any]:
    """The act, once it has ended."""

    def over() -> dict[str, Any] | None:
        act = runner.act(entry)
        return act if act and act["wanted"] is None else None

    return eventually(over)  # type: ignore[no-any-return]


def each_once(rows: Rows, entry: int) -> int:
    """How many messages the act has redriven: each of them once."""
    redriven = [row for row in rows.hot() if row.status == "pending"]
    assert [[note["entry"] for note in row.history] for row in redriven] == [[entry]] * len(redriven)
    return len(redriven)


class TestAnAct:
    def test_changes_the_messages_of_its_filter(self, runner: Runner, rows: Rows) -> None:
        bury(rows, 3)
        bury(rows, 2, destination="mails")
        entry = begin(runner, Filter(states=("dead",), destination="orders"), total=3)
        act = ended(runner, entry)
        assert (act["action"], act["who"], act["why"], act["count"]) == ("redrive", "ann", "the shop is back", 3)
        seconds = act["facts"].pop("seconds")
        assert 0 <= seconds < 60
        assert act["facts"] == {"states": ["dead"], "destination": "orders"}
        assert each_once(rows, entry) == 3
        assert runner.going() == []

    def test_discards_what_waits(self, runner: Runner, rows: Rows) -> None:
        rows.insert(3, locked_until=seconds_from_now(600))
        [due], [dead] = rows.insert(), bury(rows)
        entry = begin(runner, Filter(states=("scheduled",)), "discard")
        assert ended(runner, entry)["count"] == 3
        assert {str(row.id) for row in rows.hot()} == {due, dead}
        assert [row.state for row in rows.archived()] == ["discarded"] * 3

    def test_changes_these_messages_and_says_how_many_it_missed(self, runner: Runner, rows: Rows) -> None:
        ids = [*bury(rows, 2), *rows.insert(1), str(uuid4())]
        act = ended(runner, begin(runner, ids=[UUID(id) for id in ids], total=4))
        assert (act["count"], act["target"], act["facts"]["named"], act["facts"]["missed"]) == (2, None, 4, 2)

    def test_on_one_message_is_found_by_its_id(self, runner: Runner, store: Store, rows: Rows) -> None:
        [id], _ = bury(rows), bury(rows)
        entry = begin(runner, ids=[UUID(id)])
        assert ended(runner, entry)["target"] == id
        message = Lookup(store).one(UUID(id))
        assert message is not None
        assert [found["seq"] for found in message["audit"]] == [entry]
        assert each_once(rows, entry) == 1

    def test_leaves_what_came_after_it_was_seen(self, runner: Runner, rows: Rows) -> None:
        bury(rows, 2)
        seen = datetime.now(UTC)
        later = bury(rows, 2, dead_at=seconds_from_now(60))
        assert ended(runner, begin(runner, until=seen))["count"] == 2
        assert ended(runner, begin(runner, until=seen, ids=[UUID(id) for id in later]))["facts"]["missed"] == 2
        act = ended(runner, begin(runner, until=seen + timedelta(days=1)))
        assert (act["count"], "missed" in act["facts"]) == (0, False), "an act never reaches into the future"
        assert {rows.state(id) for id in later} == {"dead"}

    def test_begins_one_act_for_a_token(self, runner: Runner, new_runner: MakeRunner, rows: Rows) -> None:
        ids = [UUID(id) for id in bury(rows, 3)]
        token, others = uuid4(), [new_runner() for _ in range(3)]
        with ThreadPoolExecutor(4) as pool:
            [entry] = set(pool.map(lambda one: begin(one, ids=ids[:2], token=token), [runner, *others]))
        assert ended(runner, entry)["count"] == 2
        assert begin(runner, ids=ids[:2], token=token) == entry
        for other in ({"ids": ids[1:]}, {"ids": ids[:2], "action": "discard"}, {"who": "bob", "ids": ids[:2]}, {}):
            with pytest.raises(ActConflict, match=f"act {entry}"):
                begin(runner, token=token, **other)
        assert [act.count for act in acts(rows)] == [2]

    def test_stops_at_its_limit(self, runner: Runner, rows: Rows) -> None:
        bury(rows, 5)
        act = ended(runner, begin(runner, limit=3))
        assert (act["count"], act["facts"]["limit"], each_once(rows, act["seq"])) == (3, 3, 3)

    def test_keeps_to_its_rate(self, runner: Runner, rows: Rows) -> None:
        bury(rows, 20)
        act = ended(runner, begin(runner, rate=20))
        assert act["count"] == 20
        assert act["facts"]["seconds"] > 0.8

    def test_a_slow_one_holds_up_no_other(self, runner: Runner, rows: Rows) -> None:
        bury(rows, 5, destination="mails")
        bury(rows, 1200)
        slow = begin(runner, Filter(states=("dead",), destination="mails"), rate=0.01)
        assert ended(runner, begin(runner, Filter(states=("dead",), destination="orders")))["count"] == 1200
        [going] = runner.going()
        assert (going["seq"], going["count"], going["held"]) == (slow, 1, True)

    def test_tries_once_more_what_somebody_was_changing(self, runner: Runner, rows: Rows, monkeypatch: Any) -> None:
        monkeypatch.setattr(batches, "BATCH_MESSAGES", 1)
        first, *_ = bury(rows, 3)
        schema = rows.tables.messages.schema
        with rows.engine.connect() as other:
            with other.begin():
                other.execute(
                    text(
                        f"SELECT FROM {schema}.outbox_dead d JOIN {schema}.outbox_messages m USING (seq) "
                        f"WHERE m.id = '{first}' FOR UPDATE OF d"
                    )
                )
                entry = begin(runner, rate=5)
                eventually(lambda: runner.act(entry)["count"])  # type: ignore[index]
            assert ended(runner, entry)["count"] == 3
        assert "missed" not in acts(rows)[0].facts

    def test_ages_count_from_when_it_was_seen(self, runner: Runner, rows: Rows) -> None:
        """Not from when a batch is looked for: a slow act must not find others than were shown."""
        bury(rows, created_at=seconds_from_now(-100))
        seen = datetime.now(UTC) - timedelta(seconds=50)
        bury(rows, created_at=seconds_from_now(-100), dead_at=seconds_from_now(-60))
        wanted = Filter(states=("dead",), older_than=80)
        assert ended(runner, begin(runner, wanted, until=seen))["count"] == 0
        assert ended(runner, begin(runner, wanted))["count"] == 2


class TestStop:
    def test_ends_an_act(self, runner: Runner, rows: Rows) -> None:
        bury(rows, 50)
        entry = begin(runner, rate=10)
        eventually(lambda: runner.act(entry)["count"])  # type: ignore[index]
        assert runner.stop(entry, "bob")
        act = runner.act(entry)
        assert act is not None
        assert (act["wanted"], act["facts"]["stopped"]) == (None, "bob")
        assert 0 < act["count"] == each_once(rows, entry) < 50
        assert not runner.stop(entry, "carl")
        eventually(lambda: not runner._running)
        assert runner.act(entry)["count"] == act["count"]  # type: ignore[index]

    def test_before_the_first_batch(self, asleep: Runner, runner: Runner, rows: Rows) -> None:
        bury(rows, 2)
        entry = begin(asleep)
        assert asleep.stop(entry, "bob")
        runner.wake()
        assert ended(runner, entry)["count"] == each_once(rows, entry) == 0
        assert (runner.stop(99, "bob"), runner.act(99)) == (False, None)


class TestTrouble:
    def test_another_process_goes_on(self, asleep: Runner, runner: Runner, rows: Rows) -> None:
        bury(rows, 3)
        entry = begin(asleep)
        asleep._take()
        runner.wake()
        assert runner.act(entry)["held"]  # type: ignore[index]
        with rows.engine.begin() as connection:
            connection.execute(text(f"UPDATE {rows.tables.acts} SET locked_until = now()"))
        runner.wake()
        assert ended(runner, entry)["count"] == each_once(rows, entry) == 3

    def test_a_late_process_does_nothing_more(self, asleep: Runner, runner: Runner, rows: Rows) -> None:
        """It was stopped for longer than its lease, and then goes on where it was."""
        bury(rows, 3)
        entry = begin(asleep, limit=2)
        asleep._take()
        step = asleep._running[entry].steps
        next(step)
        with rows.engine.begin() as connection:
            connection.execute(text(f"UPDATE {rows.tables.acts} SET locked_until = now()"))
        runner._take()
        assert next(step, None) is None
        assert each_once(rows, entry) == 0
        runner.wake()
        assert ended(runner, entry)["count"] == each_once(rows, entry) == 2

    def test_what_was_done_until_the_lease_was_taken_counts(
        self, asleep: Runner, runner: Runner, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The former process does one more batch just before."""
        monkeypatch.setattr(background, "LEASE_SECONDS", 0.0)
        monkeypatch.setattr(batches, "BATCH_MESSAGES", 1)
        bury(rows, 5)
        entry = begin(asleep, limit=3)
        asleep._take()
        step = asleep._running[entry].steps
        next(step)
        ask = runner._database.ask

        def late(verb: str, *limit: Any, **values: Any) -> Any:
            if verb == "act/take.sql":
                next(step)
            return ask(verb, *limit, **values)

        monkeypatch.setattr(runner._database, "ask", late)
        runner._take()
        assert len([*runner._running[entry].steps]) == 2
        assert runner.act(entry)["count"] == each_once(rows, entry) == 3  # type: ignore[index]

    @pytest.mark.parametrize("limit", [None, 30])
    def test_processes_that_take_it_from_each_other_change_each_message_once(
        self, new_runner: MakeRunner, rows: Rows, monkeypatch: pytest.MonkeyPatch, limit: int | None
    ) -> None:
        """Leases that run out at any moment, on real locks. Each holder gets on a little: on a machine that is so busy
        that every lease ends before its first batch, nothing would ever be done."""
        monkeypatch.setattr(batches, "BATCH_MESSAGES", 5)
        bury(rows, 40)
        runners = [new_runner() for _ in range(3)]
        entry = begin(runners[0], limit=limit, rate=10)  # or the holder is back before another could take it
        holders: list[Any] = []
        since = 0

        def over() -> bool:
            nonlocal since
            act = runners[0].act(entry)
            assert act is not None
            with rows.engine.begin() as connection:
                lease = connection.scalar(text(f"SELECT lease FROM {rows.tables.acts}"))
                if lease not in (None, *holders[-1:]):
                    holders.append(lease)
                    since = act["count"]
                elif act["count"] > since:
                    connection.execute(text(f"UPDATE {rows.tables.acts} SET locked_until = now()"))
            for runner in runners:
                runner.wake()
            return act["wanted"] is None

        eventually(over)
        assert ended(runners[0], entry)["count"] == each_once(rows, entry) == (limit or 40)
        assert len(holders) > 1

    def test_two_acts_on_the_same_messages_change_each_once(
        self, new_runner: MakeRunner, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batches, "BATCH_MESSAGES", 7)
        bury(rows, 150)
        first, second = new_runner(), new_runner()
        entries = [begin(first), begin(second, who="bob", action="discard")]
        counts = [ended(first, entry)["count"] for entry in entries]
        redriven = [row for row in rows.hot() if row.status == "pending"]
        assert counts == [len(redriven), len(rows.archived())]
        assert (sum(counts), {len(row.history) for row in redriven} <= {1}) == (150, True)

    def test_a_worker_of_the_relay_goes_on_when_the_page_is_killed(
        self, store: Store, rows: Rows, redis_url: str
    ) -> None:
        bury(rows, 200)
        code = (
            "import time, uuid; from outbox_tasks.operating.messages import background; background.LEASE_SECONDS = 1.0;"
            "from outbox_tasks.operating.messages.find import Filter; from outbox_tasks.relay.store import Store;"
            "from outbox_tasks.settings import Settings; runner = background.Runner(Store.connect(Settings()));"
            "runner.begin('redrive', Filter(states=('dead',)), who='ann', why=None, token=uuid.uuid4(), rate=20);"
            "time.sleep(600)"
        )
        destinations = {"orders": {"url": f"redis+stream://{redis_url[8:]}/x"}}
        place = {**os.environ, **environment(store.settings, broker_url=redis_url, destinations=destinations)}
        with subprocess.Popen([sys.executable, "-c", code], env=place) as page:
            eventually(lambda: [row for row in rows.hot() if row.status == "pending"])
            page.kill()
        [act] = acts(rows)
        assert 0 < act.count == each_once(rows, act.seq) < 200
        # What dies again meanwhile is not sent again.
        again = next(str(row.id) for row in rows.hot() if row.status == "pending")
        rows.change([again], status="dead", dead_at=seconds_from_now(0))
        worker = [sys.executable, "-m", "celery", "-A", "outbox_tasks", "worker", "-P", "solo", "-Q", "outbox.maintain"]
        with subprocess.Popen([*worker, "-n", "acts@%h"], env=place) as relay:
            try:
                eventually(lambda: acts(rows)[0].count == 200, seconds=120)
            finally:
                relay.terminate()
        assert rows.state(again) == "dead"
        assert each_once(rows, act.seq) == 199

    def test_a_lease_is_renewed_while_a_slow_rate_waits(
        self, new_runner: MakeRunner, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background, "LEASE_SECONDS", 1.5)
        monkeypatch.setattr(background, "LOOK_SECONDS", 0.1)
        bury(rows, 3)
        first, second = new_runner(), new_runner()
        entry = begin(first, rate=0.01)
        eventually(lambda: first.act(entry)["count"] == 1)  # type: ignore[index]

        def lease() -> Any:
            with rows.engine.connect() as connection:
                return connection.execute(text(f"SELECT lease, locked_until FROM {rows.tables.acts}")).one()

        began = lease()
        second.wake()
        until = time.monotonic() + 2.5
        eventually(lambda: time.monotonic() > until)
        assert (lease().lease, lease().locked_until > began.locked_until) == (began.lease, True)
        assert each_once(rows, entry) == 1

    def test_closed_it_leaves_its_acts_to_others_at_once(self, new_runner: MakeRunner, rows: Rows) -> None:
        bury(rows, 3)
        first = new_runner()
        entry = begin(first, rate=0.01)
        eventually(lambda: first.act(entry)["count"] == 1)  # type: ignore[index]
        first.close()
        second = new_runner()
        assert not second.act(entry)["held"]  # type: ignore[index]
        second.wake()
        eventually(lambda: second.act(entry)["count"] == 2)  # type: ignore[index]

    def test_the_database_gone_in_between(
        self, new_store: MakeStore, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background, "RETRY_SECONDS", 0.1)
        bury(rows, 30)
        store = new_store()
        runner = Runner(store)
        entry = begin(runner, rate=20)
        eventually(lambda: runner.act(entry)["count"])  # type: ignore[index]
        with rows.engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {rows.tables.acts} RENAME TO elsewhere"))
        eventually(lambda: not runner._running)
        with rows.engine.begin() as connection:
            schema = rows.tables.acts.schema
            connection.execute(text(f"ALTER TABLE {schema}.elsewhere RENAME TO outbox_acts"))
        assert ended(runner, entry)["count"] == each_once(rows, entry) == 30
        runner.close()

    def test_what_fails_for_good_says_so(self, asleep: Runner, runner: Runner, rows: Rows) -> None:
        bury(rows)
        entry = begin(asleep)
        with rows.engine.begin() as connection:
            connection.execute(text(f"UPDATE {rows.tables.audit} SET action = 'nonsense'"))
        runner.wake()
        act = ended(runner, entry)
        assert (act["count"], act["facts"]["error"]) == (0, "KeyError: 'nonsense'")
        assert runner.going() == []

    def test_only_slow_batches_in_a_row_end_it(self, runner: Runner, rows: Rows) -> None:
        bury(rows, 2)
        entry = begin(runner, rate=0.5)
        runner._slow[entry] = 4
        eventually(lambda: runner.act(entry)["count"])  # type: ignore[index]
        assert runner._slow == {}

    def test_a_database_that_is_too_slow_for_it_ends_it(
        self, new_store: MakeStore, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background, "RETRY_SECONDS", 0.01)
        bury(rows)
        runner = Runner(new_store(statement_timeout=0.05))
        with rows.engine.connect() as other, other.begin():
            other.execute(text(f"LOCK TABLE {rows.tables.messages} IN ACCESS EXCLUSIVE MODE"))
            entry = begin(runner)
            act = ended(runner, entry)
        runner.close()
        assert "did not answer a statement in time" in act["facts"]["error"]
