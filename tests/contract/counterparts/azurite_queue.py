"""Azure Storage Queues, by Azurite: from the npm package `azurite`, on the PATH or in `node_modules` here."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import azure.core.exceptions
from azure.storage.queue import QueueServiceClient
from kombu.utils.json import loads

from outbox_tasks.local import guard
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from tests.conftest import eventually
from tests.contract import counterparts
from tests.contract.counterparts import Received
from tests.contract.counterparts.redis_queue import read

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's, which everybody knows."""


def program() -> str | None:
    """Where Azurite is."""
    return shutil.which("azurite-queue") or shutil.which("azurite-queue", path="node_modules/.bin")


class Counterpart(counterparts.Counterpart):
    name: ClassVar[str] = "azurestoragequeues"
    keeps_order: ClassVar[bool] = False
    largest: ClassVar[int | None] = 49_152  # which are 64 KiB after base64

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self._directory: Path | None = None
        self._server: Child | None = None
        self._arrived: dict[str, list[Received]] = defaultdict(list)

    @classmethod
    def missing(cls) -> str | None:
        return None if program() else "Azurite is not installed (npm install azurite)"

    def start(self) -> None:
        if self._server is not None and self._server.alive:
            return
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="outbox-azurite-"))
            guard.guard_directory(self._directory)
        if self._server is not None:
            self._server.end()
        where = ["--queueHost", LOOPBACK, "--queuePort", str(self.port), "--location", str(self._directory)]
        quiet = ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        self._server = Child.start("Azurite", [str(program()), *quiet, *where])
        eventually(self._answers, 30)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            guard.release_directory(self._directory)
            self._directory = None

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()  # which waits for all its threads

    @property
    def pids(self) -> list[int]:
        return [self._server.pid] if self._server is not None else []

    def url(self, place: str) -> str:
        return f"azurestoragequeues://{KEY}@{self._account(self.port)}?queue={place}"

    def url_at(self, port: int) -> str:
        return f"azurestoragequeues://{KEY}@{self._account(port)}?queue={self.place}"

    def wrong_password_url(self, place: str) -> str:
        return self.url(place).replace("Eby8", "wron")

    def received(self) -> list[Received]:
        with closing(self.client()) as client:
            queue = client.get_queue_client(self.place)
            try:
                found: Any = list(queue.receive_messages(messages_per_page=32, visibility_timeout=3600))
            except azure.core.exceptions.ResourceNotFoundError:
                found = []
        # They are hidden from the next look.
        self._arrived[self.place] += [read(loads(message.content)) for message in found]
        return self._arrived[self.place]

    def client(self) -> QueueServiceClient:
        credential = {"account_name": "devstoreaccount1", "account_key": KEY}
        return QueueServiceClient(self._account(self.port), credential=credential, retry_total=0)

    def _answers(self) -> bool:
        assert self._server is not None
        assert self._server.alive, self._server.tail()
        try:
            with closing(self.client()) as client:
                list(client.list_queues())
        except azure.core.exceptions.AzureError:
            return False
        return True

    @staticmethod
    def _account(port: int) -> str:
        return f"http://{LOOPBACK}:{port}/devstoreaccount1"
