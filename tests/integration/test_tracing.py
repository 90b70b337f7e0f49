"""The trace of a writer, in the row, and in what a destination gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery, signals
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.model import Step
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from tests.claims import drain_batches
from tests.conftest import MakeSettings, MakeStore, Rows, Stream

OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)


@app.task(name="shop.ship")
def ship(order: int) -> None:
    """Never run here."""


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracer]:
    """What an application would set up, for this test alone."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield provider.get_tracer("shop")
    provider.shutdown()


@pytest.fixture
def destinations(stream: Stream, broker_url: str) -> dict[str, Any]:
    return {"orders": {"url": stream.url}, "tasks": {"url": f"celery://?broker={broker_url}&queue=shop,celery"}}


@pytest.fixture
def outbox(settings: MakeSettings, rows: Rows, destinations: dict[str, Any]) -> Outbox:
    return Outbox(settings(nudge=False, destinations=destinations), celery=app)


@pytest.fixture
def store(new_store: MakeStore, destinations: dict[str, Any]) -> Store:
    return new_store(destinations=destinations)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as made:
        yield made


def header(span: trace.Span) -> str:
    context = span.get_span_context()
    ids = trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)
    return f"00-{ids[0]}-{ids[1]}-{context.trace_flags:02x}"


@pytest.fixture
def publishers(store: Store) -> Iterator[Publishers]:
    made = Publishers(store.settings)
    yield made
    made.close()


def test_an_async_session_that_writes_at_its_commit_keeps_the_context_of_the_call(
    outbox: Outbox, engine: Engine, rows: Rows, tracer: Tracer
) -> None:
    async def work() -> trace.Span:
        asynchronous = create_async_engine(engine.url)
        async with AsyncSession(asynchronous) as session:
            with tracer.start_as_current_span("POST /orders") as span:
                await session.begin()
                outbox.publish(session, "a", {}, to="orders")
            await session.commit()
        await asynchronous.dispose()
        return span

    span = asyncio.run(work())
    assert [row.headers for row in rows.hot()] == [{"traceparent": header(span)}]


def test_the_trace_that_a_celery_call_states_wins(outbox: Outbox, session: Session, rows: Rows, tracer: Tracer) -> None:
    """As an instrumentation of Celery puts it there, with a span of its own."""

    def inject(headers: dict[str, Any], **_: Any) -> None:
        headers.update(traceparent=OWN, tracestate="own=1")

    signals.before_task_publish.connect(inject)
    try:
        with tracer.start_as_current_span("POST /orders"), session.begin():
            outbox.delay(session, ship, 1)
    finally:
        signals.before_task_publish.disconnect(inject)
    [row] = rows.hot()
    assert (row.headers["traceparent"], row.headers["tracestate"]) == (OWN, "own=1")


@pytest.mark.parametrize("way", ["publish", "delay"])
def test_a_task_gets_the_context_under_the_name_that_tracers_look_for(
    outbox: Outbox, session: Session, store: Store, publishers: Publishers, tracer: Tracer,
    exporter: InMemorySpanExporter, broker_url: str, way: str,
) -> None:  # fmt: skip
    with tracer.start_as_current_span("POST /orders") as request, session.begin():
        if way == "publish":
            outbox.publish(session, "shop.ship", 1, to="tasks")
        else:
            outbox.delay(session, ship, 1)
    assert drain_batches(store, publishers) == {Step.SENT: 1}
    [sent] = [span for span in exporter.get_finished_spans() if span.name == "publish tasks"]
    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    queue = "shop" if way == "publish" else "celery"
    with redis.Redis.from_url(broker_url) as client:
        [task] = [json.loads(task) for task in client.lrange(queue, 0, -1)]  # type: ignore[union-attr]
        client.delete(queue)
    context = sent.get_span_context()
    assert context is not None
    assert task["headers"]["traceparent"].split("-")[2] == trace.format_span_id(context.span_id)
