"""Amazon SQS, a FIFO queue: moto."""

from __future__ import annotations

from typing import ClassVar

from tests.contract.moto_server import MotoCounterpart


class Counterpart(MotoCounterpart):
    name: ClassVar[str] = "sqs-fifo"
    service: ClassVar[str] = "sqs"
    suffix: ClassVar[str] = ".fifo"
    largest: ClassVar[int | None] = 1_048_576

    def make(self, place: str) -> None:
        self.client("sqs").create_queue(QueueName=self.queue(place), Attributes={"FifoQueue": "true"})
