"""MariaDB and MySQL as children of the tests. Where a server is not installed, its tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child
from outbox_tasks.local.servers import EmbeddedServer

AS_US = ("--user=root",) if os.geteuid() == 0 else ()
"""Both run as root only if they are told to."""

SMALL = (f"--bind-address={LOOPBACK}", "--innodb-buffer-pool-size=64M", *AS_US)

UNPACKED = Path.home() / ".cache/outbox_tasks/servers/mysql/usr"
"""Where .ci/sid.sh unpacks MySQL, which Debian's stable releases don't have."""


class _MySQL(EmbeddedServer):
    scheme: str

    @property
    def url(self) -> str:
        return f"{self.scheme}://root@{LOOPBACK}:{self.port}/app"

    def _own(self) -> tuple[str, ...]:
        folder = self.directory / "data"
        return (f"--datadir={folder}", f"--socket={self.directory}/s", f"--pid-file={self.directory}/pid")

    def _env(self) -> dict[str, str]:
        """A server clears its directory for temporary tables when it starts: others must not be in it."""
        return {"TMPDIR": str(self.directory)}

    def _prepared(self, *argv: str) -> None:
        if not (self.directory / "data").exists():
            command = [argv[0], "--no-defaults", *argv[1:], *AS_US, *self._own()[:1]]
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self._env()})
            assert done.returncode == 0, done.stdout + done.stderr

    def _started(self, argv: Sequence[str], port: int, log: Path) -> Child:
        return Child.start(
            self.name,
            [argv[0], "--no-defaults", *argv[1:], *SMALL, *self._own(), f"--port={port}"],
            log=log,
            env=self._env(),
        )

    def _is_ready(self, child: Child, port: int) -> bool:
        import pymysql

        try:
            with closing(self._connect(port)) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT @@datadir")
                if Path(cursor.fetchone()[0]) != self.directory / "data":
                    return False
                cursor.execute("CREATE DATABASE IF NOT EXISTS app")
        except pymysql.Error:
            return False
        return True

    def _connect(self, port: int) -> Any:
        import pymysql

        return pymysql.connect(host=LOOPBACK, port=port, user="root", connect_timeout=2)


class MariaDB(_MySQL):
    name, scheme = "MariaDB", "mariadb"

    def _start_child(self, port: int, log: Path) -> Child:
        install = _binary("mariadb-install-db")
        self._prepared(install, "--auth-root-authentication-method=normal", "--skip-test-db")
        return self._started([_binary("mariadbd")], port, log)


class MySQL(_MySQL):
    name, scheme = "MySQL", "mysql"

    def _start_child(self, port: int, log: Path) -> Child:
        if not UNPACKED.exists():
            pytest.skip("MySQL's server is not here: .ci/sid.sh unpacks it")
        argv = [f"{UNPACKED}/sbin/mysqld", f"--basedir={UNPACKED}", f"--lc-messages-dir={UNPACKED}/share/mysql"]
        self._prepared(*argv, "--initialize-insecure")
        return self._started([*argv, "--mysqlx=OFF", "--secure-file-priv=NULL"], port, log)


def _binary(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found
