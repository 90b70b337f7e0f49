"""The statements that read the archive day by day, and delete old rows.

A day is a partition. Each statement reads a range of its pages, so that no transaction is long, however large the day
is, and nothing is sorted or searched. The default partition has the rows of days without a partition; it is read in the
same way.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    DateTime,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    cast,
    column,
    delete,
    extract,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    table,
)
from sqlalchemy.dialects.postgresql import BIT, REGCLASS
from sqlalchemy.sql import ColumnElement, Delete, Executable
from sqlalchemy.types import UserDefinedType

from outbox_tasks.database.pieces import seconds
from outbox_tasks.database.schema import Tables, function
from outbox_tasks.operating.archive.files import COLUMNS

NAME = "outbox_archive_"
"""The name of a day's partition, before its date."""

DEFAULT, GONE, REST = "outbox_archive_default", "outbox_archive_gone_", "outbox_archive_rest_"
"""The name of the default partition; the beginning of the name of a partition that was detached, to be dropped; and of
a former default partition, whose rows are to be moved back."""

LOT = 16 * 1024 * 1024
"""Bytes of payload that are read at a time; a larger message is read alone."""

FIRST: ColumnElement[Any] = literal_column("timestamptz '0001-01-01 00:00:00+00'", DateTime(True))
LAST: ColumnElement[Any] = literal_column("timestamptz '9999-12-31 23:59:59.999999+00'", DateTime(True))
"""Bounds of the times in files. PostgreSQL has earlier and later ones."""

COLON, NONE, X, UTF8, HEX = (literal_column(f"'{text}'", Text) for text in (":", "~", "x", "UTF8", "hex"))

CLASSES = table(
    "pg_class", column("oid"), column("relname"), column("relnamespace"), column("relpartbound"), schema="pg_catalog"
)
INHERITS = table("pg_inherits", column("inhrelid"), column("inhparent"), schema="pg_catalog")


