"""The relay's tasks, in an app on a real broker, run by Celery's tracer as a worker would; no worker processes."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from billiard.einfo import ExceptionInfo
from celery import Celery, signals
from celery.app.trace import build_tracer
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import state as worker_state
from kombu import Message as Arrived
from sqlalchemy import text

from outbox_tasks.broker.names import (
    BY_BEAT,
    CLAIM_TASK,
    DRAIN_TASK,
    MAINTAIN_TASK,
    PUBLISH_TASK,
    QUEUES,
    WAIT,
)
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.errors import BrokerUnreachable, DatabaseTooSlow, DatabaseUnavailable, DeadLetter, NotSettled
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import Single
from outbox_tasks.operating.heartbeats import LATE_CLAIM
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import UNKNOWN_GRACE_SECONDS, Claims
from outbox_tasks.relay.store.leases import Leases
from outbox_tasks.relay.store.processes import neighbourhood
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE
from outbox_tasks.signals import claimed, dead_letter, key_blocked, ran, settled
from outbox_tasks.worker.app import make_app
from outbox_tasks.worker.requests import NOTHING_CLAIMED, ClaimRequest, PublishRequest
from tests.acceptance.publishers import SCHEME, distribution
from tests.claims import keep_house, take
from tests.conftest import MakeSettings, Rows, Stream, seconds_from_now

MakeApp = Callable[..., Celery]


@pytest.fixture
def make(
    settings: MakeSettings,
    broker_url: str,
    store: Store,
    stream: Stream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[MakeApp]:
    """Makes apps of the relay on an empty broker. Their destination does as the payload says."""
    monkeypatch.syspath_prepend(distribution(tmp_path / "plugins"))
    orders = {"url": stream.url.replace("redis+stream", SCHEME)}
    with redis.Redis.from_url(broker_url) as client:
        client.flushdb()
    with ExitStack() as stack:

        def make(**values: Any) -> Celery:
            app = make_app(settings(**{"broker_url": broker_url, "destinations": {"orders": orders}, **values}))
            app.finalize()
            stack.callback(app.close)
            stack.callback(app.outbox_relay.close)
            return app

        yield make


@pytest.fixture
def app(make: MakeApp) -> Celery:
    return make()


def run(
    app: Celery, name: str, *arguments: Any, id: str = "an id", retries: int = 0, **keywords: Any
) -> tuple[str, Any]:
    """Run a task as a worker does. Returns Celery's state, and the result or the exception."""
    task = app.tasks[name]
    request = {"id": id, "task": name, "retries": retries, "delivery_info": {}, "is_eager": False}
    traced = build_tracer(name, task, app=app)(id, arguments, keywords, request)
    return (traced.info.state, traced.info.retval) if traced.info else ("SUCCESS", traced.retval)


def publish(app: Celery, single: Single, **keywords: Any) -> tuple[str, Any]:
    arguments = single.event_type, single.destination, single.attempts, single.token
    return run(app, PUBLISH_TASK, *arguments, id=single.id, **keywords)


def waiting(broker_url: str, queue: str = PUBLISH_QUEUE) -> list[dict[str, Any]]:
    """The Celery messages in a queue."""
    with redis.Redis.from_url(broker_url) as client:
        found: list[bytes] = client.lrange(queue, 0, -1)  # type: ignore[assignment]
    return [json.loads(message) for message in found]


def arguments_of(message: dict[str, Any]) -> list[Any]:
    arguments: list[Any] = json.loads(base64.b64decode(message["body"]))[0]
    return arguments


@contextmanager
def hearing(signal: Any) -> Iterator[list[dict[str, Any]]]:
    """What receivers of a signal get meanwhile."""
    heard: list[dict[str, Any]] = []

    def hear(**facts: Any) -> None:
        heard.append(facts)

    signal.connect(hear)
    try:
        yield heard
    finally:
        signal.disconnect(hear)


def leased(store: Store, rows: Rows, payload: bytes = b"{}", **columns: Any) -> Single:
    """A fresh message, claimed singly."""
    rows.insert(payload=payload, **columns)
    [single] = take(store, {"orders": 10})
    return single


