"""Claim check: a payload over the destination's `max_bytes` goes into a storage, and the message says where.

The relay stores it just before the send. If the writer did, a rolled back transaction would leave it behind. The object
is named by the message's id, so a repeated delivery writes the same object again. The storages are those of fsspec.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from outbox_tasks.errors import ClaimCheckFailed, ClaimCheckNotInstalled, ConfigurationError, OutboxError
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import CONTAINERS, said, without_secrets

AT_ONCE = 8
"""How many payloads are stored at the same time, if the client can do that."""
CODE = "claim_check"
TYPED = {"s3": "ContentType", "s3a": "ContentType", "gs": "content_type", "gcs": "content_type"}
"""The name of the content type for the clients that can store one, by scheme."""
SHOWN = 500
"""How many characters of a client's error are kept."""


class ClaimCheck:
    """The storage of one destination's large payloads. Each process opens it when it first uses it."""

    def __init__(self, destination: Destination, timeout: float) -> None:
        """Raises `ClaimCheckNotInstalled` or `ConfigurationError`; connects to nothing."""
        self._url, self._limit, self._timeout = str(destination.claim_check), destination.max_bytes, timeout
        self._scheme = self._url.partition("://")[0]
        self.place = without_login(self._url)
        self._at_once = AT_ONCE if _client(destination.name, self._scheme, self.place).async_impl else 1
        self._storage = PerProcess(self._open)
        self._hanging: list[threading.Thread] = []

    def store(self, messages: Sequence[LeasedMessage]) -> list[LeasedMessage | Outcome]:
        """For each message the message to send, with a reference in place of a large payload; or its outcome, if the
        payload could not be stored."""
        large = [message for message in messages if len(message.payload) > self._limit]
        if not large:
            return list(messages)
        failures = self._store_all(large)
        entries: list[LeasedMessage | Outcome] = []
        for message in messages:
            if failure := failures.get(message.id):
                entries.append(Outcome.retry(CODE, str(failure)))
            elif len(message.payload) > self._limit:
                entries.append(replace(message, payload=b"", dataref=f"{self.place}/{message.id}"))
            else:
                entries.append(message)
        return entries

    def _store_all(self, messages: Sequence[LeasedMessage]) -> dict[str, OutboxError]:
        """Store the payloads in threads, because few clients have a time limit. Returns the errors of those that were
        not stored in time, by id."""
        deadline = time.monotonic() + self._timeout
        late = f"there was no answer within {self._timeout:g} s"
        found: dict[str, OutboxError | None] = {message.id: self._failed(message, late) for message in messages}
        waiting = deque(messages)
        # A client that hangs keeps its thread. Count those too, or each attempt would leave more threads behind.
        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        free = min(len(messages), self._at_once - len(self._hanging))
        threads = [threading.Thread(target=self._work, args=(waiting, found), daemon=True) for _ in range(free)]
        self._hanging += threads
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        finally:
            waiting.clear()
        return {id: failure for id, failure in dict(found).items() if failure is not None}

    def _work(self, waiting: deque[LeasedMessage], found: dict[str, OutboxError | None]) -> None:
        with suppress(IndexError):  # nothing is left: other threads took it, or the time is over
            while True:
                message = waiting.popleft()
                try:
                    self._put(message)
                    found[message.id] = None
                except Exception as error:  # a client may raise anything
                    found[message.id] = self._failed(message, f"{type(error).__name__}: {said(error)}")

    def _put(self, message: LeasedMessage) -> None:
        storage, root = self._storage.get()
        if getattr(storage, "local_file", False):
            _write(Path(root), message.id, message.payload)
        else:
            typed = _typed(self._scheme, message.content_type)
            storage.pipe_file(f"{root.rstrip('/')}/{message.id}", message.payload, **typed)

    def _open(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        storage, root = url_to_fs(self._url, skip_instance_cache=True)
        return storage, str(root)

    def _failed(self, message: LeasedMessage, reason: str) -> OutboxError:
        shown = without_secrets(reason, self._url, most=SHOWN)
        return ClaimCheckFailed(id=message.id, size=len(message.payload), place=self.place, reason=shown)


def _client(destination: str, scheme: str, place: str) -> Any:
    """fsspec's class for a scheme. Loads the client."""
    try:
        import fsspec

        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        missing = error.name or error
        raise ClaimCheckNotInstalled(destination=destination, place=place, scheme=scheme, missing=missing) from error
    except ValueError as error:
        setting, rule = f"destinations.{destination}.claim_check", f"fsspec knows no storage {scheme}://"
        raise ConfigurationError(setting=setting, value=place, rule=rule) from error


def without_login(url: str) -> str:
    """The URL without user and password, and without a slash at its end."""
    scheme, _, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    if scheme in CONTAINERS and ":" not in login:
        return url.rstrip("/")
    return f"{scheme}://{place.rstrip('/')}"


def _typed(scheme: str, content_type: str) -> Mapping[str, str]:
    """The content type, if the client can store one and the storage would accept it."""
    fit = content_type and content_type.isascii() and content_type.isprintable()
    return {TYPED[scheme]: content_type} if fit and scheme in TYPED else {}


def _write(directory: Path, name: str, payload: bytes) -> None:
    """Write the whole file at once and durably: somebody may read it while a repeated delivery writes it again.

    This does not make the directory: that would hide that a file system is not mounted.
    """
    part = directory / f".{name}.{uuid4().hex}.part"
    try:
        with part.open("wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        part.replace(directory / name)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
