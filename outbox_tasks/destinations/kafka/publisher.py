"""Kafka: `kafka://[user:password@]host[:port][,host[:port]…]/topic`, through librdkafka (confluent-kafka).

The producer is idempotent and waits for all in-sync replicas. CloudEvents' Kafka binding, binary mode.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, Producer

from outbox_tasks.destinations.kafka import url
from outbox_tasks.destinations.kafka.session import DebugLog, Record, Session
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers


class KafkaPublisher:
    """Produces to one topic. Sent means that all in-sync replicas have the message."""

    batch_size = 100

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        self._timeout = settings.send_timeout
        self.topic, options = url.read(destination)
        milliseconds = int(settings.send_timeout * 1000)
        self._conf: dict[str, Any] = {
            "client.id": "outbox_tasks",
            "log_level": 1,  # a higher level repeats at each reconnect what the outcomes say
            "partitioner": "murmur2_random",  # Java's default: any sender chooses the same partition for a key
            "reconnect.backoff.max.ms": 1000,
            "socket.keepalive.enable": True,
            # How long a topic may be unknown, as it is while the broker makes it.
            "topic.metadata.propagation.max.ms": milliseconds // 2,
            **options,
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": milliseconds,
        }
        _check(destination, self._conf)
        # If a batch is refused, the broker takes none of the later ones. So the order holds.
        self._session = PerProcess(partial(Session, {**self._conf, "enable.gapless.guarantee": True}))

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """Send all at once. If the broker refuses a batch, send its messages one by one, in order: the refusal does not
        say which message is bad."""
        deadline = time.monotonic() + self._timeout * 0.95
        records, unsendable = encoded(messages, self._record)
        ready = list(records.values())
        outcomes, refused = self._sent(ready, deadline)
        if refused and len(ready) > 1:
            # The broker took nothing of a refused batch. It may have taken the other failed messages, so they are not
            # sent again here.
            refused_numbers = [number for number, outcome in enumerate(outcomes) if outcome.result is Result.DEAD]
            again = self._one_by_one([ready[number] for number in refused_numbers], deadline)
            for number, outcome in zip(refused_numbers, again, strict=True):
                outcomes[number] = outcome
        found = iter(outcomes)
        return [unsendable.get(place) or next(found) for place in range(len(messages))]

    def close(self) -> None:
        """Close the connections; nothing is left to be sent."""
        session = self._session.take()
        if session is not None:
            session.end()

    def _sent(self, records: Sequence[Record], deadline: float) -> tuple[list[Outcome], bool]:
        """Their outcomes, and whether the broker refused any. After any failure the producer is not used again, because
        it may still hold lost messages."""
        if not records:
            return [], False
        session = self._open()
        try:
            outcomes, refused = session.send(self.topic, records, deadline)
        except BaseException:  # a time limit, for example: nothing may be sent afterwards
            self.close()
            raise
        if session.troubled:
            self.close()
        return outcomes, refused

    def _one_by_one(self, records: Sequence[Record], deadline: float) -> list[Outcome]:
        """Ends with the first that is neither sent nor dead: the fault is the broker's, not the message's."""
        session = Session(self._conf)
        outcomes: list[Outcome] = []
        try:
            for record in records:
                [outcome], _ = session.send(self.topic, [record], deadline)
                outcomes.append(outcome)
                if outcome.result not in (Result.SENT, Result.DEAD):
                    break
        finally:
            session.end()
        unsent = Outcome.retry("not_sent", "the one before it in its batch was not delivered")
        return outcomes + [unsent] * (len(records) - len(outcomes))

    def _open(self) -> Session:
        session = self._session.made
        if session is not None and not session.is_well():
            self.close()
        return self._session.get()

    def _record(self, message: LeasedMessage) -> Record:
        ours = {f"ce_{name}": value for name, value in attributes(message, self._source).items()}
        ours |= {"ce_specversion": "1.0", "content-type": message.content_type}
        own = own_headers(message)
        "".join(
            (*own, *own.values(), *ours.values())
        ).encode()  # here it is one's fault; in `produce`, all would suffer
        headers = {name: value for name, value in own.items() if name.lower() not in ours} | ours
        return {"key": message.key, "value": message.payload, "headers": headers}


def _check(destination: Destination, conf: dict[str, Any]) -> None:
    """Have librdkafka read the properties, in a producer without brokers."""
    try:
        Producer({name: value for name, value in conf.items() if name != "bootstrap.servers"}, logger=DebugLog())
    except KafkaException as error:
        reason = re.sub(r'value "[^"]*"', "value", error.args[0].str())  # it may be a secret in the wrong place
        raise destination.unusable(f"librdkafka says: {reason}") from None
