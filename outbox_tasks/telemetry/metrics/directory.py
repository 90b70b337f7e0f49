"""Where the processes of a worker leave what they count, and whoever is asked finds it.

The directory is the one that PROMETHEUS_MULTIPROC_DIR names, else one of the worker's own. All processes of the worker
hold a lock on that: what nobody holds has been left behind by a kill, and is removed by whoever starts next. And
systemd-tmpfiles, which removes what is old, leaves a locked one alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from outbox_tasks.per_process import PerProcess
from outbox_tasks.relay.store.processes import alive

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
PREFIX = "outbox-metrics-"
ENDED = "ended"
"""In the name of a file, in place of a process."""

_looking = threading.Lock()


def prepare() -> None:
    """Before any fork: see that there is a directory, and that prometheus-client counts in it."""
    given = os.environ.get(VARIABLE)
    # One of ours is that of another worker, which has started this one.
    if not given or Path(given).name.startswith(PREFIX):
        _remove_abandoned()
        _own.take()
        os.environ[VARIABLE] = str(_own.get()[0])
    else:
        Path(given).mkdir(parents=True, exist_ok=True)
    if not values.ValueClass._multiprocess:
        # It has looked for the variable as it was imported, which an application may have done long ago.
        values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]


def leave() -> None:
    """At the end of a process: it is not alive any more, and with the first one its directory goes."""
    if made := _own.take():
        path, lock = made
        os.environ.pop(VARIABLE, None)
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
    elif shared := os.environ.get(VARIABLE):
        mark_process_dead(os.getpid(), shared)  # type: ignore[no-untyped-call]


def exposition() -> tuple[bytes, str]:
    """See `metrics.exposition`."""
    registry = CollectorRegistry()
    path = os.environ.get(VARIABLE)
    if path is None:  # nobody counts
        return generate_latest(registry), CONTENT_TYPE_LATEST
    with _looking:
        _forget_killed(Path(path))
        if _own.made:
            for kind in ("counter", "histogram"):
                _fold(Path(path), kind)
        MultiProcessCollector(registry, path)  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_LATEST


def _make() -> tuple[Path, int]:
    """A new directory, and the lock on it. It gets its name once it is locked: before, it would look abandoned."""
    unlocked = Path(mkdtemp(prefix=f"new-{PREFIX}"))
    lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return unlocked.rename(unlocked.with_name(unlocked.name.removeprefix("new-"))), lock


_own = PerProcess(_make)
"""In the process that made it: our directory, and the lock on it."""


def _remove_abandoned() -> None:
    for path in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is in use, or not ours, or somebody else removes it too
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _files(path: Path, kind: str) -> Iterator[tuple[Path, str]]:
    """The files of a kind, and whose they are."""
    for file in path.glob(f"{kind}_*.db"):
        yield file, file.stem.rpartition("_")[2]


def _forget_killed(path: Path) -> None:
    """What says that a process is alive is no longer true of one that was killed."""
    for _, whose in _files(path, "gauge_live*"):
        if not alive(int(whose)):
            mark_process_dead(int(whose), str(path))  # type: ignore[no-untyped-call]


def _fold(path: Path, kind: str) -> None:
    """Add up in one file what ended processes have counted. Pools replace their processes now and then, and each one
    that ever was would be read at each look."""
    ended = [file for file, whose in _files(path, kind) if whose == ENDED or not alive(int(whose))]
    if len(ended) < 2:
        return
    totals: dict[str, float] = defaultdict(float)
    for file in ended:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(file):  # type: ignore[no-untyped-call]
            totals[key] += value
    together = path / f"{kind}.new"
    together.unlink(missing_ok=True)
    folded = MmapedDict(together)  # type: ignore[no-untyped-call]
    for key, value in totals.items():
        folded.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]
    folded.close()  # type: ignore[no-untyped-call]
    target = path / f"{kind}_{ENDED}.db"
    together.replace(target)
    for file in ended:
        if file != target:
            file.unlink()
