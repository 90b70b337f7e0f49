"""Kafka, on librdkafka's mock cluster: see `servers/kafka_mock.py`."""

from __future__ import annotations

import heapq
import json
import socket
from typing import Any, ClassVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from outbox_tasks.local.ports import LOOPBACK, free_port
from tests.contract.counterparts import Received, parted
from tests.contract.own_server import ProgramCounterpart
from tests.contract.servers import kafka_mock

PRODUCE, METADATA, INIT_PRODUCER_ID = 0, 3, 22


class Counterpart(ProgramCounterpart):
    name: ClassVar[str] = "kafka"
    program = kafka_mock
    largest: ClassVar[int | None] = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.control_port = free_port()
        self.arguments = (self.control_port,)

    def url_on(self, port: int, place: str) -> str:
        return f"kafka://{LOOPBACK}:{port}/{place}"

    def unroutable_url(self, place: str) -> str:
        return self.url("missing")

    def forbidden_url(self, place: str) -> str:
        return self.url("forbidden")

    def answer(self, api: int, *errors: int) -> None:
        """Let the server answer its next requests of this API with these errors."""
        self._order(api=api, errors=errors)

    def change_token(self, token: str) -> None:
        """Whoever signs in must have this token from now on. All connections end."""
        self._order(token=token)

    def _order(self, **order: Any) -> None:
        with socket.create_connection(("127.0.0.1", self.control_port), timeout=5) as control:
            control.sendall(json.dumps(order).encode() + b"\n")
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

    @staticmethod
    def read(arrived: Message) -> Received:
        headers = {name: value.decode() for name, value in arrived.headers() or []}
        payload: Any = arrived.value()
        return parted(headers, "ce_", payload, headers.pop("content-type"))
