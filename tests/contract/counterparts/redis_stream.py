"""Redis Streams, on a Redis-compatible server."""

from __future__ import annotations

from typing import Any, ClassVar

import redis

from outbox_tasks.local.servers import EmbeddedValkey
from tests.contract import counterparts
from tests.contract.counterparts import Received


class Counterpart(counterparts.Counterpart):
    name: ClassVar[str] = "redis+stream"

    def __init__(self) -> None:
        super().__init__()
        self.server = EmbeddedValkey()

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    @property
    def pids(self) -> list[int]:
        return [self.server.pid]

    def url(self, place: str) -> str:
        return f"{self.server.url.replace('://', '+stream://', 1)}/{place}"

    def url_at(self, port: int) -> str:
        return f"redis+stream://127.0.0.1:{port}/0/{self.place}"

    def wrong_password_url(self, place: str) -> str:
        with redis.Redis.from_url(self.server.url) as client:
            client.acl_setuser("teller", enabled=True, passwords=["+right"], keys=["*"], categories=["+@all"])
        return self.url(place).replace("://", "://teller:wrong@")

    def received(self) -> list[Received]:
        with redis.Redis.from_url(self.server.url) as client:
            entries: Any = client.xrange(self.place)
        return [_received({name.decode(): value for name, value in fields.items()}) for _, fields in entries]


def _received(fields: dict[str, bytes]) -> Received:
    return Received(
        {n.removeprefix("ce_"): v.decode() for n, v in fields.items() if n.startswith("ce_")},
        fields["data"],
        {n.removeprefix("h_"): v.decode() for n, v in fields.items() if n.startswith("h_")},
        fields["content_type"].decode(),
    )
