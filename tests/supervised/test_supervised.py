"""Supervised tasks as the relay handles them, with a real database and a real broker: what it says in the task, what
stays on the row, and who waits for whom."""

from __future__ import annotations

import pytest
from celery import Celery
from kombu import Queue
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.model import Step
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.settings import Settings
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage
from tests.claims import drain_batches
from tests.conftest import MakeSettings, MakeStore, Rows
from tests.supervised.tasks import QUEUE, Send, Tasks, supervised


class TestHandOver:
    def test_the_task_says_which_row_it_is(self, tasks: Tasks, rows: Rows, send: Send) -> None:
        [id] = rows.insert(payload=b'{"n": 1}', headers={"outbox": "mine", "tenant": "t"})
        assert send() == {"handed": 1}
        assert rows.state(id) == "handed over"
        [task] = tasks.all()
        assert task["headers"]["tenant"] == "t"
        [header] = tasks.headers()
        assert header == {"id": id, "of": tasks.runs.identity, "lease": 30, "content": header["content"]}
        run = tasks.begin(header)
        assert run is not None
        assert tasks.begin(header) is None
        assert tasks.runs.done(run)
        assert [row.state for row in rows.archived()] == ["sent"]

    def test_a_task_that_asked_for_it_is_supervised_wherever_it_goes(
        self, settings: MakeSettings, new_store: MakeStore, rows: Rows, engine: Engine, broker_url: str, tasks: Tasks
    ) -> None:
        own = settings(destinations=supervised(broker_url, confirm="sent"), broker_url=broker_url, nudge=False)
        app = Celery("shop", broker=broker_url, set_as_current=False)

        @app.task(name="shop.pay", queue=QUEUE, shared=False)
        def pay() -> None: ...

        outbox = Outbox(own, celery=app)
        with Session(engine) as session, session.begin():
            outbox.apply_async(session, pay, confirm=True)
            with outbox.capture(session, confirm=True):
                pay.delay()
            outbox.delay(session, pay)
        store = new_store(**own.model_dump(include={"destinations", "broker_url"}))
        publishers = Publishers(own)
        steps = drain_batches(store, publishers)
        publishers.close()
        assert steps == {Step.HANDED: 2, Step.SENT: 1}
        assert ["outbox" in task["headers"] for task in tasks.all()] == [True, True, False]
        assert all(tasks.begin(task["headers"]["outbox"]) for task in tasks.all()[:2])
        app.close()


@pytest.mark.parametrize("scheme", ["redis+stream://localhost/0/orders", "https://example.org/"])
def test_only_a_celery_destination_can_be_supervised(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match=r"destinations\.orders\.confirm.*only a celery:// destination"):
        Settings(destinations={"orders": {"url": scheme, "confirm": "run"}})


class TestByDefault:
    """Neither a call nor `confirm` says whether a task is supervised."""

    URL = "redis://shop:secret@127.0.0.1:1/3"

    @pytest.fixture
    def app(self) -> Celery:
        made = Celery("shop", broker=self.URL, set_as_current=False)
        made.conf.update(task_queues=[Queue("celery"), Queue("mails")], task_publish_retry=False)

        @made.task(name="shop.pay", shared=False)
        def pay() -> None: ...

        return made

    @pytest.mark.parametrize("how", ["install", "supervise"])
    @pytest.mark.parametrize("url", ["celery://", "celery://?broker=redis://relay@127.0.0.1:1/3"])
    def test_what_goes_to_the_workers_of_an_app_that_supervises_is_supervised(
        self, settings: MakeSettings, rows: Rows, engine: Engine, app: Celery, how: str, url: str
    ) -> None:
        given = {"broker_url": None, "nudge": False, "destinations": {"tasks": {"url": url}}}
        getattr(Outbox(settings(**given)), how)(app)
        outbox = Outbox(settings(**given), celery=app)  # as another module makes it
        elsewhere = {
            name: Outbox(settings(**{**given, **other}), celery=app)
            for name, other in {
                "confirm": {"destinations": {"tasks": {"url": "celery://", "confirm": "sent"}}},
                "broker": {"destinations": {"tasks": {"url": "celery://?broker=redis://127.0.0.1:1/4"}}},
                "relay's own broker": {"broker_url": "redis://127.0.0.1:1/4", "destinations": {"tasks": "celery://"}},
            }.items()
        }
        with Session(engine) as session, session.begin():
            outbox.delay(session, app.tasks["shop.pay"])
            outbox.apply_async(session, app.tasks["shop.pay"], queue="slow")
            outbox.delay(session, "shop.not_imported_here")
            outbox.apply_async(session, "shop.not_imported_here", queue="mails")
            with outbox.capture(session):
                app.tasks["shop.pay"].delay()
            outbox.apply_async(session, "billing.notify", queue="billing")  # perhaps another application's
            outbox.delay(session, Celery("billing", set_as_current=False).signature("shop.pay"))
            for other in elsewhere.values():
                other.delay(session, app.tasks["shop.pay"])
        confirmed = [TaskMessage.loads(row.headers[ENVELOPE]).confirm for row in rows.hot()]
        assert confirmed == [True] * 5 + [False] * 5

    def test_another_outbox_than_that_of_the_workers_gets_nothing_from_them(
        self, settings: MakeSettings, rows: Rows, engine: Engine, app: Celery
    ) -> None:
        Outbox(settings(database_schema="another")).supervise(app)
        outbox = Outbox(settings(broker_url=None, nudge=False, destinations={"tasks": "celery://"}), celery=app)
        with Session(engine) as session, session.begin():
            outbox.delay(session, app.tasks["shop.pay"])
        assert not TaskMessage.loads(rows.hot()[0].headers[ENVELOPE]).confirm

    def test_the_tasks_that_an_installed_relay_makes_of_events_are_supervised_if_its_app_runs_them(
        self, settings: MakeSettings, app: Celery
    ) -> None:
        urls = {
            "known": "celery://?task=shop.pay&queue=slow",
            "own queue": "celery://?task=shop.not_imported_here&queue=mails",
            "elsewhere": "celery://?task=billing.notify&queue=billing",
            "other broker": "celery://?task=shop.pay&broker=redis://127.0.0.1:1/4",
            "tasks": "celery://",
            "orders": "redis+stream://127.0.0.1:1/1/orders",
        }
        less = {"url": urls["known"], "confirm": "sent"}
        Outbox(settings(broker_url=None, destinations={**urls, "less": less})).install(app)
        found = app.outbox_relay.settings.destinations
        assert {name for name, destination in found.items() if destination.supervised} == {"known", "own queue"}
