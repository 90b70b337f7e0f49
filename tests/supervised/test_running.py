"""The run of a supervised task, on real rows: who may begin it, how it ends, and what follows it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, group
from celery.exceptions import Ignore, Reject
from sqlalchemy import Engine, update

from outbox_tasks import Outbox
from outbox_tasks.relay.store import Store
from outbox_tasks.settings.destination import Destination
from outbox_tasks.signals import dead_letter, key_blocked
from outbox_tasks.supervised.run import current
from outbox_tasks.wire.celery_message import ENVELOPE, RUN, TaskMessage
from tests.claims import take
from tests.conftest import Rows, seconds_from_now
from tests.supervised.running import Call, Worker, app, call, outbox, worker

__all__ = ["app", "call", "outbox", "worker"]


def acts(app: Celery, act: Callable[..., Any]) -> None:
    app.act = act


def envelope(row: Any) -> TaskMessage:
    return TaskMessage.loads(row.headers[ENVELOPE])


class TestEnds:
    def test_the_end_of_a_task_that_fails_is_signalled_once(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        def fail(task: Any) -> None:
            raise ValueError("no such order")

        heard: list[dict[str, Any]] = []
        for signal in (dead_letter, key_blocked):
            signal.connect(lambda signal, sender, **facts: heard.append(facts), sender=app, weak=False)
        acts(app, fail)
        id = call()
        rows.change([id], key="order:1")
        copy = worker.copy(id)
        for _ in range(2):
            worker.trace(copy)
        [row] = rows.hot()
        about = {"destination": row.destination, "message_id": str(row.id), "key": "order:1", "code": "ValueError"}
        assert heard == [
            {**about, "event_type": row.event_type, "attempts": 1, "error": "no such order"},
            about,
        ]

    def test_a_task_that_ends_well_is_archived(self, worker: Worker, call: Call, rows: Rows) -> None:
        worker.run(call(1))
        assert rows.hot() == []
        [row] = rows.archived()
        assert (row.state, row.attempts) == ("sent", 1)

    def test_a_task_that_fails_is_a_dead_letter_with_type_message_and_traceback(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        def fail(task: Any) -> None:
            raise ValueError("no such order, see redis://user:secret@host/0")

        acts(app, fail)
        worker.run(call())
        [row] = rows.hot()
        assert (row.status, row.last_error_code, row.lease) == ("dead", "ValueError", None)
        assert row.last_error == "no such order, see redis://user:***@host/0"
        assert "in fail" in row.history[-1]["traceback"]
        assert "secret" not in row.history[-1]["traceback"]

    @pytest.mark.parametrize("state", ["dead", "pending"])
    def test_an_error_that_can_not_say_what_it_is_ends_the_task_all_the_same(
        self, app: Celery, worker: Worker, call: Call, rows: Rows, state: str
    ) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("nothing to say")

        def fail(task: Any) -> None:
            raise Mute(1) if state == "dead" else task.retry(exc=Mute(1))

        acts(app, fail)
        worker.run(call())
        [row] = rows.hot()
        assert (row.status, row.last_error) == (state, "Mute(1)")

    @pytest.mark.parametrize(
        ("raised", "code"), [(Ignore("not today"), "ignored"), (Reject("not mine"), "rejected")], ids=str
    )
    def test_a_task_that_is_ignored_or_rejected_is_archived_as_discarded(
        self, app: Celery, worker: Worker, call: Call, rows: Rows, raised: Exception, code: str
    ) -> None:
        def refuse(task: Any) -> None:
            raise raised

        acts(app, refuse)
        worker.run(call())
        [row] = rows.archived()
        assert (row.state, row.last_error_code) == ("discarded", code)
        assert row.last_error == str(raised.args[0])

    def test_a_task_that_is_put_back_into_its_queue_is_handed_over_again(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        def refuse(task: Any) -> None:
            raise Reject("busy", requeue=True)

        acts(app, refuse)
        id = call()
        copy = worker.copy(id)
        worker.trace(copy)
        assert (rows.one(id).begun, rows.one(id).handed_at is None) == (False, False)
        acts(app, lambda task: None)
        worker.trace(copy)
        assert rows.state(id) == "sent"

    def test_a_process_that_ends_gives_its_run_up(self, app: Celery, worker: Worker, call: Call, rows: Rows) -> None:
        def leave(task: Any) -> None:
            raise SystemExit

        acts(app, leave)
        id = call()
        with pytest.raises(SystemExit):
            worker.run(id)
        row = rows.one(id)
        assert row.begun
        assert row.locked_until < datetime.now(UTC) + timedelta(seconds=1)


class TestBegins:
    def test_only_the_first_of_equal_copies_runs(self, app: Celery, worker: Worker, call: Call, rows: Rows) -> None:
        id = call(1)
        copy = worker.copy(id)
        for _ in range(3):
            worker.trace(copy)
        assert app.seen == [("act", (1,))]
        assert rows.state(id) == "sent"

    def test_another_task_with_the_header_of_a_copy_neither_runs_nor_ends_the_row(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        forged, waiting = worker.copy(call(7, task=app.tasks["next"])), worker.copy(call(1))
        forged[RUN] = {**waiting[RUN], "body": forged[RUN]["body"]}  # the main process adds the digest of what it got
        worker.trace(forged)
        assert app.seen == []
        assert {row.state for row in rows.shown()} == {"handed over"}
        worker.trace(waiting)
        assert app.seen == [("act", (1,))]

    def test_of_two_copies_that_begin_at_once_one_runs(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        for n in range(10):
            copy = worker.copy(call(n))
            both = threading.Barrier(2)

            def trace(copy: dict[str, Any] = copy, both: threading.Barrier = both) -> None:
                both.wait()
                worker.trace(copy)

            threads = [threading.Thread(target=trace) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(args for _, args in app.seen) == [(n,) for n in range(10)]
        assert {row.state for row in rows.shown()} == {"sent"}

    def test_a_copy_of_a_row_that_is_being_sent_again_does_not_run(
        self, app: Celery, worker: Worker, call: Call, rows: Rows, new_store: Any
    ) -> None:
        store: Store = new_store(destinations={"tasks": {"url": "celery://", "confirm": "run"}})
        id = call(1)
        copy = worker.copy(id)
        rows.change([id], locked_until=seconds_from_now(-1))
        assert len(take(store, {"tasks": 10})) == 1
        assert rows.one(id).last_error_code == "not_started"
        worker.trace(copy)
        assert app.seen == []

    def test_a_run_that_was_given_up_changes_nothing_when_it_ends(
        self, app: Celery, worker: Worker, call: Call, rows: Rows, new_store: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        store: Store = new_store(destinations={"tasks": {"url": "celery://", "confirm": "run"}})
        id = call(1)

        def be_overtaken(task: Any, n: int) -> None:
            rows.change([id], locked_until=seconds_from_now(-1))
            assert len(take(store, {"tasks": 10})) == 1

        acts(app, be_overtaken)
        worker.run(id)
        assert rows.one(id).last_error_code == "worker_lost"
        assert rows.archived() == []
        assert "its lease had run out" in caplog.text

    def test_a_task_of_another_outbox_does_not_run(
        self, app: Celery, worker: Worker, call: Call, rows: Rows, caplog: pytest.LogCaptureFixture
    ) -> None:
        copy = worker.copy(call(1))
        copy["outbox"] = {**copy["outbox"], "of": "00000000-0000-0000-0000-000000000001"}
        worker.trace(copy)
        assert app.seen == []
        assert "is of another outbox" in caplog.text

    @pytest.mark.parametrize(
        "said", [{"lease": 8 * 86_400.0}, {"lease": 10**400}, {"lease": "long"}, {"id": "x"}, {"content": None}]
    )
    def test_a_header_that_can_not_be_read_runs_nothing(
        self,
        app: Celery,
        worker: Worker,
        call: Call,
        rows: Rows,
        said: dict[str, Any],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        id = call(1)
        copy = worker.copy(id)
        worker.trace({**copy, "outbox": {name: value for name, value in {**copy["outbox"], **said}.items() if value}})
        assert app.seen == []
        assert "can't read its header 'outbox'" in caplog.text
        assert rows.state(id) == "handed over"

    def test_a_lease_may_be_as_long_as_the_settings_allow(
        self, app: Celery, outbox: Outbox, worker: Worker, call: Call, rows: Rows
    ) -> None:
        longest = Destination.model_fields["run_lease"].metadata
        [week] = [each.le for each in longest if hasattr(each, "le")]
        id = call(1)
        copy = worker.copy(id)
        worker.trace({**copy, "outbox": {**copy["outbox"], "lease": week}})
        assert rows.state(id) == "sent"

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
        def both(task: Any, n: int) -> None:
            if n:
                app.tasks["act"](0)
                app.tasks["act"].apply((0,), link=app.tasks["next"].si()) if n == 2 else app.tasks["act"].apply((0,))

        acts(app, both)
        worker.run(call(1))
        assert len(app.seen) == 3
        assert [row.state for row in rows.archived()] == ["sent"]


class TestRetries:
    def test_a_retry_waits_on_the_row_with_what_the_next_copy_says(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        def again(task: Any, n: int) -> None:
            if task.request.retries == 0:
                raise task.retry((n + 1,), exc=OSError("away"), countdown=60, queue="other", headers={"a": "b"})

        acts(app, again)
        id = call(1)
        worker.run(id)
        row = rows.one(id)
        assert (row.status, row.begun, row.lease, row.handed_at) == ("pending", False, None, None)
        assert (row.attempts, row.last_error_code, row.last_error) == (1, "OSError", "away")
        assert 50 < (row.locked_until - datetime.now(UTC)).total_seconds() < 61
        assert envelope(row).routing_key == "other"
        assert not {"outbox", "outbox_run"} & envelope(row).headers.keys()
        worker.run(id)
        assert app.seen == [("act", (1,)), ("act", (2,))]
        assert [row.state for row in rows.archived()] == ["sent"]

    def test_a_retry_by_autoretry_is_dead_with_the_original_error_in_the_end(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        def fail(task: Any) -> None:
            raise ConnectionError("still away")

        acts(app, fail)
        id = call(task=app.tasks["auto"])
        worker.run(id)
        row = rows.one(id)
        assert (row.status, row.last_error_code) == ("pending", "ConnectionError")
        assert 5 < (row.locked_until - datetime.now(UTC)).total_seconds() < 8
        worker.run(id)
        row = rows.one(id)
        assert (row.status, row.last_error_code, row.last_error) == ("dead", "ConnectionError", "still away")

    def test_without_an_exception_of_its_own_the_last_one_says_why_it_is_dead(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        def fail(task: Any) -> None:
            try:
                raise KeyError("a")
            except KeyError:
                task.retry(max_retries=0)

        acts(app, fail)
        worker.run(call())
        [row] = rows.hot()
        assert (row.status, row.last_error_code) == ("dead", "KeyError")

    def test_an_old_copy_does_not_run_after_the_retry_was_handed_over(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        def again(task: Any) -> None:
            if task.request.retries == 0:
                raise task.retry()

        acts(app, again)
        id = call()
        old = worker.copy(id)
        worker.trace(old)
        new = worker.copy(id)
        worker.trace(old)
        assert len(app.seen) == 1
        worker.trace(new)
        assert rows.state(id) == "sent"

    def test_a_task_that_replaces_itself_is_followed_by_the_other(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        following = app.tasks["next"]
        for replacement in (following.si(2), chain(following.si(2), following.si(3))):
            acts(app, lambda task, *args, by=replacement: task.replace(by))
            id = call(1)
            worker.run(id)
            assert rows.state(id) == "sent"
            [row] = rows.hot()
            assert row.event_type == "next"
            rows.change(status="dead")
            acts(app, lambda task, *args: None)
            rows.clear()


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

    def test_the_members_of_a_group_and_the_callbacks_of_a_failure_are_written_too(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        following = app.tasks["next"]
        worker.run(call(1, link=group(following.s(n) for n in range(3))))
        assert [json.loads(row.payload)[0][1] for row in rows.hot()] == [0, 1, 2]
        rows.change(status="dead")

        def fail(task: Any) -> None:
            raise ValueError("x")

        acts(app, fail)
        id = call(link_error=following.si("failed"))
        worker.run(id)
        assert rows.one(id).status == "dead"
        assert json.loads(rows.hot()[-1].payload)[0] == ["failed"]

    def test_what_another_application_runs_is_written_too_and_not_supervised(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        worker.run(call(1, link=app.signature("billing.notify", queue="billing")))
        [row] = rows.hot()
        assert (row.event_type, envelope(row).confirm) == ("billing.notify", False)

    def test_what_can_not_be_written_is_an_error_of_the_task(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        id = call(link=app.tasks["next"].s().set(serializer="pickle"))
        with pytest.warns(RuntimeWarning, match="UncapturableTask"):
            worker.run(id)
        row = rows.one(id)
        assert (row.status, row.last_error_code) == ("dead", "UncapturableTask")

    def test_nothing_follows_a_run_that_was_given_up(
        self, app: Celery, worker: Worker, call: Call, rows: Rows, engine: Engine
    ) -> None:
        id = call(1, link=app.tasks["next"].s())

        def lose(task: Any, n: int) -> None:
            with engine.begin() as connection:
                connection.execute(update(rows.tables.messages).values(lease=None))

        acts(app, lose)
        worker.run(id)
        assert [str(row.id) for row in rows.hot()] == [id]

    def test_calls_of_the_body_go_to_the_broker_as_ever(
        self, app: Celery, worker: Worker, call: Call, rows: Rows
    ) -> None:
        acts(app, lambda task: app.tasks["next"].delay())
        worker.run(call())
        [row] = rows.hot()
        assert (row.status, row.last_error_code) == ("dead", "OperationalError")  # nobody listens there
        assert current() is None
