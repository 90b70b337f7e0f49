"""Kafka, on librdkafka's mock cluster: see `servers/kafka_mock.py`."""

from __future__ import annotations

import heapq
import json
import socket
import sys
from pathlib import Path
from typing import Any, ClassVar

from cloudevents.core.bindings.kafka import KafkaMessage, from_binary_event
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from outbox_tasks.local.ports import free_port
from outbox_tasks.local.processes import Child
from tests.contract.counterparts import Received
from tests.contract.own_server import ChildCounterpart, listens

SCRIPT = Path(__file__).parents[1] / "servers" / "kafka_mock.py"
PRODUCE, METADATA, INIT_PRODUCER_ID = 0, 3, 22


class Counterpart(ChildCounterpart):
    name: ClassVar[str] = "kafka"
    largest: ClassVar[int | None] = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.port, self.control_port = free_port(), free_port()

    def launch(self) -> Child:
        return Child.start("Kafka", [sys.executable, str(SCRIPT), str(self.port), str(self.control_port)])

    def answers(self) -> bool:
        return listens(self.port)

    def url(self, place: str) -> str:
        return f"kafka://127.0.0.1:{self.port}/{place}"

    def url_at(self, port: int) -> str:
        return f"kafka://127.0.0.1:{port}/{self.place}"

    def unroutable_url(self, place: str) -> str:
        return self.url("missing")

    def answer(self, api: int, *errors: int) -> None:
        """Let the server answer its next requests of this API with these errors."""
        with socket.create_connection(("127.0.0.1", self.control_port), timeout=5) as control:
            control.sendall(json.dumps({"api": api, "errors": errors}).encode() + b"\n")
            assert control.recv(1) == b"", "it closes the connection when it has done so"

    def raw(self) -> list[Message]:
        """All messages; those of one partition in its order, whatever their time."""
        consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{self.port}", "group.id": "test",
                             "enable.partition.eof": True, "fetch.wait.max.ms": 10, "log_level": 2})  # fmt: skip
        try:
            found: dict[int, list[Message]] = {
                number: [] for number in consumer.list_topics(self.place, timeout=10).topics[self.place].partitions
            }
            consumer.assign([TopicPartition(self.place, number, OFFSET_BEGINNING) for number in found])
            unread = set(found)
            while unread:
                for message in consumer.consume(1000, timeout=0.05):
                    number: Any = message.partition()
                    error = message.error()
                    if error is None:
                        found[number].append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        unread.discard(number)
        finally:
            consumer.close()
        # Across partitions there is no order but the time, in milliseconds; then the tests' numbers.
        return list(
            heapq.merge(*found.values(), key=lambda found: (found.timestamp()[1], dict(found.headers())["ce_id"]))
        )

    def received(self) -> list[Received]:
        return [_received(message) for message in self.raw()]


def _received(message: Message) -> Received:
    headers: Any = dict(message.headers() or [])
    value: Any = message.value()
    # The SDK reads the attributes; the payload is compared byte by byte, so it is not to be parsed.
    event = from_binary_event(
        KafkaMessage({**headers, "content-type": b"application/octet-stream"}, message.key(), value)
    )
    attributes = event.get_attributes()
    assert attributes.pop("specversion") == "1.0"
    attributes.pop("datacontenttype")
    return Received(
        {name: value.isoformat() if name == "time" else value for name, value in attributes.items()},
        value,
        {n: v.decode() for n, v in headers.items() if not n.startswith("ce_") and n != "content-type"},
        headers["content-type"].decode(),
    )
