"""A PostgreSQL cluster on disk: made by initdb, for one server at a time, which never runs as root."""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from outbox_tasks.local.binaries import PostgresInstall
from outbox_tasks.local.errors import ClusterNotMade, DirectoryInUse
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child

LOCK_TIMEOUT = 4.0
STOP_TIMEOUT = 20.0
INITDB_TIMEOUT = 120.0
HERE = "/proc/self/cwd"

SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "64MB",
    "max_wal_size": "1GB",
    "huge_pages": "off",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "unix_socket_directories": "",  # TCP on loopback with a password is enough
}
"""For a small server. fsync and synchronous_commit stay on: tests of an outbox need them."""


class Cluster:
    """The directory: `data`, the superuser's `password`, and a `lock` that its user holds."""

    def __init__(self, directory: Path, lock: int, user: int | None) -> None:
        self._directory = directory
        self._lock = lock
        self._user = user
        self._install = PostgresInstall(user)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Lock the directory, and make a cluster in it if there is none. Raises `DirectoryInUse`."""
        directory.mkdir(parents=True, exist_ok=True)
        lock = _locked(directory)
        try:
            cluster = cls(directory, lock, _unprivileged(directory / "data"))
        except BaseException:
            os.close(lock)
            raise
        try:
            if not cluster._data.exists():
                cluster._make()
        except BaseException:
            cluster.close()
            raise
        return cluster

    @property
    def password(self) -> str:
        return self._password_file.read_text()

    def start(self, port: int, log: Path, settings: Mapping[str, str]) -> Child:
        """Start a server on this cluster."""
        self._forget_stale_server()
        argv = [self._install.binary("postgres"), "-D", HERE if self._by_cwd else str(self._data)]
        for setting, value in {
            **SETTINGS,
            **settings,
            "listen_addresses": LOOPBACK,
            "port": str(port),
        }.items():
            argv += ["-c", f"{setting}={value}"]
        return Child.start(
            "PostgreSQL",
            argv,
            log=log,
            cwd=self._data,
            user=self._user,
            stop_signal=signal.SIGINT,  # "fast": doesn't wait for clients
            stop_timeout=STOP_TIMEOUT,
            death_signal=signal.SIGQUIT,  # "immediate": unlike SIGKILL it frees shared memory
            # The server's processes hold our lock too: the directory stays locked until the last one is gone.
            pass_fds=[self._lock],
        )

    def close(self) -> None:
        """Give the directory back."""
        self._install.close()
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _password_file(self) -> Path:
        return self._directory / "password"

    @property
    def _by_cwd(self) -> bool:
        """Whether the server names its data directory by HERE, the directory that it was started in.

        As root we start it as another user, who may not enter the directories above. On Linux the name HERE needs no
        way through them.
        """
        return self._user is not None and sys.platform == "linux"

    def _make(self) -> None:
        # Renamed at the end: an initdb that was killed leaves nothing that looks complete.
        unfinished = self._directory / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(secrets.token_hex(16))
        if self._user is not None:
            self._directory.chmod(0o711)
            for path in (unfinished, self._password_file):
                os.chown(path, self._user, self._user)
        self._initdb(unfinished)
        unfinished.rename(self._data)

    def _initdb(self, directory: Path) -> None:
        options = [
            "--pgdata=" + (HERE if self._by_cwd else str(directory)),
            "--username=outbox",
            "--pwfile=../password",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
            "--no-sync",  # it matters only if the machine crashes in the next seconds
            "--no-instructions",
        ]
        with Child.start(
            "initdb", [self._install.binary("initdb"), *options], cwd=directory, user=self._user
        ) as initdb:
            with suppress(TimeoutError):
                initdb.wait(INITDB_TIMEOUT)
            code = initdb.returncode
        if code != 0:
            raise ClusterNotMade(directory=directory, tail="\n" + initdb.tail())

    def _forget_stale_server(self) -> None:
        """Remove the pid file of a killed server, unless its number still is a server on this cluster.

        We hold the lock, so no server of ours runs here. PostgreSQL looks at the number alone. It refuses to start if
        the number is another program's by now, or a process's that nobody has reaped: both happen in containers.
        """
        pid_file = self._data / "postmaster.pid"
        if not pid_file.exists() or not Path("/proc/self").exists():
            return
        pid = pid_file.read_text().partition("\n")[0]
        try:
            ours = Path(f"/proc/{pid}/cwd").samefile(self._data)
        except OSError:  # it is gone, or somebody else's
            ours = False
        if not ours:
            pid_file.unlink()


def _locked(directory: Path) -> int:
    """A lock on the directory. A server whose parent was killed holds it for a moment longer."""
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                raise DirectoryInUse(directory=directory.parent) from None
            time.sleep(0.05)
        else:
            return lock


def _unprivileged(data: Path) -> int | None:
    """The user to run the server as; None: ourselves. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := data.stat().st_uid) != 0:
        return owner
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return 65534
