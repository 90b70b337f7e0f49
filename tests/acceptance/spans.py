"""Tracing that leaves each process's spans in a file of its own, in the directory that SPANS names."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult


class Lines(SpanExporter):
    """One JSON object a line."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with (Path(os.environ["SPANS"]) / f"{os.getpid()}.jsonl").open("a") as file:
            file.writelines(json.dumps(plain(span)) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


def plain(span: ReadableSpan) -> dict[str, Any]:
    """What the tests look at."""
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "trace": trace.format_trace_id(context.trace_id),
        "span": trace.format_span_id(context.span_id),
        "parent": span.parent and trace.format_span_id(span.parent.span_id),
        "links": [trace.format_span_id(link.context.span_id) for link in span.links],
        "attributes": dict(span.attributes or {}),
    }


def set_up(**_: Any) -> None:
    """As docs/tracing.md says."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Lines(), schedule_delay_millis=100))
    trace.set_tracer_provider(provider)


def close(**_: Any) -> None:
    """Write the remaining spans: a process of a pool ends without atexit."""
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.shutdown()
