"""Why a message is where it is, in each state: `show`, the message's page and `list --by key` say the same."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import update

from outbox_tasks.database import sql
from outbox_tasks.model import Step, Verdict
from outbox_tasks.operating import limits
from outbox_tasks.operating.messages.find import Lookup
from outbox_tasks.operating.problems import examine
from outbox_tasks.relay.store import Store
from outbox_tasks.text import moment
from tests.claims import begin, take
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.integration.browsing import Visit
from tests.integration.conftest import Command
from tests.integration.doctoring import at_work, beats

AHEAD = seconds_from_now(600)
TRY = "outbox-tasks try"


def waits(store: Store, id: str) -> str:
    return str(Lookup(store).one(UUID(id))["waits"])


def test_its_destination_is_paused_or_its_circuit_is_open_or_unknown(store: Store, rows: Rows) -> None:
    [id] = rows.insert(1)
    limits.pause(store, "orders", "ada", "moving house")
    paused = r"orders is paused by ada since 2.* UTC: moving house\. → outbox-tasks resume orders"
    assert re.fullmatch(paused, waits(store, id))
    limits.resume(store, "orders", "ada")
    for _ in range(5):
        store.traffic.tripped("orders", str(uuid4()), "connection", "refused")
    [circuit] = store.traffic.states()
    assert f" and a message tries it at {moment(circuit.pause_until)}: connection: refused. → " in waits(store, id)
    [id] = rows.insert(1, destination="odrers")
    buried = moment(next(row.created_at for row in rows.shown() if str(row.id) == id) + timedelta(hours=1))
    assert waits(store, id).startswith(f"No destination 'odrers' is configured here; at {buried} it becomes a dead")


def test_its_key_is_held_up(store: Store, new_store: MakeStore, rows: Rows) -> None:
    [head] = rows.insert(1, key="k", status="dead", dead_at=seconds_from_now(-60), last_error_code="http_422")
    [id] = rows.insert(1, key="k")
    begin = f"1 message of its key is before it, and the first ({head}) is "
    redrive = rf"dead since 2.* UTC: http_422\. → outbox-tasks redrive {head}, or discard"
    assert re.fullmatch(re.escape(begin) + redrive, waits(store, id))
    skips = new_store(destinations={"orders": {"url": "a://b", "on_dead": "skip"}})
    assert "of its key" not in waits(skips, id)
    rows.change([head], status="pending", dead_at=None, attempts=2, locked_until=AHEAD)
    until = f"{begin}retrying until {moment(rows.one(head).locked_until)}"
    assert waits(store, id) == f"{until}. → to try that one at once: {TRY} {head}"
    rows.change([head], locked_until=seconds_from_now(-60))
    assert waits(store, id) == f"{begin}retrying."


def test_an_open_transaction_may_still_commit_an_earlier_message_of_its_key(store: Store, rows: Rows) -> None:
    at_work(rows)
    schema = store.settings.database_schema
    [before] = rows.insert(1, key="k")
    with psycopg.connect(store.settings.database_url, application_name="import.py") as writer:
        row = {"id": str(uuid4()), "event_type": "a", "destination": "orders", "key": "k", "text": "{}"}
        verb = sql.statement("write/publish.sql", schema)
        said = json.dumps([{**row, "content_type": "application/json"}])
        psycopg.RawCursor(writer).execute(verb.text, verb.values({"row": said}))
        assert waits(store, before).endswith("a claim takes it in its turn.")
        rows.settle(before)
        [id], [other] = rows.insert(1, key="k"), rows.insert(1, key="other")
        pid = writer.info.backend_pid
        assert re.fullmatch(
            rf"The transaction of session {pid} \(import.py, role \w+\), open for \d+ s, has written a message of this "
            rf"key, .* goes before this one. → end it: SELECT pg_terminate_backend\({pid}\)",
            waits(store, id),
        )
        assert waits(store, other).endswith("a claim takes it in its turn.")
    assert waits(store, id).startswith("1 message of its key is before it")


def test_it_is_not_due(store: Store, rows: Rows) -> None:
    [later] = rows.insert(1, locked_until=AHEAD)
    [failed] = rows.insert(1, locked_until=AHEAD, attempts=2, last_error_code="http_500")
    assert waits(store, later) == f"It is scheduled for {moment(rows.one(later).locked_until)}."
    again = f"It failed (http_500), and the next try is due at {moment(rows.one(failed).locked_until)}"
    assert waits(store, failed) == f"{again}. → to try it at once: {TRY} {failed}"


def test_celery_tries_it_again(store: Store, rows: Rows) -> None:
    """The lease ends after the try: the time to know is that of the try."""
    beats(rows, "worker", 1, "publish@here", queues=["outbox.publish", "outbox.drain"])
    [id] = rows.insert(1)
    [single] = take(store, {"orders": 1})
    message = begin(store, single)
    assert message is not None
    store.leases.settle(single.token, "orders", [Verdict(message, Step.RETRY, 20.0, "busy", "later")])
    lease = rows.one(id).locked_until
    assert f"Celery tries it again at {moment(lease - timedelta(seconds=60))}; " in waits(store, id)
    assert waits(store, id).endswith(f"it is claimed again at {moment(lease)}.")
    [back] = rows.insert(1, lease=uuid4(), attempts=1, locked_until=AHEAD)  # the worker stopped, and gave it back
    assert f"Celery tries it again at {moment(rows.one(back).locked_until)}; " in waits(store, back)


def test_its_task_is_in_a_queue_or_somebody_has_it_in_hand(store: Store, new_store: MakeStore, rows: Rows) -> None:
    [id] = rows.insert(1)
    [single] = take(store, {"orders": 1})
    assert re.match(r"No worker serves .*outbox.publish, .*: none was ever seen; it is due since 2", waits(store, id))
    at_work(rows)
    end = rows.one(id).locked_until
    since = f"in the queue outbox.publish since {moment(end - timedelta(seconds=60))}"
    assert f"{since}; if no worker begins it by {moment(end)}" in waits(store, id)
    rows.change([id], locked_until=seconds_from_now(-5))
    assert f" ended at {moment(rows.one(id).locked_until)}: it is due again now." in waits(store, id)
    rows.change([id], locked_until=end)
    assert begin(store, single)
    facts = rows.one(id)
    assert waits(store, id).startswith(f"{facts.locked_by} has been sending it since 2")
    assert waits(store, id).endswith(f"; the lease of this send ends at {moment(facts.locked_until)}.")
    rows.change([id], locked_until=seconds_from_now(-5))
    assert f" ended at {moment(rows.one(id).locked_until)}: it is due again now." in waits(store, id)
    task = {"lease": uuid4(), "attempts": 1, "locked_until": AHEAD, "handed_at": seconds_from_now(-60)}
    [handed], [running] = rows.insert(1, **task), rows.insert(1, **task, begun=True, locked_by="worker1@host")
    at = {str(row.id): moment(row.handed_at) for row in rows.hot() if row.handed_at}
    assert waits(store, handed).startswith(f"Its task is in the broker's queue since {at[handed]}; if no worker begins")
    assert waits(store, running).startswith(f"worker1@host runs its task, which was handed over at {at[running]}; ")
    beats(rows, "tasks", 0, "shop@here (tasks)", queues=["celery"], unknown={"order.created": 1})
    unknown = "shop@here takes from the queue of order.created, and does not know this task; if no worker begins it by "
    tasks = new_store(destinations={"orders": {"url": "celery://?broker=redis://localhost:1/0"}})
    assert waits(tasks, handed).startswith(unknown)


def test_it_has_ended(store: Store, rows: Rows) -> None:
    [dead] = rows.insert(1, status="dead", attempts=3, last_error_code="http_422", dead_at=seconds_from_now(-60))
    [sent], [discarded] = rows.insert(), rows.insert()
    rows.settle(sent)
    rows.settle(discarded, "discarded")
    died = f"It is dead since {moment(rows.one(dead).dead_at)}, after 3 attempts: http_422"
    assert waits(store, dead) == f"{died}. → mend the cause, then outbox-tasks redrive {dead}, or discard"
    assert re.fullmatch(r"It was sent at 2.* UTC by nobody known\.", waits(store, sent))
    assert re.fullmatch(r"It was discarded at 2.* UTC\.", waits(store, discarded))


def test_its_destination_takes_no_more_now(new_store: MakeStore, rows: Rows) -> None:
    limited = new_store(destinations={"orders": {"url": "a://b", "rate_limit": 5}})
    [id] = rows.insert(1)
    assert waits(limited, id).startswith("No worker serves ")
    at_work(rows)
    assert re.match(r"orders gets at most 5 a second, .*; it is due since .*, and .* in its turn\.", waits(limited, id))
    narrow = new_store(destinations={"orders": {"url": "a://b", "concurrency": 1}})
    rows.insert(1, lease=uuid4(), begun=True, attempts=1, locked_until=seconds_from_now(-5))
    assert waits(narrow, id).endswith(", and a claim takes it in its turn.")
    rows.insert(1, lease=uuid4(), begun=True, attempts=1, locked_until=AHEAD)
    assert waits(narrow, id).startswith("All 1 slot of orders are taken (")


def test_nobody_claims_it(store: Store, rows: Rows) -> None:
    [id] = rows.insert(1)
    assert "; celery -A outbox_tasks worker" in waits(store, id)
    at_work(rows)
    assert waits(store, id).endswith(", and a claim takes it in its turn.")
    beats = rows.tables.heartbeats
    with rows.engine.begin() as connection:
        connection.execute(update(beats).where(beats.c.kind == "claim").values(seen_at=seconds_from_now(-600)))
    [stopped] = [problem.fact for problem in examine(store.settings).problems if problem.code == "no_claims"]
    assert waits(store, id).startswith(f"{stopped.rstrip('.')}; it is due since 2")
    take(store, {"orders": 1})
    assert waits(store, id).startswith("Its task is in the queue"), "to that a claim does not matter any more"


def test_show_keys_and_the_page_say_the_same(command: Command, visit: Visit, store: Store, rows: Rows) -> None:
    [head] = rows.insert(1, key="k", status="dead", dead_at=seconds_from_now(-60), last_error_code="http_422")
    [id] = rows.insert(1, key="k")
    expected = waits(store, id)
    assert expected in " ".join(command("show", id).stdout.split())
    assert json.loads(command("show", "--json", id).stdout)["waits"] == expected
    assert expected in visit().text(f"/messages/{id}")
    [later] = rows.insert(1, key="later", attempts=1, last_error_code="busy", locked_until=AHEAD)
    rows.insert(1, key="later")
    rows.insert(1, key="alone", attempts=1, last_error_code="busy", locked_until=AHEAD)
    dead, failed = json.loads(command("list", "--by", "key", "--json").stdout)["keys"]
    expected = f"{head} is dead since {moment(rows.one(head).dead_at)}: http_422. → outbox-tasks redrive {head}"
    assert (dead["key"], dead["waits"], dead["waiting"]) == ("k", f"{expected}, or discard", 1)
    expected = f"{later} failed (busy), and the next try is due at {moment(rows.one(later).locked_until)}."
    expected += f" → to try it at once: {TRY} {later}"
    assert (failed["key"], failed["waits"], failed["waiting"]) == ("later", expected, 1)
    limits.pause(store, "orders", "ada", "moving house")
    paused = waits(store, id)
    assert f"All keys of this destination wait: {paused}" in " ".join(command("list", "--by", "key").stdout.split())
    assert f"All keys of this destination wait: {paused}" in visit().text("/keys")
    rows.clear()
    rows.insert(1)
    assert command("list", "--by", "key").stdout == "No key is held up.\n"
