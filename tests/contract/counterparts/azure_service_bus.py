"""Azure Service Bus, as far as senders go: the program `servers/service_bus.py`."""

from __future__ import annotations

import base64
import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from urllib.parse import quote

from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp.message import Message
from cloudevents.core.bindings.amqp import AMQPMessage, from_binary_event

from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.model import LeasedMessage
from tests.certificates import self_signed
from tests.contract.counterparts import Received
from tests.contract.own_server import ChildCounterpart
from tests.contract.servers import service_bus
from tests.contract.servers.service_bus import KEY, POLICY, text

ROOT = Path(__file__).parents[3]
LOGIN = f"{POLICY}:{quote(KEY, safe='')}"


class Counterpart(ChildCounterpart):
    name: ClassVar[str] = "azureservicebus"
    largest: ClassVar[int | None] = service_bus.LARGEST
    patience: ClassVar[float] = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.port, self.plain_port, self.control_port = free_port(), free_port(), free_port()
        self._files: TemporaryDirectory[str] | None = None

    @property
    def files(self) -> Path:
        """Its certificate with the key, at a place that stays when it is stopped: clients know it."""
        if self._files is None:
            self._files = TemporaryDirectory(prefix="outbox-azure-")
            self_signed(Path(self._files.name, "certificate.pem"), "localhost")
        return Path(self._files.name)

    def launch(self) -> Child:
        ports = map(str, (self.port, self.plain_port, self.control_port))
        argv = [sys.executable, "-m", service_bus.__name__, *ports, str(self.files / "certificate.pem")]
        return Child.start("Service Bus", argv, cwd=ROOT)

    def end(self) -> None:
        super().end()
        if self._files is not None:
            self._files.cleanup()

    def answers(self) -> bool:
        return self.child is not None and "ready" in self.child.tail()

    def url(self, place: str) -> str:
        return self._url(self.port, place)

    def url_at(self, port: int) -> str:
        return self._url(port, self.place)

    def _url(self, port: int, place: str) -> str:
        return f"azureservicebus://{LOGIN}@localhost:{port}/{place}?ca_file={self.files}/certificate.pem"

    def emulator_url(self, place: str) -> str:
        """The same place, as at Microsoft's emulator."""
        return f"azureservicebus://{LOGIN}@localhost:{self.plain_port}/{place}?development_emulator=true"

    def wrong_password_url(self, place: str) -> str:
        return self.url(place).replace(LOGIN, f"{POLICY}:wrong")

    def unroutable_url(self, place: str) -> str:
        return self.url(f"missing-{place}")

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, event_type="reject com.microsoft:argument-error")

    def asked(self, **what: str) -> Any:
        """Ask the server at its port for the tests."""
        with socket.create_connection((LOOPBACK, self.control_port), 10) as control, control.makefile("rw") as lines:
            print(json.dumps(what), file=lines, flush=True)
            return json.loads(lines.readline())

    def deliveries(self) -> list[list[bytes]]:
        """What the test's place was sent: the messages of each delivery."""
        return [[base64.b64decode(message) for message in delivery] for delivery in self.asked(told=self.place)]

    def raw(self) -> list[Message]:
        """The messages."""
        return [decode_payload(memoryview(message)) for delivery in self.deliveries() for message in delivery]

    def received(self) -> list[Received]:
        return [_received(message) for message in self.raw()]


def application(message: Message) -> dict[str, Any]:
    """The application properties."""
    return {text(name): text(value) for name, value in (message.application_properties or {}).items()}


def _received(message: Message) -> Received:
    properties, payload = application(message), b"".join(message.data or ())
    # The SDK reads the attributes; the payload is compared byte by byte, so it is not to be parsed.
    event = from_binary_event(AMQPMessage({"content-type": "application/octet-stream"}, properties, payload))
    attributes = event.get_attributes()
    assert attributes.pop("specversion") == "1.0"
    attributes.pop("datacontenttype")
    standing: Any = message.properties
    assert (text(standing.message_id), text(standing.subject)) == (attributes["id"], attributes["type"])
    return Received(
        {name: value.isoformat() if name == "time" else value for name, value in attributes.items()},
        payload,
        {name: value for name, value in properties.items() if not name.startswith("cloudEvents_")},
        text(standing.content_type),
    )
