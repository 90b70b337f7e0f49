"""What processes count of themselves, and write to the database."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals

from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.model import Step, Verdict
from outbox_tasks.operating import overview
from outbox_tasks.operating.heartbeats import Heartbeats
from outbox_tasks.relay.claim import Tally
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import Buried
from outbox_tasks.signals import claimed, settled
from outbox_tasks.telemetry import counters as module
from outbox_tasks.telemetry import heartbeat
from outbox_tasks.telemetry.counters import Counters
from outbox_tasks.telemetry.satellite import Telemetry
from outbox_tasks.worker.resources import Resources
from tests.conftest import MakeSettings, Rows, eventually
from tests.contract.messages import message


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("t", set_as_current=False) as app:
        yield app


@pytest.fixture
def counters(store: Store, app: Celery) -> Iterator[Counters]:
    made = Counters(lambda: store)
    made.connect(app)
    yield made
    made.close()


def counted(rows: Rows) -> dict[tuple[str, str], int]:
    found: Counter[tuple[str, str]] = Counter()
    with rows.engine.connect() as connection:
        for row in connection.execute(rows.tables.tallies.select()):
            found[row.destination, row.outcome] += row.count
    return dict(found)


def test_outcomes_are_written_soon_also_after_a_failure_and_again(
    app: Celery, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITTEN_AFTER_SECONDS", 0.02)
    errors = [DatabaseUnavailable(url="x", reason="it is away")]

    def reach() -> Store:
        if errors:
            raise errors.pop()
        return store

    counters = Counters(reach)
    counters.connect(app)
    steps = [Step.SENT] * 3 + [Step.RETRY, Step.DEAD, Step.STALE]
    verdicts = [Verdict(message(number), step) for number, step in enumerate(steps)]
    once = {("orders", "sent"): 3, ("orders", "retry"): 1, ("orders", "dead"): 1, ("orders", "stale"): 1}
    for times in (1, 2):
        settled.send(sender=app, destination="orders", lease="x", verdicts=verdicts, seconds=0.1)
        expected = {outcome: times * count for outcome, count in once.items()}
        eventually(partial(lambda expected: counted(rows) == expected, expected))
    counters.close()


def test_refusals_are_counted_until_a_send_arrives(store: Store) -> None:
    seen = []
    for outcomes in (["retry", "outage"], ["later", "dead"], ["sent", "retry"], ["dead"]):
        counters = Counters(lambda: store)
        counters.count("orders", outcomes)
        assert counters.flush()
        seen.append(overview.destinations(store)["orders"].refused)
    assert seen == [1, 3, 0, 1]


def test_a_claim_of_this_app_leaves_its_facts(counters: Counters, app: Celery, store: Store, rows: Rows) -> None:
    with Celery("other", set_as_current=False) as other:
        claimed.send(sender=other, tally=Tally(singles=1), seconds=0.1)
        verdicts = [Verdict(message(1), Step.SENT)]
        settled.send(sender=other, destination="orders", lease="x", verdicts=verdicts, seconds=0.1)
    assert counters.flush()
    assert (counted(rows), Heartbeats.read(store).last) == ({}, {})
    buried = [Buried(str(number), "a", f"typo{number}", None, "nobody knows it") for number in range(3)]
    tally = Tally(singles=7, drains=2, held_back=True, queued=300, buried=buried)
    tally.expired["orders", "lease_expired"] = 4
    claimed.send(sender=app, tally=tally, seconds=0.25)
    assert counters.flush()
    assert counted(rows) == {("", "dead"): 3, ("orders", "lease_expired"): 4}
    claim = Heartbeats.read(store).last["claim"].facts
    assert (claim["claimed"], claim["drains"], claim["held_back"]) == (7, 2, True)
    assert (claim["waiting"], claim["seconds"]) == (300, 0.25)


def test_counts_are_kept_while_the_database_is_away(store: Store, rows: Rows) -> None:
    away = True

    def reach() -> Store:
        if away:
            counters.ran("claim", claimed=2)  # meanwhile, by another thread
            counters.count("orders", ["sent"])
            raise DatabaseUnavailable(url="x", reason="it is away")
        return store

    counters = Counters(reach)
    counters.count("orders", ["sent"] * 3)
    counters.ran("claim", claimed=1)
    assert not counters.flush()
    assert counters._own.get().runs["claim"][1]["claimed"] == 2, "the newer report counts"
    away = False
    assert counters.flush()
    assert counted(rows) == {("orders", "sent"): 4}
    counters.close()


def test_what_was_written_before_a_failure_is_not_written_again(store: Store, rows: Rows) -> None:
    """And of two reports of a run the newer one counts, also if the older one could not be written."""
    counters = Counters(lambda: store)
    counters.count("orders", ["sent"] * 3)
    counters.ran("claim", claimed=1)
    rename = f"ALTER TABLE {rows.tables.messages.schema}.{{}} RENAME TO {{}}"
    with rows.engine.begin() as connection:
        connection.exec_driver_sql(rename.format("outbox_heartbeats", "elsewhere"))
    assert not counters.flush()
    counters.ran("claim", claimed=2)
    with rows.engine.begin() as connection:
        connection.exec_driver_sql(rename.format("elsewhere", "outbox_heartbeats"))
    counters.close()
    assert counted(rows) == {("orders", "sent"): 3}
    assert Heartbeats.read(store).last["claim"].facts["claimed"] == 2


def test_a_lease_that_was_lost_is_no_send(counters: Counters, app: Celery, store: Store) -> None:
    for step, is_send in ((Step.STALE, False), (Step.RETRY, True)):
        settled.send(sender=app, destination="orders", lease="x", verdicts=[Verdict(message(1), step)], seconds=0.1)
        assert counters.flush()
        assert (Heartbeats.read(store).age("publish") is not None) is is_send


def test_a_process_writes_its_last_counts_as_it_ends(settings: MakeSettings, app: Celery, rows: Rows) -> None:
    resources = Resources(app, settings())
    Telemetry().register(resources, {})
    verdicts = [Verdict(message(1), Step.SENT)]
    settled.send(sender=app, destination="orders", lease="x", verdicts=verdicts, seconds=0.1)
    resources.close()
    assert counted(rows) == {("orders", "sent"): 1}


def test_a_heartbeat_comes_after_errors_pauses_while_its_worker_hangs_and_goes_with_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.02)
    asked, errors = [False], [RuntimeError("a fault"), DatabaseUnavailable(url="x", reason="it is away")]

    def trouble(_: float) -> str | None:
        asked.append(asked[-1])
        return "it hangs" if asked[-1] else None

    def ask(*verb: Any, **parameters: Any) -> Any:
        if errors:
            raise errors.pop()
        return write(*verb, **parameters)

    liveness: Any = SimpleNamespace(trouble=trouble)
    beating = heartbeat.Heartbeat(store.settings, liveness, "a@here", {"started": "1"})
    database: Any = beating._database
    write = database.ask
    monkeypatch.setattr(database, "ask", ask)
    beating.start()
    eventually(lambda: Heartbeats.read(store).workers)
    asked[-1] = True
    eventually(lambda: asked[-3:] == [True] * 3)
    [before] = Heartbeats.read(store).workers
    count = len(asked)
    eventually(lambda: len(asked) > count + 3)
    assert [worker.seen_at for worker in Heartbeats.read(store).workers] == [before.seen_at]
    assert database.engine.pool.checkedin() == 0, "a process that the pool forks would share it"
    signals.worker_shutdown.send(sender=None)
    assert Heartbeats.read(store).workers == []


def test_a_forked_process_does_not_write_its_parents_counts(counters: Counters, rows: Rows) -> None:
    counters.count("orders", ["sent"])
    assert counters._own.get().timer is not None, "or each count would start a thread"
    if not (pid := os.fork()):
        counters.count("mails", ["sent"])
        os._exit(len(counters._own.get().counts))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert counters.flush()
    assert counted(rows) == {("orders", "sent"): 1}
