"""Azure Storage Queues, by Azurite: from the npm package `azurite`, on the PATH or in `node_modules` here."""

from __future__ import annotations

import shutil
from collections import defaultdict
from contextlib import closing
from typing import Any, ClassVar

import azure.core.exceptions
from azure.storage.queue import QueueServiceClient
from kombu.utils.json import loads

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child
from tests.contract.counterparts.valkey import RedisQueue
from tests.contract.own_server import ChildCounterpart

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's, which everybody knows."""


def program() -> str | None:
    """Where Azurite is."""
    return shutil.which("azurite-queue") or shutil.which("azurite-queue", path="node_modules/.bin")


class Counterpart(ChildCounterpart):
    name: ClassVar[str] = "azurestoragequeues"
    keeps_order: ClassVar[bool] = False
    notices_ends: ClassVar[bool] = False  # nor that its queue is gone
    largest: ClassVar[int | None] = 49_152  # which are 64 KiB after base64

    def __init__(self) -> None:
        super().__init__()
        self._arrived: dict[str, list[Any]] = defaultdict(list)

    @classmethod
    def missing(cls) -> str | None:
        return None if program() else "Azurite is not installed (npm install azurite)"

    def launch(self) -> Child:
        where = ["--queueHost", LOOPBACK, "--queuePort", str(self.port), "--location", str(self.directory)]
        quiet = ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        return Child.start("Azurite", [str(program()), *quiet, *where])

    def answers(self) -> bool:
        try:
            with closing(self.client()) as client:
                list(client.list_queues())
        except azure.core.exceptions.AzureError:
            return False
        return True

    def url_on(self, port: int, place: str) -> str:
        return f"azurestoragequeues://{KEY}@{self._account(port)}?queue={place}"

    def wrong_password_url(self, place: str) -> str:
        return self.url(place).replace("Eby8", "wron")

    def raw(self) -> list[Any]:
        with closing(self.client()) as client:
            queue = client.get_queue_client(self.place)
            try:
                messages: Any = list(queue.receive_messages(messages_per_page=32, visibility_timeout=3600))
            except azure.core.exceptions.ResourceNotFoundError:
                messages = []
        # They are hidden from the next look.
        self._arrived[self.place] += [loads(message.content) for message in messages]
        return self._arrived[self.place]

    read = staticmethod(RedisQueue.read)

    def client(self) -> QueueServiceClient:
        credential = {"account_name": "devstoreaccount1", "account_key": KEY}
        return QueueServiceClient(self._account(self.port), credential=credential, retry_total=0)

    @staticmethod
    def _account(port: int) -> str:
        return f"http://{LOOPBACK}:{port}/devstoreaccount1"
