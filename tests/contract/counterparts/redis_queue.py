"""Lists of kombu on a Redis-compatible server."""

from __future__ import annotations

from typing import Any, ClassVar

import redis
from kombu import Connection
from kombu.transport import virtual
from kombu.utils.json import loads

from outbox_tasks.local.servers import EmbeddedValkey
from tests.contract import counterparts
from tests.contract.counterparts import Received


class Counterpart(counterparts.Counterpart):
    name: ClassVar[str] = "redis"

    def __init__(self) -> None:
        super().__init__()
        self.server = EmbeddedValkey()

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    @property
    def pids(self) -> list[int]:
        return [self.server.pid]

    def url(self, place: str) -> str:
        return f"{self.server.url}/{place}"

    def url_at(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0/{self.place}"

    def wrong_password_url(self, place: str) -> str:
        with redis.Redis.from_url(self.server.url) as client:
            client.acl_setuser("teller", enabled=True, passwords=["+right"], keys=["*"], categories=["+@all"])
        return self.url(place).replace("://", "://teller:wrong@")

    def received(self) -> list[Received]:
        with redis.Redis.from_url(self.server.url) as client:
            found: Any = client.lrange(self.place, 0, -1)
        return [read(loads(text)) for text in reversed(found)]


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
