"""A day of the archive as a file: its columns, its format, and its checksum.

The checksum is a sum over the rows, so their order does not matter. The database computes the same checksum in SQL
(keep/measured.sql). If a row was lost, doubled or altered on the way, the two differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

COLUMNS = {
    "id": "text", "seq": "integer", "destination": "text", "key": "text", "event_type": "text", "state": "text",
    "payload": "bytes", "content_type": "text", "headers": "text", "attempts": "integer", "last_error_code": "text",
    "last_error": "text", "aggregate_type": "text", "aggregate_id": "text", "created_at": "time",
    "finished_at": "time", "locked_by": "text", "history": "text",
}  # fmt: skip
"""The columns, in their order. Headers and history are JSON. Until they are written, times are microseconds since
1970."""

PAYLOAD = list(COLUMNS).index("payload")
TIMES = [name for name, kind in COLUMNS.items() if kind == "time"]

SUFFIX = ".parquet"

ROWS_A_BATCH = 1000
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


def _schema() -> Any:
    import pyarrow as pa

    kinds = {"text": pa.string(), "integer": pa.int64(), "bytes": pa.binary(), "time": pa.timestamp("us", "UTC")}
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])


def write(file: IO[bytes], lots: Iterable[Sequence[Row]]) -> None:
    """Write rows, lot by lot; only one lot is in memory. A lot becomes a row group."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = _schema()
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for lot in lots:
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*lot, strict=True), schema, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def read(file: IO[bytes]) -> Iterator[Row]:
    """The rows of a file. Raises various errors if the file is damaged."""
    import pyarrow as pa
    from pyarrow import parquet

    integers = pa.schema([(f.name, pa.int64() if f.name in TIMES else f.type) for f in _schema()])
    for batch in parquet.ParquetFile(file).iter_batches(ROWS_A_BATCH, columns=list(COLUMNS)):
        plain = pa.Table.from_batches([batch]).cast(integers)
        yield from zip(*(column.to_pylist() for column in plain.columns), strict=True)
