"""PgBouncer as our own child, where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from tests.conftest import eventually

PROGRAM = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))

needed = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")


def version() -> tuple[int, ...]:
    """Of the one that is installed."""
    assert PROGRAM is not None
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    assert found
    return tuple(map(int, found.groups()))


@contextmanager
def pooled(url: str, **options: object) -> Iterator[str]:
    """The URL of a pooler before the server of `url`."""
    with tempfile.TemporaryDirectory(prefix="outbox-pgbouncer-") as directory:
        yield from _pooled(url, Path(directory), options)


def _pooled(url: str, directory: Path, options: Mapping[str, object]) -> Iterator[str]:
    assert PROGRAM is not None
    server, port = urlsplit(url), free_port()
    directory.chmod(0o755)  # it does not run as root
    (directory / "users.txt").write_text(f'"{server.username}" "{server.password}"\n')
    settings = {
        "listen_addr": LOOPBACK,
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "plain",
        "auth_file": directory / "users.txt",
        **options,
    }
    lines = ["[databases]", f"* = host={server.hostname} port={server.port}", "[pgbouncer]"]
    (directory / "pgbouncer.ini").write_text("\n".join([*lines, *(f"{name} = {v}" for name, v in settings.items())]))
    user = ["-u", "nobody"] if os.getuid() == 0 else []
    child = Child.start(
        "pgbouncer", [PROGRAM, *user, str(directory / "pgbouncer.ini")], log=directory / "pgbouncer.log", cwd=directory
    )
    pooler = server._replace(netloc=f"{server.username}:{server.password}@{LOOPBACK}:{port}").geturl()

    def answers() -> bool:
        assert child.alive, child.tail()
        try:
            psycopg.connect(pooler, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        eventually(answers)
        yield pooler
    finally:
        child.end()
