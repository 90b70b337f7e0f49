"""The soak's own PostgreSQL, as the user asks for it: with a standby, behind PgBouncer, on a small disk."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from lab.pgbouncer import PROGRAM, PgBouncer, version
from lab.proxy import Proxy, through
from lab.soak.errors import DiskNotMade, PoolerNotInstalled, StandbyBehind
from lab.soak.options import PGBOUNCER, SMALL_DISK, STANDBY, Options
from outbox_tasks.database.engine import PLANNING
from outbox_tasks.local.servers import EmbeddedPostgres

DISK_SIZE = "400m"
WAL_SIZES = {"max_wal_size": "64MB", "min_wal_size": "32MB"}
"""On a small disk."""

IN_STEP_SECONDS = 60.0
"""Seconds that a standby may take until it is in step."""


@dataclass
class Database:
    """The server, and what stands before and beside it."""

    server: EmbeddedPostgres
    url: str
    """It leads to whichever server is the primary."""
    disk: Path | None = None
    """The root of its small disk."""
    standby: EmbeddedPostgres | None = None
    front: Proxy | None = None
    """Leads to the primary."""
    pooler: PgBouncer | None = None

    def fail_over(self) -> None:
        """The primary dies, and the standby takes its place."""
        assert self.standby is not None
        assert self.front is not None
        self.front.refuses = True
        self.front.reset()
        self.server.kill()
        self.server, self.standby = self.standby, None
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        self.front.target, self.front.refuses = self.server.port, False


@contextmanager
def own_database(options: Options) -> Iterator[Database]:
    """Start it."""
    place = options.directory / "database"
    with ExitStack() as stack:
        disk = stack.enter_context(_small_disk(place)) if SMALL_DISK in options.extras else None
        settings = WAL_SIZES if disk else {}
        if STANDBY in options.extras:
            server, standby = stack.enter_context(_pair(place, options.directory / "standby", settings))
            front = stack.enter_context(Proxy(server.port))
            made = Database(server, through(server.url, front), disk, standby, front)
        else:
            server = stack.enter_context(EmbeddedPostgres(place, settings=settings))
            made = Database(server, server.url, disk)
        if PGBOUNCER in options.extras:
            made.pooler = stack.enter_context(_pooler(made))
        yield made


@contextmanager
def _small_disk(place: Path) -> Iterator[Path]:
    """A file system of its own in memory. What is on it at the end stays."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE},mode=0700", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DiskNotMade(reason=done.stderr.strip())
    aside = place.with_name("database.kept")
    try:
        yield place
    finally:
        subprocess.run(["cp", "-a", str(place), str(aside)], check=False)
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        place.rmdir()
        aside.rename(place)


@contextmanager
def _pair(place: Path, other: Path, settings: dict[str, str]) -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """A primary, and a standby that has all whose commit was answered."""
    with EmbeddedPostgres(place):
        """Made, and stopped again."""
    subprocess.run(["cp", "-a", str(place), str(other)], check=True)
    (other / "postgres" / "data" / "standby.signal").touch()
    with EmbeddedPostgres(place, settings=settings) as primary:
        source = psycopg.conninfo.make_conninfo(primary.url, dbname=None, application_name="standby")
        with EmbeddedPostgres(other, settings={**settings, "primary_conninfo": source}) as standby:
            with psycopg.connect(primary.url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
                connection.execute("SELECT pg_reload_conf()")
                _wait_until_in_step(connection)
            yield primary, standby


def _wait_until_in_step(connection: psycopg.Connection) -> None:
    deadline = time.monotonic() + IN_STEP_SECONDS
    while not connection.execute("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'").rowcount:
        if time.monotonic() > deadline:
            raise StandbyBehind(seconds=IN_STEP_SECONDS)
        time.sleep(0.05)


def _pooler(database: Database) -> PgBouncer:
    """In transaction mode, if it keeps track of prepared statements."""
    if PROGRAM is None:
        raise PoolerNotInstalled
    with psycopg.connect(database.url, autocommit=True) as connection:
        for name, value in PLANNING.items():
            connection.execute(sql.SQL("ALTER ROLE CURRENT_USER SET {} = {}").format(sql.Identifier(name), value))
    if version() >= (1, 21):
        return PgBouncer(database.url, pool_mode="transaction", max_prepared_statements=200)
    return PgBouncer(database.url, pool_mode="session", default_pool_size=50)
