"""`outbox-tasks drain`: the pipe in one process, on a schedule of somebody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import redis
from click.testing import CliRunner
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.cli import outbox
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import Step
from outbox_tasks.operating import pauses
from outbox_tasks.operating.messages.find import Lookup
from outbox_tasks.relay.drain import Drained
from outbox_tasks.relay.drain_all import drain_all
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import UNKNOWN_GRACE_SECONDS
from tests.acceptance.publishers import SCHEME, distribution
from tests.conftest import MakeSettings, MakeStore, Rows, Stream, eventually, own_stream, seconds_from_now
from tests.integration.conftest import environment

Start = Callable[..., "subprocess.Popen[str]"]
Told = Callable[..., tuple[int, str]]

SHORT = {"queue_lease": 3, "send_timeout": 0.5, "statement_timeout": 0.5}
"""What a killed process held comes back after four seconds."""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """Where a destination is installed that does as the payload says."""
    return distribution(tmp_path / "plugins")


def variables(settings: MakeSettings, stream: Stream, **values: Any) -> dict[str, str]:
    """The environment of a drain over the test's tables, with the stream and `told`."""
    urls = {"orders": stream.url, "told": stream.url.replace("redis+stream", SCHEME)}
    return environment(settings(**values), **values, destinations={name: {"url": url} for name, url in urls.items()})


