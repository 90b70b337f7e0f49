"""Azure Service Bus, as far as senders go: the program `servers/service_bus.py`."""

from __future__ import annotations

import base64
import json
import socket
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, ClassVar
from urllib.parse import quote

from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp.message import Message

from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.model import LeasedMessage
from tests.certificates import self_signed
from tests.contract.counterparts import Received, parted
from tests.contract.own_server import ProgramCounterpart
from tests.contract.servers import service_bus
from tests.contract.servers.service_bus import KEY, POLICY, text

LOGIN = f"{POLICY}:{quote(KEY, safe='')}"


class Counterpart(ProgramCounterpart):
    name: ClassVar[str] = "azureservicebus"
    program = service_bus
    largest: ClassVar[int | None] = service_bus.LARGEST
    notices_ends: ClassVar[bool] = False
    patience: ClassVar[float] = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.plain_port, self.control_port = free_port(), free_port()

    @property
    def arguments(self) -> tuple[object, ...]:  # type: ignore[override]
        return self.plain_port, self.control_port, self.certificate

    @cached_property
    def certificate(self) -> Path:
        """With its key, at a place that stays when the server is stopped: clients know it."""
        return self_signed(Path(mkdtemp(prefix="outbox-azure-"), "certificate.pem"), "localhost")

    def end(self) -> None:
        super().end()
        rmtree(self.certificate.parent)

    def url_on(self, port: int, place: str) -> str:
        return f"azureservicebus://{LOGIN}@localhost:{port}/{place}?ca_file={self.certificate}"

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

    @staticmethod
    def read(arrived: Message) -> Received:
        standing: Any = arrived.properties
        content_type, payload = text(standing.content_type), b"".join(arrived.data or ())
        message = parted(application(arrived), "cloudEvents_", payload, content_type)
        names = message.attributes["id"], message.attributes["type"]
        assert (text(standing.message_id), text(standing.subject)) == names
        return message


def application(message: Message) -> dict[str, Any]:
    """The application properties."""
    return {text(name): text(value) for name, value in (message.application_properties or {}).items()}
