"""What a source says when its database is away, wrong, slow or not allowed."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pymysql.err import OperationalError

from outbox_tasks.errors import ConfigurationError, SourceTrouble
from outbox_tasks.feeds.source import Source, open_source
from tests.feeds.places import Place, ids, made, overlapping, place, run, source, sqlite_engine

__all__ = ["made", "overlapping", "place", "source"]


def of_postgres(kind: bytes, body: bytes) -> bytes:
    """A message of a PostgreSQL server."""
    return kind + struct.pack("!I", len(body) + 4) + body


def asked_for_a_password(url: str) -> bytes:
    """All that a PostgreSQL server hears that asks for a password in clear text."""
    heard = bytearray()

    def serve() -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            heard.extend(connection.recv(65536))
            connection.sendall(of_postgres(b"R", struct.pack("!I", 3)))
            heard.extend(connection.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        url = url.format(port=listener.getsockname()[1]) + "?sslmode=disable"
        with pytest.raises(SourceTrouble), closing(open_source("eu", url, timeout=5)) as source:
            source.look(1)
        server.join(30)
    return bytes(heard)


class TestTrouble:
    def test_a_missing_table_is_named_with_the_command_that_makes_it(self, place: Place, source: Source) -> None:
        writer = place.connect()
        run(writer, "ALTER TABLE outbox_feed RENAME TO outbox_gone")
        writer.commit()
        try:
            for call in (lambda: source.look(1), lambda: source.delete([(1, str(uuid4()))]), source.lag):
                with pytest.raises(SourceTrouble, match=r"outbox_feed.*Make it with `outbox-tasks feed init`"):
                    call()
        finally:
            run(writer, "ALTER TABLE outbox_gone RENAME TO outbox_feed")
            writer.commit()
        assert source.look(1) == []

    @pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
    def test_a_server_that_never_answers_costs_the_time_limit(self, dialect: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"{dialect}://u:secret@127.0.0.1:{silent.getsockname()[1]}/app"
            began = time.monotonic()
            with pytest.raises(SourceTrouble, match="eu can't be copied") as caught:
                open_source("eu", url, timeout=2).look(1)
            assert time.monotonic() - began < 8
        assert "secret" not in str(caught.value)

    def test_a_server_gets_nothing_of_the_relay_s_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PGPASSWORD", "secret")
        monkeypatch.setenv("PGOPTIONS", "-c app.password=secret")
        heard = asked_for_a_password("postgresql://u@127.0.0.1:{port}/app")
        monkeypatch.delenv("PGPASSWORD")
        (tmp_path / "passfile").write_text("*:*:*:*:secret")
        (tmp_path / "passfile").chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(tmp_path / "passfile"))
        heard += asked_for_a_password("postgresql://u@127.0.0.1:{port}/app")
        (tmp_path / "services").write_text("[relay]\npassword=secret\n")
        monkeypatch.setenv("PGSERVICE", "relay")
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        heard += asked_for_a_password("postgresql://u@127.0.0.1:{port}/app")
        assert b"user\0u\0" in heard
        assert b"secret" not in heard
        assert b"mine" in asked_for_a_password("postgresql://u:mine@127.0.0.1:{port}/app")

    def test_after_a_time_limit_or_the_end_of_its_connection_the_next_call_works(self, overlapping: Place) -> None:
        source = overlapping.source(timeout=2)
        source.look(1)
        admin, postgres = overlapping.connect(), overlapping.dialect == "postgresql"
        run(admin, "LOCK TABLE outbox_feed IN ACCESS EXCLUSIVE MODE" if postgres else "LOCK TABLES outbox_feed WRITE")
        began = time.monotonic()
        with pytest.raises(SourceTrouble):
            source.look(1)
        assert time.monotonic() - began < 8
        run(admin, "ROLLBACK" if postgres else "UNLOCK TABLES")
        assert source.look(1) == []
        overlapping.engine.dispose()
        if postgres:
            ours = "SELECT pid FROM pg_stat_activity WHERE application_name = 'outbox_tasks feed'"
            run(admin, f"SELECT pg_terminate_backend(pid) FROM ({ours}) AS ours")
        else:
            ours = "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND db = database()"
            for (number,) in run(admin, ours):
                with suppress(OperationalError):  # it ended just now
                    run(admin, f"KILL {number}")
        with pytest.raises(SourceTrouble):
            source.look(1)
        assert source.look(1) == []
        with suppress(KeyboardInterrupt), source._connection():
            raise KeyboardInterrupt
        assert source._open is None

    def test_a_user_without_the_right_to_delete_is_told_so_and_with_it_needs_no_other(self, overlapping: Place) -> None:
        overlapping.write(writer := overlapping.connect(), "a")
        writer.commit()
        read = "outbox_feed" + (", outbox_feed_number" if overlapping.dialect == "postgresql" else "")
        with overlapping.user() as login:
            overlapping.execute(f"GRANT SELECT ON {read} TO {login.username}")
            source = open_source("eu", login.set(drivername=overlapping.dialect).render_as_string(hide_password=False))
            (row,) = source.look(1)
            with pytest.raises(SourceTrouble, match="denied"):
                source.delete([(row.number, row.id)])
            overlapping.execute(f"GRANT DELETE ON outbox_feed TO {login.username}")
            source.delete([(row.number, row.id)])
            assert source.lag() == (0, 0.0)
            source.close()
            if overlapping.dialect != "postgresql":
                return
            replica = "CREATE FUNCTION pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'"
            for what, (trouble, *back) in {
                "ALTER TABLE outbox_feed ENABLE ROW LEVEL SECURITY": (
                    "row-level security hides rows", "ALTER TABLE outbox_feed DISABLE ROW LEVEL SECURITY"),
                f"{replica}; ALTER ROLE {login.username} SET search_path = public, pg_catalog": (
                    "it takes no writes", "DROP FUNCTION public.pg_is_in_recovery()"),
            }.items():  # fmt: skip
                overlapping.execute(what)
                with pytest.raises(SourceTrouble, match=trouble):
                    source.look(1)
                overlapping.execute(*back)


class TestMySQL:
    @pytest.fixture
    def place(self, place: Place) -> Place:
        if place.dialect not in ("mysql", "mariadb"):
            pytest.skip("of MySQL and MariaDB")
        return place

    @pytest.mark.parametrize(
        ("change", "back", "why"),
        [
            ("ALTER TABLE outbox_feed ENGINE = MyISAM", "ALTER TABLE outbox_feed ENGINE = InnoDB", "only InnoDB"),
            ("SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0", "read-only"),
        ],
    )
    def test_a_table_that_can_t_roll_back_and_a_replica_are_refused(
        self, place: Place, source: Source, change: str, back: str, why: str
    ) -> None:
        admin = place.connect()
        source.look(1)
        source.close()  # each connection is checked
        run(admin, change)
        try:
            with pytest.raises(SourceTrouble, match=why):
                source.look(1)
        finally:
            run(admin, back)

    def test_the_schema_is_a_database(self, place: Place) -> None:
        admin = place.connect()
        run(admin, "CREATE DATABASE `ten``ant`")
        source = open_source("eu", place.url, schema="ten`ant")
        source.init()
        run(admin, "INSERT INTO `ten``ant`.outbox_feed (message) VALUES ('{}')")
        admin.commit()
        (row,) = source.look(1)
        source.delete([(row.number, row.id)])
        assert source.lag() == (0, 0.0)
        run(admin, "DROP DATABASE `ten``ant`")


class TestSQLite:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Place:
        return self.made(tmp_path / "own.db")

    def made(self, path: Path) -> Place:
        place = Place(sqlite_engine(path), "")
        place.source().init()
        return place

    def test_reads_go_on_beside_an_open_writer_and_deletes_wait_for_it_no_longer_than_allowed(
        self, file: Place
    ) -> None:
        writer = file.connect()
        id = file.write(writer)
        writer.commit()
        file.write(writer)
        source = file.source(timeout=0.3)
        (row,) = source.look(10)
        with pytest.raises(SourceTrouble, match="locked"):
            source.delete([(row.number, row.id)])
        writer.rollback()
        assert ids(source) == [id]
        source.delete([(row.number, row.id)])
        assert source.look(10) == []

    def test_a_file_that_was_put_in_its_place_is_read(self, file: Place, tmp_path: Path) -> None:
        source = file.source()
        assert source.look(1) == []
        other = self.made(tmp_path / "other.db")
        writer = other.connect()
        id = other.write(writer)
        writer.commit()
        run(writer, "PRAGMA wal_checkpoint(TRUNCATE)")
        writer.close()
        (tmp_path / "other.db").replace(tmp_path / "own.db")
        assert ids(source) == [id]

    def test_no_file_is_made_but_by_init_and_one_that_is_no_database_is_refused(self, tmp_path: Path) -> None:
        source = open_source("eu", f"sqlite:///{tmp_path}/new.db")
        with pytest.raises(SourceTrouble, match="unable to open"):
            source.look(1)
        assert list(tmp_path.iterdir()) == []
        source.init()
        assert source.look(1) == []
        (tmp_path / "x.db").write_text("This is a text of more than a hundred bytes. " * 50)
        with pytest.raises(SourceTrouble, match="not a database"):
            open_source("eu", f"sqlite:///{tmp_path}/x.db").look(1)

    def test_text_that_is_not_utf_8_hides_no_row(self, file: Place) -> None:
        writer = file.connect()
        run(writer, "INSERT INTO outbox_feed (id, message) VALUES (?, CAST(x'ff' AS text))", (str(uuid4()),))
        id = file.write(writer)
        writer.commit()
        assert [row.message for row in file.source().look(10)] == ["\ufffd", "{}"]
        assert ids(file.source())[1] == id


def test_what_a_url_of_mysql_says_goes_to_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def connect(**options: Any) -> None:
        given.update(options)
        raise OSError

    monkeypatch.setattr("pymysql.connect", connect)
    url = "mysql://u:p%40@h:3307?ssl_ca=ca.pem&ssl_verify_identity=Yes&ssl_verify_cert=0&charset=latin1"
    source = open_source("eu", url, "shop", timeout=0.3)
    with pytest.raises(SourceTrouble):
        source.look(1)
    monkeypatch.setattr(source, "_rows", lambda *_, **__: [("8.0.11-TiDB-v7.5.0", 0, "InnoDB")])
    with pytest.raises(SourceTrouble, match="needs MySQL or MariaDB"):
        source._check(None)  # type: ignore[attr-defined]
    where = {"host": "h", "port": 3307, "user": "u", "password": "p@", "database": "shop", "charset": "utf8mb4"}
    tls = {"ssl_ca": "ca.pem", "ssl_verify_identity": True, "ssl_verify_cert": False}
    limits = {"autocommit": True, "connect_timeout": 1, "read_timeout": 0.3, "write_timeout": 0.3}
    assert given == where | tls | limits


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mssql://u:secret@host/app", "PostgreSQL, MySQL, MariaDB or SQLite"),
        ("nonsense", "must be a URL"),
        ("sqlite://", "must name a file"),
        ("mysql://host", "must name a database"),
        ("mysql://host/app?x=1", "option x is unknown"),
    ],
)
def test_a_url_that_can_t_be_used_is_refused_at_once(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        open_source("eu", url)
    assert "secret" not in str(caught.value)