@pytest.fixture
def start(rows: Rows, settings: MakeSettings, stream: Stream, plugins: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts `outbox-tasks drain` in a process of its own."""
    with ExitStack() as stack:

        def make(**values: Any) -> subprocess.Popen[str]:
            paths = os.pathsep.join((str(plugins), str(Path.cwd())))
            env = {**os.environ, **variables(settings, stream, **values), "PYTHONPATH": paths}
            command = [sys.executable, "-m", "outbox_tasks", "drain", "--json"]
            process = subprocess.Popen(
                command, env=env, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            stack.callback(process.kill)
            stack.enter_context(process)
            return process

        yield make


@pytest.fixture
def result(
    rows: Rows, settings: MakeSettings, stream: Stream, plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """What a drain in the test's own process reports, and its exit code."""
    monkeypatch.syspath_prepend(plugins)

    def run(*arguments: str) -> dict[str, Any]:
        command = ["drain", "--json", *arguments]
        ended = CliRunner().invoke(outbox, command, env=variables(settings, stream))
        if ended.exception and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return {**json.loads(ended.stdout[ended.stdout.index("{") :]), "code": ended.exit_code}

    return run


@pytest.fixture
def drained(new_store: MakeStore) -> Iterator[Callable[..., Drained]]:
    """Drains in the test's own process."""
    with ExitStack() as stack:

        def run(stop: Callable[[], bool] = lambda: False, **values: Any) -> Drained:
            settings = new_store(**values).settings.with_singles(0)
            store, publishers = Store.connect(settings), Publishers(settings)
            stack.callback(publishers.close)
            stack.callback(store.close)
            return drain_all(store, publishers, Listener(), stop=stop)

        yield run


def test_a_publisher_that_fails_over_some_messages_kills_only_those(
    drained: Callable[..., Drained],
    rows: Rows,
    stream: Stream,
    settings: MakeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(distribution(tmp_path / "plugins"))
    told = {"url": stream.url.replace("redis+stream", SCHEME), "max_attempts": 1}
    good, bad = [], []
    for _ in range(15):
        good += rows.insert(9, destination="told")
        bad += rows.insert(1, destination="told", payload=b'{"raise": "odd"}')
    good += rows.insert(500, destination="told")

    def only_the_dead_are_left() -> bool:
        drained(destinations={"told": told}, backoff_base=0.01)
        return len(rows.hot()) == len(bad) and {row.status for row in rows.hot()} == {"dead"}

    eventually(only_the_dead_are_left, 60)
    assert Counter(stream.ids()) == Counter(good)
    assert {str(row.id): (row.attempts, row.last_error_code) for row in rows.hot()} == dict.fromkeys(
        bad, (2, "failed_alone")
    )


def test_an_event_has_one_id_at_all_its_destinations(
    drained: Callable[..., Drained], engine: Engine, rows: Rows, stream: Stream, redis_url: str, settings: MakeSettings
) -> None:
    """And at each a message id of its own, by which a repetition is recognised."""
    with own_stream(redis_url) as second:
        both = {"orders": {"url": stream.url}, "audit": {"url": second.url}}
        writer = Outbox(settings(nudge=False, destinations=both))
        with Session(engine) as session, session.begin():
            event = writer.publish(session, "order.created", {}, to=["orders", "audit"], headers={"tenant": "t1"})
            single = writer.publish(session, "order.created", {}, to="audit")
        drained(destinations=both)
        [here], [there, alone] = stream.entries(), second.entries()
    assert [entry["ce_eventid"].decode() for entry in (here, there)] == [str(event)] * 2
    assert (here["ce_id"].decode(), alone["ce_id"].decode()) == (str(event), str(single))
    assert there["ce_id"] != here["ce_id"]
    assert here["h_tenant"] == b"t1"
    assert "h_eventid" not in here
    assert "ce_eventid" not in alone
    lookup = Lookup(Store(engine, writer.settings))
    shown = lookup.one(event)
    assert shown is not None
    assert [(other["id"], other["destination"]) for other in shown["elsewhere"]] == [(there["ce_id"].decode(), "audit")]
    other = lookup.one(UUID(there["ce_id"].decode()))
    assert other is not None
    assert [one["id"] for one in other["elsewhere"]] == [str(event)]


def test_all_due_messages_are_sent(
    result: Callable[..., dict[str, Any]], drained: Callable[..., Drained], rows: Rows, stream: Stream
) -> None:
    ids = rows.insert(1_200)
    assert result() == {"sent": 1_200, "later": 0, "dead": 0, "ended": True, "outages": 0, "left": [], "code": 0}
    assert Counter(stream.ids()) == Counter(ids)
    assert rows.hot() == []
    with rows.engine.connect() as connection:
        counted = connection.scalar(select(func.sum(rows.tables.tallies.c.count)))
    assert counted == 1_200, "what `status` shows as its rate"
    assert not drained().steps


def test_without_any_destination_it_refuses_and_says_which_file_it_looked_for(
    rows: Rows, settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a wrong directory: the whole backlog would become dead letters."""
    rows.insert(3)
    monkeypatch.setenv("OUTBOX_DATABASE_URL", str(settings().database_url))
    monkeypatch.setenv("OUTBOX_DATABASE_SCHEMA", str(settings().database_schema))
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(outbox, ["drain"])
    assert refused.exit_code == 1
    said = f"No destination is configured, so the relay can send nothing: there is no settings file {tmp_path}"
    assert said in refused.output
    assert [row.status for row in rows.hot()] == ["pending"] * 3


@pytest.mark.parametrize("key", [None, "k"])
def test_a_destination_that_can_not_be_used_here_is_named_in_the_end_and_the_rest_is_sent(
    rows: Rows, settings: MakeSettings, stream: Stream, key: str | None
) -> None:
    """As on a host where the library of one destination is missing."""
    rows.insert(3, destination="large", key=key)
    ids = rows.insert(3, key=key)
    large = {"url": stream.url, "claim_check": "adl://box/large"}
    env = environment(settings(), destinations={"large": large, "orders": {"url": stream.url}})
    done = CliRunner().invoke(outbox, ["drain"], env=env)
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit), done.exception
    assert "Sent 3" in done.output
    assert "large still has 3 messages" in done.output
    assert "pip install" in done.output
    assert Counter(stream.ids()) == Counter(ids)


def test_a_failed_message_goes_back_to_the_table_and_waits(result: Callable[..., dict[str, Any]], rows: Rows) -> None:
    """No Celery is there to keep a retry: none may be left under a lease."""
    [failing] = rows.insert(1, destination="told", payload=b'{"fail": 99}')
    rows.insert(3, destination="told")
    assert result() == {"sent": 3, "later": 1, "dead": 0, "ended": True, "outages": 0, "left": [], "code": 0}
    row = rows.one(failing)
    assert (row.attempts, row.lease, row.last_error_code) == (1, None, "told")


def test_the_exit_code_reports_a_dead_letter(
    result: Callable[..., dict[str, Any]], rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error's text may quote the message, and is not logged."""
    rows.insert(1, destination="nowhere", locked_until=seconds_from_now(-2 * UNKNOWN_GRACE_SECONDS))
    [id] = rows.insert(1, destination="told", payload=b'{"refuse": "nope"}')
    done = result()
    assert (done["code"], done["sent"], done["dead"]) == (1, 0, 2)
    assert f"message {id} is dead: nope" in caplog.text
    assert rows.one(id).last_error == "as told"
    assert "as told" not in caplog.text


@pytest.fixture
def told(store: Store) -> Told:
    """What a drain by hand says, and its exit code."""

    def run(destinations: dict[str, Any]) -> tuple[int, str]:
        env = environment(store.settings, destinations=destinations, backoff_cap=1, breaker_pause=1)
        result = CliRunner().invoke(outbox, ["drain"], env=env)
        return result.exit_code, " ".join(result.stdout.split())

    return run


def test_a_destination_whose_circuit_is_open_is_told_by_each_drain_until_it_takes_what_is_due(
    told: Told, rows: Rows, stream: Stream, own_redis: EmbeddedValkey
) -> None:
    with redis.Redis.from_url(own_redis.url) as client:
        client.config_set("requirepass", "another")
    wrong = own_redis.url.replace("redis://", "redis+stream://:wrong@") + "/orders"
    away = {"orders": {"url": wrong}}
    rows.insert(3)
    for _ in range(6):
        code, said = told(away)
        assert code == 1, said
        assert "orders still has 3 messages, because its last sends failed (" in said
        assert "Nothing more is due" not in said
    rows.change(locked_until=seconds_from_now(-1))
    back = {"orders": {"url": stream.url}}
    eventually(lambda: told(back) == (0, "Sent 0. Nothing more is due."), 60)
    assert rows.hot() == []


def test_a_paused_destination_is_reported_while_something_is_due(
    told: Told, rows: Rows, stream: Stream, store: Store
) -> None:
    pauses.pause(store, "orders", "ada", "moving house")
    here = {"orders": {"url": stream.url}}
    assert told(here) == (0, "Sent 0. Nothing more is due.")
    rows.insert(1)
    said = "Sent 0. orders still has 1 message, because it is paused by ada: moving house."
    assert told(here) == (1, said)
    pauses.resume(store, "orders", "ada")
    assert told(here) == (0, "Sent 1. Nothing more is due.")


def test_messages_that_a_rate_leaves_for_later_are_reported(told: Told, rows: Rows, stream: Stream) -> None:
    rows.insert(3)
    code, said = told({"orders": {"url": stream.url, "rate_limit": 0.01}})
    assert code == 1
    assert "orders still has 2 messages, because its rate_limit or concurrency is used up for now." in said


def test_what_waits_behind_a_dead_letter_of_its_key_is_reported(told: Told, rows: Rows, stream: Stream) -> None:
    here = {"orders": {"url": stream.url, "max_bytes": 100}}
    rows.insert(1, key="one", payload=b"0" * 101)
    assert told(here)[0] == 1  # it is dead
    rows.insert(1, key="one")
    code, said = told(here)
    assert code == 0, "no drain can do anything about it"
    assert said.startswith("Sent 0. orders still has 1 message, because something else comes first")


def test_a_destination_is_left_to_the_drains_that_have_its_slots(
    told: Told, rows: Rows, stream: Stream, store: Store
) -> None:
    here = {"orders": {"url": stream.url, "concurrency": 1}}
    rows.insert(3)
    [asked] = store.ask_drains({"orders": (1, 1)})
    code, said = told(here)
    assert (code, len(stream)) == (1, 0), said
    assert "orders still has 3 messages, because its rate_limit or concurrency is used up for now." in said
    store.end_drain(asked)
    assert told(here) == (0, "Sent 3. Nothing more is due.")


def test_keys_keep_their_order_and_are_sent_to_the_end(
    drained: Callable[..., Drained], rows: Rows, engine: Engine, settings: MakeSettings, stream: Stream
) -> None:
    """A batch has only some messages of a key: what is behind them is due when they have arrived."""
    outbox = Outbox(settings(nudge=False))
    ids = []
    for n in range(40):
        with Session(engine) as session, session.begin():
            ids += [str(outbox.publish(session, "order.created", n, key="one")) for _ in range(10)]
    assert drained().steps == {Step.SENT: 400}
    assert stream.ids() == ids


def test_a_killed_drain_leaves_the_rest_to_the_next(
    start: Start, new_store: MakeStore, rows: Rows, stream: Stream
) -> None:
    ids = rows.insert(3_000)
    process = start(**SHORT)
    eventually(lambda: len(stream))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert rows.hot(), "it was over before the kill"
    store = new_store(**SHORT)
    with closing(Publishers(store.settings)) as publishers:

        def all_sent() -> bool:
            drain_all(store, publishers, Listener())
            return not rows.hot()

        eventually(all_sent, 60)
    assert set(stream.ids()) == set(ids)
    repeated = {id for id, count in Counter(stream.ids()).items() if count > 1}
    causes = {str(row.id): row.last_error_code for row in rows.archived()}
    assert {causes[id] for id in repeated} <= {"unsettled"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_that_is_stopped_finishes_its_batch(
    start: Start, rows: Rows, stream: Stream, number: signal.Signals
) -> None:
    rows.insert(3_000, destination="told", payload=b'{"nap": 0.01}')
    process = start()
    eventually(lambda: len(stream))
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    done = json.loads(out)
    assert not done["ended"]
    assert 0 < done["sent"] < 3_000
    assert len(rows.hot()) == 3_000 - done["sent"]
    assert not [row for row in rows.hot() if row.lease is not None]


def test_for_limits_the_seconds_of_a_drain(result: Callable[..., dict[str, Any]], rows: Rows) -> None:
    rows.insert(500, destination="told", payload=b'{"nap": 0.01}')
    done = result("--for", "1")
    assert not done["ended"]
    assert 0 < done["sent"] < 500
    assert not [row for row in rows.hot() if row.lease is not None]
