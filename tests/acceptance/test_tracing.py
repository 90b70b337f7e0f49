"""One trace goes from an HTTP request through the row and the relay to the consumer: real processes, real spans."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster

from outbox_tasks.local.commands import publish_worker_argv
from outbox_tasks.local.ports import free_port
from outbox_tasks.local.processes import Child
from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import ROOT, Relay
from tests.acceptance.spans import plain
from tests.conftest import Rows, Stream, eventually

ORDERS = 20

# One for all: each makes a context for TLS, which takes longer than many requests.
client = httpx.Client(timeout=60)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes leave their spans."""
    return tmp_path_factory.mktemp("spans")


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay, directory: Path, monkeypatch_module: pytest.MonkeyPatch) -> CeleryWorkerCluster:
    monkeypatch_module.setenv("SPANS", str(directory))
    publishers = relay.worker([*publish_worker_argv(1, 2), "-I", "tests.acceptance.traced"])
    relay.beat()  # what was given back for want of a slot is claimed again by its wake-up
    return cluster(relay, [relay.claim(), publishers])


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as made:
        yield made


@pytest.fixture
def shop(relay: Relay, directory: Path, tmp_path: Path) -> Iterator[str]:
    """The application, and its URL."""
    port = free_port()
    argv = [sys.executable, "-m", "uvicorn", "tests.acceptance.traced:shop", "--port", str(port)]
    env = {**relay.env(), "SPANS": str(directory)}
    with Child.start("shop", argv, env=env, cwd=ROOT, log=tmp_path / "shop.log", stop_timeout=20) as child:

        def answers() -> bool:
            assert child.alive, child.tail(40)
            try:
                return client.get(f"http://127.0.0.1:{port}/docs").is_success
            except httpx.TransportError:
                return False

        eventually(answers)
        yield f"http://127.0.0.1:{port}"


def spans(directory: Path) -> list[dict[str, Any]]:
    """Of all processes so far."""
    written = [file.read_text().rpartition("\n")[0] for file in directory.glob("*.jsonl")]  # without half a line
    return [json.loads(line) for text in written for line in text.splitlines()]


def named(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [span for span in found if span["name"] == name]


def complete(found: list[dict[str, Any]]) -> bool:
    """Whether all are there: a request's is written after its answer, a batch's after those of its messages."""
    batched = sum(span["attributes"]["messaging.batch.message_count"] for span in named(found, "send orders"))
    return batched == ORDERS - 1 and len(named(found, "POST /orders")) == ORDERS


def test_one_trace_goes_from_the_request_through_the_relay_to_the_consumer(
    celery_setup: CeleryTestSetup, shop: str, directory: Path, stream: Stream, rows: Rows
) -> None:
    exporter = InMemorySpanExporter()
    ours = TracerProvider(shutdown_on_exit=False)
    ours.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = ours.get_tracer("browser and consumer")

    for number in range(ORDERS):
        with tracer.start_as_current_span("click"):
            headers: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(headers)
            assert client.post(f"{shop}/orders/{number}", headers=headers).status_code == (200 if number else 409)
    eventually(lambda: len(stream) == ORDERS - 1)
    for entry in stream.entries():
        carried = {name.removeprefix("ce_"): value.decode() for name, value in entry.items()}
        with tracer.start_as_current_span("consume", context=TraceContextTextMapPropagator().extract(carried)) as span:
            span.set_attribute("id", carried["id"])

    eventually(lambda: complete(spans(directory)))
    theirs, own = spans(directory), [plain(span) for span in exporter.get_finished_spans()]
    requests = {span["span"]: span for span in named(theirs, "POST /orders")}
    sends = {span["span"]: span for span in named(theirs, "publish orders")}
    batches = {span["span"]: span for span in named(theirs, "send orders")}
    clicks = {span["span"]: span for span in named(own, "click")}
    for consumed in named(own, "consume"):
        sent = sends.pop(consumed["parent"])
        request = requests.pop(sent["parent"])
        click = clicks.pop(request["parent"])
        assert {span["trace"] for span in (consumed, sent, request, click)} == {click["trace"]}
        assert sent["attributes"]["messaging.message.id"] == consumed["attributes"]["id"]
        [link] = sent["links"]
        assert request["span"] in batches[link]["links"]
    assert not sends
    # The order that was rolled back: its request was traced, and nothing came of it.
    assert [span["name"] for span in (*requests.values(), *clicks.values())] == ["POST /orders", "click"]
    assert sum(span["attributes"]["messaging.batch.message_count"] for span in batches.values()) == ORDERS - 1
    eventually(lambda: not rows.hot())