class Tid(UserDefinedType[str]):
    """The place of a row in PostgreSQL, as text: `(page,number)`."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "tid"


place: ColumnElement[str] = literal_column("ctid", Tid)


def partition(t: Tables, name: str) -> Table:
    """A partition, or a former one, as a table."""
    return t.archive.to_metadata(MetaData(schema=t.archive.schema), name=name)


def partitions(t: Tables) -> Executable:
    """The partitions of the archive, the detached ones, and tables that are named like one: name, attached, since and
    until (null if it has no such bounds), pages, bytes with indexes, and the time now."""
    schema = t.archive.schema
    parent = cast(literal(f'"{schema}".{t.archive.name}' if schema else t.archive.name), REGCLASS)
    c, i, archive = CLASSES, INHERITS, CLASSES.alias("archive")
    bounds = func.regexp_match(
        func.pg_get_expr(c.c.relpartbound, c.c.oid), r"^FOR VALUES FROM \('(.*)'\) TO \('(.*)'\)$", type_=ARRAY(Text)
    )
    attached = i.c.inhparent.is_not(None)
    page = cast(func.current_setting("block_size"), BigInteger)
    return (
        select(
            c.c.relname.label("name"),
            attached.label("attached"),
            cast(bounds[1], DateTime(True)).label("since"),
            cast(bounds[2], DateTime(True)).label("until"),
            (func.pg_relation_size(c.c.oid, type_=BigInteger) // page).label("pages"),
            func.pg_total_relation_size(c.c.oid).label("bytes"),
            func.clock_timestamp().label("now"),
        )
        .select_from(
            archive.join(c, c.c.relnamespace == archive.c.relnamespace).outerjoin(
                i, (i.c.inhrelid == c.c.oid) & (i.c.inhparent == archive.c.oid)
            )
        )
        .where(
            archive.c.oid == parent,
            or_(attached, c.c.relname.regexp_match(rf"^({NAME}\d{{8}}|{GONE}\d{{8}}|{REST}\d{{20}})$")),
        )
        .order_by(c.c.relname)
    )


def _between() -> list[ColumnElement[bool]]:
    """Parameters: first, last (places; the first is included, the last is not)."""
    first, last = (cast(bindparam(name, type_=Text), Tid) for name in ("first", "last"))
    return [place >= first, place < last]


def within(p: Table) -> list[ColumnElement[bool]]:
    """Parameters: as for `_between`; since, until."""
    return [
        *_between(),
        p.c.finished_at >= bindparam("since", type_=DateTime(True)),
        p.c.finished_at < bindparam("until", type_=DateTime(True)),
    ]


def days(p: Table) -> Executable:
    """The days (UTC) that have rows in a range of pages. Parameters: as for `within`."""
    day = func.date_trunc("day", func.timezone("UTC", p.c.finished_at)).label("day")
    return select(day).where(*within(p)).distinct()


def lots(p: Table) -> Executable:
    """Divides a range of pages into lots: the first and the last place of each. A lot has at most `LOT` bytes of
    payload and one row more. Reads no payload. Parameters: as for `within`."""
    so_far = func.sum(func.octet_length(p.c.payload), type_=BigInteger).over(order_by=place)
    row = select(place.label("place"), (so_far // literal_column(str(LOT), BigInteger)).label("lot")).where(*within(p))
    placed = row.subquery("placed")
    ends = {"first": func.min(placed.c.place), "last": func.max(placed.c.place)}
    found = select(*(cast(end, Text).label(name) for name, end in ends.items()))
    return found.group_by(placed.c.lot).order_by(placed.c.lot)


def rows(p: Table) -> Executable:
    """The rows of a lot, as they are written to files. Parameters: first and last (both included), since, until."""
    *rest, _, since, until = within(p)
    last = place <= cast(bindparam("last", type_=Text), Tid)
    return select(*(as_written(p, name).label(name) for name in COLUMNS)).where(*rest, last, since, until)


def measured(p: Table) -> Executable:
    """The number of rows in a range of pages, and the sum of their digests: see `archive.files.measured`.
    Parameters: as for `within`."""
    shown = select(*(as_written(p, name).label(name) for name in COLUMNS)).where(*within(p)).subquery("shown")
    texts = (cast(shown.c[name], Text) for name in COLUMNS if name != "payload")
    # Each with its length before it, so that no two rows look alike.
    framed = reduce(add, (func.coalesce(cast(func.length(text), Text) + COLON + text, NONE) for text in texts))
    digest = func.encode(func.sha256(func.convert_to(framed, UTF8).op("||")(shown.c.payload)), HEX)
    number = cast(cast(X + func.left(digest, literal_column("16")), BIT(64)), BigInteger)
    total = func.coalesce(func.sum(number), literal_column("0"))
    return select(func.count().label("rows"), total.label("total")).select_from(shown)


def as_written(p: Table, name: str) -> ColumnElement[Any]:
    """A column as it is written to files: text, integer or bytes."""
    if COLUMNS[name] == "time":
        bounded = func.least(func.greatest(p.c[name], FIRST), LAST)
        return cast(extract("epoch", bounded) * literal_column("1000000", Integer), BigInteger)
    return cast(p.c[name], Text) if name in ("id", "headers", "history") else p.c[name]


def remove(p: Table) -> Delete:
    """Delete the rows of a day in a range of pages. Parameters: as for `within`."""
    return delete(p).where(*within(p))


def move(t: Tables, p: Table) -> Executable:
    """Move rows of a former default partition back into the archive; returns how many. Parameters: as for
    `_between`."""
    names = [c.name for c in p.c]
    gone = delete(p).where(*_between()).returning(*p.c).cte("gone")
    back = insert(t.archive).from_select(names, select(*(gone.c[name] for name in names)))
    return select(func.count()).select_from(gone).add_cte(back.cte("back"))


def call(schema: str | None, name: str, *arguments: Any) -> Executable:
    """Call the function `outbox_archive_<name>` of the migrations. `renew_default`, `detach` and `await_settles` return
    False if somebody is in the way."""
    return select(function(schema, f"outbox_archive_{name}")(*arguments))


def forget(old: Table, time: ColumnElement[Any], *only: ColumnElement[bool]) -> Delete:
    """Delete old rows of a table. Parameter: keep (seconds)."""
    return delete(old).where(*only, time < func.now() - seconds("keep"))
