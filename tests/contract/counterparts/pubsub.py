"""Google Cloud Pub/Sub, with ordering keys: the program `servers/pubsub_server.py`."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import grpc
from google.pubsub_v1.types import PubsubMessage

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.model import LeasedMessage
from tests.contract.counterparts import Received, parted
from tests.contract.own_server import ProgramCounterpart
from tests.contract.servers import pubsub_server

PROJECT = "shop-project"


class Counterpart(ProgramCounterpart):
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

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, event_type="abort.INVALID_ARGUMENT")

    def raw(self) -> list[Any]:
        """The messages at the test's place."""
        taken = [base64.b64decode(message) for call in self.calls() for message in call["taken"]]
        return [PubsubMessage.pb().FromString(message) for message in taken]

    def calls(self) -> list[dict[str, Any]]:
        """What requests the server got for the test's place."""
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"{LOOPBACK}:{self.port}", options) as channel:
            ask, topic = channel.unary_unary("/tests.Box/Calls"), f"projects/{PROJECT}/topics/{self.place}"
            found: list[dict[str, Any]] = json.loads(ask(topic.encode(), 10))
        return found

    @staticmethod
    def read(arrived: Any) -> Received:
        attributes = dict(arrived.attributes)
        content_type = attributes.pop("content-type")
        assert attributes.pop("ce-datacontenttype") == content_type
        return parted(attributes, "ce-", arrived.data, content_type)
