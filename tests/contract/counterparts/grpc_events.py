"""A receiver of gRPC calls: the program `servers/grpc_receiver.py`."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import grpc

from outbox_tasks.destinations.grpc.receiver import CloudEvent
from outbox_tasks.local.ports import free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.model import LeasedMessage
from tests.contract.counterparts import Received
from tests.contract.own_server import ChildCounterpart
from tests.contract.servers import grpc_receiver

ROOT = Path(__file__).parents[3]


class Counterpart(ChildCounterpart):
    name: ClassVar[str] = "grpc"
    largest: ClassVar[int | None] = grpc_receiver.LARGEST

    def __init__(self, *files: Path) -> None:
        super().__init__()
        self.port, self.other_port = free_port(), free_port()
        self._files = files

    def launch(self) -> Child:
        argv = [sys.executable, "-m", grpc_receiver.__name__, str(self.port), str(self.other_port)]
        return Child.start("gRPC receiver", [*argv, *map(str, self._files)], cwd=ROOT)

    def answers(self) -> bool:
        return self.child is not None and "ready" in self.child.tail()

    def url(self, place: str) -> str:
        """A place is a client: the receiver keeps what came with its token."""
        return f"grpc://127.0.0.1:{self.port}?token={place}"

    def url_at(self, port: int) -> str:
        return f"grpc://127.0.0.1:{port}?token={self.place}"

    def wrong_password_url(self, place: str) -> str:
        return self.url("wrong")

    def unroutable_url(self, place: str) -> str:
        return self.url_at(self.other_port)

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, event_type="answer.INVALID_ARGUMENT")

    def told(self) -> dict[str, Any]:
        """What the receiver tells of the test's place: messages, and how many came with each call."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            metadata = [("authorization", f"Bearer {self.place}")]
            told: dict[str, Any] = json.loads(channel.unary_unary("/tests.Box/Received")(b"", 10, metadata))
        return told

    def events(self) -> list[Any]:
        return [CloudEvent.FromString(base64.b64decode(found["event"])) for found in self.told()["messages"]]

    def received(self) -> list[Received]:
        return [
            _received(CloudEvent.FromString(base64.b64decode(found["event"])), found["headers"])
            for found in self.told()["messages"]
        ]


def _received(event: Any, headers: dict[str, str]) -> Received:
    assert event.spec_version == "1.0"
    attributes = {"id": event.id, "type": event.type, "source": event.source}
    for name, value in event.attributes.items():
        if name == "time":
            written = timedelta(seconds=value.ce_timestamp.seconds, microseconds=value.ce_timestamp.nanos // 1000)
            attributes[name] = (datetime(1970, 1, 1, tzinfo=UTC) + written).isoformat()
        else:
            attributes[name] = value.ce_string
    content_type = attributes.pop("datacontenttype")
    return Received(attributes, event.binary_data, headers, content_type)
