"""The relay inside an application's own app: the application's configuration stays, and does not change our tasks.

The broker is kombu's in-memory one, where the test finds sent messages like a worker.
"""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery, _state, signals
from celery.concurrency.thread import TaskPool
from celery.exceptions import Retry
from kombu import Exchange, Message, Queue
from kombu.transport.memory import Channel

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.names import ALL_QUEUES, CLAIM_TASK, DRAIN_TASK, FEED_TASK, MAINTAIN_TASK, PUBLISH_TASK
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.settings import CLAIM_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE
from outbox_tasks.worker.app import make_app
from outbox_tasks.worker.install import install
from outbox_tasks.worker.start_checks import check, check_pool
from outbox_tasks.writing.broker_nudge import broker_nudge
from tests.conftest import MakeSettings, eventually

TASKS = (CLAIM_TASK, PUBLISH_TASK, DRAIN_TASK, MAINTAIN_TASK, FEED_TASK)

MEMORY = {"broker_url": "memory://"}

Configure = Callable[[Celery, dict[str, Any]], None]


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "queues": {"task_queues": [Queue("mails", routing_key="mails")]},
    "defaults": {
        "task_default_queue": "shop",
        "task_default_exchange": "all",
        "task_default_exchange_type": "fanout",
        "task_default_delivery_mode": "transient",
        "task_default_priority": 5,
    },
    "quorum queues": {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"},
    "routes": {"task_routes": {"*": {"exchange": "media", "exchange_type": "topic", "routing_key": "x.y"}}},
    "no missing queues": {"task_create_missing_queues": False, "task_routes": {"*": {"queue": "nowhere"}}},
    "tasks": {
        "task_serializer": "pickle",
        "accept_content": ["pickle", "json"],
        "task_compression": "gzip",
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_retry_on_worker_lost": True,
        "task_acks_on_failure_or_timeout": False,
        "result_backend": "cache+memory://",
        "task_ignore_result": False,
        "task_store_errors_even_if_ignored": True,
        "task_track_started": True,
        "task_time_limit": 2,
        "task_soft_time_limit": 1,
        "task_default_rate_limit": "1/h",
        "task_annotations": {"*": {"rate_limit": "1/h", "acks_late": True, "time_limit": 1}},
        "task_always_eager": True,
        "task_protocol": 1,
        "enable_utc": False,
        "timezone": "Asia/Tokyo",
        "task_publish_retry_policy": {"max_retries": None, "interval_start": 60},
    },
}


def at_once(app: Celery, values: dict[str, Any]) -> None:
    app.conf.update(values)


def loaded(app: Celery, values: dict[str, Any]) -> None:
    app.conf.update(values)
    assert app.conf.broker_url
    app.finalize()


def from_module(app: Celery, values: dict[str, Any]) -> None:
    """As in Django: by name, in a namespace, loaded at the first use."""
    sys.modules["shop_settings"] = module = ModuleType("shop_settings")
    vars(module).update({f"CELERY_{name.upper()}": value for name, value in values.items()})
    app.config_from_object("shop_settings", namespace="CELERY")


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Celery]]:
    """Those that the test has made."""
    # Without the tasks that other tests have shared with every app of the process.
    builtin = {made for made in _state._on_app_finalizers if made.__module__ == "celery.app.builtins"}
    monkeypatch.setattr(_state, "_on_app_finalizers", builtin)
    made: list[Celery] = []
    yield made
    for app in made:
        app.close()
        signals.import_modules.disconnect(sender=app)
    Channel.queues.clear()
    sys.modules.pop("shop_settings", None)


@pytest.fixture
def new_app(apps: list[Celery]) -> Callable[..., Celery]:
    def make(**values: Any) -> Celery:
        app = Celery("shop", set_as_current=False)
        if values:
            app.conf.update({**MEMORY, **values})
        apps.append(app)
        return app

    return make


def sent(app: Celery, queue: str) -> list[Message]:
    """Take all messages out of a queue."""
    with app.connection_for_read() as connection:
        channel = connection.channel()
        found = []
        while channel.queues.get(queue) is not None and (message := channel.basic_get(queue, no_ack=True)):
            found.append(message)
        return found


