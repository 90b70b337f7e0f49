"""A PostgreSQL cluster on disk: made by initdb, for one server at a time, which never runs as root."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from outbox_tasks.local.binaries import PostgresInstall
from outbox_tasks.local.errors import NotStarted
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child

LEAVE_SECONDS = 4.0
"""How long a server may take to leave after its parent was killed."""

HERE = "/proc/self/cwd"

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


class Cluster:
    """The directory: `data`, and the superuser's `password`. It is made if there is none."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._data, self._password_file = directory, directory / "data", directory / "password"
        self._user = _unprivileged(self._data)
        # As root we start the server as another user, who may not enter the directories above. On Linux the name HERE,
        # of the directory in which a process was started, needs no way through them.
        self._by_name_here = self._user is not None and sys.platform == "linux"
        self._install = PostgresInstall(self._user)
        try:
            if not self._data.exists():
                self._make()
        except BaseException:
            self.close()
            raise

    @property
    def password(self) -> str:
        return self._password_file.read_text()

    def start(self, port: int, log: Path, settings: Mapping[str, str]) -> Child:
        """Start a server on this cluster."""
        self._wait_for_its_server()
        argv = [self._install.binary("postgres"), "-D", HERE if self._by_name_here else str(self._data)]
        for setting, value in {**SETTINGS, **settings, "port": str(port)}.items():
            argv += ["-c", f"{setting}={value}"]
        return Child.start(
            "PostgreSQL",
            argv,
            log=log,
            cwd=self._data,
            user=self._user,
            stop_signal=signal.SIGINT,  # "fast": doesn't wait for clients
            stop_timeout=25,
            death_signal=signal.SIGQUIT,  # "immediate": unlike SIGKILL it frees shared memory
        )

    def close(self) -> None:
        """Remove what it needed besides the directory."""
        self._install.close()

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
        argv = [self._install.binary("initdb"), *INITDB, f"--pgdata={HERE if self._by_name_here else unfinished}"]
        with Child.start("initdb", argv, cwd=unfinished, user=self._user) as initdb:
            if initdb.wait() != 0:
                raise NotStarted(name="initdb", reason=f"no cluster in {unfinished}", tail="\n" + initdb.tail())
        unfinished.rename(self._data)

    def _wait_for_its_server(self) -> None:
        """Until no server is on this cluster: one whose parent was killed is there for a moment longer. Raises
        `NotStarted`.

        Then remove what a killed one has left. PostgreSQL would look at the number in it alone, and refuse to start if
        that is another program's by now, or a process's that nobody has reaped: both happen in containers.
        """
        if not Path("/proc/self").exists():
            return  # PostgreSQL itself refuses
        pid_file = self._data / "postmaster.pid"
        deadline = time.monotonic() + LEAVE_SECONDS
        while pid_file.exists():
            pid = pid_file.read_text().partition("\n")[0]
            try:
                is_at_work = Path(f"/proc/{pid}/cwd").samefile(self._data)
            except OSError:  # the process is gone, or is somebody else's
                is_at_work = False
            if not is_at_work:
                pid_file.unlink(missing_ok=True)
            elif time.monotonic() > deadline:
                reason = f"{self._directory.parent} is in use by another running server; stop that one first"
                raise NotStarted(name="PostgreSQL", reason=reason, tail="(none)")
            else:
                time.sleep(0.05)


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
