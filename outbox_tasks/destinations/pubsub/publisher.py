"""Google Cloud Pub/Sub: `pubsub://project/topic`, a batch in as few requests as possible.

The key becomes the ordering key. A request may carry only one of them, so a batch with many keys is as many requests,
side by side; `ordering=none` sends it as one. The attributes are those of the CloudEvents binding, binary mode.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from google.pubsub_v1.types import PublishRequest, PublishResponse
from grpc import StatusCode

from outbox_tasks.destinations.common import grpc_status
from outbox_tasks.destinations.common.in_time import in_time
from outbox_tasks.destinations.pubsub.connection import address_of, channel_to
from outbox_tasks.errors import OutageError, PermanentError
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers

PUBLISH = "/google.pubsub.v1.Publisher/Publish"

UNCONFIRMED = Outcome.retry("unconfirmed", "the answer does not have an id for each message")

CODES = {
    **grpc_status.CODES,
    StatusCode.FAILED_PRECONDITION: (Result.OUTAGE, "failed_precondition"),  # no billing, no key to encrypt with
    StatusCode.RESOURCE_EXHAUSTED: (Result.RETRY, "throttled"),
}

SIZE = re.compile(rf"request_size is too large|payload size exceeds|{grpc_status.SIZE}", re.IGNORECASE)
"""How Google, and gRPC itself, say that a request is too large."""
NAME = re.compile(r"invalid resource name|invalid \[\w+\] name", re.IGNORECASE)
"""How Google and its emulator say that a topic can't have this name. By its status alone, the answer would blame a
message."""

NO_TOKEN = "Getting metadata from plugin failed"  # noqa: S105 - the text of an error
REASON = re.compile(r"\b(?:invalid|unauthorized|unsupported|access)_[a-z_]+\b")
"""OAuth's name for a refusal (RFC 6749). The rest of the text must not be shown."""

REQUEST = PublishRequest.pb()
"""Google's plain protobuf message. Its wrapper class would take longer than everything else here."""


class Entry(NamedTuple):
    """A message on its way: which of the list it is, its ordering key, and its part of a request."""

    place: int
    key: str
    body: bytes


Call = list[Entry]
"""The messages of one request."""


class PubSubPublisher:
    """Publishes to one topic. Sent means that Pub/Sub has given the message an id of its own."""

    batch_size = 100

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._address = address_of(destination)
        self._timeout = settings.send_timeout
        self._entry = partial(entry_of, source=settings.source, ordered=self._address.ordered)
        topic = self._address.topic
        self._head = bytes(REQUEST(topic=topic).SerializeToString())
        self._metadata = [("x-goog-request-params", f"topic={quote(topic)}")]
        self._channel = PerProcess(partial(channel_to, self._address))

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """One request for each key, side by side."""
        deadline = time.monotonic() + self._timeout
        made, outcomes = encoded(messages, self._entry)
        by_key: dict[str, Call] = {}
        for place, entry in made.items():
            by_key.setdefault(entry.key, []).append(entry._replace(place=place))
        calls = list(by_key.values())
        try:
            if calls:
                channel = self._channel.made or in_time(self._channel.get, deadline)
                self._send(channel, calls, outcomes, deadline)
        except (OutageError, TimeoutError) as error:
            failed = Outcome.outage(getattr(error, "code", "timeout"), str(error) or "no credentials in time")
            outcomes.update((entry.place, failed) for call in calls for entry in call)
        except BaseException:  # such as a time limit; nobody waits for the requests under way any more
            self.close()
            raise
        return [outcomes[index] for index in range(len(messages))]

    def close(self) -> None:
        """Close the connection."""
        channel = self._channel.take()
        if channel is not None:
            channel.close()

    def _send(self, channel: Any, calls: Sequence[Call], outcomes: dict[int, Outcome], deadline: float) -> None:
        ask = channel.unary_unary(PUBLISH, response_deserializer=PublishResponse.pb().FromString)
        answers = []
        for call in calls:
            request = b"".join((self._head, *(entry.body for entry in call)))
            answers.append(ask.future(request, max(deadline - time.monotonic(), 0), self._metadata))
        lost = False
        for call, answer in zip(calls, answers, strict=True):
            outcome = _outcome(answer, len(call))
            lost = lost or answer.code() in grpc_status.LOST or outcome.code == "unauthorized"
            outcomes.update((entry.place, outcome) for entry in call)
        if lost:
            self.close()  # the next connection looks for credentials again


def _outcome(answer: Any, count: int) -> Outcome:
    """What became of the messages of a request, when it has ended."""
    code = answer.code()
    if code is not StatusCode.OK:
        outcome = trouble(code, answer.details() or "")
        if outcome.result is Result.DEAD and count > 1:  # because of one of them
            return Outcome.unforeseen(f"{outcome.code}: {outcome.error}", together=True)
        return outcome
    return Outcome.sent() if len(answer.result().message_ids) == count else UNCONFIRMED


def trouble(code: StatusCode, details: str) -> Outcome:
    """What the status of a request means for its messages."""
    if details.startswith(NO_TOKEN):
        reason = REASON.search(details)
        return Outcome.outage("unauthorized", f"there is no access token: {reason[0] if reason else 'no answer'}")
    if code is StatusCode.INVALID_ARGUMENT and NAME.search(details):
        return Outcome.outage("unroutable", details)
    if code in (StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED) and SIZE.search(details):
        return Outcome.dead("too_large", details)
    return grpc_status.outcome_of(code, details, CODES)


def entry_of(message: LeasedMessage, source: str, *, ordered: bool) -> Entry:
    """The message, ready to be sent. Raises `PermanentError`."""
    key = message.key or "" if ordered else ""
    request = REQUEST()
    try:
        values = _attributes(message, source)
        request.messages.add(data=message.payload, attributes=values, ordering_key=key)
    except ValueError as error:
        raise PermanentError(f"a text of the message is not Unicode: {error}", code="not_unicode") from error
    # A serialised request is its serialised parts, one after the other.
    return Entry(0, key, bytes(request.SerializeToString()))


def _attributes(message: LeasedMessage, source: str) -> dict[str, str]:
    values = {f"ce-{name}": value for name, value in attributes(message, source).items()}
    values["ce-specversion"] = "1.0"
    # The binding's text uses one name; its examples and the SDKs use the other.
    values["content-type"] = values["ce-datacontenttype"] = message.content_type
    values |= {_free(name): value for name, value in own_headers(message).items()}
    return values


def _free(name: str) -> str:
    """A header's name. It gets the prefix `h_` if Google or a reader would act upon it."""
    taken = name.lower().startswith(("ce-", "goog")) or name.lower() == "content-type"
    return f"h_{name}" if taken else name