class TestPublish:
    def test_a_message_that_was_sent_succeeds_and_is_told(
        self, app: Celery, store: Store, rows: Rows, stream: Stream, broker_url: str
    ) -> None:
        single = leased(store, rows)
        assert publish(app, single._replace(destination="gone"))[0] == "IGNORED"  # by a relay with newer settings
        with hearing(settled) as heard:
            assert publish(app, single) == ("SUCCESS", "sent")
        assert stream.ids() == [single.id]
        assert rows.state(single.id) == "sent"
        [told] = heard
        assert (told["destination"], told["lease"]) == ("orders", single.token)
        assert [verdict.message.id for verdict in told["verdicts"]] == [single.id]
        assert waiting(broker_url, CLAIM_QUEUE) == []
        publishers, ended = app.outbox_relay.publishers, Mock()
        app.outbox_relay.before_close.append(ended)
        signals.worker_process_shutdown.send(sender=None)
        assert not publishers._made, "they are closed"
        assert ended.called

    @pytest.mark.parametrize("case", ["more of its key", "no room for others", "no room, and given back"])
    def test_one_behind_which_more_is_due_wakes_the_claim(
        self, app: Celery, store: Store, rows: Rows, broker_url: str, case: str
    ) -> None:
        key = "a" if case == "more of its key" else None
        if key:
            rows.insert(key=key)
        single = leased(store, rows, key=key)
        if case == "no room, and given back":
            store.leases.give_back([single.token])
        publish(app, single, more=not key)
        assert len(waiting(broker_url, CLAIM_QUEUE)) == 1

    def test_a_failure_is_retried_by_celery_under_a_new_lease(
        self, app: Celery, store: Store, rows: Rows, broker_url: str
    ) -> None:
        single = leased(store, rows, b'{"fail": 1, "retry_after": 5}')
        state, error = publish(app, single)
        assert (state, str(error.exc)) == ("RETRY", "told")
        [message] = waiting(broker_url)
        headers, row = message["headers"], rows.one(single.id)
        assert (headers["task"], headers["id"], headers["retries"]) == (PUBLISH_TASK, single.id, 1)
        assert datetime.fromisoformat(headers["eta"]) > datetime.now(UTC)
        assert 5 <= headers[WAIT] <= 6.25
        assert arguments_of(message) == ["order.created", "orders", 1, str(row.lease)]
        assert str(row.lease) != single.token
        assert (row.attempts, row.begun, row.last_error_code) == (1, False, "told")
        assert publish(app, single)[0] == "IGNORED"  # the first task, delivered once more
        assert publish(app, single._replace(attempts=1, token=str(row.lease))) == ("SUCCESS", "sent")
        assert [row.attempts for row in rows.archived()] == [2]

    def test_while_the_broker_is_away_failures_go_back_to_the_table_and_are_noted_once(
        self, make: MakeApp, own_redis: EmbeddedValkey, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app, single = make(broker_url=own_redis.url), leased(store, rows, b'{"fail": 1, "retry_after": 5}')
        own_redis.kill()
        monkeypatch.setattr("outbox_tasks.worker.drain_task.YIELDS_SECONDS", 0)
        rows.insert(101)  # a drain has two batches, and goes on
        [failing], [refused] = rows.insert(payload=b'{"fail": 1}'), rows.insert(payload=b'{"refuse": "nope"}')
        with hearing(dead_letter) as letters, hearing(key_blocked) as keys:
            assert run(app, DRAIN_TASK, "orders") == ("SUCCESS", "dead 1, later 1, sent 101")
        assert (rows.one(failing).lease, rows.one(failing).place) == (None, "waiting")
        assert [letter["message_id"] for letter in letters] == [refused]
        assert keys == []  # it has none
        assert app.tasks[CLAIM_TASK].apply_async(headers={BY_BEAT: True}) is None  # beat would log a traceback
        with pytest.raises(BrokerUnreachable):
            app.tasks[CLAIM_TASK].apply_async()
        assert publish(app, single)[0] == "RETRY"
        wait = (rows.one(single.id).locked_until - datetime.now(UTC)).total_seconds()
        assert 0 < wait <= 6.25
        rows.change(locked_until=seconds_from_now(-1))
        keep_house(store)
        row = rows.one(single.id)
        assert (row.lease, row.place, row.attempts, row.last_error_code) == (None, "ready", 1, "told")
        assert [note["what"] for note in row.history] == ["failed"]

    @pytest.mark.parametrize("on_dead", ["block", "skip"])
    def test_a_dead_letter_fails_and_is_told_with_the_key_that_it_holds_up(
        self, make: MakeApp, store: Store, rows: Rows, stream: Stream, broker_url: str, on_dead: str
    ) -> None:
        app = make(destinations={"orders": {"url": stream.url.replace("redis+stream", SCHEME), "on_dead": on_dead}})
        single = leased(store, rows, b'{"refuse": "nope"}', key="order:42")
        with hearing(dead_letter) as letters, hearing(key_blocked) as keys:
            state, error = publish(app, single)
        assert (state, type(error), str(error)) == (
            "FAILURE", DeadLetter, f"Message {single.id} is dead after attempt 1: nope",
        )  # fmt: skip
        assert rows.one(single.id).status == "dead"
        assert [(told["message_id"], told["attempts"], told["code"]) for told in letters] == [(single.id, 1, "nope")]
        blocked = [("orders", "order:42", single.id)] if on_dead == "block" else []
        assert [(told["destination"], told["key"], told["message_id"]) for told in keys] == blocked
        assert waiting(broker_url) == []

    def test_a_send_that_can_not_be_settled_is_left_to_its_lease(
        self, make: MakeApp, store: Store, rows: Rows, stream: Stream, broker_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A database that has crashed may have forgotten the begin: a retry would begin, and send it again."""
        app, single = make(send_timeout=1, statement_timeout=1), leased(store, rows)

        def crashed(*_: Any, **__: Any) -> None:
            raise DatabaseUnavailable(url="postgresql://here", reason="it has crashed")

        monkeypatch.setattr(Leases, "settle", crashed)
        state, error = publish(app, single)
        assert (state, type(error), error.id) == ("FAILURE", NotSettled, single.id)
        assert (len(stream), waiting(broker_url)) == (1, [])

    def test_a_send_that_can_not_begin_is_retried_under_the_same_lease(
        self, app: Celery, store: Store, rows: Rows, stream: Stream, broker_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        single = leased(store, rows)
        with monkeypatch.context() as standby:
            standby.setitem(Store.session, "default_transaction_read_only", "on")
            assert [publish(app, single, retries=retries)[0] for retries in (2, 0)] == ["RETRY"] * 2
        message, third = waiting(broker_url)
        assert message["headers"]["retries"] == 1
        assert 1 <= message["headers"][WAIT] <= 1.25 < 4 <= third["headers"][WAIT] <= 5
        assert arguments_of(message) == ["order.created", "orders", 0, single.token]
        assert len(stream) == 0
        app.outbox_relay.close()
        assert publish(app, single) == ("SUCCESS", "sent")

    @pytest.mark.parametrize("error", [TimeLimitExceeded(1), WorkerLostError("gone"), KeyError("a mistake")], ids=repr)
    def test_one_whose_process_was_killed_ends_its_leases(
        self, app: Celery, store: Store, rows: Rows, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_tasks.worker.requests.PAUSES_SECONDS", (0.1,))
        single = leased(store, rows)
        with subprocess.Popen(["true"]) as process:
            process.wait()
        rows.change(locked_by=f"{neighbourhood()}{process.pid}")
        try:
            raise error
        except Exception:
            arrived(app, PublishRequest, PUBLISH_TASK, single.id).on_failure(ExceptionInfo())
        looks = [thread for thread in threading.enumerate() if thread.name == "outbox-leases"]
        assert len(looks) == (not isinstance(error, KeyError))
        for look in looks:
            look.join()
            assert [again.id for again in take(store, {"orders": 1})] == [single.id]

    def test_a_revoked_id_is_not_refused_for_good(self, app: Celery) -> None:
        """Celery remembers the id of such a task as revoked; ours is the message's, which will come again."""
        worker_state.revoked.add("an-id")  # as when somebody revokes it in Flower
        assert not arrived(app, PublishRequest, PUBLISH_TASK, "an-id").revoked()


def arrived(app: Celery, request: type[Any], name: str, id: str, **options: Any) -> Any:
    """A task that has arrived at a worker."""
    task = app.amqp.create_task_message(id, name, (), {})
    message = Arrived(body="[[], {}, {}]", content_type="application/json", content_encoding="utf-8")
    message.headers, message.properties, message.delivery_info = task.headers, {}, {}
    return request(message, app=app, task=app.tasks[name], **options)


class TestDrain:
    COUNT, BATCH = 600, 500

    @pytest.fixture
    def hasty(self, make: MakeApp, stream: Stream, rows: Rows) -> Celery:
        """An app with one slot and two batches for it."""
        rows.insert(self.COUNT)
        return make(destinations={"orders": {"url": stream.url, "concurrency": 1}})

    def test_sends_all_that_is_due_and_wakes_the_claim(self, hasty: Celery, stream: Stream, broker_url: str) -> None:
        assert run(hasty, CLAIM_TASK) == ("SUCCESS", "claimed 0 singles, started 1 drains, 0 dead")
        [message] = waiting(broker_url, DRAIN_QUEUE)
        with redis.Redis.from_url(broker_url) as client:
            client.delete(DRAIN_QUEUE)
        assert run(hasty, DRAIN_TASK, *arguments_of(message)) == ("SUCCESS", f"sent {self.COUNT}")
        assert len(stream) == self.COUNT
        assert len(waiting(broker_url, CLAIM_QUEUE)) == 1
        assert run(hasty, DRAIN_TASK, "orders") == ("SUCCESS", "nothing was due")

    @pytest.mark.parametrize(
        ("queue", "seconds", "sent"),
        [(PUBLISH_QUEUE, 0, BATCH), (PUBLISH_QUEUE, 60, COUNT), (MAINTAIN_QUEUE, 0, COUNT), (CLAIM_QUEUE, 0, COUNT)],
    )
    def test_yields_after_a_batch_if_a_task_waits_in_a_queue_that_its_worker_serves(
        self,
        hasty: Celery,
        broker_url: str,
        stream: Stream,
        queue: str,
        seconds: float,
        sent: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """It looks at most once in so many seconds."""
        monkeypatch.setattr("outbox_tasks.worker.drain_task.YIELDS_SECONDS", seconds)
        hasty.amqp.queues.select([DRAIN_QUEUE, PUBLISH_QUEUE])
        with redis.Redis.from_url(broker_url) as client:
            client.lpush(queue, "a task")
        _, told = run(hasty, DRAIN_TASK, "orders")
        assert told == f"sent {sent}" + ", and there may be more" * (sent == self.BATCH)
        assert len(stream) == sent

    def test_ends_after_a_batch_if_its_worker_stops(self, hasty: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_state, "should_stop", 0)  # the code with which it will exit
        assert run(hasty, DRAIN_TASK, "orders") == ("SUCCESS", f"sent {self.BATCH}, and there may be more")

    def test_its_slot_is_free_once_it_has_ended_and_not_before(
        self, hasty: Celery, store: Store, stream: Stream
    ) -> None:
        [asked] = store.claims.reserve_slots({"orders": (1, 1)})
        for arguments in (("orders",), ("orders", "11111111-1111-4111-8111-111111111111")):
            assert run(hasty, DRAIN_TASK, *arguments) == ("SUCCESS", "others are at work")
        assert len(stream) == 0
        assert run(hasty, DRAIN_TASK, *asked[:2]) == ("SUCCESS", f"sent {self.COUNT}")
        assert run(hasty, DRAIN_TASK, *asked[:2]) == ("SUCCESS", "others are at work")
        assert len(store.claims.reserve_slots({"orders": (1, 1)})) == 1
        assert run(hasty, DRAIN_TASK, "gone") == ("SUCCESS", "unknown destination")

    @pytest.mark.parametrize(
        ("singles", "told", "claims"), [("Infinity", "its messages travel singly", 1), ("0", "nothing was due", 0)]
    )
    def test_leaves_the_messages_to_the_claim_if_a_person_has_said_that_they_travel_singly(
        self, app: Celery, store: Store, broker_url: str, singles: str, told: str, claims: int
    ) -> None:
        wanted = json.dumps([{"setting": "singles", "value": singles}])
        store.ask("audit/limit.sql", destination="orders", wanted=wanted, seconds=None, person="anna", reason=None)
        assert run(app, DRAIN_TASK, "orders") == ("SUCCESS", told)
        assert len(waiting(broker_url, CLAIM_QUEUE)) == claims
        [slot] = store.claims.reserve_slots({"orders": (1, 1)})  # more is due than may travel singly
        assert run(app, DRAIN_TASK, *slot[:2]) == ("SUCCESS", "nothing was due")


class TestClaim:
    def test_hands_what_is_due_to_the_publish_queue(self, app: Celery, rows: Rows, broker_url: str) -> None:
        ids = rows.insert(40)
        rows.insert(1, locked_until=seconds_from_now(60))
        with hearing(claimed) as heard:
            assert run(app, CLAIM_TASK) == ("SUCCESS", "claimed 40 singles, started 0 drains, 0 dead")
        sent = {message["headers"]["id"]: arguments_of(message) for message in waiting(broker_url)}
        assert sent == {id: ["order.created", "orders", 0, str(rows.one(id).lease)] for id in ids}
        [told] = heard
        assert (told["tally"].singles, told["tally"].drains) == (40, 0)
        assert run(app, CLAIM_TASK) == ("SUCCESS", NOTHING_CLAIMED)

    def test_tells_of_messages_to_unknown_destinations(self, app: Celery, rows: Rows) -> None:
        [id] = rows.insert(destination="gone", locked_until=seconds_from_now(-2 * UNKNOWN_GRACE_SECONDS))
        with hearing(dead_letter) as letters:
            assert run(app, CLAIM_TASK) == ("SUCCESS", "claimed 0 singles, started 0 drains, 1 dead")
        assert [(letter["message_id"], letter["code"]) for letter in letters] == [(id, "unknown_destination")]

    def test_asks_after_each_outage_of_the_database_once_whether_commits_were_lost(
        self, app: Celery, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Store] = []

        def ask(claims: Any) -> None:
            asked.append(claims)
            raise DatabaseTooSlow(url="here", reason="too many rows")

        monkeypatch.setattr(Claims, "note_lost_commits", ask)
        for outages in (1, 2, 3):
            assert [run(app, CLAIM_TASK)[1] for _ in range(2)] == [NOTHING_CLAIMED] * 2
            assert len(asked) == outages
            with monkeypatch.context() as standby:
                standby.setitem(Store.session, "default_transaction_read_only", "on")
                app.outbox_relay._store.take().close()
                assert run(app, CLAIM_TASK)[1] == "unavailable"
            app.outbox_relay._store.take().close()

    def test_that_the_database_holds_up_says_so(self, make: MakeApp, rows: Rows, schema: str) -> None:
        app = make(statement_timeout=0.2)
        with hearing(ran) as heard, rows.engine.connect() as other:
            other.execute(text(f"LOCK TABLE {schema}.outbox_ready"))
            assert run(app, CLAIM_TASK) == ("SUCCESS", "unavailable")
        assert [told["what"] for told in heard] == [LATE_CLAIM]

    def test_has_events_only_if_it_did_something_or_could_not(self, app: Celery) -> None:
        sent: list[str] = []
        eventer = SimpleNamespace(enabled=True, send=lambda type, **fields: sent.append(type))
        request = arrived(app, ClaimRequest, CLAIM_TASK, "an-id", eventer=eventer)
        request.send_event("task-started")
        request.send_event("task-succeeded", result=repr(NOTHING_CLAIMED))
        assert sent == []
        request.send_event("task-succeeded", result=repr("unavailable"))
        assert sent == ["task-received", "task-started", "task-succeeded"]

    def test_a_single_says_how_often_it_was_sent_and_whether_it_wakes_the_claim(
        self, app: Celery, broker_url: str
    ) -> None:
        single = Single("an id", "order.created", "orders", 3, "a token", more=True)
        app.outbox_relay.broker.send([single, single._replace(more=False)], [])
        sent = [json.loads(base64.b64decode(message["body"]))[:2] for message in reversed(waiting(broker_url))]
        assert sent == [[["order.created", "orders", 3, "a token"], more] for more in ({"more": True}, {})]
        assert {message["headers"]["retries"] for message in waiting(broker_url)} == {3}


def test_what_is_sent_has_no_time_that_another_host_would_compare_with_its_clock(
    app: Celery, rows: Rows, broker_url: str
) -> None:
    rows.insert(1)
    run(app, CLAIM_TASK)
    app.outbox_relay.broker.wake_drain("orders")
    for task in (CLAIM_TASK, MAINTAIN_TASK):
        app.tasks[task].apply_async(expires=5)
    app.tasks[CLAIM_TASK].apply_async()  # one waits already
    sent = [message for queue in QUEUES for message in waiting(broker_url, queue)]
    assert len(sent) == 4
    assert {(message["headers"]["expires"], message["headers"]["eta"]) for message in sent} == {(None, None)}
    assert not [message for message in sent if "expiration" in message["properties"]]


def test_the_application_s_broker_does_not_become_the_relay_s(
    settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://elsewhere:1/0")
    app = PinnedCelery("relay", broker="redis://here:1/0", settings=settings())
    for connection in (app.connection(), app.connection_for_read(), app.connection_for_write()):
        assert connection.hostname == "here"
    assert app.connection_for_write("redis://chosen:1/0").hostname == "chosen"


def test_maintenance_that_runs_elsewhere_is_not_done_and_that_with_more_to_do_goes_on(
    app: Celery, store: Store, rows: Rows, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.alone("maintain"):
        assert run(app, MAINTAIN_TASK) == ("SUCCESS", "not done")
    assert waiting(broker_url, MAINTAIN_QUEUE) == []
    monkeypatch.setattr("outbox_tasks.operating.retention.forget_marks", lambda store: (1, True))
    run(app, MAINTAIN_TASK)
    assert len(waiting(broker_url, MAINTAIN_QUEUE)) == 1


def test_after_an_outage_of_the_broker_a_task_may_wait_in_a_worker_again(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_away() -> bool:
        raise BrokerUnreachable(url="redis://here", reason="gone")

    with monkeypatch.context() as outage:
        outage.setattr(app.outbox_relay.broker, "prefetch_grows", be_away)
        assert not app.outbox_relay.tasks_may_wait
    assert app.outbox_relay.tasks_may_wait
