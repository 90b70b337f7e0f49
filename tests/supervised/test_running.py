"""The run of a supervised task, on real rows: who may begin it, how it ends, and what follows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, group
from celery.exceptions import Ignore, Reject, Retry

from outbox_tasks import Outbox
from outbox_tasks.relay.store import Store
from outbox_tasks.signals import dead_letter, key_blocked
from outbox_tasks.supervised.run import current
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage
from tests.claims import take
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.supervised.running import Call, Worker, app, call, outbox, worker

__all__ = ["app", "call", "outbox", "worker"]


def raising(error: BaseException) -> Callable[..., None]:
    def act(task: Any, *args: Any) -> None:
        raise error

    return act


def envelope(row: Any) -> TaskMessage:
    return TaskMessage.loads(row.headers[ENVELOPE])


class TestEnds:
    def test_a_task_that_fails_is_a_dead_letter_with_its_error_and_is_signalled_once(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        heard: list[dict[str, Any]] = []
        for signal in (dead_letter, key_blocked):
            signal.connect(lambda signal, sender, **facts: heard.append(facts), sender=app, weak=False)
        app.act = raising(ValueError("no such order, see redis://user:secret@host/0"))
        id = call()
        rows.change([id], key="order:1")
        woken: list[bool] = []
        worker.supervisor.nudge = lambda: woken.append(True)  # type: ignore[assignment]
        copy = worker.copy(id)
        for _ in range(2):
            worker.trace(copy)
        assert woken == [True], "the next one of its key may be due"
        [row] = rows.hot()
        assert (row.status, row.last_error_code, row.lease) == ("dead", "ValueError", None)
        assert row.last_error == "no such order, see redis://user:***@host/0"
        assert "in act" in row.history[-1]["traceback"]
        assert "secret" not in row.history[-1]["traceback"]
        about = {"destination": row.destination, "message_id": str(row.id), "key": "order:1", "code": "ValueError"}
        assert heard == [{**about, "event_type": row.event_type, "attempts": 1, "error": row.last_error}, about]
        worker.run(call())
        assert len(woken) == 1
        rows.change([id := call()], key="order:2", destination="others")  # its dead letters block nothing
        worker.run(id)
        assert [facts["key"] for facts in heard] == ["order:1", "order:1", None, "order:2"]

    @pytest.mark.parametrize(
        ("error", "code"), [(Ignore("not today"), "ignored"), (Reject("not mine"), "rejected")], ids=str
    )
    def test_a_task_that_is_ignored_or_rejected_is_archived_as_discarded(
        self, app: Celery, worker: Worker, call: Call, rows: Rows, error: Exception, code: str
    ) -> None:
        app.act = raising(error)
        worker.run(call())
        [row] = rows.archived()
        assert (row.state, row.last_error_code, row.last_error) == ("discarded", code, error.args[0])

    def test_a_task_that_is_put_back_into_its_queue_is_handed_over_again(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        app.act = raising(Reject("busy", requeue=True))
        id = call()
        copy = worker.copy(id)
        worker.trace(copy)
        assert (rows.one(id).begun, rows.one(id).handed_at is None) == (False, False)
        assert rows.one(id).locked_until < datetime.now(UTC), "no copy comes back of a task that acknowledges early"
        app.act = lambda task: None
        worker.trace(copy)
        assert rows.state(id) == "sent"

    def test_a_process_that_ends_gives_its_run_up(self, app: Celery, worker: Worker, call: Call, rows: Rows) -> None:
        app.act = raising(SystemExit())
        id = call()
        with pytest.raises(SystemExit):
            worker.run(id)
        row = rows.one(id)
        assert row.begun
        assert row.locked_until < datetime.now(UTC) + timedelta(seconds=1)

    def test_a_run_that_was_given_up_changes_nothing_and_nothing_follows_it(
        self, app: Celery, worker: Worker, call: Call, rows: Rows, new_store: MakeStore, caplog: Any
    ) -> None:
        store: Store = new_store(destinations={"tasks": {"url": "celery://", "confirm": "run"}})
        id = call(1, link=app.tasks["next"].s())

        def be_overtaken(task: Any, n: int) -> None:
            rows.change([id], locked_until=seconds_from_now(-1))
            assert len(take(store, {"tasks": 10})) == 1

        app.act = be_overtaken
        worker.run(id)
        [row] = rows.hot()
        assert (str(row.id), row.last_error_code) == (id, "worker_lost")
        assert rows.archived() == []
        assert "its lease had run out" in caplog.text


class TestBegins:
    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"of": "00000000-0000-0000-0000-000000000001"}, "is of another outbox"),
            ({"lease": 8 * 86_400.0}, "can't read its header 'outbox'"),
            ({"content": None}, "can't read its header 'outbox'"),
        ],
    )
    def test_a_header_of_another_outbox_or_that_can_not_be_read_runs_nothing(
        self, app: Celery, worker: Worker, call: Call, rows: Rows, changed: dict[str, Any], why: str, caplog: Any
    ) -> None:
        id = call(1)
        copy = worker.copy(id)
        header = {name: value for name, value in {**copy["outbox"], **changed}.items() if value}
        worker.trace({**copy, "outbox": header})
        assert app.seen == []
        assert why in caplog.text
        assert rows.state(id) == "handed over"

    @pytest.mark.parametrize("header", ["x", {"id": 1}, None])
    def test_a_header_of_that_name_by_others_means_nothing(
        self, app: Celery, worker: Worker, call: Call, header: Any
    ) -> None:
        copy = {**worker.copy(call(1)), "outbox": header}
        worker.trace(copy)
        worker.trace(copy)
        assert len(app.seen) == 2

    def test_classes_that_override_the_hooks_and_call_each_other_begin_once(
        self, app: Celery, outbox: Outbox, rows: Rows, call: Call
    ) -> None:
        class Base(app.Task):  # type: ignore[misc,name-defined]
            def before_start(self, *args: Any) -> None:
                app.seen.append("base")

            def __call__(self, *args: Any) -> Any:
                app.seen.append("call")
                return super().__call__(*args)

        class Own(Base):
            name = "own"

            def before_start(self, *args: Any) -> None:
                super().before_start(*args)
                app.seen.append("own")

            def run(self, n: int) -> None:
                app.seen.append(n)

        app.register_task(Own())
        worker = Worker(app, outbox.settings, rows)
        copy = worker.copy(call(1, task=app.tasks["own"]))
        worker.trace(copy)
        worker.trace(copy)
        worker.close()
        assert app.seen == ["base", "own", "call", 1]

    def test_tasks_that_it_calls_run_as_ever(self, app: Celery, worker: Worker, call: Call, rows: Rows) -> None:
        still: list[bool] = []

        def both(task: Any, n: int) -> None:
            if n:
                app.tasks["act"](0)
                app.tasks["act"].apply((0,))
                still.append(current() is not None)

        app.act = both
        worker.run(call(1))
        assert (len(app.seen), still) == (3, [True])
        assert [row.state for row in rows.archived()] == ["sent"]


class TestRetries:
    def test_a_retry_waits_on_the_row_with_what_the_next_copy_says(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        def again(task: Any, n: int) -> None:
            if task.request.retries == 0:
                raise task.retry((n + 1,), exc=OSError("away"), countdown=60, queue="other", headers={"a": "b"})

        app.act = again
        woken: list[bool] = []
        worker.supervisor.nudge = lambda: woken.append(True)  # type: ignore[assignment]
        id = call(1, link=app.tasks["next"].si())
        old = worker.copy(id)
        worker.trace(old)
        row = rows.one(id)
        assert (row.status, row.begun, row.lease, row.handed_at) == ("pending", False, None, None)
        assert (row.attempts, row.last_error_code, row.last_error) == (1, "OSError", "away")
        assert 50 < (row.locked_until - datetime.now(UTC)).total_seconds() < 61
        assert envelope(row).routing_key == "other"
        assert not {"outbox", "outbox_run"} & envelope(row).headers.keys()
        assert woken == [], "it is not due yet"
        new = worker.copy(id)
        for copy in (old, new):
            worker.trace(copy)
        assert app.seen == [("act", (1,)), ("act", (2,))]
        assert woken == [True], "the next task is"
        assert [row.state for row in rows.archived()] == ["sent"]

    def test_a_retry_by_autoretry_is_dead_with_the_original_error_in_the_end(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        app.act = raising(ConnectionError("still away"))
        id = call(task=app.tasks["auto"])
        worker.run(id)
        assert rows.one(id).status == "pending"
        assert 5 < (rows.one(id).locked_until - datetime.now(UTC)).total_seconds() < 8
        worker.run(id)
        row = rows.one(id)
        assert (row.status, row.last_error_code, row.last_error) == ("dead", "ConnectionError", "still away")

    def test_a_retry_without_an_error_is_dead_with_the_one_that_it_followed(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        def give_up(task: Any) -> None:
            try:
                raise ConnectionError("still away")
            except ConnectionError:
                raise task.retry(max_retries=0)  # noqa: B904

        app.act = give_up
        id = call()
        worker.run(id)
        assert (rows.one(id).last_error_code, rows.one(id).last_error) == ("ConnectionError", "still away")
        app.act = raising(Retry("by hand"))
        worker.run(id := call())
        assert rows.one(id).status == "dead", "there is no copy of it"

    def test_a_task_that_replaces_itself_is_followed_by_the_other(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        following = app.tasks["next"]
        app.act = lambda task: task.replace(chain(following.si(2), following.si(3)))
        id = call()
        worker.run(id)
        assert rows.state(id) == "sent"
        assert [row.event_type for row in rows.hot()] == ["next"]


class TestFollowers:
    def test_a_chain_and_its_links_are_written_with_each_end(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        act, following = app.tasks["act"], app.tasks["next"]
        first = act.s(1).set(link=following.s("linked"))
        id = call(task=chain(first, following.s("second"), following.si("last")))
        worker.run(id)
        assert rows.state(id) == "sent"
        linked, second = rows.hot()
        assert json.loads(linked.payload)[0] == [[1], "linked"]
        assert json.loads(second.payload)[0] == [[1], "second"]
        assert all(envelope(row).confirm for row in (linked, second))
        worker.run(str(second.id))
        [_, last] = rows.hot()
        worker.run(str(last.id))
        assert app.seen[-1] == ("next", ("last",))
        assert [row.id for row in rows.hot()] == [linked.id]

    def test_groups_callbacks_of_a_failure_and_tasks_of_other_applications_are_written_too(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        following = app.tasks["next"]
        members = group(*(following.s(n) for n in range(2)), app.signature("billing.notify", queue="billing"))
        id = call(1, link=members)
        rows.change([id], destination="others")
        worker.run(id)
        assert [(row.event_type, row.destination, envelope(row).confirm) for row in rows.hot()] == [
            ("next", "tasks", True), ("next", "tasks", True), ("billing.notify", "tasks", False)]  # fmt: skip
        app.act = raising(ValueError("x"))
        id = call(link_error=following.si("failed"))
        worker.run(id)
        assert rows.one(id).status == "dead"
        assert json.loads(rows.hot()[-1].payload)[0] == ["failed"]

    def test_what_can_not_be_written_is_an_error_of_the_task(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        id = call(link=app.tasks["next"].s().set(serializer="pickle"))
        with pytest.warns(RuntimeWarning, match="UncapturableTask"):
            worker.run(id)
        assert (rows.one(id).status, rows.one(id).last_error_code) == ("dead", "UncapturableTask")

    def test_calls_of_the_body_go_to_the_broker_as_ever(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        kept: list[Any] = []

        def act(task: Any) -> None:
            run = current()
            kept.append(run is None or run.target_of("the body of a chord", None))
            app.tasks["next"].delay()

        app.act = act
        worker.run(call())
        assert kept == [None]
        [row] = rows.hot()
        assert (row.status, row.last_error_code) == ("dead", "OperationalError")  # nobody listens there
        assert current() is None
