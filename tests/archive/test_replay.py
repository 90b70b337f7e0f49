"""Archived messages are sent again: which, as what, in which order, and what remains of it when it is stopped."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from sqlalchemy import Engine, Text, cast, func, literal
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.archive import replay as replaying
from outbox_tasks.archive.replay import Replay
from outbox_tasks.errors import ActRefused
from outbox_tasks.model import sibling
from outbox_tasks.operating.messages.acts import Done
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.find import Filter, Lookup
from outbox_tasks.operating.messages.preview import Choice, preview
from outbox_tasks.relay.store import Store
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage
from tests.claims import take
from tests.conftest import MakeSettings, MakeStore, Rows, eventually
from tests.integration.acting import acts
from tests.integration.archived import Archived
from tests.integration.conftest import Command
from tests.storage.conftest import Box
from tests.storage.people import Acting
from tests.storage.relaying import Receiver, drained
from tests.storage.relaying import storage as storage
from tests.storage.test_acts import ANN, counted, entry
from tests.storage.test_acts import acting as acting
from tests.storage.test_find import finding as finding

SENT = Filter(states=("sent",))


@pytest.fixture
def store(new_store: MakeStore) -> Store:
    return new_store(destinations={"orders": {"url": "a://b"}, "copies": {"url": "a://b"}})


@pytest.fixture
def run(command: Command) -> Command:
    return partial(command, "replay")


def replay(store: Store, wanted: Replay | None = None, **how: Any) -> Done:
    wanted = wanted or Replay(SENT)
    how = {"who": "ann", "why": "they lost it", "token": uuid4(), "wake": False, **how}
    with closing(Runner(store)) as runner:
        entry = runner.begin("replay", wanted.filter, wanted.ids, more=wanted.facts, **how)
        return runner.follow(entry, "ann")


class TestACopy:
    def test_is_the_same_message_due_now_and_marked(self, store: Store, rows: Rows, archived: Archived) -> None:
        archived.fill(archived.ago(1), key="k", headers={"tenant": "t1"}, aggregate_id="7", seq=literal(5))
        [original] = rows.archived()
        done = replay(store, Replay(SENT, ids=(original.id,)))
        assert (done.count, done.not_changed, done.stopped) == (1, [], False)
        [copy] = rows.hot()
        for name in ("id", "event_type", "destination", "key", "payload", "content_type", "created_at", "aggregate_id"):
            assert getattr(copy, name) == getattr(original, name), name
        assert (copy.attempts, copy.priority, copy.latest) == (0, -1, False)
        assert copy.deliver_at > original.finished_at  # max_age counts from here
        mark = {"replayed": copy.headers["replayed"], "replayed-id": str(original.id)}
        assert copy.headers == {"tenant": "t1", **mark}
        assert datetime.now(UTC) - datetime.fromisoformat(mark["replayed"]) < timedelta(minutes=5)
        [note] = copy.history
        [act] = acts(rows)
        assert (note["what"], note["by"], note["why"], note["entry"]) == ("replayed", "ann", "they lost it", act.seq)
        assert (act.who, act.why, act.action, act.target, act.count) == (
            "ann", "they lost it", "replay", str(original.id), 1,
        )  # fmt: skip
        one = Lookup(store).one(original.id)
        assert one is not None
        assert one["state"] == "pending"
        assert preview(store, Choice("discard", SENT, [original.id])).states == {original.id: "pending"}
        assert len(take(store, {"orders": 10})) == 1

    def test_to_another_destination_has_the_id_that_the_event_would_have_there(
        self, store: Store, rows: Rows, archived: Archived
    ) -> None:
        event = uuid4()
        archived.fill(archived.ago(1), id=event)
        archived.fill(archived.ago(1), headers={"eventid": str(event)}, id=sibling(event, "orders"))
        for ids in ((), (event,), (sibling(event, "orders"),)):
            assert replay(store, Replay(SENT, ids=ids, to="copies")).count == 1  # both are the same event
            [copy] = rows.hot()
            assert (copy.destination, copy.id) == ("copies", sibling(event, "copies"))
            assert copy.headers["eventid"] == str(event)
            rows.clear_work()

    def test_can_have_a_new_id(self, store: Store, rows: Rows, archived: Archived) -> None:
        """And the id of the first original, which was replayed before."""
        event, first = uuid4(), str(uuid4())
        archived.fill(archived.ago(1), headers={"eventid": str(event), "replayed-id": first})
        [original] = rows.archived()
        for _ in range(2):
            replay(store, Replay(SENT, new_ids=True))
        copies = rows.hot()
        assert len({original.id, *(copy.id for copy in copies)}) == 3
        assert len({str(event), *(copy.headers["eventid"] for copy in copies)}) == 3
        assert {copy.headers["replayed-id"] for copy in copies} == {first}

    @pytest.mark.parametrize(("new_ids", "root"), [(False, None), (True, None), (True, "of a chain")])
    def test_of_a_stored_task_tells_the_worker(
        self, settings: MakeSettings, new_store: MakeStore, rows: Rows, engine: Engine, new_ids: bool, root: Any
    ) -> None:
        store = new_store(destinations={"tasks": {"url": "celery://"}, "orders": {"url": "a://b"}})
        app = Celery("shop", set_as_current=False)
        with Session(engine) as session, session.begin():
            result = Outbox(store.settings, celery=app).apply_async(
                session, "shop.mail", (42,), headers={"tenant": "t"}, root_id=root
            )
        [stored] = rows.hot()
        spoiled = [{ENVELOPE: "{"}, ["no object"]]  # of which the relay says what is wrong
        others = [id for headers in spoiled for id in rows.insert(destination="tasks", headers=headers)]
        for id in (str(stored.id), *others):
            rows.settle(id)
        replay(store, Replay(SENT, new_ids=new_ids))
        copy, *copies = sorted(rows.hot(), key=lambda row: row.seq)
        assert len(copies) == 2
        task, former = (TaskMessage.loads(row.headers[ENVELOPE]) for row in (copy, stored))
        assert (task.headers["replayed-id"], task.headers["tenant"]) == (str(stored.id), "t")
        assert (copy.payload, task.routing_key) == (stored.payload, former.routing_key)
        own = (task.headers["id"], task.properties["correlation_id"], copy.aggregate_id)
        assert {*own} == {str(copy.id) if new_ids else result.id}
        assert task.headers["root_id"] == (root or own[0])
        with pytest.raises(ActRefused, match="stored tasks, and 'orders' is no celery://"):
            Replay(SENT, to="orders").planned(store)


class TestWhich:
    def test_filters_and_times(self, store: Store, rows: Rows, archived: Archived) -> None:
        day, other = archived.ago(2), archived.ago(1)
        archived.fill(day, 2, event_type="order.paid", key="k")
        archived.fill(day, 3, destination="copies", last_error_code="timeout")
        archived.fill(day, 4, state="discarded")
        archived.fill(other, 5)
        noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        hours = timedelta(hours=1)
        between = (datetime.now(UTC) - noon).total_seconds() - 12 * 3600.0  # the age of the midnight between both
        for wanted, count in (
            (Replay(Filter(states=("sent", "discarded"))), 14),
            (Replay(Filter(states=("sent",), event_type="order.p*", key="k")), 2),
            (Replay(Filter(states=("sent",), destination="copies", code="timeout")), 3),
            (Replay(Filter(states=("sent",), older_than=between)), 5),
            (Replay(SENT, since=noon + hours), 5),
            (Replay(SENT, until=noon), 5),
        ):
            plan = wanted.planned(store)
            assert plan.count == count, wanted
            assert replay(store, wanted).count == count, wanted
            rows.clear_work()

    def test_only_what_was_archived_by_its_begin(self, store: Store, archived: Archived) -> None:
        archived.fill(archived.ago(1))
        now = datetime.now(UTC)
        ahead = Replay(SENT, until=now + timedelta(hours=1))
        assert replay(store, ahead, until=now - timedelta(days=3)).count == 0
        assert replay(store, ahead, until=now).count == 1

    def test_refuses_what_is_not_there(self, store: Store, rows: Rows, archived: Archived) -> None:
        archived.fill(archived.ago(1), destination="gone")
        with pytest.raises(ActRefused, match=r"'gone' is not a configured .*copies, orders"):
            Replay(SENT).planned(store)
        with pytest.raises(ActRefused, match="'elsewhere' is not"):
            Replay(SENT, to="elsewhere").planned(store)
        with pytest.raises(ActRefused, match="1 of the messages are not in the archive"):
            Replay(ids=(uuid4(),)).planned(store)
        assert (rows.hot(), acts(rows)) == ([], [])


class TestOrder:
    def test_is_that_of_the_writes_within_a_day(
        self, store: Store, rows: Rows, archived: Archived, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A settle may put a later message before an earlier one. Here they lie in the reverse order."""
        monkeypatch.setattr(replaying, "LOT_BYTES", 4)  # two messages of the first day, and less than one of the second
        for days in (1, 2):
            seq = literal(100) - func.row_number().over()
            payload = func.convert_to(cast(seq - 100**days, Text), "UTF8")
            archived.fill(archived.ago(days), 5, key="k", seq=seq, payload=payload)
        assert replay(store).count == 10
        assert [int(row.payload) for row in rows.hot()] == [*range(-9905, -9900), *range(-5, 0)]
        rows.clear_work()
        done = replay(store, Replay(SENT, ids=tuple(row.id for row in rows.archived())))
        assert (done.count, done.missed) == (10, 0)


