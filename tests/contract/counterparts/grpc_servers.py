"""A receiver of gRPC calls, and Google Cloud Pub/Sub with ordering keys: programs in `servers/`."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import grpc
from google.pubsub_v1.types import PubsubMessage

from outbox_tasks.destinations.grpc.receiver import CloudEvent
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.model import LeasedMessage
from tests.contract.counterparts import Received, parted
from tests.contract.own_server import ProgramCounterpart
from tests.contract.servers import grpc_receiver, pubsub_server

PROJECT = "shop-project"


class GrpcReceiver(ProgramCounterpart):
    name: ClassVar[str] = "grpc"
    program = grpc_receiver
    largest: ClassVar[int | None] = grpc_receiver.LARGEST

    def __init__(self, files: Sequence[object] = ()) -> None:
        super().__init__()
        self.arguments = files

    def url_on(self, port: int, place: str) -> str:
        """A place is a client: the receiver keeps what came with its token."""
        return f"grpc://{LOOPBACK}:{port}?token={place}"

    def wrong_password_url(self, place: str) -> str:
        return self.url("wrong")

    def unroutable_url(self, place: str) -> str:
        return self.url("nowhere")

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, event_type="answer.INVALID_ARGUMENT")

    def box(self) -> dict[str, Any]:
        """What the receiver tells of the test's place: messages, and how many came with each call."""
        with grpc.insecure_channel(f"{LOOPBACK}:{self.port}") as channel:
            metadata = [("authorization", f"Bearer {self.place}")]
            answer: dict[str, Any] = json.loads(channel.unary_unary("/tests.Box/Received")(b"", 10, metadata))
        return answer

    def raw(self) -> list[tuple[Any, dict[str, str]]]:
        """Events, and the headers beside them."""
        messages = self.box()["messages"]
        return [(CloudEvent.FromString(base64.b64decode(message["event"])), message["headers"]) for message in messages]

    @staticmethod
    def read(arrived: tuple[Any, dict[str, str]]) -> Received:
        event, headers = arrived
        assert event.spec_version == "1.0"
        values = {name: value.ce_string for name, value in event.attributes.items()}
        written = event.attributes["time"].ce_timestamp
        time = timedelta(seconds=written.seconds, microseconds=written.nanos // 1000)
        values["time"] = (datetime(1970, 1, 1, tzinfo=UTC) + time).isoformat()
        content_type = values.pop("datacontenttype")
        attributes = {"id": event.id, "type": event.type, "source": event.source, **values}
        return Received(attributes, event.binary_data, headers, content_type)


class PubSub(ProgramCounterpart):
    """A place is a topic."""

    name: ClassVar[str] = "pubsub"
    program = pubsub_server
    largest: ClassVar[int | None] = pubsub_server.REQUEST

    def __init__(self, files: Sequence[object] = ()) -> None:
        super().__init__()
        self.arguments = files

    def url_on(self, port: int, place: str) -> str:
        return f"pubsub://{PROJECT}/{place}?emulator={LOOPBACK}:{port}"

    def unroutable_url(self, place: str) -> str:
        return self.url_on(self.port, f"nobody-{place}")

    def raw(self) -> list[Any]:
        """The messages at the test's place."""
        taken = [base64.b64decode(message) for call in self.calls() for message in call["taken"]]
        return [PubsubMessage.pb().FromString(message) for message in taken]

    def calls(self) -> list[dict[str, Any]]:
        """What requests the server got for the test's place."""
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"{LOOPBACK}:{self.port}", options) as channel:
            ask, topic = channel.unary_unary("/tests.Box/Calls"), f"projects/{PROJECT}/topics/{self.place}"
            calls: list[dict[str, Any]] = json.loads(ask(topic.encode(), 10))
        return calls

    @staticmethod
    def read(arrived: Any) -> Received:
        attributes = dict(arrived.attributes)
        content_type = attributes.pop("content-type")
        assert attributes.pop("ce-datacontenttype") == content_type
        return parted(attributes, "ce-", arrived.data, content_type)


KINDS = (GrpcReceiver, PubSub)
