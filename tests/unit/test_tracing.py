"""The spans of sends, and what messages carry on: by the real SDK, into memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.wire import tracing
from tests.contract.messages import message

WRITER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = WRITER[:-1] + "0"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[TracerProvider]:
    """What an application would set up, for this test alone."""
    made = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made)
    yield made
    made.shutdown()


@pytest.fixture
def spans(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def sent(*messages: LeasedMessage, outcomes: Sequence[Outcome] | None = None) -> Sequence[LeasedMessage]:
    """Send messages; returns them as their publisher got them."""
    with tracing.sending("orders", "redis+stream", messages) as sends:
        sends.outcomes = outcomes or [Outcome.sent()] * len(messages)
    return sends.messages


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else trace.format_span_id(span.parent.span_id)


def carried(span: ReadableSpan | trace.Span) -> str:
    """Its context as a header."""
    context = span.get_span_context()
    assert context is not None
    flags = f"{context.trace_flags:02x}"
    return f"00-{trace.format_trace_id(context.trace_id)}-{trace.format_span_id(context.span_id)}-{flags}"


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


class TestWithTracing:
    def test_a_message_is_sent_in_its_writers_trace_and_the_consumer_gets_the_sends_context(
        self, spans: InMemorySpanExporter
    ) -> None:
        [got] = sent(message(headers={"traceparent": WRITER, "tracestate": "v=1", "tenant": "t1"}))
        [span] = named(spans, "publish orders")
        assert (carried(span)[3:35], parent_of(span)) == (WRITER[3:35], WRITER[36:52])
        assert got.headers == {"traceparent": carried(span), "tracestate": "v=1", "tenant": "t1"}

    def test_what_a_client_traces_while_it_sends_one_message_belongs_to_that(
        self, spans: InMemorySpanExporter, provider: TracerProvider
    ) -> None:
        with tracing.sending("orders", "http", [message()]) as sends:
            provider.get_tracer("client").start_span("POST").end()
            sends.outcomes = [Outcome.sent()]
        [outer], [inner] = named(spans, "publish orders"), named(spans, "POST")
        assert inner.parent == outer.get_span_context()
        with tracing.sending("orders", "http", [message(), message()]) as sends:
            provider.get_tracer("client").start_span("of both").end()
            sends.outcomes = [Outcome.sent()] * 2
        assert named(spans, "of both")[0].parent is None

    def test_a_message_without_a_writers_trace_begins_its_own(
        self, spans: InMemorySpanExporter, provider: TracerProvider
    ) -> None:
        with provider.get_tracer("celery").start_as_current_span("the relay's task"):
            [got] = sent(message(headers={"tenant": "t1", "tracestate": "of=nobody"}))
        [span] = named(spans, "publish orders")
        assert span.parent is None
        assert got.headers == {"tenant": "t1", "traceparent": carried(span)}

    @pytest.mark.parametrize(
        "headers",
        [
            {"traceparent": UNSAMPLED},
            {"traceparent": f"01{UNSAMPLED[2:]}-more"},  # of a later version
            {"traceparent": "00-a-b-01"},
            {"traceparent": 5},
            {"traceparent": WRITER, "tracestate": 5},
            ["no mapping"],
        ],
        ids=str,
    )
    def test_what_was_not_sampled_or_is_not_to_be_read_travels_on_as_it_is(
        self, spans: InMemorySpanExporter, headers: Any
    ) -> None:
        plain = message(headers=headers)
        assert sent(plain) == (plain,)
        assert not spans.get_finished_spans()
        [same, other] = sent(plain, message(headers={"traceparent": WRITER}))
        assert same is plain
        assert other.headers["traceparent"] != WRITER
        assert len(named(spans, "publish orders")) == 1

    def test_a_failure_is_told_by_its_code_and_never_by_its_text(self, spans: InMemorySpanExporter) -> None:
        outcomes = [Outcome.sent(), Outcome.outage("http_503", "SECRET"), Outcome.behind()]
        sent(*(message(headers={"traceparent": WRITER}) for _ in outcomes), outcomes=outcomes)
        told = [
            (attributes(span).get("error.type"), attributes(span)["outbox.outcome"], span.status.is_ok)
            for span in named(spans, "publish orders")
        ]
        assert told == [(None, "sent", True), ("http_503", "outage", False), (None, "behind", True)]
        assert "SECRET" not in "".join(span.to_json() for span in spans.get_finished_spans())

    def test_sends_that_break_off_end_their_spans(self, spans: InMemorySpanExporter) -> None:
        with pytest.raises(KeyboardInterrupt), tracing.sending("orders", "http", [message()]):
            raise KeyboardInterrupt
        assert [attributes(span)["error.type"] for span in spans.get_finished_spans()] == ["KeyboardInterrupt"]

    def test_a_processor_that_fails_stops_no_message(self, provider: TracerProvider) -> None:
        class Broken(SpanProcessor):
            def on_end(self, *_: Any, **__: Any) -> None:
                raise OSError("no exporter")

        broken, plain = Broken(), message()
        provider.add_span_processor(broken)
        assert len(sent(plain)) == 1
        broken.on_start = broken.on_end  # type: ignore[method-assign]
        assert sent(plain) == (plain,)


NOT_INSTALLED = """
import sys
sys.modules["opentelemetry"] = None
from outbox_tasks.wire import tracing
import outbox_tasks.worker.app, outbox_tasks.worker.tasks
given = [object()]
with tracing.sending("orders", "http", given) as sends:
    assert tracing.current() == {} and sends.messages is given
"""


def test_without_opentelemetry_nothing_changes() -> None:
    subprocess.run([sys.executable, "-c", NOT_INSTALLED], check=True)
