"""Acts that go on in the background: each message once, none left out, whatever happens to the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
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
from tests.integration.acting import DEAD, acts, bury
from tests.integration.conftest import environment

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


def begin(runner: Runner, wanted: Filter = DEAD, action: Any = "redrive", **given: Any) -> int:
    return runner.begin(action, wanted, **{"who": "ann", "why": "the shop is back", "token": uuid4(), **given})


def act_of(runner: Runner, entry: int) -> dict[str, Any]:
    act = runner.act(entry)
    assert act is not None
    return act


def ended(runner: Runner, entry: int) -> dict[str, Any]:
    """The act, once it has ended."""
    eventually(lambda: act_of(runner, entry)["wanted"] is None)
    return act_of(runner, entry)


def each_once(rows: Rows, entry: int) -> int:
    """How many messages the act has redriven: each of them once."""
    redriven = [row for row in rows.hot() if row.status == "pending"]
    assert [[note["entry"] for note in row.history] for row in redriven] == [[entry]] * len(redriven)
    return len(redriven)


def overdue(rows: Rows) -> None:
    """Each batch is so late that any process does it."""
    with rows.engine.begin() as connection:
        connection.execute(text(f"UPDATE {rows.tables.acts} SET due = due - interval '1 hour'"))


class TestAnAct:
    def test_changes_the_messages_of_its_filter(self, runner: Runner, rows: Rows) -> None:
        bury(rows, 3)
        bury(rows, 2, destination="mails")
        entry = begin(runner, Filter(states=("dead",), destination="orders"), total=3)
        act = ended(runner, entry)
        assert (act["action"], act["who"], act["why"], act["count"]) == ("redrive", "ann", "the shop is back", 3)
        assert 0 <= act["facts"].pop("seconds") < 60
        assert act["facts"] == {"states": ["dead"], "destination": "orders"}
        assert (each_once(rows, entry), runner.going()) == (3, [])
        rows.insert(3, locked_until=seconds_from_now(600))
        [due] = rows.insert()
        assert ended(runner, begin(runner, Filter(states=("scheduled",)), "discard"))["count"] == 3
        assert rows.state(due) == "pending"

    def test_changes_these_messages_and_says_how_many_it_missed(
        self, runner: Runner, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batches, "BATCH_MESSAGES", 1)
        ids = [*bury(rows, 3), *rows.insert(1), str(uuid4())]
        act = ended(runner, begin(runner, ids=[UUID(id) for id in ids], total=5))
        assert (act["count"], act["target"], act["facts"]["named"], act["facts"]["missed"]) == (3, None, 5, 2)
        assert act["facts"]["not_changed"] == ids[3:]
        [id] = bury(rows)
        entry = begin(runner, ids=[UUID(id)])
        assert ended(runner, entry)["target"] == id
        assert [found["seq"] for found in Lookup(store).one(UUID(id))["audit"]] == [entry]

    def test_leaves_what_came_after_it_was_seen(self, runner: Runner, rows: Rows) -> None:
        """Ages, too, count from when it was seen: a slow act must not find others than were shown."""
        bury(rows, 2, created_at=seconds_from_now(-100))
        seen = datetime.now(UTC)
        later = bury(rows, 2, dead_at=seconds_from_now(60))
        early = seen - timedelta(seconds=50)
        assert ended(runner, begin(runner, Filter(states=("dead",), older_than=80), until=early))["count"] == 0
        young = Filter(states=("dead",), newer_than=60)
        assert ended(runner, begin(runner, young, until=early, limit=1))["count"] == 1
        assert ended(runner, begin(runner, until=seen))["count"] == 1
        assert ended(runner, begin(runner, until=seen, ids=[UUID(id) for id in later]))["facts"]["missed"] == 2
        act = ended(runner, begin(runner, until=seen + timedelta(days=1)))
        assert (act["count"], "missed" in act["facts"]) == (0, False), "an act never reaches into the future"

    def test_begins_one_act_for_a_token(self, runner: Runner, new_runner: MakeRunner, rows: Rows) -> None:
        ids = [UUID(id) for id in bury(rows, 3)]
        token, others = uuid4(), [new_runner() for _ in range(3)]
        with ThreadPoolExecutor(4) as pool:
            [entry] = set(pool.map(lambda one: begin(one, ids=ids[:2], token=token), [runner, *others]))
        assert ended(runner, entry)["count"] == 2
        assert begin(runner, ids=ids[1::-1], token=token) == entry
        two = ids[:2]
        different: list[dict[str, Any]] = [{"ids": ids[1:]}, {"ids": two, "action": "discard"}, {"ids": two, "rate": 5}]
        for other in (*different, {"ids": two, "who": "bob"}, {}):
            with pytest.raises(ActConflict, match=f"act {entry}"):
                begin(runner, token=token, **other)
        assert [act.count for act in acts(rows)] == [2]

    def test_keeps_to_its_rate_and_its_limit_and_a_slow_one_holds_up_no_other(self, runner: Runner, rows: Rows) -> None:
        bury(rows, 5, destination="mails")
        bury(rows, 1200)
        slow = begin(runner, Filter(states=("dead",), destination="mails"), rate=0.01)
        orders = Filter(states=("dead",), destination="orders")
        act = ended(runner, begin(runner, orders, rate=20, limit=20))
        assert (act["count"], act["facts"]["limit"], act["facts"]["seconds"] > 0.8) == (20, 20, True)
        assert ended(runner, begin(runner, orders))["count"] == 1180
        [going] = runner.going()
        assert (going["seq"], going["count"], runner.ended(slow, 0)) == (slow, 1, False)

    def test_tries_once_more_what_somebody_was_changing(self, runner: Runner, rows: Rows, monkeypatch: Any) -> None:
        monkeypatch.setattr(batches, "BATCH_MESSAGES", 1)
        first, *_ = bury(rows, 3)
        schema = rows.tables.messages.schema
        dead = f"SELECT FROM {schema}.outbox_dead d JOIN {schema}.outbox_messages m USING (seq) WHERE m.id = '{first}'"
        with rows.engine.connect() as other:
            with other.begin():
                other.execute(text(f"{dead} FOR UPDATE OF d"))
                entry = begin(runner, rate=5)
                eventually(lambda: act_of(runner, entry)["count"])
            act = ended(runner, entry)
            assert (act["count"], "missed" in act["facts"]) == (3, False)


class TestStop:
    def test_an_interruption_ends_it(self, runner: Runner, rows: Rows) -> None:
        class Interrupted(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                raise KeyboardInterrupt

        bury(rows, 2)
        entry = begin(runner, rate=0.5, wake=False)
        with pytest.raises(KeyboardInterrupt):
            runner.follow(entry, "bob", Interrupted())
        assert (act_of(runner, entry)["facts"]["stopped"], each_once(rows, entry)) == ("bob", 1)

    def test_waits_for_the_batch_that_is_under_way(self, runner: Runner, new_runner: MakeRunner, rows: Rows) -> None:
        bury(rows, 2)
        entry = begin(runner, wake=False)
        with ThreadPoolExecutor(1) as pool, runner._database.transaction() as run:
            run("act/take.sql", own=[entry], overdue=0.0, place=None)
            stopped = pool.submit(new_runner().stop, entry, "bob")
            with pytest.raises(TimeoutError):
                stopped.result(0.2)
            assert batches.do_batch(run, runner._database, act_of(runner, entry)).changed == 2
        assert (act_of(runner, entry)["facts"]["stopped"], each_once(rows, entry)) == ("bob", 2)


class TestTrouble:
    @pytest.mark.parametrize("limit", [None, 32])
    def test_processes_that_do_its_batches_in_turn_change_each_message_once(
        self, new_runner: MakeRunner, rows: Rows, monkeypatch: pytest.MonkeyPatch, limit: int | None
    ) -> None:
        monkeypatch.setattr(batches, "BATCH_MESSAGES", 5)
        monkeypatch.setattr(background, "OVERDUE_SECONDS", -60.0)
        monkeypatch.setattr(background, "LOOK_SECONDS", 0.01)
        bury(rows, 40)
        runners = [new_runner() for _ in range(3)]
        entry = begin(runners[0], limit=limit, wake=False)
        for each in runners:
            each.start()
        assert ended(runners[0], entry)["count"] == each_once(rows, entry) == (limit or 40)

    def test_a_worker_of_the_relay_goes_on_when_the_page_is_gone(
        self, runner: Runner, rows: Rows, redis_url: str
    ) -> None:
        bury(rows, 20)
        entry = begin(runner, wake=False)
        overdue(rows)
        destinations = {"orders": {"url": f"redis+stream://{redis_url[8:]}/x"}}
        settings = runner._database.settings
        place = {**os.environ, **environment(settings, broker_url=redis_url, destinations=destinations)}
        worker = [sys.executable, "-m", "celery", "-A", "outbox_tasks", "worker", "-P", "solo", "-Q", "outbox.maintain"]
        with subprocess.Popen([*worker, "-n", "acts@%h"], env=place) as relay:
            try:
                eventually(lambda: acts(rows)[0].count == 20, seconds=120)
            finally:
                relay.terminate()
        assert each_once(rows, entry) == 20

    def test_an_act_is_left_to_the_process_that_runs_it(
        self, new_runner: MakeRunner, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background, "LOOK_SECONDS", 0.05)
        bury(rows, 3)
        first, second = new_runner(), new_runner()
        entry = begin(first, wake=False, rate=5)
        assert second._batch(second._own, background.OVERDUE_SECONDS) == background.LOOK_SECONDS
        assert each_once(rows, entry) == 0
        overdue(rows)
        assert second._batch(second._own, background.OVERDUE_SECONDS) == 0.0
        assert second._own == {entry}, "it does the next ones when they are due"
        with rows.engine.connect() as connection:
            late = connection.execute(text(f"SELECT now() - due FROM {rows.tables.acts}")).scalar_one()
        assert late < timedelta(seconds=60), "it does not catch up for an hour"
        second.start()
        assert ended(second, entry)["count"] == each_once(rows, entry) == 3

    def test_the_database_gone_in_between(
        self, new_store: MakeStore, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background, "RETRY_SECONDS", 0.1)
        bury(rows, 30)
        runner = Runner(new_store())
        entry = begin(runner, rate=20)
        eventually(lambda: act_of(runner, entry)["count"])
        with rows.engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {rows.tables.acts} RENAME TO elsewhere"))
        eventually(lambda: runner._troubled)
        with rows.engine.begin() as connection:
            schema = rows.tables.acts.schema
            connection.execute(text(f"ALTER TABLE {schema}.elsewhere RENAME TO outbox_acts"))
        assert ended(runner, entry)["count"] == each_once(rows, entry) == 30
        runner.close()

    def test_what_fails_for_good_says_so(self, runner: Runner, rows: Rows) -> None:
        bury(rows)
        entry = begin(runner, wake=False)
        with rows.engine.begin() as connection:
            connection.execute(text(f"UPDATE {rows.tables.audit} SET action = 'nonsense'"))
        runner._own.add(entry)
        runner.start()
        act = ended(runner, entry)
        assert (act["count"], act["facts"]["error"]) == (0, "KeyError: 'nonsense'")

    def test_a_database_that_is_too_slow_for_it_many_times_in_a_row_ends_it(
        self, new_store: MakeStore, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background, "RETRY_SECONDS", 0.01)
        bury(rows, 2)
        runner = Runner(new_store())
        slow = begin(runner, rate=0.5, wake=False)
        runner._slow[slow] = 4
        assert runner._turn({slow}, 15.0) == 0.0
        assert (runner._slow, act_of(runner, slow)["count"]) == ({}, 1)
        runner.close()
        runner = Runner(new_store(statement_timeout=0.05))
        with rows.engine.connect() as other, other.begin():
            other.execute(text(f"LOCK TABLE {rows.tables.messages} IN ACCESS EXCLUSIVE MODE"))
            act = ended(runner, begin(runner))
        runner.close()
        assert "did not answer a statement in time" in act["facts"]["error"]
