"""Amazon SQS and SNS: `sqs://[key:secret@]region/account/queue`, `sns://[key:secret@]region/account/topic`.

Names that end in `.fifo` are FIFO queues and topics: the key becomes the group, the id the deduplication id. Neither
service has a CloudEvents binding: docs/destinations/aws.md says what the message attributes are.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import boto3
from botocore.config import Config

from outbox_tasks.destinations.aws.address import address_of
from outbox_tasks.destinations.aws.answers import failed, trouble
from outbox_tasks.destinations.common.in_time import in_time
from outbox_tasks.errors import PermanentError
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import AS_ATTRIBUTES, attributes, encoded, own_headers

BATCH_ENTRIES, BATCH_BYTES = 10, 262_144
"""Most entries of a request, and their bytes. The services take a larger message alone, if at all."""
REQUESTS_AT_ONCE = 10

GROUP = re.compile(r"[!-~]{1,128}")
REFUSED_CHARACTER = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that SQS refuses."""
LATE = Outcome.outage("timeout", "no answer in time")
UNCONFIRMED = Outcome.retry("unconfirmed", "the answer does not mention the message")


class Entry(NamedTuple):
    """A message as it is sent, and which of the list it is."""

    nth: int
    size: int
    fields: dict[str, Any]


@dataclass
class Round:
    """The state of one `publish`: the outcome of each message so far."""

    outcomes: dict[int, Outcome]
    ended: Outcome | None = None
    """Why there is no point in sending more."""

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        self.outcomes[entry.nth] = outcome
        if outcome.result is Result.OUTAGE:
            self.ended = outcome


@dataclass(frozen=True)
class Connection:
    """The client of one process, and the threads that send its requests."""

    client: Any
    place: str
    """The queue's URL, the topic's ARN."""
    threads: ThreadPoolExecutor


