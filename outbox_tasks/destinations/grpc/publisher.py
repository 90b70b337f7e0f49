"""gRPC: `grpc://host:port`, CloudEvents in their protobuf format, a batch in one call; `grpcs://` is TLS.

The other end implements the service `OutboxReceiver` of `outbox_receiver.proto`, which answers for each message.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc
from grpc import StatusCode

from outbox_tasks.destinations.common import options
from outbox_tasks.destinations.common.grpc_status import CHANNEL, LOST, SIZE, outcome_of
from outbox_tasks.destinations.grpc.receiver import DELIVER, DeliverRequest, DeliverResponse
from outbox_tasks.errors import PermanentError
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers

ONES_FAULT = {
    StatusCode.INVALID_ARGUMENT, StatusCode.FAILED_PRECONDITION, StatusCode.OUT_OF_RANGE, StatusCode.DATA_LOSS,
    StatusCode.INTERNAL, StatusCode.UNKNOWN,
}  # fmt: skip
"""A single message can cause these statuses. UNKNOWN is an exception in the receiver."""

TAKEN = {StatusCode.OK, StatusCode.ALREADY_EXISTS}
MISSING = Outcome.retry("no_result", "the receiver's answer says nothing of this message")
NUMBERED: dict[int, StatusCode] = {code.value[0]: code for code in StatusCode}

TOO_LARGE = re.compile(SIZE, re.IGNORECASE)
"""The status alone could also mean that a quota is used up."""

FILES = ("ca_file", "cert_file", "key_file")
OPTIONS: options.Options = {
    "token": options.matching("[!-~]+", "ASCII without spaces"),
    "max_message_size": options.number(1, 10**9 - 1),
    **dict.fromkeys(FILES, options.TEXT),
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Entry(NamedTuple):
    """A message on its way: its place in the list, its id, and the request that would send it alone."""

    place: int
    id: str
    request: bytes


class GrpcPublisher:
    """Calls one receiver. Sent means that its answer says so of the message."""

    batch_size = 100

    def __init__(self, destination: Destination, settings: Settings) -> None:
        parts = urlsplit(destination.url)
        self._tls = parts.scheme == "grpcs"
        self._options = options.read(destination, OPTIONS)
        _check(destination, self._options, tls=self._tls)
        self._target = parts.netloc
        self._limit: int = self._options.get("max_message_size", 4 << 20)
        self._metadata = [("authorization", f"Bearer {self._options['token']}")] if "token" in self._options else []
        self._source, self._timeout = settings.source, settings.send_timeout
        self._channel = PerProcess(self._open)

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """One call for all messages, or as few calls as their size allows. If one message may have caused a failure,
        it holds for its call. Any other failure holds for all that is still to be sent."""
        deadline = time.monotonic() + self._timeout
        requests, outcomes = encoded(messages, lambda message: _request(message, self._source))
        rest = MISSING
        for call in self._calls(Entry(place, messages[place].id, request) for place, request in requests.items()):
            try:
                answers = self._call(call, deadline - time.monotonic())
            except (grpc.RpcError, OSError) as error:
                code, details = _status(error)
                failed = _outcome(code, details)
                if not (code in ONES_FAULT or failed.result is Result.DEAD):
                    rest = failed
                    if code in LOST:
                        self.close()
                    break
                if len(call) > 1:
                    failed = Outcome.unforeseen(f"{failed.code}: {details}", together=True)
                answers = [failed] * len(call)
            except BaseException:  # such as a time limit; nobody waits for the call any more
                self.close()
                raise
            outcomes.update(zip((entry.place for entry in call), answers, strict=True))
        return [outcomes.get(place, rest) for place in range(len(messages))]

    def close(self) -> None:
        """Close the connection."""
        channel = self._channel.take()
        if channel is not None:
            channel.close()

    def _calls(self, entries: Iterable[Entry]) -> Iterator[list[Entry]]:
        """The entries in calls of at most the configured size. A larger one goes alone: the receiver may take it."""
        call: list[Entry] = []
        size = 0
        for entry in entries:
            if call and size + len(entry.request) > self._limit:
                yield call
                call, size = [], 0
            call.append(entry)
            size += len(entry.request)
        if call:
            yield call

    def _call(self, entries: Sequence[Entry], timeout: float) -> list[Outcome]:
        request = DeliverRequest()
        for entry in entries:
            request.MergeFromString(entry.request)
        deliver = self._channel.get().unary_unary(DELIVER, DeliverRequest.SerializeToString, DeliverResponse.FromString)
        response = deliver.future(request, timeout=max(timeout, 0), metadata=self._metadata).result()
        answers = {result.id: _answer(result) for result in response.results}
        return [answers.get(entry.id, MISSING) for entry in entries]

    def _open(self) -> Any:
        if not self._tls:
            return grpc.insecure_channel(self._target, CHANNEL)
        ca, cert, key = (Path(path).read_bytes() if path else None for path in map(self._options.get, FILES))
        return grpc.secure_channel(self._target, grpc.ssl_channel_credentials(ca, key, cert), CHANNEL)


def _check(destination: Destination, given: Collection[str], *, tls: bool) -> None:
    parts = urlsplit(destination.url)
    options.check(
        destination,
        (
            parts.hostname and parts.port is not None and "@" not in parts.netloc and parts.path in ("", "/"),
            "it must be grpc://host:port or grpcs://host:port, with a token as an option: ?token=…",
        ),
        (tls or not any(name in given for name in FILES), f"{', '.join(FILES)} are for TLS: grpcs://"),
        (("cert_file" in given) == ("key_file" in given), "cert_file and key_file go together"),
    )


def _request(message: LeasedMessage, source: str) -> bytes:
    """The request that sends this message alone. Raises `PermanentError`."""
    headers = own_headers(message)
    names = attributes(message, source)
    request = DeliverRequest()
    try:
        event = request.batch.events.add(
            id=names.pop("id"), source=names.pop("source"), type=names.pop("type"), spec_version="1.0",
            binary_data=message.payload,
        )  # fmt: skip
        del names["time"]
        microseconds = (message.created_at - EPOCH) // MICROSECOND
        written = event.attributes["time"].ce_timestamp
        written.seconds, written.nanos = microseconds // 1_000_000, microseconds % 1_000_000 * 1000
        for name, value in {**names, "datacontenttype": message.content_type}.items():
            event.attributes[name].ce_string = value
        if headers:
            request.headers[message.id].values.update(headers)
    except ValueError as error:
        raise PermanentError(f"a text of the message is not Unicode: {error}", code="not_unicode") from error
    return bytes(request.SerializeToString())


def _status(error: Any) -> tuple[StatusCode, str]:
    """The status of a call that failed. If a TLS file can't be read, there was no call."""
    if isinstance(error, OSError):
        return StatusCode.UNAVAILABLE, f"{error.filename} can't be read: {error.strerror}"
    return error.code(), error.details() or ""


def _outcome(code: StatusCode, details: str) -> Outcome:
    """What the status of a call means for its messages."""
    if code in (StatusCode.RESOURCE_EXHAUSTED, StatusCode.OUT_OF_RANGE) and TOO_LARGE.search(details):
        return Outcome.dead("too_large", details)
    return outcome_of(code, details)


def _answer(result: Any) -> Outcome:
    """What the receiver says of one message. It is about that message alone, so it is never an outage."""
    code = NUMBERED.get(result.code, StatusCode.UNKNOWN)
    if code in TAKEN:
        return Outcome.sent()
    outcome = _outcome(code, str(result.message))
    if outcome.result is Result.DEAD:
        return outcome
    retry_after = result.retry_after if 0 < result.retry_after < float("inf") else None
    return Outcome.retry(outcome.code or "", outcome.error or "", retry_after=retry_after)