def retried(app: Celery) -> Message:
    """The message of a publish task that is retried."""
    task = app.tasks[PUBLISH_TASK]
    request = {"id": "an-id", "args": ["order.created", "orders", 1, "lease"], "kwargs": {}, "called_directly": False}
    task.push_request(**request, delivery_info={"exchange": "", "routing_key": PUBLISH_QUEUE, "priority": 0})
    try:
        with pytest.raises(Retry):
            task.retry(countdown=5, expires=60)
    finally:
        task.pop_request()
    [message] = sent(app, PUBLISH_QUEUE)
    return message


def beaten(app: Celery, name: str) -> Message:
    """The message of a task that beat sends."""
    beat = app.Beat(quiet=True, loglevel="WARNING").Service(app, scheduler_cls="celery.beat:Scheduler").get_scheduler()
    beat.apply_async(beat.schedule[name])
    [message] = sent(app, {CLAIM_TASK: CLAIM_QUEUE, MAINTAIN_TASK: MAINTAIN_QUEUE}[name])
    return message


WAYS: list[tuple[str, Configure, str]] = [
    *((kind, at_once, "installed") for kind in CONFIGURATIONS),
    ("queues", from_module, "configured"),
    *(("tasks", configure, first) for configure in (loaded, from_module) for first in ("installed", "configured")),
]


@pytest.mark.filterwarnings("error::celery.exceptions.AlwaysEagerIgnored")
@pytest.mark.parametrize(("kind", "configure", "first"), WAYS)
def test_any_configuration_stays_and_our_tasks_are_the_same_in_it(
    new_app: Callable[..., Celery], settings: MakeSettings, kind: str, configure: Configure, first: str
) -> None:
    values = {**MEMORY, **CONFIGURATIONS[kind]}
    app, plain = new_app(), new_app()
    steps = [lambda: install(app, settings()), lambda: configure(app, values)]
    for step in steps if first == "installed" else reversed(steps):
        step()
    configure(plain, values)
    for name in {*values, "task_queues", "task_routes", "task_default_queue", "task_create_missing_queues"}:
        assert app.conf[name] == plain.conf[name]

    assert set(app.tasks) == {*plain.tasks, *TASKS}
    for task in (app.tasks[name] for name in TASKS):
        late = (task.acks_late, task.reject_on_worker_lost, task.retry_on_worker_lost)
        results = (task.store_errors_even_if_ignored, task.track_started, not task.ignore_result)
        assert not any((*late, *results, task.rate_limit))
        assert task.time_limit > task.soft_time_limit > 10
        assert task.serializer == "json"
    assert app.tasks[PUBLISH_TASK].max_retries is None

    assert list(app.amqp.queues.consume_from) == [*plain.amqp.queues.consume_from, *ALL_QUEUES]
    retry = retried(app)
    assert retry.headers["eta"]
    for message in (retry, beaten(app, CLAIM_TASK), beaten(app, MAINTAIN_TASK)):
        assert message.content_type == "application/json"
        assert (message.delivery_info["exchange"], message.properties["delivery_mode"]) == ("", 2)
        assert message.properties["priority"] == 0
        assert message.headers["task"].startswith("outbox_tasks.")
        assert message.headers["ignore_result"]


def test_install_does_not_load_the_configuration(new_app: Callable[..., Celery], settings: MakeSettings) -> None:
    app = new_app()
    app.config_from_object("shop_settings", namespace="CELERY")
    install(app, settings())
    nudge = broker_nudge(settings(), app)
    assert not app.configured
    assert not app.finalized
    from_module(app, {"broker_url": "memory://shop"})
    assert nudge is not None
    nudge()
    [message] = eventually(lambda: sent(app, CLAIM_QUEUE))
    assert message.headers["task"] == CLAIM_TASK
    assert app.conf.broker_url == "memory://shop"


def test_our_entries_are_added_to_the_app_s_schedule(new_app: Callable[..., Celery], settings: MakeSettings) -> None:
    app, mine = new_app(), {"task": "shop.mine", "schedule": 5.0}
    install(app, settings(claim_interval=0.5))
    app.conf.update(**MEMORY, beat_schedule={"shop.mine": mine, MAINTAIN_TASK: mine})
    app.add_periodic_task(7.0, app.signature("shop.ping"), name="shop.ping")
    assert not app.configured
    schedule = app.conf.beat_schedule
    assert set(schedule) == {"shop.mine", "shop.ping", CLAIM_TASK, MAINTAIN_TASK}
    assert schedule[MAINTAIN_TASK] == mine
    assert schedule[CLAIM_TASK] == {
        "task": CLAIM_TASK,
        "schedule": 0.5,
        "options": {"queue": CLAIM_QUEUE, "headers": {"outbox_beat": True}},
    }
    app.add_periodic_task(9.0, app.signature("shop.ping"), name="shop.later")
    assert {"shop.later", CLAIM_TASK} <= set(app.conf.beat_schedule)
    # The app replaces it: beat sees that after it has imported the app.
    app.conf.beat_schedule = {"shop.other": mine}
    app.loader.import_default_modules()
    assert set(app.conf.beat_schedule) == {"shop.other", CLAIM_TASK, MAINTAIN_TASK}