class BatchPublisher(ABC):
    """Sends in batches of ten, several at once. Sent means that the service has given the message an id of its own."""

    batch_size = BATCH_ENTRIES * REQUESTS_AT_ONCE
    service: ClassVar[str]
    body: ClassVar[str]

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._address = address_of(destination, self.service)
        self._fifo = self._address.name.endswith(".fifo")
        self._source = settings.source
        self._send_timeout = settings.send_timeout
        self._connection = PerProcess(self._open)

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """One request for ten messages, several requests at once."""
        deadline = time.monotonic() + self._send_timeout
        made, outcomes = encoded(messages, self._entry)
        sending = Round(outcomes)
        if made:
            try:
                connection = self._connection.made or in_time(self._connection.get, deadline)
            except TimeoutError:
                sending.ended = LATE
            except Exception as error:  # such as a profile that does not exist
                sending.ended = trouble(error)
            else:
                self._send_all(connection, [entry._replace(nth=nth) for nth, entry in made.items()], sending, deadline)
        if sending.ended is not None and sending.ended.code == "unauthorized":
            self.close()  # the client keeps its credentials, or that it found none; a new client looks again
        return [sending.outcomes.get(index) or sending.ended or LATE for index in range(len(messages))]

    def close(self) -> None:
        """Close the connections."""
        connection = self._connection.take()
        if connection is not None:
            connection.threads.shutdown(wait=False, cancel_futures=True)
            connection.client.close()

    def _open(self) -> Connection:
        address = self._address
        config = Config(
            connect_timeout=min(5.0, self._send_timeout / 2),
            read_timeout=self._send_timeout / 2,
            retries={"total_max_attempts": 1, "mode": "standard"},  # the relay decides about retries
            max_pool_connections=REQUESTS_AT_ONCE,
            tcp_keepalive=True,
            parameter_validation=False,  # all parameters are texts, and checking them takes a tenth of the CPU
        )
        key, secret = address.login or (None, None)
        session = boto3.session.Session(key, secret, region_name=address.region)
        client = session.client(self.service, endpoint_url=address.endpoint, config=config)
        return Connection(client, self._place(client), ThreadPoolExecutor(REQUESTS_AT_ONCE, self.service))

    def _send_all(self, connection: Connection, entries: Sequence[Entry], sending: Round, deadline: float) -> None:
        """Send in threads: no option of the client limits the time of a whole request."""
        running = [connection.threads.submit(self._send, connection, batch, sending) for batch in _batches(entries)]
        late = set(running)
        try:
            late = wait(running, timeout=max(0.0, deadline - time.monotonic())).not_done
        finally:
            if late:
                sending.ended = LATE
                self.close()  # their threads may hang for ever, and the next messages need some

    def _send(self, connection: Connection, batch: Sequence[Entry], sending: Round) -> None:
        if sending.ended is not None:
            return
        try:
            outcomes = self._answers(connection, batch)
        except Exception as error:
            outcome = trouble(error)
            if outcome.result is Result.DEAD and len(batch) > 1:  # because of one of them
                outcome = Outcome.unforeseen(f"{outcome.code}: {outcome.error}", together=True)
            outcomes = [outcome] * len(batch)
        for entry, outcome in zip(batch, outcomes, strict=True):
            sending.settle(entry, outcome)

    def _answers(self, connection: Connection, batch: Sequence[Entry]) -> list[Outcome]:
        entries = [{"Id": str(n), **entry.fields} for n, entry in enumerate(batch)]
        answer = self._request(connection, entries)
        refusals = {refused["Id"]: failed(refused) for refused in answer.get("Failed", ())}
        refusals |= {taken["Id"]: Outcome.sent() for taken in answer.get("Successful", ())}
        return [refusals.get(str(n), UNCONFIRMED) for n in range(len(batch))]

    @abstractmethod
    def _place(self, client: Any) -> str: ...

    @abstractmethod
    def _request(self, connection: Connection, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """Send a batch; the service's answer."""

    def _entry(self, message: LeasedMessage) -> Entry:
        body, encoding = body_of(message.payload)
        values = attributes_of(message, self._source, encoding)
        size = len(body.encode()) + sum(len(f"{name}String{value}".encode()) for name, value in values.items())
        typed = {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}
        fields = {self.body: body, "MessageAttributes": typed}
        if not self._fifo:
            return Entry(0, size, fields)
        group = message.id if message.key is None else message.key
        if not GROUP.fullmatch(group):
            group = hashlib.sha256(group.encode(errors="surrogatepass")).hexdigest()
        fields |= {"MessageGroupId": group, "MessageDeduplicationId": message.id}
        return Entry(0, size, fields)


class SqsPublisher(BatchPublisher):
    """Sends to an SQS queue."""

    service = "sqs"
    body = "MessageBody"

    def _place(self, client: Any) -> str:
        return f"{client.meta.endpoint_url.rstrip('/')}/{self._address.account}/{self._address.name}"

    def _request(self, connection: Connection, entries: list[dict[str, Any]]) -> dict[str, Any]:
        answer: dict[str, Any] = connection.client.send_message_batch(QueueUrl=connection.place, Entries=entries)
        return answer


class SnsPublisher(BatchPublisher):
    """Publishes to an SNS topic."""

    service = "sns"
    body = "Message"

    def _place(self, client: Any) -> str:
        address = self._address
        return f"arn:{client.meta.partition}:sns:{address.region}:{address.account}:{address.name}"

    def _request(self, connection: Connection, entries: list[dict[str, Any]]) -> dict[str, Any]:
        answer: dict[str, Any] = connection.client.publish_batch(
            TopicArn=connection.place, PublishBatchRequestEntries=entries
        )
        return answer


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    for entry in entries:
        if batch and (len(batch) == BATCH_ENTRIES or sum(other.size for other in batch) + entry.size > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch


def body_of(payload: bytes) -> tuple[str, str | None]:
    """A text that the services carry unchanged, and its encoding if it is not the payload itself."""
    if not payload:
        return "-", "empty"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or REFUSED_CHARACTER.search(text):
        return base64.b64encode(payload).decode(), "base64"
    return text, None


def attributes_of(message: LeasedMessage, source: str, encoding: str | None) -> dict[str, str]:
    """At most ten, and none of them empty: SQS takes no more, and SNS drops a message with more on its way to a queue.
    Raises `PermanentError`."""
    values = {f"ce_{name}": value for name, value in attributes(message, source).items()}
    values["content_type"] = message.content_type
    own = own_headers(message)
    if encoding is not None:
        values["body_encoding"] = encoding
    for name in reversed(AS_ATTRIBUTES):  # the headers that they came from
        if len(values) + bool(own) > 10 and f"ce_{name}" in values:
            own[name] = values.pop(f"ce_{name}")
    if own:
        values["headers"] = json.dumps(own)
    for name, value in values.items():
        if refused := REFUSED_CHARACTER.search(value):
            raise PermanentError(f"{name} has a character that AWS refuses: {refused[0]!a}", code="bad_attributes")
    return {name: value for name, value in values.items() if value}
