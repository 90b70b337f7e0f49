"""PgBouncer as our own child, where it is installed or unpacked."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child
from outbox_tasks.local.servers import EmbeddedServer

UNPACKED = Path.home() / ".cache/outbox_tasks/servers/pgbouncer/usr/sbin"
"""Where .ci/sid.sh unpacks a newer one than that of Debian's stable releases."""

PROGRAM = shutil.which("pgbouncer", path=os.pathsep.join([str(UNPACKED), os.environ.get("PATH", ""), "/usr/sbin"]))

USER = "nobody"
"""As whom it runs if we are root: it refuses to be root."""


def version() -> tuple[int, ...]:
    """Of the one that runs."""
    assert PROGRAM is not None
    output = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\d+)\.(\d+)", output)
    assert match
    return tuple(map(int, match.groups()))


class PgBouncer(EmbeddedServer):
    """A pooler before the PostgreSQL of `database_url`, with these options in its configuration."""

    name = "PgBouncer"

    def __init__(self, database_url: str, **options: object) -> None:
        super().__init__()
        self._database = urlsplit(database_url)
        self._options = options

    @property
    def url(self) -> str:
        login = self._database.netloc.rpartition("@")[0]
        return self._database._replace(netloc=f"{login}@{LOOPBACK}:{self.port}").geturl()

    def _start_child(self, port: int, log: Path) -> Child:
        self._configure(port)
        assert PROGRAM is not None
        user = []
        if os.geteuid() == 0:
            user = ["-u", USER]
            for path in (self.directory, *self.directory.iterdir()):
                shutil.chown(path, USER)
        return Child.start(self.name, [PROGRAM, *user, "pgbouncer.ini"], log=log, cwd=self.directory)

    def _configure(self, port: int) -> None:
        server = self._database
        users = self.directory / "users.txt"
        users.touch(0o600)
        users.write_text(f'"{server.username}" "{server.password}"\n')
        settings = {
            "listen_addr": LOOPBACK, "listen_port": port, "unix_socket_dir": "",
            "auth_type": "plain" if server.password else "trust", "auth_file": users, **self._options,
        }  # fmt: skip
        lines = ["[databases]", f"* = host={server.hostname} port={server.port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        (self.directory / "pgbouncer.ini").write_text("\n".join(lines))

    def _is_ready(self, child: Child, port: int) -> bool:
        # It listens, whether the database is there or not.
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=2):
            return child.alive
        return False
