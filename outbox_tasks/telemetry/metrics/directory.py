"""The directory where the processes of a worker count, and from which the worker answers a scrape.

It is the one that PROMETHEUS_MULTIPROC_DIR names, or else the worker makes one. All processes of the worker hold a lock
on it. So the next worker can tell that a killed worker left a directory behind, and removes it. And systemd-tmpfiles,
which removes old directories, does not touch one that is locked.

prometheus-client would name the files of a process after its pid. Pools replace their processes, so there would be more
and more files, and a scrape reads them all. Here a process takes a free number, its place, and goes on with the files
of a process that has ended."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from outbox_tasks.per_process import PerProcess

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
PREFIX = "outbox-metrics-"
PLACE = "outbox-place-"

_scraping = threading.Lock()


def prepare() -> None:
    """Called by the worker's main process before it forks: see that there is a directory, and count there."""
    given = os.environ.get(VARIABLE)
    # One of ours belongs to another worker, which has started this one.
    if not given or Path(given).name.startswith(PREFIX):
        _remove_abandoned()
        _own.take()
        os.environ[VARIABLE] = str(_own.get()[0])
    else:
        Path(given).mkdir(parents=True, exist_ok=True)


def count_here() -> None:
    """Have the metrics that this process makes from now on count in the directory. By itself, prometheus-client decides
    this as it is imported, which an application may have done long ago."""
    values.ValueClass = _value_class()


@cache
def _value_class() -> Any:
    """One class for all metrics: each class opens the files by itself."""
    return values.MultiProcessValue(lambda: _place.get()[0])  # type: ignore[no-untyped-call]


def leave() -> None:
    """Called as a process ends: no longer count it as alive. The main process removes its directory."""
    if own := _own.take():
        path, lock = own
        with _scraping:  # or a scrape that reads the files would fail
            os.environ.pop(VARIABLE, None)
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
    elif (place := _place.made) and (shared := os.environ.get(VARIABLE)):
        mark_process_dead(place[0], shared)  # type: ignore[no-untyped-call]


def exposition() -> tuple[bytes, str]:
    """See `metrics.exposition`."""
    registry = CollectorRegistry()
    with _scraping:
        path = os.environ.get(VARIABLE)
        if path is not None:
            _forget_ended(Path(path))
            _Begun(registry, path)
        return generate_latest(registry), CONTENT_TYPE_LATEST


class _Begun(MultiProcessCollector):
    """Collects from the files that are begun. A file is empty while a process makes it, or if the process was killed
    then. prometheus-client would fail at it."""

    def __init__(self, registry: CollectorRegistry, path: str) -> None:
        self._directory = Path(path)
        super().__init__(registry, path)  # type: ignore[no-untyped-call]

    def collect(self) -> Any:
        return self.merge(  # type: ignore[no-untyped-call]
            [str(file) for file in self._directory.glob("*.db") if _is_begun(file)]
        )


def _is_begun(file: Path) -> bool:
    with suppress(FileNotFoundError):  # a gauge's, whose process has just ended
        return file.stat().st_size > 0
    return False


def _make() -> tuple[Path, int]:
    """A new directory, and the lock on it. It gets its name once it is locked: before, it would look abandoned."""
    unlocked = Path(mkdtemp(prefix=f"new-{PREFIX}"))
    lock = _lock(unlocked, os.O_DIRECTORY)
    return unlocked.rename(unlocked.with_name(unlocked.name.removeprefix("new-"))), lock


_own = PerProcess(_make)
"""In the process that made it: our directory, and the lock on it."""


def _remove_abandoned() -> None:
    for path in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), _locked(path, os.O_DIRECTORY | os.O_NOFOLLOW):
            shutil.rmtree(path, ignore_errors=True)


def _take_place() -> tuple[str, int]:
    """The first place that no living process has, and the lock on it. The lock ends with the process."""
    directory, number = Path(os.environ[VARIABLE]), 0
    while True:
        place = f"{PLACE}{number}"
        try:
            return place, _lock(directory / place, os.O_CREAT)
        except BlockingIOError:
            number += 1


_place = PerProcess(_take_place)
"""Of this process, and the lock on it."""


def _forget_ended(directory: Path) -> None:
    """A process that was killed could not say that it is no longer alive."""
    for place in directory.glob(f"{PLACE}*"):
        with suppress(OSError), _locked(place):
            mark_process_dead(place.name, str(directory))  # type: ignore[no-untyped-call]


def _lock(path: Path, flags: int) -> int:
    """Raises `BlockingIOError` if another process has locked it."""
    lock = os.open(path, os.O_RDONLY | flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


@contextmanager
def _locked(path: Path, flags: int = 0) -> Iterator[None]:
    lock = _lock(path, flags)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # also for a process that was forked meanwhile, and shares it
        os.close(lock)
