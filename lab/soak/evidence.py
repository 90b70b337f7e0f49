"""Reads what a run leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import redis
from sqlalchemy import ColumnElement, column, select, table

from lab.soak.ledger import COMMITTED, WITHDRAWN, noted, written
from lab.soak.stage import SINGLES, Stage
from lab.soak.verdict import Arrival, Evidence, Row, Verdict

PAGE = 5000
COLUMNS = ("id", "destination", "key", "seq", "state", "last_error_code")


def evidence(stage: Stage, **more: Any) -> Evidence:
    """All of it, after the relay and the application have stopped."""
    schema = stage.settings.database_schema
    traced = stage.trace.check()
    columns: list[ColumnElement[Any]] = [column(name) for name in COLUMNS]
    rows = select(*columns).select_from(table("outbox_all", schema=schema))
    with stage.engine.connect() as connection:
        return Evidence(
            written=written(connection, schema),
            acknowledged=dict(noted(stage.options.directory, COMMITTED)),
            withdrawn=frozenset(id for id, _ in noted(stage.options.directory, WITHDRAWN)),
            rows={str(id): Row(*rest) for id, *rest in connection.execute(rows)},
            arrivals=[arrival for name in SINGLES for arrival in _arrivals(stage.destination.url, name)],
            transitions=traced.counts,
            impossible=[str(wrong) for wrong in traced.wrong],
            **more,
        )


def _arrivals(url: str, stream: str) -> Iterator[Arrival]:
    """Every entry of the stream. Its id has the milliseconds of this machine's clock."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        last = "-"
        while entries := cast(list[tuple[str, dict[str, str]]], client.xrange(stream, min=last, count=PAGE)):
            for number, fields in entries:
                yield Arrival(fields["ce_id"], int(number.partition("-")[0]) / 1000)
            last = f"({entries[-1][0]}"


def keep(records: Evidence, directory: Path) -> None:
    """Write it down, a line for each record, for whoever looks into it."""
    (directory / "impossible.txt").write_text("\n".join(records.impossible))
    for name in ("written", "arrivals", "happened"):
        lines = (json.dumps(record._asdict()) for record in getattr(records, name))
        (directory / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    rows = (json.dumps({"id": id, **row._asdict()}) for id, row in records.rows.items())
    (directory / "rows.jsonl").write_text("".join(f"{line}\n" for line in rows))


def keep_lives(stage: Stage, verdict: Verdict) -> None:
    """Write down all that happened to the rows of messages with which something is wrong."""
    lives = ("\n  ".join([id, *stage.trace.life(id)]) for id in verdict.suspects)
    (stage.options.directory / "lives.txt").write_text("\n".join(lives))
