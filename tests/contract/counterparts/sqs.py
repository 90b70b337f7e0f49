"""Amazon SQS, a standard queue: moto."""

from __future__ import annotations

from typing import ClassVar

from tests.contract.moto_server import MotoCounterpart


class Counterpart(MotoCounterpart):
    name: ClassVar[str] = "sqs"
    service: ClassVar[str] = "sqs"
    keeps_order: ClassVar[bool] = False
    largest: ClassVar[int | None] = 1_048_576

    def make(self, place: str) -> None:
        self.client("sqs").create_queue(QueueName=self.queue(place))
