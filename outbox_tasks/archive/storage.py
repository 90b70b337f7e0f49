"""The directory of a day's files, in any storage that fsspec knows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from outbox_tasks.errors import ArchiveExportFailed, NotInstalled, OutboxError
from outbox_tasks.text import without_login, without_secrets

MANIFEST = "_manifest.json"
"""Names the verified files. DuckDB and Spark skip files with an underscore."""


@contextmanager
def opened(url: str, day: date) -> Iterator[DayStorage]:
    """The directory of a day below `url`. What a client raises becomes `ArchiveExportFailed` or `NotInstalled`,
    without the login."""
    place = without_login(url)
    try:
        from fsspec.core import url_to_fs

        # Not a cached instance: its clients do not survive a fork, and it caches listings.
        fs, root = url_to_fs(url, skip_instance_cache=True)
        yield DayStorage(fs, root, place, day)
    except OutboxError:
        raise
    except ImportError as error:
        scheme, missing = url.partition("://")[0], error.name or error
        packages = f"'outbox-tasks[archive]', and fsspec's package for {scheme}://, such as s3fs for s3://"
        raise NotInstalled(what=f"The export to {place}", missing=missing, packages=packages) from error
    except Exception as error:  # a client may raise anything
        reason = without_secrets(f"{type(error).__name__}: {error}", url, most=500).rstrip(".")
        raise ArchiveExportFailed(place=place, reason=reason, day=day) from error


class DayStorage:
    """The files of one day. A file gets its name only when it is complete."""

    def __init__(self, fs: Any, root: str, place: str, day: date) -> None:
        self._fs = fs
        self._local = bool(getattr(fs, "local_file", False))
        self._root = root.rstrip("/")
        self._below = ("outbox_archive", f"day={day}")
        self._directory = "/".join((self._root, *self._below))
        self.place = "/".join((place, *self._below))

    def parts(self) -> list[dict[str, Any]]:
        """The verified files, as the manifest has them."""
        try:
            found: dict[str, Any] = json.loads(self._fs.cat_file(self._path(MANIFEST)))
        except FileNotFoundError:
            return []
        return list(found["parts"])

    def write_parts(self, day: date, parts: Sequence[dict[str, Any]]) -> None:
        """Write the manifest."""
        manifest = json.dumps({"table": "outbox_archive", "day": str(day), "parts": list(parts)}, indent=2) + "\n"
        self.write(MANIFEST, lambda file: file.write(manifest.encode()))

    def size(self, name: str) -> int | None:
        """Bytes of a file; None: it is not there."""
        self._fs.invalidate_cache()
        try:
            return int(self._fs.info(self._path(name))["size"])
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Any:
        return self._fs.open(self._path(name), "rb")

    def remove(self, name: str) -> None:
        self._fs.rm_file(self._path(name))

    def write(self, name: str, fill: Callable[[IO[bytes]], object]) -> None:
        """Write a file under a temporary name, then rename it, over any former one."""
        self._make_directory()
        part = self._path(f"_{name}.{uuid4().hex[:12]}.part")
        try:
            with self._fs.open(part, "wb") as file:
                fill(file)
                if self._local:  # the database will drop these rows, so they must be on the disk
                    file.flush()
                    os.fsync(file.fileno())
            self._fs.mv(part, self._path(name))
        except BaseException:
            with suppress(Exception):  # the first error is raised
                self._fs.rm_file(part)
            raise
        if self._local:
            self._sync_directories()

    def clear(self) -> None:
        """Remove incomplete files of processes that were killed."""
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            for path in self._fs.ls(self._directory, detail=False):
                if path.endswith(".part"):
                    self._fs.rm_file(path)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _make_directory(self) -> None:
        # Not made here: if a file system is not mounted, a new directory would hide that.
        if self._local and not Path(self._root).is_dir():
            raise FileNotFoundError(f"there is no directory {self._root}")
        self._fs.makedirs(self._directory, exist_ok=True)

    def _sync_directories(self) -> None:
        for depth in range(len(self._below), -1, -1):
            handle = os.open(Path(self._root, *self._below[:depth]), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