def test_queues_that_the_app_defines_stay(new_app: Callable[..., Celery], settings: MakeSettings) -> None:
    mine = Queue(PUBLISH_QUEUE, Exchange("mine", "topic"), routing_key="a.#", queue_arguments={"x-max-priority": 3})
    # Celery 5.5 sends nothing at all without a default queue.
    app = new_app(task_queues=[mine, Queue("celery")], task_create_missing_queues=False)
    install(app, settings())
    assert app.amqp.queues[PUBLISH_QUEUE] == mine
    assert set(app.amqp.queues.consume_from) == {"celery", *ALL_QUEUES}
    assert retried(app).headers["task"] == PUBLISH_TASK
    app.amqp.queues.select([CLAIM_QUEUE, MAINTAIN_QUEUE])
    assert set(app.amqp.queues.consume_from) == {CLAIM_QUEUE, MAINTAIN_QUEUE}


@pytest.mark.parametrize("look", [lambda app: app.amqp, lambda app: app.amqp.queues])
def test_an_app_that_has_made_its_queues_already_gets_ours(
    new_app: Callable[..., Celery], settings: MakeSettings, look: Callable[[Celery], Any]
) -> None:
    app = new_app(task_default_queue="shop")
    look(app)
    install(app, settings())
    assert list(app.amqp.queues.consume_from) == ["shop", *ALL_QUEUES]


def test_a_pickled_app_has_our_queues(
    new_app: Callable[..., Celery], settings: MakeSettings, apps: list[Celery]
) -> None:
    app = new_app(task_default_queue="shop")
    install(app, settings())
    apps.append(copy := pickle.loads(pickle.dumps(app)))
    assert list(copy.amqp.queues.consume_from) == ["shop", *ALL_QUEUES]


