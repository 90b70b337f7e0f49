"""Amazon SNS, a standard topic with a queue that subscribes to it: moto."""

from __future__ import annotations

from typing import ClassVar

from tests.contract.moto_server import ACCOUNT, REGION, MotoCounterpart


class Counterpart(MotoCounterpart):
    name: ClassVar[str] = "sns"
    service: ClassVar[str] = "sns"
    keeps_order: ClassVar[bool] = False
    largest: ClassVar[int | None] = 262_144

    def make(self, place: str) -> None:
        self.client("sqs").create_queue(QueueName=self.queue(place))
        topic = self.client("sns").create_topic(Name=place)["TopicArn"]
        self.client("sns").subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=f"arn:aws:sqs:{REGION}:{ACCOUNT}:{self.queue(place)}",
            Attributes={"RawMessageDelivery": "true"},
        )
