"""What people and their tools see of a relay of real processes: heartbeats, problems, metrics, alerts and logs.

All tests look at one relay, in this order: what an earlier one has left is there, and the last one ends it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import redis
from celery import Celery
from click.testing import CliRunner
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from lab.proxy import Proxy
from outbox_tasks import Message, Outbox
from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.cli import outbox as command
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.relay import CELERY
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating.heartbeats import Heartbeats
from outbox_tasks.operating.problems import Problem, examine, examine_worker
from outbox_tasks.relay.store import Store
from outbox_tasks.telemetry.counters import WRITTEN_AFTER_SECONDS
from tests.acceptance.nodes import Node, Relay
from tests.acceptance.publishers import SCHEME
from tests.conftest import Rows, Stream, eventually, seconds_from_now
from tests.exposed import samples
from tests.receiver import Receiver, receiver

SECRET, PRIVATE = "pa55-s3cr3t", "payl0ad-5ecret"
"""Part of every URL, and of every payload that makes trouble."""

# One for all: each makes a context for TLS, which takes longer than many requests.
client = httpx.Client(timeout=60, headers={"connection": "close"})

SHOP = """
from celery import Celery
app = Celery("shop")
app.conf.broker_transport_options = {"visibility_timeout": 30}
app.conf.broker_connection_retry_on_startup = True
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a Redis-compatible server with a password."""
    with EmbeddedValkey() as made, redis.Redis.from_url(made.url) as connection:
        connection.config_set("requirepass", SECRET)
        yield made.url.replace("://", f"://:{SECRET}@").rpartition("/")[0]


@pytest.fixture(scope="module")
def proxy(server: str) -> Iterator[Proxy]:
    """Stands before the broker."""
    with Proxy(urlsplit(server).port or 0) as made:
        yield made


@pytest.fixture(scope="module")
def broker_url(proxy: Proxy) -> str:
    return f"redis://:{SECRET}@{LOOPBACK}:{proxy.port}/0"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Receiver]:
    """Where messages go by HTTP."""
    with receiver() as made:
        made.echo = True
        yield made


@pytest.fixture(scope="module")
def web() -> Iterator[Receiver]:
    """Where alerts go."""
    with receiver() as made:
        yield made


@pytest.fixture(scope="module")
def values(web: Receiver) -> dict[str, Any]:
    return {
        "alert_webhook": web.url, "log_format": "json", "claim_interval": 0.3, "backoff_base": 0.2,
        "breaker_failures": 2, "monitor_port": 0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def destinations(server: str, stream: Stream, endpoint: Receiver) -> dict[str, Any]:
    told = {"url": stream.url.replace("redis+stream", SCHEME), "max_attempts": 3}
    hook = endpoint.url.replace("://", f"://user:{SECRET}@") + f"?token={SECRET}&outbox_private=allow"
    return {
        "orders": {"url": f"{server.replace('redis://', 'redis+stream://')}/3/{stream.name}"},
        "told": {**told, "singles": "all"},
        "skip": {**told, "on_dead": "skip"},
        "deadly": {**told, "max_attempts": 1},
        "hook": {"url": hook, "max_attempts": 2},
        "away": {"url": f"http://user:{SECRET}@127.0.0.1:1/{SECRET}?outbox_private=allow"},
    }


@pytest.fixture(scope="module")
def beat(relay: Relay) -> Node:
    return relay.beat([*CELERY, "beat", "-l", "DEBUG"])


@pytest.fixture(scope="module")
def claiming(relay: Relay, beat: Node) -> Node:
    queues = ["-Q", "outbox.claim,outbox.maintain", "-n", "claim@%h", "-P", "solo"]
    return relay.worker([*CELERY, "worker", *queues, "-l", "DEBUG"])


@pytest.fixture(scope="module")
def publishing(relay: Relay, claiming: Node) -> Node:
    queues = ["-Q", "outbox.publish,outbox.drain", "-n", "publish@%h", "-c", "2", "-E"]
    node = relay.worker([*CELERY, "worker", *queues, "-l", "DEBUG"])
    relay.ready()
    return node


@pytest.fixture(scope="module")
def store(relay: Relay) -> Iterator[Store]:
    with closing(Store.connect(relay.settings)) as made:
        yield made


def found(relay: Relay, *only: str) -> dict[str, Problem]:
    return {problem.code: problem for problem in examine(relay.settings, deep=True, only=only).everything}


def named(relay: Relay, code: str) -> Problem:
    """A problem that may come late."""
    problem: Problem = eventually(lambda: found(relay, code).get(code), 90)
    return problem


def url(worker: Node) -> str:
    """Where its monitor answers, by its log."""
    lines = eventually(lambda: [line for line in worker.logs().splitlines() if "monitor answers at" in line])
    return str(json.loads(lines[-1])["message"]).rpartition(" ")[2]


def probe(worker: Node, page: str) -> tuple[int, list[str]]:
    answer = client.get(f"{url(worker)}/{page}")
    return answer.status_code, answer.json()["findings"]


def value(worker: Node, name: str, **labels: str) -> float:
    """The sum over all samples of a worker's metric with these labels."""
    exposed = samples(client.get(f"{url(worker)}/metrics").content).get(name, [])
    return sum(number for have, number in exposed if labels.items() <= have.items())


