"""Redis Streams, lists of kombu and Celery tasks, each on a Redis-compatible server."""

from __future__ import annotations

import base64
import json
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote

import redis
from kombu import Connection
from kombu.transport import virtual
from kombu.utils.json import loads

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import LeasedMessage
from tests.contract.counterparts import Counterpart, Received, parted

CELERYS = {
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id",
    "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers",
    "stamps",
}  # fmt: skip
"""Headers that Celery itself gives a task."""

TRACE = {"traceparent", "tracestate"}
"""Given beside ours of CloudEvents, for those that trace Celery."""


class ValkeyCounterpart(Counterpart):
    """A Redis-compatible server; `teller` needs a password, nobody else does."""

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
    def pid(self) -> int:
        return self.server.pid

    @abstractmethod
    def url_of(self, broker: str, place: str) -> str:
        """The destination's URL of a place on the server with this URL."""

    def url(self, place: str) -> str:
        return self.url_of(self.server.url, place)

    def url_at(self, port: int) -> str:
        return self.url_of(f"redis://{LOOPBACK}:{port}/0", self.place)

    def wrong_password_url(self, place: str) -> str:
        with self.client() as client:
            client.acl_setuser("teller", enabled=True, passwords=["+right"], keys=["*"], categories=["+@all"])
        return self.url_of(self.server.url.replace("://", "://teller:wrong@"), place)

    def spoil(self) -> bool:
        with self.client() as client:
            return bool(client.set(self.place, "neither a stream nor a list"))

    def client(self) -> redis.Redis:
        """To be closed."""
        return redis.Redis.from_url(self.server.url)

    def listed(self) -> Any:
        """The elements of the list that has the place's name, those that were pushed first at the beginning."""
        with self.client() as client:
            elements: Any = client.lrange(self.place, 0, -1)
        return elements[::-1]


class RedisStream(ValkeyCounterpart):
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


class RedisQueue(ValkeyCounterpart):
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


class CeleryTask(ValkeyCounterpart):
    name: ClassVar[str] = "celery"
    json_only: ClassVar[bool] = True

    def url_of(self, broker: str, place: str) -> str:
        return f"celery://?task=shop.on_event&queue={place}&broker={quote(broker, safe='')}"

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, payload=b"{oops")

    def raw(self) -> list[dict[str, Any]]:
        """The messages as kombu writes them."""
        return [json.loads(message) for message in self.listed()]

    @staticmethod
    def read(arrived: dict[str, Any]) -> Received:
        [argument], _, _ = json.loads(base64.b64decode(arrived["body"]))
        headers = {n: v for n, v in arrived["headers"].items() if n not in CELERYS | TRACE}
        return parted(headers, "ce_", json.dumps(argument, ensure_ascii=False).encode(), None)


KINDS = (RedisStream, RedisQueue, CeleryTask)
