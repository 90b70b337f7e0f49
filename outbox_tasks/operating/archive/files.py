"""A day of the archive as a file: its columns, its two formats, and its checksum.

The checksum is a sum over the rows, so their order does not matter. The database computes the same checksum in SQL
(keep/measured.sql). If a row was lost, doubled or altered on the way, the two differ.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, Any, NamedTuple

COLUMNS = {
    "id": "text",
    "seq": "integer",
    "destination": "text",
    "key": "text",
    "event_type": "text",
    "state": "text",
    "payload": "bytes",
    "content_type": "text",
    "headers": "text",
    "attempts": "integer",
    "last_error_code": "text",
    "last_error": "text",
    "aggregate_type": "text",
    "aggregate_id": "text",
    "created_at": "time",
    "finished_at": "time",
    "locked_by": "text",
    "history": "text",
}
"""The columns, in their order. Headers and history are JSON. Until they are written, times are microseconds since
1970."""

PAYLOAD = list(COLUMNS).index("payload")
TIMES = [name for name, kind in COLUMNS.items() if kind == "time"]

SUFFIXES = {"parquet": "parquet", "jsonl": "jsonl.gz"}

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

BATCH = 1000
"""Rows that are read back at a time."""

Row = Sequence[Any]
"""The values of `COLUMNS`."""


class Measure(NamedTuple):
    """The number of rows, and their checksum."""

    rows: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.rows} rows with the checksum {self.checksum}"

    @classmethod
    def of(cls, rows: int, total: int) -> Measure:
        """`total`: the sum of the rows' digests."""
        return cls(rows, f"{total % 2**64:016x}")


def measured(rows: Iterable[Row]) -> Measure:
    """The measure of rows that were read from a file."""
    count = total = 0
    for row in rows:
        count += 1
        total += _digest(row)
    return Measure.of(count, total)


def _digest(row: Row) -> int:
    """A number of 64 bits, of all values, the payload last. Each has its length before it, so that no two rows look
    alike."""
    texts = [value if value is None else str(value) for place, value in enumerate(row) if place != PAYLOAD]
    framed = "".join("~" if text is None else f"{len(text)}:{text}" for text in texts)
    digest = hashlib.sha256(framed.encode() + row[PAYLOAD]).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def write(file: IO[bytes], format: str, lots: Iterable[Sequence[Row]]) -> None:
    """Write rows, lot by lot; only one lot is in memory."""
    (_write_parquet if format == "parquet" else _write_jsonl)(file, lots)


def read(file: IO[bytes], format: str) -> Iterator[Row]:
    """The rows of a file. Raises various errors if the file is damaged."""
    return (_read_parquet if format == "parquet" else _read_jsonl)(file)


def _schema() -> Any:
    import pyarrow as pa

    kinds = {"text": pa.string(), "integer": pa.int64(), "bytes": pa.binary(), "time": pa.timestamp("us", "UTC")}
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])


def _write_parquet(file: IO[bytes], lots: Iterable[Sequence[Row]]) -> None:
    """A lot becomes a row group."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = _schema()
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for lot in lots:
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*lot, strict=True), schema, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _read_parquet(file: IO[bytes]) -> Iterator[Row]:
    import pyarrow as pa
    from pyarrow import parquet

    integers = pa.schema([(f.name, pa.int64() if f.name in TIMES else f.type) for f in _schema()])
    for batch in parquet.ParquetFile(file).iter_batches(BATCH, columns=list(COLUMNS)):
        plain = pa.Table.from_batches([batch]).cast(integers)
        yield from zip(*(column.to_pylist() for column in plain.columns), strict=True)


def _write_jsonl(file: IO[bytes], lots: Iterable[Sequence[Row]]) -> None:
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
        for lot in lots:
            packed.write("".join(json.dumps(_as_object(row), ensure_ascii=False) + "\n" for row in lot).encode())


def _as_object(row: Row) -> dict[str, Any]:
    """For JSON: the payload as text, or else in `payload_base64`. Most readers don't take NUL as text."""
    shown = dict(zip(COLUMNS, row, strict=True))
    for name in TIMES:
        shown[name] = (EPOCH + shown[name] * MICROSECOND).isoformat(timespec="microseconds").replace("+00:00", "Z")
    payload: bytes = shown["payload"]
    try:
        text = None if b"\0" in payload else payload.decode()
    except UnicodeDecodeError:
        text = None
    binary = None if text is not None else base64.b64encode(payload).decode()
    return {**shown, "payload": text, "payload_base64": binary}


def _read_jsonl(file: IO[bytes]) -> Iterator[Row]:
    with gzip.GzipFile(fileobj=file, mode="rb") as packed:
        for line in packed:
            shown = json.loads(line)
            binary = shown["payload_base64"]
            shown["payload"] = shown["payload"].encode() if binary is None else base64.b64decode(binary)
            for name in TIMES:
                shown[name] = (datetime.fromisoformat(shown[name]) - EPOCH) // MICROSECOND
            yield tuple(shown[name] for name in COLUMNS)
