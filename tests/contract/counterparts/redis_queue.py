"""Lists of kombu on a Redis-compatible server."""

from __future__ import annotations

from typing import Any, ClassVar

from kombu import Connection
from kombu.transport import virtual
from kombu.utils.json import loads

from tests.contract.counterparts import Received, parted
from tests.contract.own_server import ValkeyCounterpart


class Counterpart(ValkeyCounterpart):
    name: ClassVar[str] = "redis"

    def url_of(self, broker: str, place: str) -> str:
        return f"{broker}/{place}"

    def raw(self) -> list[Any]:
        return [loads(text) for text in self.listed()]

    @staticmethod
    def read(arrived: dict[str, Any]) -> Received:
        """A message as kombu's virtual transports store it."""
        with Connection("memory://") as connection, connection.channel() as channel:
            message = virtual.Message(arrived, channel=channel)
        return parted(message.headers, "ce-", message.body or b"", message.content_type)