class TestStopped:
    def test_another_process_goes_on_where_it_was(self, store: Store, rows: Rows, archived: Archived) -> None:
        for days in (1, 2):
            archived.fill(archived.ago(days), 30)
        assert Replay(SENT).planned(store).count == 60
        how: dict[str, Any] = {"who": "ann", "why": None, "token": uuid4(), "rate": 100.0, "limit": 25, "wake": False}
        entry = Runner(store).begin("replay", SENT, more={}, **how)
        for runner, batches in ((Runner(store), 2), (Runner(store), 1)):
            rows.clear_work()  # they are sent: only the place can keep them from being sent again
            for _ in range(batches):
                eventually(lambda: runner._batch({entry}, 60.0) == 0.0)  # noqa: B023
        [act] = acts(rows)
        assert (act.count, act.facts["place"]["passed"], len(rows.hot())) == (25, 25, 5)


class TestTheCommand:
    def test_takes_a_time_without_a_zone_as_one_in_utc(
        self, run: Command, archived: Archived, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archived.fill(day := archived.ago(1))
        with monkeypatch.context() as tokyo:
            tokyo.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            shown = [run("--until", f"{day}T{clock}", "--dry-run").stdout for clock in ("13:00", "13:00+0900")]
        time.tzset()
        assert ["order.created" in text for text in shown] == [True, False]

    def test_shows_what_it_would_do_and_asks(self, run: Command, rows: Rows, archived: Archived) -> None:
        archived.fill(archived.ago(1), 3)
        archived.fill(archived.ago(1), 1, event_type="order.paid")
        shown = run("--all", "--dry-run").stdout
        assert "3  sent   orders  order.created" in shown
        assert "1  sent   orders  order.paid" in shown
        assert run("--since", "2020-01-01", "--to", "copies", typed="n\n").exit_code == 1
        assert (rows.hot(), acts(rows)) == ([], [])
        done = run("--since", "2020-01-01", "--to", "copies", "--limit", "2", typed="y\n")
        assert "Replay the first 2 of 4 messages to copies? [y/N]: y\n2 messages replayed." in done.stdout
        assert run("--until", "2020-01-01").stdout == "There is nothing to replay.\n"

    @pytest.mark.parametrize(
        "arguments",
        [
            (), (str(UUID(int=1)), "--all"), ("--since", "noon"), ("--all", "--json"),
            ("--rate", "0", "--all"), ("--state", "dead"),
        ],
    )  # fmt: skip
    def test_bad_usage(self, run: Command, arguments: tuple[str, ...]) -> None:
        assert run(*arguments).exit_code == 2


def copy_of(box: Box, seq: int, **changed: Any) -> dict[str, Any]:
    names = "id::text, destination, aggregate_id, headers"
    [row] = box.rows(f"SELECT {names} FROM outbox_messages WHERE seq = %s", seq)
    return {"original": seq, **dict(zip(names.replace("::text", "").split(", "), row, strict=True)), **changed}


class TestTheCopies:
    def test_writes_no_copy_of_what_is_at_work(self, box: Box, storage: Store, acting: Acting) -> None:
        box.write(1)
        drained(storage, Receiver())
        box.write(1)
        copies = [copy_of(box, 1), copy_of(box, 2), copy_of(box, 1)]
        number = entry(box, "replay")
        assert acting.replay(copies, {}, number, ANN) == {copies[0]["id"]}
        assert acting.replay(copies, {}, number, ANN) == set()
        assert counted(box, number) == 1
        box.check_books()

    def test_two_at_once_write_each_copy_once(self, box: Box, storage: Store, acting: Acting) -> None:
        box.write(50)
        drained(storage, Receiver())
        copies, number = [copy_of(box, seq) for seq in range(1, 51)], entry(box, "replay")
        barrier = threading.Barrier(2)

        def replay(_: int) -> int:
            barrier.wait()
            return len(acting.replay(copies, {}, number, ANN))

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(replay, range(2))) == [0, 50]
        box.check_books()
