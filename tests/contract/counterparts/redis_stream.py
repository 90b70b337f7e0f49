"""Redis Streams, on a Redis-compatible server."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.contract.counterparts import Received
from tests.contract.own_server import ValkeyCounterpart


class Counterpart(ValkeyCounterpart):
    name: ClassVar[str] = "redis+stream"

    def url_on(self, broker: str, place: str) -> str:
        return f"{broker.replace('://', '+stream://', 1)}/{place}"

    def received(self) -> list[Received]:
        with self.client() as client:
            entries: Any = client.xrange(self.place)
        return [_received({name.decode(): value for name, value in fields.items()}) for _, fields in entries]


def _received(fields: dict[str, bytes]) -> Received:
    return Received(
        {n.removeprefix("ce_"): v.decode() for n, v in fields.items() if n.startswith("ce_")},
        fields["data"],
        {n.removeprefix("h_"): v.decode() for n, v in fields.items() if n.startswith("h_")},
        fields["content_type"].decode(),
    )
