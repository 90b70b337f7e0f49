"""Days of the archive as files: whole, verified, readable by others, and only then gone from the database."""

from __future__ import annotations

import json
import re
import resource
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pytest
from sqlalchemy import Text, cast, func, literal, select

from outbox_tasks.archive import export as exporting
from outbox_tasks.archive import files as archive_files
from outbox_tasks.archive.export import export_days
from outbox_tasks.archive.storage import DayStorage
from outbox_tasks.operating import retention
from outbox_tasks.operating.retention import maintain
from outbox_tasks.relay.store import Store
from tests.conftest import MakeStore
from tests.integration.archived import Archived, drop_days
from tests.integration.conftest import Command

WEEK = timedelta(days=7)

PAYLOADS = (
    b'{"id": 42}',
    '{"name": "Zoë 🦊 \u2028"}'.encode(),
    b"",
    bytes(range(256)),
    b"\xff\xfe\x00",
    b"a\x00b",
    b'"\\\x01\x7f\r\n\t',
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "storage"
    made.mkdir()
    return made


@pytest.fixture
def exporter(new_store: MakeStore, place: Path) -> Store:
    """A store that exports to `place` before it drops."""
    return new_store(archive_export=f"file://{place}")


def directory(place: Path, archived: Archived, days: int = 8) -> Path:
    return place / "outbox_archive" / f"day={archived.ago(days)}"


def manifest(place: Path, archived: Archived, days: int = 8) -> list[dict[str, Any]]:
    return list(json.loads((directory(place, archived, days) / "_manifest.json").read_text())["parts"])


def duck(place: Path, query: str) -> list[tuple[Any, ...]]:
    """What DuckDB finds in all that was exported, called `archive` in the query."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        source = f"read_parquet('{place}/**/*.parquet', hive_partitioning = true)"
        return connection.execute(f"WITH archive AS (FROM {source}) {query}").fetchall()


class TestFiles:
    def test_duckdb_reads_the_same_rows(self, archived: Archived, exporter: Store, place: Path) -> None:
        archived.fill(archived.ago(9), 1000)
        archived.fill(archived.ago(8), 7, state="discarded")
        for payload in PAYLOADS:
            archived.fill(archived.ago(8), 3, payload=payload)
        created_at = archived.tables.archive.c.created_at.type
        for time in ("infinity", "-infinity", "4000-01-01 BC", "20000-01-01"):  # which files can not have
            archived.fill(archived.ago(10), created_at=cast(literal(time), created_at))
        assert drop_days(exporter, WEEK).kept == {}
        assert archived.count() == 0
        assert duck(place, "SELECT day, state, count(*) FROM archive GROUP BY ALL ORDER BY ALL") == [
            (archived.ago(10), "sent", 4),
            (archived.ago(9), "sent", 1000),
            (archived.ago(8), "discarded", 7),
            (archived.ago(8), "sent", 3 * len(PAYLOADS)),
        ]
        found = duck(
            place, f"SELECT payload FROM archive WHERE day = '{archived.ago(8)}' AND state = 'sent' ORDER BY seq"
        )
        assert found == [(payload,) for payload in PAYLOADS for _ in range(3)]
        years = f"SELECT year(created_at::TIMESTAMP) FROM archive WHERE day = '{archived.ago(10)}' ORDER BY 1"
        assert duck(place, years) == [(1,), (1,), (9999,), (9999,)]

    def test_hold_every_column_of_the_archive(self, archived: Archived, exporter: Store, place: Path) -> None:
        assert set(archive_files.COLUMNS) == set(archived.tables.archive.c.keys())
        texts = {name: f"{name} 'ü\n" for name, kind in archive_files.COLUMNS.items() if kind == "text"}
        values = {"attempts": 2**15, "state": "sent", "headers": {"a": "\u0001ü"}, "history": [{"what": "claimed"}]}
        del texts["id"]
        archived.fill(archived.ago(8), 1, **texts | values)
        with archived.engine.connect() as connection:
            expected = dict(connection.execute(select(archived.tables.archive)).one()._mapping)
        assert drop_days(exporter, WEEK).kept == {}
        [row] = duck(place, f"SELECT {', '.join(archive_files.COLUMNS)} FROM archive")
        shown = dict(zip(archive_files.COLUMNS, row, strict=True))
        for name in ("headers", "history"):
            shown[name] = json.loads(shown[name])
        assert shown == {**expected, "id": str(expected["id"]), "payload": bytes(expected["payload"])}

    def test_are_written_in_lots_that_fit_into_memory(
        self, archived: Archived, exporter: Store, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exporting, "READ_BYTES", 1_000_000)
        largest = 0
        read = Store.ask

        def watched(store: Store, verb: str, *rest: Any, **parameters: Any) -> Any:
            nonlocal largest
            found = read(store, verb, *rest, **parameters)
            largest = max(largest, sum(len(row.payload) for row in found if hasattr(row, "payload")))
            return found

        monkeypatch.setattr(Store, "ask", watched)
        archived.fill(archived.ago(8), 10, payload=func.convert_to(func.repeat("x", 300_000), "UTF8"))
        archived.fill(archived.ago(8), 2, payload=func.convert_to(func.repeat("y", 2_000_000), "UTF8"))
        assert drop_days(exporter, WEEK).kept == {}
        assert 2_000_000 <= largest <= 2_300_000
        [sums] = duck(place, "SELECT count(*), sum(octet_length(payload)) FROM archive")
        assert sums == (12, 10 * 300_000 + 2 * 2_000_000)

    def test_go_to_any_storage_of_fsspec(self, archived: Archived, new_store: MakeStore, schema: str) -> None:
        store = new_store(archive_export=f"memory://{schema}")
        archived.fill(archived.ago(8), 10)
        assert drop_days(store, WEEK).dropped == [archived.ago(8)]
        found = sorted(fsspec.filesystem("memory").find(f"/{schema}"))
        day = f"/{schema}/outbox_archive/day={archived.ago(8)}"
        assert found == [f"{day}/_manifest.json", f"{day}/part-0.parquet"]


def test_the_measure_of_rows_differs_if_a_value_was_altered_or_moved(archived: Archived) -> None:
    def row(**values: Any) -> tuple[Any, ...]:
        plain = {"integer": 1, "bytes": b"", "time": 1, "text": ""}
        return tuple(values.get(name, plain[kind]) for name, kind in archive_files.COLUMNS.items())

    others = [row(payload=b"\0"), row(history=None), row(seq=2), row(destination="1:a"), row(key="1:a")]
    measures = {archive_files.measured(rows) for rows in ([], [row()], [row(), row()], *([each] for each in others))}
    assert len(measures) == 8


class TestNothingIsDroppedUnverified:
    @pytest.mark.parametrize("damage", ["altered", "cut"])
    def test_an_altered_or_damaged_file_is_found_and_written_again(
        self, archived: Archived, exporter: Store, place: Path, monkeypatch: pytest.MonkeyPatch, damage: str
    ) -> None:
        """An altered one is whole, as far as its format can tell, but for one row."""
        archived.fill(archived.ago(8), 10, payload=func.convert_to(cast(func.gen_random_uuid(), Text), "UTF8"))
        verify, payload = exporting.verified, archive_files.PAYLOAD

        def spoil(storage: DayStorage, file: str) -> Any:
            path = directory(place, archived) / file
            with path.open("rb") as source:
                first, *rows = archive_files.read(source)
            with path.open("wb") as target:
                altered = (*first[:payload], first[payload] + b" ", *first[payload + 1 :])
                archive_files.write(target, [[altered, *rows]])
            if damage == "cut":
                path.write_bytes(b"PAR1")
            return verify(storage, file)

        with monkeypatch.context() as spoiled:
            spoiled.setattr(exporting, "verified", spoil)
            [why] = drop_days(exporter, WEEK).kept.values()
        assert archived.count() == 10
        if damage == "altered":
            assert "the file does not hold what the database holds" in why
            assert list(directory(place, archived).iterdir()) == []
        assert drop_days(exporter, WEEK).dropped == [archived.ago(8)]
        assert duck(place, "SELECT count(*) FROM archive") == [(10,)]

    def test_a_storage_that_is_away(
        self, archived: Archived, exporter: Store, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where it should be mounted there is nothing; a directory in its place would hide that."""
        monkeypatch.setattr(retention, "RUN_SECONDS", 60)  # a slow machine would leave the second day to the next run
        archived.fill(archived.ago(9), 2)
        archived.fill(archived.ago(8), 2)
        place.rmdir()
        done = maintain(exporter)
        assert list(done.kept) == [archived.ago(9), archived.ago(8)]
        assert f"there is no directory {place}" in done.kept[archived.ago(8)]
        assert (archived.count(), place.exists()) == (4, False)
        place.mkdir()
        assert maintain(exporter).dropped == [archived.ago(9), archived.ago(8)]

    def test_a_storage_that_is_full(self, archived: Archived, exporter: Store, place: Path) -> None:
        """A process that may write no larger files meets the same in the middle of one."""
        archived.fill(archived.ago(8), 3_000, payload=func.uuid_send(func.gen_random_uuid()))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        try:
            [why] = drop_days(exporter, WEEK).kept.values()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "File too large" in why
        assert (archived.count(), list(directory(place, archived).iterdir())) == (3_000, [])
        assert drop_days(exporter, WEEK).dropped == [archived.ago(8)]

    def test_errors_do_not_show_the_password_of_the_storage(self, archived: Archived, new_store: MakeStore) -> None:
        archived.fill(archived.ago(8))
        for url, says in {
            "ftp://{}127.0.0.1:1/outbox": "",
            "gs://{}bucket/outbox": r"'outbox-tasks\[archive\]'",
        }.items():
            store = new_store(archive_export=url.format("user:s3cret@"))
            [why] = drop_days(store, WEEK).kept.values()
            assert re.search(f"{url.format('')}.*{says}", why), why
            assert "s3cret" not in why


class TestRepetition:
    def test_a_verified_file_is_not_written_again(self, archived: Archived, exporter: Store, place: Path) -> None:
        archived.fill(archived.ago(8), 10)
        [first] = export_days(exporter, f"file://{place}")
        file = directory(place, archived) / "part-0.parquet"
        written = file.stat().st_mtime_ns
        [second] = export_days(exporter, f"file://{place}")
        assert (first.written, second.written, second.rows) == (True, False, 10)
        assert drop_days(exporter, WEEK).dropped == [archived.ago(8)]
        assert file.stat().st_mtime_ns == written

    @pytest.mark.parametrize("lost", ["part-0.parquet", "_manifest.json"])
    def test_a_missing_file_is_written_again(self, archived: Archived, exporter: Store, place: Path, lost: str) -> None:
        archived.fill(archived.ago(8), 10)
        export_days(exporter, f"file://{place}")
        (directory(place, archived) / lost).unlink()
        (directory(place, archived) / "_part-0.parquet.1.part").write_text("a killed process left it")
        assert drop_days(exporter, WEEK).dropped == [archived.ago(8)]
        assert {path.name for path in directory(place, archived).iterdir()} == {"part-0.parquet", "_manifest.json"}
        assert duck(place, "SELECT count(*) FROM archive") == [(10,)]
        assert [part["file"] for part in manifest(place, archived)] == ["part-0.parquet"]

    def test_the_part_of_another_database_stays_in_the_manifest(
        self, archived: Archived, exporter: Store, place: Path
    ) -> None:
        """Its days have other numbers. It may be the only copy of its rows."""
        archived.fill(archived.ago(8), 3)
        export_days(exporter, f"file://{place}")
        file = directory(place, archived) / "_manifest.json"
        former = json.loads(file.read_text())
        former["parts"][0]["number"] += 1000
        file.write_text(json.dumps(former))
        archived.fill(archived.ago(8), 2)
        export_days(exporter, f"file://{place}")
        assert [(part["rows"], part["file"]) for part in manifest(place, archived)] == [
            (3, "part-0.parquet"),
            (5, "part-1.parquet"),
        ]
        assert all((directory(place, archived) / part["file"]).exists() for part in manifest(place, archived))


class TestCommand:
    @pytest.fixture
    def run(self, command: Command) -> Command:
        return partial(command, "export")

    def test_writes_a_day_and_drops_nothing(self, archived: Archived, run: Command, place: Path) -> None:
        archived.make_day(archived.ago(5))  # of which there are no rows
        for days in (9, 3):
            archived.fill(archived.ago(days), 5)
        done = run("--day", str(archived.ago(3)), "--to", f"file://{place}", "--json")
        [part] = json.loads(done.stdout)["parts"]
        assert (part["day"], part["rows"], part["written"]) == (str(archived.ago(3)), 5, True)
        assert part["file"] == f"file://{directory(place, archived, 3)}/part-0.parquet"
        done = run("--to", f"file://{place}")
        assert done.exit_code == 0
        first, second = done.stdout.splitlines()
        assert (first.endswith("verified"), second.endswith("verified, there already")) == (True, True)
        assert archived.count() == 10

    def test_says_why_it_writes_nothing(self, archived: Archived, run: Command, place: Path, exporter: Store) -> None:
        archived.fill(archived.today)
        for day in (archived.today, "2999-01-01"):
            done = run("--day", str(day), "--to", f"file://{place}")
            assert (done.exit_code, list(place.iterdir())) == (1, [])
            assert "rows may still be added to it" in done.stderr
        done = run("--day", "2001-02-03", "--to", f"file://{place}")
        assert (done.exit_code, done.stdout) == (0, "There are no rows of 2001-02-03.\n")
        assert run().exit_code == 2
        with exporter.alone("maintain"):
            done = run("--to", f"file://{place}")
        assert done.exit_code == 1
        assert "Another process runs the maintenance" in done.stderr
