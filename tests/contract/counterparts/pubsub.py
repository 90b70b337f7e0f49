"""Google Cloud Pub/Sub, with ordering keys: the program `servers/pubsub_server.py`."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import grpc
from google.pubsub_v1.types import PubsubMessage

from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.model import LeasedMessage
from tests.contract.counterparts import Received
from tests.contract.own_server import ChildCounterpart
from tests.contract.servers import pubsub_server

ROOT = Path(__file__).parents[3]
PROJECT = "shop-project"
PATIENCE = 10


class Counterpart(ChildCounterpart):
    """A place is a topic."""

    name: ClassVar[str] = "pubsub"
    largest: ClassVar[int | None] = pubsub_server.REQUEST

    def __init__(self, *files: str) -> None:
        super().__init__()
        self.port = free_port()
        self._files = files

    def launch(self) -> Child:
        argv = [sys.executable, "-m", pubsub_server.__name__, str(self.port), *self._files]
        return Child.start("Pub/Sub", argv, cwd=ROOT)

    def answers(self) -> bool:
        return self.child is not None and "ready" in self.child.tail()

    def url(self, place: str) -> str:
        return self.url_on(self.port, place)

    def url_at(self, port: int) -> str:
        return self.url_on(port, self.place)

    def url_on(self, port: int, place: str) -> str:
        return f"pubsub://{PROJECT}/{place}?emulator={LOOPBACK}:{port}"

    def unroutable_url(self, place: str) -> str:
        return self.url_on(self.port, f"nobody-{place}")

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, event_type="abort.INVALID_ARGUMENT")

    def received(self) -> list[Received]:
        return [_received(message) for message in self.raw()]

    def raw(self) -> list[Any]:
        """The messages at the test's place."""
        taken = [base64.b64decode(message) for call in self.calls() for message in call["taken"]]
        return [PubsubMessage.pb().FromString(message) for message in taken]

    def calls(self) -> list[dict[str, Any]]:
        """What requests the server got for the test's place."""
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"{LOOPBACK}:{self.port}", options) as channel:
            ask, topic = channel.unary_unary("/tests.Box/Calls"), f"projects/{PROJECT}/topics/{self.place}"
            found: list[dict[str, Any]] = json.loads(ask(topic.encode(), PATIENCE))
        return found


def _received(message: Any) -> Received:
    attributes = dict(message.attributes)
    assert attributes.pop("ce-specversion") == "1.0"
    content_type = attributes.pop("ce-datacontenttype")
    assert attributes.pop("content-type") == content_type
    return Received(
        {n.removeprefix("ce-"): v for n, v in attributes.items() if n.startswith("ce-")},
        message.data,
        {n: v for n, v in attributes.items() if not n.startswith("ce-")},
        content_type,
    )
