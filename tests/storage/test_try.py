"""Try now: what waits for another attempt is due at once, and nothing of a key overtakes."""

from __future__ import annotations

from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from outbox_tasks.model import Outcome, Step, Verdict
from outbox_tasks.relay.store import Store
from outbox_tasks.supervised.store import Runs
from tests.claims import begin, take
from tests.conftest import MakeSettings
from tests.storage.conftest import Box
from tests.storage.people import Acting
from tests.storage.relaying import Receiver, drained, numbers
from tests.storage.relaying import storage as storage
from tests.storage.test_acts import ANN, counted, entry, history, ids
from tests.storage.test_acts import acting as acting
from tests.supervised.verbs import begun, hand_over

BUSY = Receiver(lambda message: Outcome.retry("http_429", "come back later", retry_after=900))


@pytest.mark.parametrize("key", [None, "a"])
def test_what_waits_for_a_retry_is_due_at_once(box: Box, storage: Store, acting: Acting, key: str | None) -> None:
    box.write(2, key=key)
    drained(storage, BUSY)
    assert drained(storage, Receiver()) == {}
    number = entry(box, "try")
    assert acting.act_on("try", ids(box, 1), ANN, number) == set(ids(box, 1))
    note = history(box, 1)[-1]
    assert (note["what"], note["by"], note["why"], note["entry"]) == ("tried", "ann", "the shop is back", number)
    assert counted(box, number) == 1
    box.check_books()
    receiver = Receiver()
    drained(storage, receiver)
    assert [(message.attempts, *numbers(box, receiver)[:1]) for message in receiver.got[:1]] == [(2, 1)]
    assert len(receiver.got) == (2 if key else 1), "of a key, what is behind it goes on; another one still waits"
    box.check_books()


def test_a_single_that_waits_for_celerys_retry_is_taken_anew(box: Box, storage: Store, acting: Acting) -> None:
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


def test_the_probe_of_an_open_circuit_keeps_its_lease(box: Box, acting: Acting) -> None:
    box.lease()
    box.connection.execute("INSERT INTO outbox_trouble (seq, attempts, code) VALUES (1, 1, 'away')")
    box.connection.execute(
        "INSERT INTO outbox_destinations (name, opened_at, probe) SELECT 'orders', now(), token FROM outbox_leases"
    )
    assert acting.act_on("try", ids(box), ANN, entry(box)) == set()
    box.connection.execute("DELETE FROM outbox_destinations")
    assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box)}


def test_a_supervised_task_that_waits_for_its_own_retry_is_tried(box: Box, storage: Store, acting: Acting) -> None:
    box.write()
    hand_over(storage)
    runs = Runs(storage.engine, storage.settings)
    copy = {"text": "[1]", "headers": {}, "content_type": "text/x"}
    assert runs.retry(begun(box, runs, 1), copy, 3600, "OSError", "busy")
    assert box.value("SELECT state FROM outbox_at_work") == "retrying"
    assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box)}
    assert box.where(1) == ["ready"]


def test_changes_nothing_else(box: Box, storage: Store, acting: Acting) -> None:
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


def test_behind_a_lease_of_its_key_it_still_waits(box: Box, settings: MakeSettings, acting: Acting) -> None:
    """A dead letter that held up nothing was redriven, and is under way again."""
    destination: dict[str, Any] = {"url": "redis+stream://localhost/x", "on_dead": "skip"}
    given = settings(database_schema=box.schema, destinations={"orders": destination})
    with closing(Store.connect(given)) as store:
        box.write(key="a")
        drained(store, Receiver(lambda message: Outcome.dead("no", "never")))
        box.write(key="a")
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


def test_an_act_tries_a_message_once(box: Box, storage: Store, acting: Acting) -> None:
    """Also if it fails again meanwhile, and another process goes on with the act."""
    box.write()
    drained(storage, BUSY)
    number = entry(box)
    assert acting.act_on("try", ids(box), ANN, number) == {*ids(box)}
    drained(storage, BUSY)
    assert acting.act_on("try", ids(box), ANN, number) == set()
    assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box)}
    assert box.value("SELECT attempts FROM outbox_trouble") == 2, "the attempts stay"


def test_skips_what_somebody_else_changes(box: Box, storage: Store, acting: Acting) -> None:
    box.write(2)
    box.write(key="a")
    drained(storage, BUSY)
    with psycopg.connect(box.url) as other:
        other.execute(f"SELECT FROM {box.schema}.outbox_waiting WHERE seq = 1 FOR UPDATE".encode())
        other.execute(f"SELECT FROM {box.schema}.outbox_held FOR UPDATE".encode())
        assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box, 2)}
    assert acting.act_on("try", ids(box), ANN, entry(box)) == {*ids(box, 1, 3)}


def test_a_destination_ends_its_own_pause_but_not_that_of_a_person(box: Box, acting: Acting) -> None:
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
