"""What is committed is delivered, whoever wrote it and however the relay is started; what is rolled back is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine, cast, literal, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.binaries import postgres_programs
from outbox_tasks.relay.store.claims import UNKNOWN_GRACE_SECONDS
from tests.acceptance.conftest import cluster, settled
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually, seconds_from_now

CELERY = [sys.executable, "-m", "celery"]

WORKERS = {
    # One worker for all queues, and beat: the least that is a whole relay.
    "bare": ([[*CELERY, "-A", "outbox_tasks", "worker", "-l", "INFO", "-c", "2"]], ["-A", "outbox_tasks", "beat"]),
    "deployed": (
        [[*CELERY, "-A", f"workers.{name}", "worker", "-l", "INFO"] for name in ("claim", "publish", "maintenance")],
        ["-A", "beat_schedule", "beat"],
    ),
}


TRANSACTIONS = {"bare": 1000, "deployed": 200}
"""Of each client of pgbench. A message that travels singly costs the workers far more than one in a batch."""


@pytest.fixture(
    scope="module", params=[("bare", 50), ("deployed", "all"), ("bare", 0)], ids=["bare", "singly", "drains"]
)
def kind(request: pytest.FixtureRequest) -> Any:
    """How the relay is started, and how many of its messages travel singly."""
    return request.param


@pytest.fixture(scope="module")
def values(kind: Any) -> dict[str, Any]:
    return {"singles": kind[1]}


@pytest.fixture(scope="module")
def celery_worker_cluster(kind: Any, relay: Relay) -> CeleryWorkerCluster:
    workers, beat = WORKERS[kind[0]]
    started = [relay.worker(argv) for argv in workers]
    relay.beat([*CELERY, *beat, "-l", "INFO"])
    return cluster(relay, started)


def test_every_worker_answers(celery_setup: CeleryTestSetup, kind: Any) -> None:
    assert celery_setup.ready(control=True)
    expected = ["celery"] if kind[0] == "bare" else ["claim", "maintenance", "publish"]

    def answering() -> list[str]:
        return sorted(name.partition("@")[0] for reply in celery_setup.app.control.ping() for name in reply)

    eventually(lambda: answering() == expected)


def test_no_process_of_the_relay_listens_anywhere(relay: Relay, celery_setup: CeleryTestSetup) -> None:
    """Unless a setting says so, nobody can connect to them."""
    processes = [psutil.Process(node.container.pid) for node in relay.nodes]
    processes += [child for process in processes for child in process.children(recursive=True)]
    connections = [each for process in processes for each in process.net_connections("inet")]
    states = {each.status for each in connections}
    assert psutil.CONN_ESTABLISHED in states
    assert psutil.CONN_LISTEN not in states


def test_a_row_of_a_session_is_delivered_as_it_was_written(
    celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox, rows: Rows, stream: Stream
) -> None:
    with Session(engine) as session, session.begin():
        id = outbox.publish(session, "order.created", {"id": 42}, to="orders", key="order:42", headers={"tenant": "t1"})
    [entry] = eventually(lambda: [e for e in stream.entries() if e["ce_id"] == str(id).encode()])
    assert entry["data"] == b'{"id":42}'
    assert (entry["ce_type"], entry["ce_partitionkey"], entry["h_tenant"]) == (b"order.created", b"order:42", b"t1")
    eventually(lambda: rows.state(id) == "sent")


def test_a_rolled_back_row_is_not_delivered(
    celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox, rows: Rows, stream: Stream
) -> None:
    with Session(engine) as session:
        session.begin()
        lost = outbox.publish(session, "order.created", {"id": 1}, to="orders")
        session.rollback()
        with session.begin():
            outer = outbox.publish(session, "order.created", {"id": 2}, to="orders")
            with session.begin_nested() as savepoint:
                inner = outbox.publish(session, "order.created", {"id": 3}, to="orders")
                savepoint.rollback()
    eventually(lambda: str(outer) in stream.ids())
    settled(rows)
    assert not {str(lost), str(inner)} & set(stream.ids())


def test_invalid_rows_end_dead_and_hold_up_no_others(
    celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox, rows: Rows, stream: Stream
) -> None:
    odd = [cast(literal(headers), JSONB) for headers in ("[1, 2]", '{"a": 1}', '{"a": {"b": "c"}}')]
    bad = {id: "bad_headers" for headers in odd for id in rows.insert(headers=headers)}
    for nowhere in (" ", "nowhere"):
        [id] = rows.insert(destination=nowhere, locked_until=seconds_from_now(-2 * UNKNOWN_GRACE_SECONDS))
        bad[id] = "unknown_destination"
    strange = rows.insert(event_type=" ", payload=b"") + rows.insert(event_type=": \n'" * 63, key="\r\n" * 127)

    def good() -> str:
        with Session(engine) as session, session.begin():
            return str(outbox.publish(session, "order.created", {}, to="orders"))

    ids = {*strange, *(good() for _ in range(10))}
    eventually(lambda: ids <= set(stream.ids()))
    for id, code in bad.items():
        eventually(lambda id=id: good() and rows.state(id) == "dead")
        assert rows.one(id).last_error_code == code
    assert not bad.keys() & set(stream.ids())
    rows.clear_work()


def test_a_row_of_psql_is_delivered(
    celery_setup: CeleryTestSetup, postgres_url: str, schema: str, stream: Stream
) -> None:
    call = """SELECT outbox_publish('order.created', '{"id": 7}', key => 'order:7', destination => 'orders')"""
    id = postgres("psql", schema, "-X", "-q", "-t", "-A", "-c", call, postgres_url).strip()
    [entry] = eventually(lambda: [e for e in stream.entries() if e["ce_id"] == id.encode()])
    assert (entry["data"], entry["content_type"]) == (b'{"id": 7}', b"application/json")


def test_all_rows_of_pgbench_at_full_speed_are_delivered_once_and_no_others(
    celery_setup: CeleryTestSetup,
    kind: Any,
    engine: Engine,
    postgres_url: str,
    schema: str,
    rows: Rows,
    stream: Stream,
    tmp_path: Path,
) -> None:
    ours, count = f"ordered_{kind[0]}_{kind[1]}", TRANSACTIONS[kind[0]]
    with engine.begin() as connection:
        # Beside the messages, in the same transactions: what the application knows that it has committed.
        connection.execute(text(f"CREATE TABLE {schema}.{ours} (id uuid)"))
    before = len(stream)
    scripts = []
    for end, weight in (("COMMIT", 9), ("ROLLBACK", 1)):
        script = tmp_path / end
        script.write_text(
            f"BEGIN;\nINSERT INTO {ours} SELECT outbox_publish('{ours}', "
            f"json_build_object('client', :client_id, 'end', '{end}')::text, destination => 'orders');\n{end};\n"
        )
        scripts += ["-f", f"{script}@{weight}"]
    postgres("pgbench", schema, "-n", "-c", "4", "-j", "2", "-t", str(count), *scripts, postgres_url)
    with engine.connect() as connection:
        committed = sorted(str(id) for id in connection.scalars(text(f"SELECT id FROM {schema}.{ours}")))
    assert 3 * count < len(committed) < 4 * count
    eventually(lambda: len(stream) >= before + len(committed), 90)
    settled(rows)
    entries = [entry for entry in stream.entries() if entry["ce_type"] == ours.encode()]
    assert sorted(entry["ce_id"].decode() for entry in entries) == committed
    assert {json.loads(entry["data"])["end"] for entry in entries} == {"COMMIT"}


def postgres(program: str, schema: str, *arguments: str) -> str:
    """Run one of PostgreSQL's client programs, with the schema as its search_path."""
    env = {**os.environ, "PGOPTIONS": f"-c search_path={schema}"}
    command: Sequence[str] = [str(postgres_programs() / program), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