def test_a_second_install_changes_nothing(
    new_app: Callable[..., Celery], settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app(task_default_queue="shop")
    resources = install(app, settings())
    app.finalize()
    assert install(app, settings()) is resources
    assert not caplog.records
    assert install(app, settings(claim_interval=0.5)) is resources
    assert "other settings" in caplog.text
    assert list(app.amqp.queues.consume_from) == ["shop", *ALL_QUEUES]
    own = make_app(settings(broker_url="memory://"))
    assert install(own, settings(broker_url="memory://")) is own.outbox_relay


class TestBroker:
    """How the relay uses the app's configuration of its broker."""

    def test_connections_follow_the_app_s_configuration_with_our_timeouts_as_defaults(
        self, new_app: Callable[..., Celery], settings: MakeSettings
    ) -> None:
        options = {"global_keyprefix": "shop:", "socket_timeout": 77, "priority_steps": [0, 5]}
        app = new_app(
            broker_url="redis://reads:1/0",
            broker_write_url=["redis://one:1/0", "redis://two:1/0"],
            broker_transport_options=options,
            broker_connection_timeout=9,
        )
        connection = Broker(app, settings()).connection()
        assert options.items() <= connection.transport_options.items()
        assert connection.transport_options["health_check_interval"] == 3
        assert (connection.hostname, connection.alt[1:], connection.connect_timeout) == ("one", ["redis://two:1/0"], 9)
        assert app.conf.broker_transport_options == options
        hurried = Broker(app, settings(), timeout=1.0).connection()
        assert (hurried.transport_options["socket_timeout"], hurried.connect_timeout) == (1.0, 1.0)
        assert hurried.transport_options["global_keyprefix"] == "shop:"

    def test_settings_without_a_broker_take_the_app_s(
        self, new_app: Callable[..., Celery], settings: MakeSettings
    ) -> None:
        destinations = {
            "tasks": {"url": "celery://?queue=shop", "transport_options": {"socket_timeout": 3}},
            "elsewhere": {"url": "celery://?broker=redis%3A%2F%2Felse%3A1%2F0"},
        }
        options = {"global_keyprefix": "shop:", "socket_timeout": 1}
        urls = ["redis://here:1/0", "redis://there:1/0"]
        app = new_app(broker_url=urls, broker_transport_options=options)
        resources = install(app, settings(destinations=destinations))
        assert resources.settings.broker_url == ";".join(urls)
        assert resources.settings.destinations["tasks"].transport_options == {
            "global_keyprefix": "shop:",
            "socket_timeout": 3,
        }
        assert resources.settings.destinations["elsewhere"].transport_options == {}


class TestCheck:
    """What a worker refuses to start with."""

    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            ({"accept_content": ["pickle"]}, r"accept_content = \['pickle'\] is not usable: .* JSON; add 'json'"),
            (
                {"broker_transport_options": {"visibility_timeout": 269}},
                r"broker_transport_options\['visibility_timeout'\] = 269 is not usable: it must be at least 270,",
            ),
        ],
        ids=["no json", "short visibility timeout"],
    )
    def test_names_the_setting_and_the_rule(
        self, new_app: Callable[..., Celery], settings: MakeSettings, values: dict[str, Any], reason: str
    ) -> None:
        app = new_app(**{"broker_url": "redis://localhost:1/0", **values})
        resources = install(app, settings())
        with pytest.raises(ConfigurationError, match=reason):
            check(resources)
        worker = app.WorkController.__new__(app.WorkController)  # it only says that it starts
        with pytest.raises(SystemExit, match="outbox_tasks: Setting"):
            signals.worker_init.send(sender=worker)
        app.amqp.queues.select("celery")
        signals.worker_init.send(sender=worker)

    @pytest.mark.parametrize(
        ("pool", "url", "reason"),
        [
            (TaskPool, "https://shop.example", None),
            ("gevent", "redis+stream://h", None),
            ("gevent", "https://shop.example", r"https:// \(destination 'orders'\) does not cooperate"),
            (
                "eventlet",
                "redis+stream://h",
                "'eventlet' is not usable: the relay's tasks run in the pools prefork, solo,",
            ),
        ],
    )
    def test_a_pool_of_celery_s(
        self,
        new_app: Callable[..., Celery],
        settings: MakeSettings,
        pool: Any,
        url: str,
        reason: str | None,
    ) -> None:
        app = new_app(broker_url="redis://localhost:1/0")
        resources = install(app, settings(destinations={"orders": {"url": url}}))
        with nullcontext() if reason is None else pytest.raises(ConfigurationError, match=reason):
            check_pool(resources, SimpleNamespace(pool_cls=pool))

    def test_uses_the_broker_s_own_visibility_timeout(
        self, new_app: Callable[..., Celery], settings: MakeSettings
    ) -> None:
        app = new_app(broker_url="redis://localhost:1/0")
        Broker(app, settings()).check()
        patient = settings(queue_lease=1800)
        with pytest.raises(ConfigurationError, match="= 3600 is not usable"):
            Broker(app, patient).check()


def test_celery_s_lines_on_the_relay_s_tasks_are_logged_at_debug_if_ours_say_the_same(
    new_app: Callable[..., Celery], settings: MakeSettings
) -> None:
    """A claim comes each second. The application's log levels stay for all else."""
    install(new_app(), settings())
    returned = {"return_value": "'sent'"}
    for task, facts, shown in (
        (CLAIM_TASK, returned, False), (PUBLISH_TASK, returned, False), (PUBLISH_TASK, {}, True),
        ("pay", returned, True),
    ):  # fmt: skip
        for name in ("celery.worker.strategy", "celery.app.trace"):
            log, data = logging.getLogger(name), {"name": task, "id": "an-id", **facts}
            record = log.makeRecord(name, logging.INFO, "", 0, "a line", (), None, extra={"data": data})
            assert (bool(log.filter(record)) and record.levelno >= logging.INFO) is shown
    beat = logging.getLogger("celery.beat")
    for task, shown in ((CLAIM_TASK, False), ("pay", True)):
        record = beat.makeRecord(beat.name, logging.INFO, "", 0, "%s: %s", (task, task), None)
        assert (bool(beat.filter(record)) and record.levelno >= logging.INFO) is shown
