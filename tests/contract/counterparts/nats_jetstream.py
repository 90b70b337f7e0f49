"""NATS with JetStream: the program nats-server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar
from urllib.parse import unquote

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child
from tests.contract.counterparts import Received, parted
from tests.contract.own_server import ChildCounterpart, listens

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
"""


class Counterpart(ChildCounterpart):
    name: ClassVar[str] = "nats"
    largest: ClassVar[int] = 256 * 1024

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("nats-server") else "the program nats-server is not installed"

    def launch(self) -> Child:
        file = self.directory / "nats.conf"
        facts = {"host": LOOPBACK, "port": self.port, "largest": self.largest, "directory": self.directory}
        file.write_text(CONFIGURATION.format(**facts))
        return Child.start(self.name, ["nats-server", "--config", str(file)], cwd=self.directory)

    def answers(self) -> bool:
        """It answers on its port, and has written the line that comes when JetStream is ready too."""
        return self.child is not None and "Server is ready" in self.child.tail(100) and listens(self.port)

    def url_of(self, subject: str, login: str = "teller:r%3Aght") -> str:
        return f"nats://{login}@{LOOPBACK}:{self.port}/{subject}"

    def url(self, place: str) -> str:
        self.ask(lambda stream: stream.add_stream(name=place, subjects=[place, f"{place}.>"]))
        return self.url_of(place)

    def url_on(self, port: int, place: str) -> str:
        return f"nats://{LOOPBACK}:{port}/{place}"

    def wrong_password_url(self, place: str) -> str:
        return self.url_of(place, "teller:wrong")

    def unroutable_url(self, place: str) -> str:
        return self.url_of(f"nobody-{place}")

    def forbidden_url(self, place: str) -> str:
        """The server says so beside the acknowledgements, and not instead of them."""
        return self.url_of(f"private.{place}", "mute:mute")

    def spoil(self) -> bool:
        return bool(self.ask(lambda stream: stream.delete_stream(self.place)))

    def raw(self) -> list[Msg]:
        """The messages of the test's stream as the client reads them."""

        async def read(stream: JetStreamContext) -> list[Msg]:
            # Not by get_msg: it reads headers as those of an e-mail, which lets no other characters than ASCII through.
            count = (await stream.stream_info(self.place)).state.messages
            reader = await stream.subscribe(">", stream=self.place, ordered_consumer=True)
            return [await reader.next_msg(5) for _ in range(count)]

        messages: list[Msg] = self.ask(read)
        return messages

    def ask(self, question: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
        """Ask the server something, over a connection of its own."""

        async def asked() -> Any:
            client = await nats.connect(f"{LOOPBACK}:{self.port}", user="teller", password="r:ght")
            try:
                return await question(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(asked())

    @staticmethod
    def read(arrived: Msg) -> Received:
        headers = {n: unquote(v) if n.startswith("ce-") else v for n, v in (arrived.headers or {}).items()}
        assert headers.pop("Nats-Msg-Id") == headers["ce-id"]
        return parted(headers, "ce-", arrived.data, headers.pop("ce-datacontenttype"))
