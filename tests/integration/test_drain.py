"""`outbox-tasks drain`: the pipe in one process, on a schedule of somebody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from click.testing import CliRunner
from sqlalchemy import func, select

from outbox_tasks.cli import outbox
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating import limits
from outbox_tasks.relay.send_all import send_all
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import UNKNOWN_GRACE_SECONDS
from tests.acceptance.publishers import SCHEME, distribution
from tests.conftest import MakeSettings, MakeStore, Rows, Stream, eventually, seconds_from_now
from tests.integration.conftest import environment
from tests.storage.relaying import Receiver

Told = Callable[..., tuple[int, str]]


@pytest.fixture
def variables(
    settings: MakeSettings, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The environment of a drain over the test's tables: with the stream, and `told`, which does as a payload says."""
    plugins = distribution(tmp_path / "plugins")
    monkeypatch.syspath_prepend(plugins)
    urls = {"orders": stream.url, "told": stream.url.replace("redis+stream", SCHEME)}
    made = environment(settings(), destinations={name: {"url": url} for name, url in urls.items()})
    return {**made, "PYTHONPATH": os.pathsep.join((str(plugins), str(Path.cwd())))}


@pytest.fixture
def result(rows: Rows, variables: dict[str, str]) -> Callable[..., dict[str, Any]]:
    """What a drain in the test's own process reports, and its exit code."""

    def run(*arguments: str) -> dict[str, Any]:
        ended = CliRunner().invoke(outbox, ["drain", "--json", *arguments], env=variables)
        if ended.exception and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return {**json.loads(ended.stdout[ended.stdout.index("{") :]), "code": ended.exit_code}

    return run


def test_all_due_messages_are_sent_and_counted(
    result: Callable[..., dict[str, Any]], rows: Rows, stream: Stream
) -> None:
    ids = rows.insert(1_200)
    [failing] = rows.insert(1, destination="told", payload=b'{"fail": 99}')
    assert result() == {"sent": 1_200, "later": 1, "dead": 0, "ended": True, "outages": 0, "left": [], "code": 0}
    assert Counter(stream.ids()) == Counter(ids)
    [row] = rows.hot()  # no Celery is there to keep its retry
    assert (str(row.id), row.attempts, row.lease, row.last_error_code) == (failing, 1, None, "told")
    with rows.engine.connect() as connection:
        counted = connection.scalar(select(func.sum(rows.tables.tallies.c.count)))
        assert {*connection.scalars(select(rows.tables.heartbeats.c.name))} >= {"claim", "publish"}
    assert counted >= 1_200, "what `status` shows as its rate"


def test_without_any_destination_it_refuses(rows: Rows, variables: dict[str, str]) -> None:
    """As in a wrong directory: the whole backlog would become dead letters."""
    rows.insert(3)
    refused = CliRunner().invoke(outbox, ["drain"], env={**variables, "OUTBOX_DESTINATIONS": "{}"})
    assert (refused.exit_code, "No destination is configured" in refused.output) == (1, True)
    assert [row.status for row in rows.hot()] == ["pending"] * 3


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


def test_a_destination_that_can_not_be_used_here_is_named_in_the_end_and_the_rest_is_sent(
    told: Told, rows: Rows, stream: Stream
) -> None:
    """As on a host where the library of one destination is missing."""
    rows.insert(3, destination="large", key="k")
    ids = rows.insert(3)
    code, text = told({"large": {"url": stream.url, "claim_check": "adl://box/large"}, "orders": {"url": stream.url}})
    assert (code, text.startswith("Sent 3")) == (1, True), text
    assert "large still has 3 messages" in text
    assert "pip install" in text
    assert Counter(stream.ids()) == Counter(ids)


def test_a_destination_whose_circuit_is_open_is_told_by_each_drain_until_it_takes_what_is_due(
    told: Told, rows: Rows, stream: Stream, own_redis: EmbeddedValkey
) -> None:
    with redis.Redis.from_url(own_redis.url) as client:
        client.config_set("requirepass", "another")
    away = {"orders": {"url": own_redis.url.replace("redis://", "redis+stream://:wrong@") + "/orders"}}
    rows.insert(3)
    for _ in range(6):
        code, text = told(away)
        assert code == 1, text
        assert "orders still has 3 messages, because its last sends failed (" in text
        assert "Nothing more is due" not in text
    rows.change(locked_until=seconds_from_now(-1))
    eventually(lambda: told({"orders": {"url": stream.url}}) == (0, "Sent 0. Nothing more is due."), 60)
    assert rows.hot() == []


def test_what_a_pause_or_others_at_work_leave_is_reported(told: Told, rows: Rows, stream: Stream, store: Store) -> None:
    limits.pause(store, "orders", "ada", "moving house")
    here = {"orders": {"url": stream.url, "concurrency": 1}}
    assert told(here) == (0, "Sent 0. Nothing more is due.")
    rows.insert(1)
    assert told(here) == (1, "Sent 0. orders still has 1 message, because it is paused by ada: moving house.")
    limits.resume(store, "orders", "ada")
    [reserved] = store.claims.reserve_slots({"orders": (1, 1)})
    code, text = told(here)
    assert (code, len(stream)) == (1, 0), text
    assert "orders still has 1 message, because its rate_limit or concurrency is used up for now." in text
    store.claims.end_drain(reserved)
    assert told(here) == (0, "Sent 1. Nothing more is due.")
    rows.insert(1, key="k", lease=uuid4(), locked_until=seconds_from_now(60))
    rows.insert(1, key="k")
    code, text = told({"orders": {"url": stream.url}})
    assert (code, "because something else comes first" in text) == (0, True), text


def test_a_drain_that_is_stopped_finishes_its_batch(
    rows: Rows, stream: Stream, variables: dict[str, str], tmp_path: Path
) -> None:
    rows.insert(3_000, destination="told", payload=b'{"nap": 0.01}')
    command = [sys.executable, "-m", "outbox_tasks", "drain", "--json"]
    with subprocess.Popen(
        command, env={**os.environ, **variables}, cwd=tmp_path, text=True, stdout=subprocess.PIPE
    ) as process:
        eventually(lambda: len(stream))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    done = json.loads(out)
    assert not done["ended"]
    assert 0 < done["sent"] < 3_000
    assert len(rows.hot()) == 3_000 - done["sent"]
    assert not [row for row in rows.hot() if row.lease is not None]


def test_a_drain_that_is_stopped_begins_no_other_and_leaves_its_slot_to_workers(
    new_store: MakeStore, rows: Rows
) -> None:
    names = ("mails", "orders")
    store, receiver = new_store(singles=0, destinations={name: {"url": "a://b"} for name in names}), Receiver()
    for name in names:
        rows.insert(destination=name)
    drained = send_all(store, dict.fromkeys(names, receiver), Listener(), stop=lambda: bool(receiver.got))
    assert (len(receiver.got), drained.more) == (1, True)
    assert len(store.claims.reserve_slots(dict.fromkeys(names, (1, 1)))) == 2
