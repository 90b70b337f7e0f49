"""NATS with JetStream: the program nats-server."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote
from uuid import uuid4

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child
from outbox_tasks.local.servers import EmbeddedServer
from tests.contract.counterparts import Received
from tests.contract.own_server import EmbeddedCounterpart

CONFIGURATION = """
host: "{host}"
port: {port}
server_name: outbox_tests_{port}
max_payload: {largest}
jetstream {{ store_dir: "{directory}" }}
authorization {{
  users: [
    {{ user: teller, password: "r:ght" }}
    {{ user: mute, password: mute, permissions: {{ publish: {{ deny: "private.>" }} }} }}
  ]
}}
{more}
"""


class Nats(EmbeddedServer):
    """nats-server as our child; its streams live as long as its directory."""

    name = "NATS"
    largest = 256 * 1024
    more = ""

    @property
    def url(self) -> str:
        return f"nats://teller:r%3Aght@{LOOPBACK}:{self.port}"

    def _start_child(self, port: int, log: Path) -> Child:
        directory = self.directory
        file = directory / "nats.conf"
        facts = {"host": LOOPBACK, "port": port, "largest": self.largest, "directory": directory, "more": self.more}
        file.write_text(CONFIGURATION.format(**facts))
        return Child.start(self.name, ["nats-server", "--config", str(file)], log=log, cwd=directory)

    def _is_ready(self, child: Child, port: int) -> bool:
        """It answers on its port, and has written the line that comes when JetStream is ready too."""
        try:
            with socket.create_connection((LOOPBACK, port), timeout=2) as probe:
                return probe.recv(5) == b"INFO " and "Server is ready" in child.tail(100)
        except OSError:
            return False


class Counterpart(EmbeddedCounterpart):
    name: ClassVar[str] = "nats"
    largest: ClassVar[int | None] = Nats.largest

    def __init__(self) -> None:
        super().__init__()
        self.server: Nats = Nats()

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("nats-server") else "the program nats-server is not installed"

    def url(self, place: str) -> str:
        self.ask(lambda stream: stream.add_stream(name=place, subjects=[place, f"{place}.>"]))
        return f"{self.server.url}/{place}"

    def url_at(self, port: int) -> str:
        return f"nats://{LOOPBACK}:{port}/{self.place}"

    def wrong_password_url(self, place: str) -> str:
        return f"nats://teller:wrong@{LOOPBACK}:{self.server.port}/{place}"

    def unroutable_url(self, place: str) -> str:
        return f"{self.server.url}/nobody-{place}"

    def received(self) -> list[Received]:
        return [_received(message) for message in self.raw()]

    def raw(self) -> list[Msg]:
        """The messages of the test's stream as the client reads them."""

        async def read(stream: JetStreamContext) -> list[Msg]:
            # Not by get_msg: it reads headers as those of an e-mail, which lets no other characters than ASCII through.
            count = (await stream.stream_info(self.place)).state.messages
            config = ConsumerConfig(durable_name=uuid4().hex, ack_policy=AckPolicy.NONE)
            await stream.add_consumer(self.place, config)
            reader = await stream.pull_subscribe_bind(config.durable_name or "", stream=self.place)
            found: list[Msg] = []
            while len(found) < count:
                found += await reader.fetch(count - len(found), timeout=5)
            return found

        found: list[Msg] = self.ask(read)
        return found

    def ask(self, question: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
        """Ask the server something, over a connection of its own."""

        async def asked() -> Any:
            client = await nats.connect(f"{LOOPBACK}:{self.server.port}", user="teller", password="r:ght")
            try:
                return await question(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(asked())


def _received(message: Msg) -> Received:
    headers = dict(message.headers or {})
    assert headers.pop("ce-specversion") == "1.0"
    content_type = unquote(headers.pop("ce-datacontenttype"))
    headers.pop("Nats-Msg-Id")
    return Received(
        {n.removeprefix("ce-"): unquote(v) for n, v in headers.items() if n.startswith("ce-")},
        message.data,
        {n: v for n, v in headers.items() if not n.startswith("ce-")},
        content_type,
    )
