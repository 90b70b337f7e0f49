"""Claim check: a payload over the destination's `max_bytes` goes into a storage, and the message says where.

The relay stores it just before the send. If the writer did, a rolled back transaction would leave it behind. The object
is named by the message's id, so a repeated delivery writes the same object again. The storages are those of fsspec.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from outbox_tasks.destinations import load, outcomes_of
from outbox_tasks.errors import ClaimCheckFailed, ConfigurationError, NotInstalled
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import said, without_login, without_secrets


class ClaimCheckPublisher:
    """Stores what is too large, and hands all messages to the publisher of the destination's URL."""

    def __init__(self, destination: Destination, settings: Settings) -> None:
        half = settings.send_timeout / 2  # storing and sending share the time limit
        self._name = destination.name
        self._storage = Storage(destination, half)
        plain = destination.model_copy(update={"claim_check": None})
        self._publisher = load(plain, settings.model_copy(update={"send_timeout": half}))

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """What could not be stored is not sent. So the order of keys is the relay's affair, and not the publisher's."""
        entries = self._storage.store(messages)
        stored = [entry for entry in entries if not isinstance(entry, Outcome)]
        outcomes = iter(outcomes_of(self._publisher.publish, self._name, stored) if stored else ())
        return [entry if isinstance(entry, Outcome) else next(outcomes) for entry in entries]

    def close(self) -> None:
        """Close the publisher. Storages have nothing to close."""
        self._publisher.close()


class Storage:
    """The storage of one destination's large payloads. Each process opens it when it first uses it."""

    def __init__(self, destination: Destination, timeout: float) -> None:
        """Raises `NotInstalled` or `ConfigurationError`; connects to nothing."""
        self._url, self._limit, self._timeout = str(destination.claim_check), destination.max_bytes, timeout
        self._place = without_login(self._url)
        # So many payloads are stored at the same time, if the client can do that.
        self._threads = 8 if _client(destination.name, self._url.partition("://")[0], self._place).async_impl else 1
        self._opened = PerProcess(self._open)
        self._busy: list[threading.Thread] = []

    def store(self, messages: Sequence[LeasedMessage]) -> list[LeasedMessage | Outcome]:
        """For each message the message to send, with a reference in place of a large payload; or its outcome, if the
        payload could not be stored."""
        large = [message for message in messages if len(message.payload) > self._limit]
        entries = self._store_all(large) if large else {}
        return [entries.get(message.id, message) for message in messages]

    def _store_all(self, messages: Sequence[LeasedMessage]) -> dict[str, LeasedMessage | Outcome]:
        """Store the payloads in threads, because few clients have a time limit. By the messages' ids."""
        deadline = time.monotonic() + self._timeout
        late = f"there was no answer within {self._timeout:g} s"
        entries: dict[str, LeasedMessage | Outcome] = {message.id: self._failed(message, late) for message in messages}
        waiting = deque(messages)
        # A client that hangs keeps its thread. Count those too, or each attempt would leave more threads behind.
        self._busy = [thread for thread in self._busy if thread.is_alive()]
        free = min(len(messages), self._threads - len(self._busy))
        threads = [threading.Thread(target=self._work, args=(waiting, entries), daemon=True) for _ in range(free)]
        self._busy += threads
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        finally:
            waiting.clear()
        return dict(entries)

    def _work(self, waiting: deque[LeasedMessage], entries: dict[str, LeasedMessage | Outcome]) -> None:
        with suppress(IndexError):  # nothing is left: other threads took it, or the time is over
            while True:
                message = waiting.popleft()
                try:
                    self._put(message)
                    entries[message.id] = replace(message, payload=b"", dataref=f"{self._place}/{message.id}")
                except Exception as error:  # a client may raise anything
                    entries[message.id] = self._failed(message, f"{type(error).__name__}: {said(error)}")

    def _put(self, message: LeasedMessage) -> None:
        storage, root = self._opened.get()
        if getattr(storage, "local_file", False):
            _write(Path(root), message.id, message.payload)
        else:
            storage.pipe_file(f"{root.rstrip('/')}/{message.id}", message.payload)

    def _open(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        storage, root = url_to_fs(self._url, skip_instance_cache=True)
        return storage, str(root)

    def _failed(self, message: LeasedMessage, reason: str) -> Outcome:
        shown = without_secrets(reason, self._url, most=500)
        failed = ClaimCheckFailed(id=message.id, size=len(message.payload), place=self._place, reason=shown)
        return Outcome.retry("claim_check", str(failed))


def _client(destination: str, scheme: str, place: str) -> Any:
    """fsspec's class for a scheme. Loads the client."""
    try:
        import fsspec

        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        missing = error.name or error
        what = f"The claim_check of destination {destination!r} ({place})"
        packages = f"'outbox-tasks[claim-check]', and fsspec's package for {scheme}://, such as s3fs for s3://"
        raise NotInstalled(what=what, missing=missing, packages=packages) from error
    except ValueError as error:
        setting, rule = f"destinations.{destination}.claim_check", f"fsspec knows no storage {scheme}://"
        raise ConfigurationError(setting=setting, value=place, rule=rule) from error


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
