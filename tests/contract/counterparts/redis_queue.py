"""Lists of kombu on a Redis-compatible server."""

from __future__ import annotations

from typing import Any, ClassVar

from kombu import Connection
from kombu.transport import virtual
from kombu.utils.json import loads

from tests.contract.counterparts import Received
from tests.contract.own_server import ValkeyCounterpart


class Counterpart(ValkeyCounterpart):
    name: ClassVar[str] = "redis"

    def url_on(self, broker: str, place: str) -> str:
        return f"{broker}/{place}"

    def received(self) -> list[Received]:
        return [read(loads(text)) for text in self.listed()]


def read(stored: dict[str, Any]) -> Received:
    """A message as kombu's virtual transports store it."""
    with Connection("memory://") as connection, connection.channel() as channel:
        message = virtual.Message(stored, channel=channel)
    headers = dict(message.headers)
    assert headers.pop("ce-specversion") == "1.0"
    return Received(
        {name.removeprefix("ce-"): value for name, value in headers.items() if name.startswith("ce-")},
        message.body or b"",
        {name: value for name, value in headers.items() if not name.startswith("ce-")},
        message.content_type,
    )
