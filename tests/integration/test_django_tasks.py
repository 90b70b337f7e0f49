"""Django's tasks: written in Django's transaction, and their results, as their rows say them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from sqlalchemy import Engine

from outbox_tasks import Outbox
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.integration.sessions import configure_django
from tests.supervised.running import Worker

BACKEND = {"BACKEND": "outbox_tasks.django.TasksBackend", "QUEUES": ["default", "mails"]}
PATH = "tests.integration.django_shop"
TRACE = f'Traceback:\nold.OutOfStock: its cause\n\nTraceback:\n  File "x.py", line 1\n{PATH}.OutOfStock: no tea\n'


@pytest.fixture
def api(engine: Engine) -> Iterator[Any]:
    configure_django(engine.url.render_as_string(hide_password=False))
    from django.test.utils import override_settings

    with override_settings(TASKS={"default": BACKEND, "other": BACKEND}, INSTALLED_APPS=["outbox_tasks.django"]):
        from outbox_tasks.django import api

        yield api
        from django.db import connections

        connections.close_all()


@pytest.fixture
def backend(api: Any, settings: MakeSettings, rows: Rows) -> Any:
    made = api.task_backends["default"]
    made.outbox = Outbox(
        settings(destinations={"tasks": {"url": "celery://"}}, nudge=False),
        celery=Celery("shop", set_as_current=False),
    )
    return made


@pytest.fixture
def shop(backend: Any) -> Any:
    from tests.integration import django_shop

    return django_shop


@pytest.fixture
def atomic(api: Any) -> Any:
    from django.db import transaction

    return transaction.atomic


class TestEnqueue:
    def test_writes_a_supervised_task_in_the_open_transaction(self, shop: Any, rows: Rows, atomic: Any) -> None:
        from django.db.transaction import set_rollback

        with atomic():
            shop.add.enqueue(1, b=2)
            set_rollback(True)
        assert rows.hot() == []
        with atomic():
            result = shop.add.enqueue(1, b=2)
            assert rows.hot() == []
            assert shop.add.get_result(result.id) == result.task.get_backend().get_result(result.id)
        [row] = rows.hot()
        envelope = TaskMessage.loads(row.headers[ENVELOPE])
        assert (str(row.id), row.event_type, row.destination) == (result.id, f"{PATH}.add", "tasks")
        assert (envelope.headers["task"], envelope.headers["shadow"]) == (
            "outbox_tasks.django.run_task", f"{PATH}.add",
        )  # fmt: skip
        assert (envelope.confirm, envelope.routing_key, row.priority) == (True, "celery", 0)
        found = shop.add.get_result(result.id)
        assert (found.status, found.args, found.kwargs) == ("READY", [1], {"b": 2})
        assert (found.enqueued_at, found.started_at, found.attempts) == (row.created_at, None, 0)
        assert abs(result.enqueued_at - found.enqueued_at) < timedelta(minutes=1)

    def test_time_queue_and_priority(self, shop: Any, rows: Rows) -> None:
        due = datetime.now(UTC) + timedelta(days=1)
        ids = [
            shop.add.using(run_after=due, queue_name="mails", priority=-1).enqueue(1, 2).id,
            shop.attempt.enqueue().id,
        ]
        late, urgent = (rows.one(id) for id in ids)
        assert (late.locked_until, late.priority, urgent.priority) == (due, -1, 1)
        assert TaskMessage.loads(late.headers[ENVELOPE]).routing_key == "mails"
        task = shop.add.get_result(ids[0]).task
        assert (task.run_after, task.queue_name, task.priority) == (due, "mails", -1)

    def test_async_and_outside_of_a_transaction_it_commits_at_once(self, shop: Any, rows: Rows) -> None:
        from asgiref.sync import async_to_sync

        async def work() -> Any:
            result = await shop.double.aenqueue(21)
            return await shop.double.aget_result(result.id)

        result = async_to_sync(work)()
        assert result.status == "READY"
        assert [str(row.id) for row in rows.hot()] == [result.id]

    def test_what_is_no_json_is_refused(self, shop: Any, rows: Rows, atomic: Any) -> None:
        with atomic():
            for bad in ({1, 2}, object()):
                with pytest.raises(TypeError, match="Unsupported type"):
                    shop.add.enqueue(bad, 1)
        with pytest.raises(Exception, match="not valid for backend"):
            shop.add.using(queue_name="unknown")
        assert rows.hot() == []


class TestResult:
    def test_of_a_running_task(self, shop: Any, rows: Rows) -> None:
        id = shop.add.enqueue(1, 2).id
        lost = {"at": "2026-11-20T10:00:09+00:00", "what": "failed", "attempt": 1, "code": "worker_lost", "by": "w1"}
        relayed = {"at": "2026-11-20T10:00:00+00:00", "what": "failed", "attempt": 1, "code": "connection", "by": "r1"}
        holds = {"lease": uuid4(), "begun": True, "locked_until": seconds_from_now(60), "locked_by": "w2"}
        repeated = {"at": "2026-11-20T10:00:12+00:00", "what": "retried", "ran": 1.0, "by": "w0"}  # by Celery
        rows.change([id], **holds, handed_at=seconds_from_now(-3), attempts=2, history=[relayed, lost, repeated])
        found = shop.add.get_result(id)
        assert (found.status, found.worker_ids, found.attempts) == ("RUNNING", ["w1", "w0", "w2"], 3)
        assert not found.is_finished
        [error] = found.errors
        assert error.exception_class.__name__ == "WorkerLostError"
        assert found.started_at is not None
        with pytest.raises(ValueError, match="not finished"):
            _ = found.return_value

    @pytest.mark.parametrize(
        ("code", "trace", "kind"),
        [
            ("OutOfStock", TRACE, "OutOfStock"),
            ("ValueError", "Traceback:\nValueError\n", "ValueError"),
            ("Lost", "no such line", "DeadLetter"),
        ],
    )
    def test_of_a_task_that_failed(self, shop: Any, rows: Rows, code: str, trace: str, kind: str) -> None:
        id = shop.fail.enqueue("tea").id
        entry = {"at": "2026-11-20T10:00:09+00:00", "what": "dead", "attempt": 1, "code": code, "ran": 1.5, "by": "w1"}
        dead = {"status": "dead", "dead_at": seconds_from_now(-1), "last_error_code": code, "last_error": "no tea"}
        rows.change([id], **dead, attempts=1, history=[{**entry, "traceback": trace}])
        found = shop.fail.get_result(id)
        [error] = found.errors
        assert (found.status, error.exception_class.__name__, error.traceback) == ("FAILED", kind, trace)
        assert (found.worker_ids, found.finished_at) == (["w1"], rows.one(id).dead_at)
        assert found.started_at is not None

    def test_of_a_task_that_never_ran_to_its_end(self, shop: Any, rows: Rows) -> None:
        expired, refused = shop.add.enqueue(1, 2).id, shop.add.enqueue(1, 2).id
        lost = {"at": "2026-11-20T10:00:09+00:00", "what": "claimed again", "code": "worker_lost", "by": "w1"}
        rows.change([expired], last_error_code="expired", last_error="too late", history=[lost])
        rows.settle(expired, "discarded")
        rows.change([refused], status="dead", dead_at=seconds_from_now(-1), last_error_code="bad_task")
        for id, *kinds in ((expired, "WorkerLostError", "DeadLetter"), (refused, "DeadLetter")):
            found = shop.add.get_result(id)
            assert [error.exception_class.__name__ for error in found.errors] == kinds
            assert (found.status, found.attempts) == ("FAILED", len(kinds) - 1)

    def test_of_others_does_not_exist(self, api: Any, backend: Any, shop: Any, rows: Rows) -> None:
        [event] = rows.insert(1)
        [bad] = rows.insert(1, headers={ENVELOPE: "{"})
        other = api.task_backends["other"]
        other.outbox = backend.outbox
        theirs = shop.add.using(backend="other").enqueue(1, 2).id
        assert other.get_result(theirs).backend == "other"
        for id in ("x", str(uuid4()), event, bad, theirs):
            with pytest.raises(api.TaskResultDoesNotExist):
                backend.get_result(id)
        with pytest.raises(Exception, match="does not match"):
            shop.fail.get_result(shop.add.enqueue(1, 2).id)


class TestRun:
    @pytest.fixture
    def worker(self, backend: Any, rows: Rows) -> Iterator[Worker]:
        import outbox_tasks.django.tasks  # noqa: F401 - as Celery's autodiscover_tasks does

        made = Worker(backend.outbox.celery, backend.outbox.settings, rows)
        yield made
        made.close()

    def test_what_a_task_returns_is_kept_on_its_row(self, shop: Any, worker: Worker, rows: Rows) -> None:
        odd = {"a": None, "b": "\0\ud800", "c": [1.5, True]}
        calls = ((shop.add, (1, 2), 3), (shop.double, (21,), 42), (shop.echo, (odd,), odd), (shop.echo, (None,), None))
        for task, args, value in calls:
            result = task.enqueue(*args)
            assert worker.run(result.id) == value
            result.refresh()
            assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", value, 1)
            assert result.enqueued_at < result.started_at <= result.finished_at
        assert rows.hot() == []

    def test_all_times_are_local_in_a_project_without_time_zones(
        self, api: Any, shop: Any, worker: Worker, rows: Rows
    ) -> None:
        from django.test.utils import override_settings

        tokyo = timezone(timedelta(hours=9))
        with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
            due = datetime.now(tokyo).replace(microsecond=0, tzinfo=None) + timedelta(hours=1)
            late = shop.add.using(run_after=due).enqueue(1, 2)
            assert rows.one(late.id).locked_until == due.replace(tzinfo=tokyo)
            assert shop.add.get_result(late.id).task.run_after == due
            result = shop.attempt.enqueue()
            lost = {"at": "2026-11-20T10:00:09+00:00", "what": "failed", "code": "worker_lost", "ran": 4.0, "by": "w1"}
            rows.change([result.id], history=[lost])
            began: list[Any] = []
            api.task_started.connect(hear := lambda task_result, **_: began.append(task_result.started_at))
            assert worker.run(result.id) == [2, result.id]  # its context
            api.task_started.disconnect(hear)
            result.refresh()
            assert (result.attempts, len(result.errors)) == (2, 1)
            assert [*began, result.started_at] == [datetime(2026, 11, 20, 19, 0, 5)] * 2  # noqa: DTZ001 - as Django has it
            times = (result.enqueued_at, result.last_attempted_at, result.finished_at)
            assert max(times) - min(times) < timedelta(minutes=1)
            assert abs(result.finished_at - datetime.now(tokyo).replace(tzinfo=None)) < timedelta(minutes=1)
            failed = shop.fail.enqueue("tea")
            worker.run(failed.id)
            failed.refresh()
            assert failed.started_at <= failed.finished_at

    def test_what_a_task_raises_is_kept_too(self, shop: Any, worker: Worker) -> None:
        for task, args, kind in ((shop.fail, ("tea",), shop.OutOfStock), (shop.unprintable, (), TypeError)):
            result = task.enqueue(*args)
            worker.run(result.id)
            result.refresh()
            [error] = result.errors
            assert (result.status, error.exception_class, result.attempts) == ("FAILED", kind, 1)
            assert "Traceback" in error.traceback
            assert result.started_at <= result.finished_at

    def test_tells_the_signals_and_survives_their_receivers(self, api: Any, shop: Any, worker: Worker) -> None:
        told: list[Any] = []

        def hear(sender: Any, task_result: Any, **_: Any) -> None:
            told.append((sender.__name__, task_result.id, str(task_result.status), task_result.attempts))
            if str(task_result.status) != "READY":
                raise RuntimeError

        signals = (api.task_enqueued, api.task_started, api.task_finished)
        for signal in signals:
            signal.connect(hear)
        try:
            done, failed = shop.add.enqueue(1, b=2).id, shop.fail.enqueue("tea").id
            assert worker.run(done) == 3
            worker.run(failed)
        finally:
            for signal in signals:
                signal.disconnect(hear)
        states = [(done, "RUNNING", 1), (done, "SUCCESSFUL", 1), (failed, "RUNNING", 1), (failed, "FAILED", 1)]
        enqueued = [(done, "READY", 0), (failed, "READY", 0)]
        assert told == [("TasksBackend", *facts) for facts in (*enqueued, *states)]

    def test_a_name_that_is_no_task_is_not_called(self, backend: Any) -> None:
        from outbox_tasks.django.results import Call
        from outbox_tasks.django.run import run

        for path in (f"{PATH}.plain", f"{PATH}.gone", "os.system", "no.x"):
            with pytest.raises((TypeError, ImportError)):
                run(SimpleNamespace(id="1"), Call(path, ["true"], {}, "default", "default", 0, None))


def test_the_checks_say_what_is_missing(backend: Any, settings: MakeSettings) -> None:
    from django.test.utils import override_settings

    def found() -> list[str]:
        return [message.id for message in backend.check()]

    assert found() == []
    with override_settings(INSTALLED_APPS=[]):
        assert found() == ["outbox_tasks.E001"]
    backend.outbox = Outbox(settings(destinations={"orders": {"url": "a://b"}}))
    assert found() == ["outbox_tasks.E002"]
    backend.outbox = Outbox(settings(destinations={"tasks": {"url": "celery://"}}), feed="eu")
    assert found() == ["outbox_tasks.E003"]
