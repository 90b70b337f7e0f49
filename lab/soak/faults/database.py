"""Faults of the database, and of the connections to it."""

from __future__ import annotations

import random
from contextlib import suppress

import psutil
import psycopg
from psycopg import sql

from lab.frozen import freeze, thaw
from lab.soak.faults.kind import End, Kind, NothingToHurt, database_proxy, extra, own_database
from lab.soak.options import PGBOUNCER, SMALL_DISK, STANDBY
from lab.soak.stage import Stage
from outbox_tasks.database.connection import Database

DELAY = (0.005, 0.1)
"""Seconds that each packet takes longer."""

CONNECTIONS = 200
"""More than the server takes."""

ROWS = 200
BLOCK = b"0" * 65_536


def _connected(stage: Stage) -> psycopg.Connection:
    return psycopg.connect(stage.database_url, connect_timeout=5, application_name="soak fault")


def _backend(stage: Stage, chance: random.Random) -> int:
    """A process of the server that works for the relay."""
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY pid"
    with _connected(stage) as connection:
        pids = connection.execute(query, (Database.application_name,)).fetchall()
    return int(chance.choice(pids)[0])


def killed(stage: Stage, chance: random.Random) -> End:
    assert stage.database is not None
    stage.database.server.kill()
    return stage.database.server.start


def stopped(stage: Stage, chance: random.Random) -> End:
    assert stage.database is not None
    processes = freeze(stage.database.server.pid)
    return lambda: thaw(processes)


def backend_killed(stage: Stage, chance: random.Random) -> None:
    psutil.Process(_backend(stage, chance)).kill()


def backend_stopped(stage: Stage, chance: random.Random) -> End:
    processes = freeze(_backend(stage, chance))
    return lambda: thaw(processes)


def session_ended(stage: Stage, chance: random.Random) -> None:
    pid = _backend(stage, chance)
    with _connected(stage) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


def full_of_connections(stage: Stage, chance: random.Random) -> End:
    taken: list[psycopg.Connection] = []
    with suppress(psycopg.OperationalError):
        while len(taken) < CONNECTIONS:
            taken.append(_connected(stage))

    def end() -> None:
        for connection in taken:
            connection.close()

    return end


def _held(stage: Stage, *statements: sql.SQL | sql.Composed) -> End:
    """A transaction that stays open behind these statements."""
    connection = _connected(stage)
    try:
        connection.execute("SET LOCAL lock_timeout = '2s'")
        for statement in statements:
            connection.execute(statement)
    except psycopg.Error:
        connection.close()
        raise
    return connection.close


def _messages(stage: Stage) -> sql.Identifier:
    return sql.Identifier(str(stage.settings.database_schema), "outbox_ready")


def table_locked(stage: Stage, chance: random.Random) -> End:
    return _held(stage, sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(_messages(stage)))


def rows_locked(stage: Stage, chance: random.Random) -> End:
    rows = sql.SQL("SELECT FROM {} LIMIT {} FOR UPDATE SKIP LOCKED").format(_messages(stage), ROWS)
    return _held(stage, rows)


def snapshot_held(stage: Stage, chance: random.Random) -> End:
    snapshot = sql.SQL("SELECT count(*) FROM {}").format(_messages(stage))
    return _held(stage, sql.SQL("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"), snapshot)


def failover(stage: Stage, chance: random.Random) -> None:
    assert stage.database is not None
    if stage.database.standby is None:
        raise NothingToHurt
    stage.database.fail_over()


def pooler_killed(stage: Stage, chance: random.Random) -> End:
    assert stage.database is not None
    assert stage.database.pooler is not None
    stage.database.pooler.kill()
    return stage.database.pooler.start


def disk_full(stage: Stage, chance: random.Random) -> End:
    database = stage.database
    assert database is not None
    assert database.disk is not None
    filler = database.disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(BLOCK):
            """Until there is no more room."""

    def end() -> None:
        filler.unlink()
        database.server.start()  # if it could not write its log, it has ended

    return end


def silent(stage: Stage, chance: random.Random) -> End:
    assert stage.to_database is not None
    stage.to_database.silence()
    return stage.to_database.resume


def half_open(stage: Stage, chance: random.Random) -> None:
    assert stage.to_database is not None
    stage.to_database.forget()


def reset(stage: Stage, chance: random.Random) -> None:
    assert stage.to_database is not None
    stage.to_database.reset()


def slow(stage: Stage, chance: random.Random) -> End:
    proxy = stage.to_database
    assert proxy is not None
    proxy.delay = chance.uniform(*DELAY)

    def end() -> None:
        proxy.delay = 0.0

    return end


SERVER = "database"

KINDS = [
    Kind("database_killed", killed, own_database, SERVER),
    Kind("database_stopped", stopped, own_database, SERVER),
    Kind("backend_killed", backend_killed, own_database, SERVER),
    Kind("backend_stopped", backend_stopped, own_database, SERVER),
    Kind("connections_used", full_of_connections, own_database, SERVER),
    Kind("session_ended", session_ended),
    Kind("table_locked", table_locked),
    Kind("rows_locked", rows_locked),
    Kind("snapshot_held", snapshot_held),
    Kind("failover", failover, extra(STANDBY), SERVER),
    Kind("disk_full", disk_full, extra(SMALL_DISK), SERVER),
    Kind("pooler_killed", pooler_killed, extra(PGBOUNCER)),
    Kind("database_silent", silent, database_proxy),
    Kind("database_half_open", half_open, database_proxy),
    Kind("database_reset", reset, database_proxy),
    Kind("database_slow", slow, database_proxy),
]
