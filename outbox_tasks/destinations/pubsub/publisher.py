"""Google Cloud Pub/Sub: `pubsub://project/topic`, a batch in as few requests as possible.

The key becomes the ordering key. A request may carry only one of them, so a batch with many keys is as many requests,
side by side; `ordering=none` sends it as one. The attributes are those of the CloudEvents binding, binary mode.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any
from urllib.parse import quote

from google.pubsub_v1.types import PublishResponse
from grpc import StatusCode

from outbox_tasks.destinations.common.grpc_status import LOST
from outbox_tasks.destinations.pubsub.address import address_of
from outbox_tasks.destinations.pubsub.answers import trouble
from outbox_tasks.destinations.pubsub.channel import Opening, emulator_of, plaintext
from outbox_tasks.destinations.pubsub.message import REQUEST, Entry, entry_of
from outbox_tasks.errors import OutageError
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import encoded

PUBLISH = "/google.pubsub.v1.Publisher/Publish"

UNCONFIRMED = Outcome.retry("unconfirmed", "the answer does not have an id for each message")
Call = list[Entry]
"""The messages of one request."""


@dataclass
class Connection:
    """The connection of one process: None until it is open."""

    opening: Opening | None = None
    channel: Any = None
    publish: Any = None
    """The channel's call."""


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
        self._own = PerProcess(Connection)

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """One request for each key. A request that is refused because of a message is halved until that message is
        found. An outage holds for all that is still to be sent."""
        deadline = time.monotonic() + self._timeout
        made, outcomes = encoded(messages, self._entry)
        by_key: dict[str, Call] = {}
        for place, entry in made.items():
            by_key.setdefault(entry.key, []).append(entry._replace(place=place))
        calls = list(by_key.values())
        try:
            if calls:
                self._connect(deadline)
                self._send(calls, outcomes, deadline)
        except OutageError as error:
            failed = Outcome.outage(error.code, str(error))
            outcomes.update((entry.place, failed) for call in calls for entry in call)
        except BaseException:  # such as a time limit; nobody waits for the requests under way any more
            self.close()
            raise
        return [outcomes[index] for index in range(len(messages))]

    def close(self) -> None:
        """Close the connection."""
        own = self._own.take()
        if own is not None and own.channel is not None:
            own.channel.close()

    def _send(self, calls: Sequence[Call], outcomes: dict[int, Outcome], deadline: float) -> None:
        """Send all requests side by side. An outage ends this: more requests would be pointless."""
        waiting, under_way, answers = deque(calls), dict[Any, Call](), SimpleQueue[Any]()
        ended: Outcome | None = None
        lost = False
        while under_way or (waiting and ended is None):
            while waiting and ended is None:
                call = waiting.popleft()
                answer = self._ask(call, deadline)
                under_way[answer] = call
                answer.add_done_callback(answers.put)
            answer = answers.get()
            call = under_way.pop(answer)
            outcome = _outcome(answer, len(call))
            lost = lost or answer.code() in LOST or outcome.code == "unauthorized"
            if outcome.result is Result.DEAD and len(call) > 1:
                # Google takes nothing of a request that it refuses.
                waiting.extend((call[: len(call) // 2], call[len(call) // 2 :]))
            else:
                outcomes.update((entry.place, outcome) for entry in call)
            if outcome.result is Result.OUTAGE:
                ended = outcome
        if ended is not None:
            outcomes.update((entry.place, ended) for call in waiting for entry in call)
        if lost:
            self.close()  # the next connection looks for credentials again

    def _ask(self, entries: Sequence[Entry], deadline: float) -> Any:
        """A future of the answer."""
        request = b"".join((self._head, *(entry.body for entry in entries)))
        return self._own.get().publish.future(request, max(deadline - time.monotonic(), 0), self._metadata)

    def _connect(self, deadline: float) -> None:
        """Raises `OutageError`."""
        own = self._own.get()
        if own.publish is not None:
            return
        emulator = emulator_of(self._address)
        if emulator is not None:
            own.channel = plaintext(emulator)
        else:
            if own.opening is None:
                own.opening = Opening(self._address)
            try:
                own.channel = own.opening.channel(deadline)
            finally:
                if own.opening.done:
                    own.opening = None
        own.publish = own.channel.unary_unary(
            PUBLISH, request_serializer=None, response_deserializer=PublishResponse.pb().FromString
        )


def _outcome(answer: Any, count: int) -> Outcome:
    """What became of the messages of a request."""
    code = answer.code()
    if code is not StatusCode.OK:
        return trouble(code, answer.details() or "")
    return Outcome.sent() if len(answer.result().message_ids) == count else UNCONFIRMED