def test_an_idle_relay_is_alive_and_in_order(
    relay: Relay, claiming: Node, publishing: Node, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in relay.env().items():
        monkeypatch.setenv(name, text)

    def seen() -> dict[str, Any]:
        result: dict[str, Any] = json.loads(CliRunner().invoke(command, ["doctor", "--json"]).stdout)
        return result if {each["code"] for each in result["problems"]} == known else {}

    known = {"destination_away", "publisher_missing"}  # nobody is at one, and this process has no `obedient`
    in_order = eventually(seen)["in_order"]  # a worker may answer late to any of the questions
    assert {"each queue is served", "their settings fit together", "beat ticks"} <= {*in_order["Workers"]}
    workers = {each.name.partition("@")[0]: each.facts for each in Heartbeats.read(store).workers}
    facts = {name: (of["queues"], of["pool"], of["concurrency"]) for name, of in workers.items()}
    assert facts == {
        "claim": (["outbox.claim", "outbox.maintain"], "solo", 1),
        "publish": (["outbox.drain", "outbox.publish"], "prefork", 2),
    }
    assert workers["claim"]["pid"] == claiming.pid
    pool, port = publishing.pool(), urlsplit(url(publishing)).port
    # They outlive a worker that is killed, for a while: then its successor could not have the port.
    eventually(lambda: pool and not any(one.laddr.port == port for each in pool for one in each.net_connections("tcp")))
    for worker in (claiming, publishing):
        assert [probe(worker, page) for page in ("livez", "readyz")] == [(200, [])] * 2


def test_a_nudged_claim_does_not_count_as_a_tick_of_beat(relay: Relay, beat: Node, store: Store) -> None:
    def ran(kind: str) -> Any:
        return Heartbeats.read(store).last[kind].seen_at

    process = psutil.Process(beat.pid)
    process.suspend()
    try:
        # Until what it had sent before has been run, and told.
        eventually(lambda: (Heartbeats.read(store).age("beat") or 0.0) > 2 * WRITTEN_AFTER_SECONDS)
        tick, claim = ran("beat"), ran("claim")
        with PinnedCelery("nudge", broker=str(relay.settings.broker_url), settings=relay.settings) as app:
            Broker(app, relay.settings).wake_claim()
        eventually(lambda: ran("claim") > claim)
        assert ran("beat") == tick
    finally:
        process.resume()


def test_what_is_counted_survives_killed_processes(
    engine: Engine, outbox: Outbox, claiming: Node, publishing: Node
) -> None:
    def write(count: int, to: str, key: str | None = None, **told: Any) -> None:
        with Session(engine) as session, session.begin():
            outbox.publish_many(session, [Message("a", told, to=to, key=key) for _ in range(count)])

    def sent() -> float:
        return value(publishing, "outbox_messages_total", destination="orders", outcome="sent")

    write(500, "orders")
    write(1, "told", key="k", refuse="refused")
    write(2, "away")
    eventually(lambda: sent() == 500)
    eventually(lambda: value(publishing, "outbox_breaker_opened_total", destination="away"))
    eventually(lambda: value(publishing, "outbox_keys_blocked_total", destination="told"))
    assert value(publishing, "outbox_errors_total", destination="told", code="refused") == 1
    assert value(claiming, "outbox_claimed_drains_total") >= 1
    for process in (killed := publishing.pool()):
        process.kill()
    psutil.wait_procs(killed, 60)
    assert sent() == 500
    write(100, "orders")
    eventually(lambda: sent() == 600)
    write(1, "deadly", die=True)
    unsettled = {"destination": "deadly", "cause": "unsettled"}
    eventually(lambda: value(claiming, "outbox_claimed_again_total", **unsettled))


def test_strange_workers_on_the_broker_are_named(
    relay: Relay, publishing: Node, rows: Rows, engine: Engine, broker_url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    argv = [sys.executable, "-m", "celery", "-A", "shop", "-b", broker_url, "--workdir", str(tmp_path), "worker"]
    argv += ["-l", "INFO", "-P", "solo", "--without-mingle", "-n", "shop@%h", "-Q", "celery,outbox.maintain"]
    twins = [relay.worker(argv), relay.worker(argv)]
    relay.ready()
    short = named(relay, "visibility_short")
    assert "a visibility timeout of 30 s. The relay's is 3600 s, and it needs 270." in short.fact
    assert "shop@" in named(relay, "wrong_worker").fact
    assert "2 workers are called shop@" in named(relay, "same_name").fact

    urls = {"events": "celery://?task=shop.on_event&queue=celery", "tasks": f"celery://?broker={broker_url}"}
    settings = relay.settings.replace(destinations=urls)
    shop = Outbox(settings, celery=Celery("shop", broker=broker_url, set_as_current=False))
    with Session(engine) as session, session.begin():
        for task, queue in (("celery.backend_cleanup", "celery"), ("elsewhere.notify", "celery"), ("a.b", "nobody's")):
            shop.apply_async(session, task, queue=queue)
    unknown = eventually(lambda: examine(settings, only=["task_unknown"]).problems)
    assert [problem.which for problem in unknown] == ["elsewhere.notify", "shop.on_event"]
    rows.clear()
    relay.end(*twins)

    def forgotten() -> Problem | None:
        """As if the workers were at another database."""
        with engine.begin() as connection:
            connection.execute(rows.tables.heartbeats.delete().where(rows.tables.heartbeats.c.kind == "worker"))
        return found(relay, "no_heartbeat").get("no_heartbeat")

    eventually(forgotten)
    eventually(lambda: not found(relay, "no_heartbeat"))


def test_a_broker_that_falls_silent_is_the_cause_and_its_workers_are_not_alive(
    relay: Relay, claiming: Node, publishing: Node, proxy: Proxy, web: Receiver
) -> None:
    orphan = relay.publish(9, broker_url=f"redis://{LOOPBACK}:{free_port()}/0")
    assert probe(orphan, "livez") == (200, [])  # a new one would not find its broker either
    assert probe(orphan, "readyz") == (503, ["it is not connected to its broker"])
    relay.end(orphan)
    proxy.silence()
    eventually(lambda: probe(publishing, "livez")[0] == 503, 90)
    assert probe(publishing, "readyz")[0] == 503
    assert examine_worker(relay.settings, publishing.hostname()).problems
    away = [each for each in examine(relay.settings).problems if each.code == "broker_away"]
    assert {"no_workers", "no_claims"} <= {each.code for each in away[0].follows}
    eventually(lambda: "broker_away" in [each["code"] for each in web.problems()])
    proxy.resume()
    eventually(lambda: probe(publishing, "livez") == probe(publishing, "readyz") == (200, []), 90)
    eventually(lambda: not found(relay, "broker_away", "no_workers", "no_claims"), 90)


@pytest.fixture(scope="module")
def logs(
    relay: Relay, beat: Node, claiming: Node, publishing: Node, engine: Engine, outbox: Outbox, rows: Rows,
    endpoint: Receiver, web: Receiver,
) -> dict[str, str]:  # fmt: skip
    """What beat, the claim worker and the publish worker wrote from start to end, with all kinds of trouble between."""

    def write(to: str, count: int = 1, key: str | None = None, **payload: Any) -> None:
        with Session(engine) as session, session.begin():
            for _ in range(count):
                outbox.publish(session, f"{to}.made", {"private": PRIVATE, **payload}, to=to, key=key)

    rows.clear()
    write("orders", 60)
    write("skip", 5, fail=1)
    write("skip", 20, refuse="not_wanted")
    write("skip", key="customer:7", refuse="not_wanted")
    write("skip", fail=99)
    endpoint.status = 400
    write("hook", 3)
    eventually(lambda: sum(row.status == "dead" for row in rows.hot()) >= 25)
    # By itself: this destination raises for it, and the rest of its batch would be tried again with it.
    rows.insert(destination="skip", payload=f"no JSON {PRIVATE}".encode())
    endpoint.status = 500
    write("hook", 3)
    write("away", 2)
    rows.insert(destination="unknown", payload=PRIVATE.encode(), locked_until=seconds_from_now(-7200))
    eventually(lambda: not [row for row in rows.hot() if row.status != "dead" and row.destination != "away"])
    eventually(lambda: ("breaker_open", "away") in [(one["code"], one["which"]) for one in web.problems()])
    assert PRIVATE in " ".join(str(row.last_error) for row in rows.hot())  # the endpoint repeats what it gets
    for node in relay.nodes:
        node.kill("SIGTERM")
    for node in relay.nodes:
        node.child.wait(60)
    return {name: node.logs() for name, node in (("beat", beat), ("claim", claiming), ("publish", publishing))}


def test_nothing_secret_is_in_any_log_or_alert(logs: dict[str, str], web: Receiver, postgres_url: str) -> None:
    secrets = {SECRET, PRIVATE, web.secret, urlsplit(postgres_url).password} - {None, "outbox"}
    for text in (*logs.values(), f"DEBUG {json.dumps(web.got)}"):
        assert "DEBUG" in text
        assert not [secret for secret in secrets if secret in text]


def test_each_line_is_an_object_and_routine_is_at_debug(logs: dict[str, str], web: Receiver) -> None:
    routine = ("outbox_tasks.claim[", "claimed 0 singles, started 0 drains, 0 dead", "due task")
    # Celery writes that a worker ends past all loggers.
    texts = [line for text in logs.values() for line in text.splitlines() if line and not line.startswith("worker: ")]
    lines = [json.loads(line) for line in texts]
    assert all({"ts", "level", "logger", "message", "process", "pid"} <= line.keys() for line in lines)
    assert {line["level"] for line in lines if any(words in line["message"] for words in routine)} == {"DEBUG"}
    assert [line["alert"] for line in lines if "alert" in line and line["alert"] in web.problems()]
