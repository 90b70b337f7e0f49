"""Kafka, on librdkafka's mock cluster: see `servers/kafka_mock.py`."""

from __future__ import annotations

import json
import socket
from typing import Any, ClassVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

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
        """All messages; those of one partition in its order."""
        bootstrap = {"bootstrap.servers": f"{LOOPBACK}:{self.port}", "group.id": "test", "log_level": 2}
        consumer = Consumer({**bootstrap, "fetch.wait.max.ms": 10})
        try:
            numbers = consumer.list_topics(self.place, timeout=10).topics[self.place].partitions
            partitions = [TopicPartition(self.place, number, OFFSET_BEGINNING) for number in numbers]
            consumer.assign(partitions)
            ends = [consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions]
            messages = consumer.consume(sum(ends), timeout=10) if any(ends) else []
        finally:
            consumer.close()
        return sorted(messages, key=lambda message: (message.timestamp()[1], message.partition(), message.offset()))

    @staticmethod
    def read(arrived: Message) -> Received:
        headers = {name: value.decode() for name, value in arrived.headers() or []}
        payload: Any = arrived.value()
        return parted(headers, "ce_", payload, headers.pop("content-type"))
