"""Traces, by OpenTelemetry: one from the application's request through the row to the consumer.

A row keeps the trace context of its writer, as the headers `traceparent` and `tracestate` (W3C Trace Context). Each
send of it is a span that is the child of the writer's, and whose context the consumer gets in place of the writer's.

This module never imports OpenTelemetry first: if nobody has imported it, nobody has set it up, and there is nothing to
do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.text import logger

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

log = logger(__name__)

SYSTEMS = {
    "amqp": "rabbitmq", "amqps": "rabbitmq", "sqs": "aws_sqs", "sns": "aws.sns", "mqtts": "mqtt",
    "redis+stream": "redis", "rediss+stream": "redis", "rediss": "redis", "https": "http", "grpcs": "grpc",
    "azureservicebus": "servicebus", "pubsub": "gcp_pubsub",
}  # fmt: skip
"""`messaging.system` of a URL's scheme, where it is not the scheme itself."""

FAILED = (Result.RETRY, Result.OUTAGE, Result.DEAD)

UNSAMPLED = tuple("02468ace")
"""How the flags at the end of a `traceparent` end when the lowest of them is not set."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """A message that gets a span, in its writer's trace if there is one."""

    writer: SpanContext | None


@dataclass(slots=True)
class Sends:
    """The sends of a single or a batch: the messages as they are to be sent and, once they have been, the outcome of
    each."""

    messages: Sequence[LeasedMessage]
    outcomes: Sequence[Outcome] = ()
    spans: Sequence[Span | None] = field(default_factory=list)
    """Of each message; None: it is in no trace."""


def current() -> dict[str, str]:
    """The headers that carry on the trace that we are in; none if we are in none."""
    if not _imported():
        return {}
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carried: dict[str, str] = {}
    if get_current_span().get_span_context().is_valid:
        TraceContextTextMapPropagator().inject(carried)
    return carried


@contextmanager
def sending(destination: str, scheme: str, messages: Sequence[LeasedMessage]) -> Iterator[Sends]:
    """Makes the spans of messages, around their send, if tracing is set up in this process. The span of a message that
    is sent by itself is the current one, so that the spans of client libraries belong to it.

    A message has no span if its writer was not sampled, or if its `traceparent` can't be read. Then it travels on as it
    is. If its writer was in no trace, it begins a trace of its own."""
    sends = _begin(destination, scheme, messages)
    if not sends.spans:
        yield sends
        return
    try:
        with _current(sends):
            yield sends
    except BaseException as error:
        _end(sends, type(error).__name__)
        raise
    _end(sends)


def _imported() -> bool:
    return sys.modules.get("opentelemetry.trace") is not None


def _tracer() -> Tracer | None:
    """Ours, if somebody has set up what makes one."""
    if not _imported():
        return None
    from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, get_tracer_provider

    provider = get_tracer_provider()
    if isinstance(provider, ProxyTracerProvider | NoOpTracerProvider):
        return None
    return provider.get_tracer("outbox_tasks")


def _begin(destination: str, scheme: str, messages: Sequence[LeasedMessage]) -> Sends:
    try:
        tracer = _tracer()
        origins = [] if tracer is None else [_origin(message) for message in messages]
        if tracer is not None and any(origins):
            system = SYSTEMS.get(scheme, scheme)
            common = {"messaging.system": system, "messaging.destination.name": destination}
            return _begin_each(tracer, common, messages, origins)
    except Exception:  # a sampler or a processor of the application's, which must not stop the message
        log.exception("sends to %s could not be traced", destination)
    return Sends(messages)


def _origin(message: LeasedMessage) -> _Origin | None:
    headers: object = message.headers
    if not isinstance(headers, Mapping):
        return None  # the publisher will refuse it
    traceparent = headers.get("traceparent")
    if traceparent is None:
        return _Origin(None)
    # Most messages are not sampled, and this check costs a tenth of reading the header.
    if not isinstance(traceparent, str) or (len(traceparent) == 55 and traceparent.endswith(UNSAMPLED)):
        return None
    return _read(headers)


def _read(headers: Mapping[str, Any]) -> _Origin | None:
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not isinstance(headers.get("tracestate", ""), str):
        return None
    writer = get_current_span(TraceContextTextMapPropagator().extract(headers)).get_span_context()
    return _Origin(writer) if writer.is_valid and writer.trace_flags.sampled else None


def _current(sends: Sends) -> AbstractContextManager[object]:
    if len(sends.spans) != 1 or sends.spans[0] is None:
        return nullcontext()
    from opentelemetry.trace import use_span

    return use_span(sends.spans[0], record_exception=False, set_status_on_exception=False)


def _begin_each(
    tracer: Tracer, common: Mapping[str, Any], messages: Sequence[LeasedMessage], origins: Sequence[_Origin | None]
) -> Sends:
    """Begin the span of each message, and give the message its context."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanKind, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    operation = {"messaging.operation.name": "publish", "messaging.operation.type": "send"}
    ready: list[LeasedMessage] = []
    spans: list[Span | None] = []
    for message, origin in zip(messages, origins, strict=True):
        if origin is None:
            ready.append(message)
            spans.append(None)
            continue
        nowhere = Context()
        span = tracer.start_span(
            f"publish {common['messaging.destination.name']}",
            context=nowhere if origin.writer is None else set_span_in_context(NonRecordingSpan(origin.writer), nowhere),
            kind=SpanKind.PRODUCER,
            attributes={
                **common,
                **operation,
                "messaging.message.id": message.id,
                "messaging.message.body.size": len(message.payload),
                "cloudevents.event_type": message.event_type,
                "outbox.attempt": message.attempts,
                "outbox.due_seconds": message.age,
            },
        )
        carried = {name: value for name, value in message.headers.items() if name != "tracestate"}
        TraceContextTextMapPropagator().inject(carried, set_span_in_context(span, nowhere))
        ready.append(replace(message, headers=carried))
        spans.append(span)
    return Sends(ready, spans=spans)


def _end(sends: Sends, broken: str | None = None) -> None:
    """End all spans. With codes, never with the text of an error, which may quote the payload."""
    outcomes = sends.outcomes if broken is None else [Outcome.retry(broken, "")] * len(sends.spans)
    try:
        for span, outcome in zip(sends.spans, outcomes, strict=True):
            if span is not None:
                span.set_attribute("outbox.outcome", str(outcome.result))
                _end_one(span, outcome if outcome.result in FAILED else None)
    except Exception:  # as in _begin
        log.exception("the end of sends could not be traced")


def _end_one(span: Span, failed: Outcome | None) -> None:
    from opentelemetry.trace import StatusCode

    if failed is not None:
        code = failed.code or str(failed.result)
        span.set_attribute("error.type", code)
        span.set_status(StatusCode.ERROR, code)
    span.end()
