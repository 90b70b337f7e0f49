"""Redis Streams, on a Redis-compatible server."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.contract.counterparts import Received, parted
from tests.contract.own_server import ValkeyCounterpart


class Counterpart(ValkeyCounterpart):
    name: ClassVar[str] = "redis+stream"

    def url_of(self, broker: str, place: str) -> str:
        return f"{broker.replace('://', '+stream://', 1)}/{place}"

    def raw(self) -> list[dict[str, bytes]]:
        """The fields of its entries."""
        with self.client() as client:
            entries: Any = client.xrange(self.place)
        return [{name.decode(): value for name, value in fields.items()} for _, fields in entries]

    @staticmethod
    def read(arrived: dict[str, bytes]) -> Received:
        fields, data = dict(arrived), arrived["data"]
        texts = {name.removeprefix("h_"): value.decode() for name, value in fields.items() if name != "data"}
        return parted(texts, "ce_", data, texts.pop("content_type"))
