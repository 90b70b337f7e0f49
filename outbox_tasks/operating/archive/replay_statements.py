"""The statements that replay messages of the archive.

`kinds` and `chosen` read a range of pages of a day's partition, as an export does. Their parameters are those of
`statements.rows` and of `find_statements`, and after (a seq; earlier messages were replayed before).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    DateTime,
    LargeBinary,
    Table,
    Text,
    Uuid,
    bindparam,
    cast,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.sql import ColumnElement, Select

from outbox_tasks.database.pieces import PRIORITIES, json_rows, once, probe
from outbox_tasks.database.schema import Tables
from outbox_tasks.model import TASK_HEADER
from outbox_tasks.operating import audit
from outbox_tasks.operating.archive.files import COLUMNS
from outbox_tasks.operating.archive.statements import as_written, within
from outbox_tasks.operating.messages.find_statements import wanted

KIND = ("destination", "event_type", "state")
"""The columns by which messages are counted."""

ROW: dict[str, Any] = {
    **dict.fromkeys(("id", "of"), Uuid),
    **dict.fromkeys(("event_type", "aggregate_type", "aggregate_id", "destination", "key", "content_type"), Text),
    "data": Text,
    "headers": JSONB,
    "created_at": DateTime(True),
}
"""A copy to write: its payload is `data`, in base64; `of` is the id of the message that it copies."""


def kinds(p: Table) -> Select[Any]:
    """The number of wanted messages of each kind, and the id of one of them."""
    kind = [p.c[name] for name in KIND]
    example = cast(func.min(cast(p.c.id, Text)), Uuid).label("id")  # there is no min() of a uuid before PostgreSQL 18
    counts = (_is_task(p), func.count().label("count"), example)
    return select(*kind, *counts).where(*_wanted(p)).group_by(*kind, _is_task(p))


def chosen(p: Table) -> Select[Any]:
    """The wanted messages: seq, id, and the bytes of the payload, which is not read."""
    return select(p.c.seq, p.c.id, func.octet_length(p.c.payload).label("size")).where(*_wanted(p))


def named(t: Tables) -> Select[Any]:
    """These messages: their kind, and as in `chosen`; of several with one id, the last one last. Parameter: ids
    (array)."""
    a = t.archive
    asked = func.unnest(bindparam("ids", type_=ARRAY(Uuid))).table_valued("id", name="asked").render_derived()
    found = (*(a.c[name] for name in KIND), _is_task(a), a.c.seq, a.c.id, func.octet_length(a.c.payload).label("size"))
    rows = select(*found).select_from(asked.join(a, probe(a.c.id, asked.c.id)))
    return rows.order_by(a.c.finished_at)


def originals(p: Table) -> Select[Any]:
    """These messages, as they are written to files. Parameters: ids, seqs (arrays of the same length)."""
    both = (bindparam("ids", type_=ARRAY(Uuid)), bindparam("seqs", type_=ARRAY(BigInteger)))
    asked = func.unnest(*both).table_valued("id", "seq", name="asked").render_derived()
    rows = select(*(as_written(p, name).label(name) for name in COLUMNS))
    return rows.select_from(asked.join(p, probe(p.c.id, asked.c.id) & (p.c.seq == asked.c.seq))).order_by(asked.c.seq)


def replay(t: Tables) -> Select[Any]:
    """Write copies, due now, behind fresh messages, in the order of the rows. A copy whose id is that of a message
    that waits is not written. Counts the written ones in the audit, and notes there how far the replay got.

    Returns their ids. Parameters: row (JSON rows as in `ROW`), person, reason, entry (of the audit), place (a fact).
    """
    m, row = t.messages, json_rows("row", **ROW)
    now = once(func.clock_timestamp())
    by = {"by": bindparam("person", type_=Text), "why": bindparam("reason", type_=Text), "of": cast(row.c.of, Text)}
    noted = {"at": now, "what": literal_column("'replayed'", Text), **by, "entry": bindparam("entry", type_=BigInteger)}
    entry = func.jsonb_strip_nulls(func.jsonb_build_object(*(part for fact in noted.items() for part in fact)))
    values: dict[str, Any] = {
        **{name: row.c[name] for name in ROW if name not in ("of", "data")},
        "payload": func.decode(row.c.data, literal_column("'base64'"), type_=LargeBinary),
        "locked_until": now,
        # max_age counts from here.
        "deliver_at": now,
        "priority": literal_column(str(PRIORITIES["low"])),
        "history": func.jsonb_build_array(entry),
    }
    written = insert(m).from_select(list(values), select(*values.values()).select_from(row))
    copies = written.on_conflict_do_nothing(index_elements=[m.c.id]).returning(cast(m.c.id, Text).label("id"))
    made = copies.cte("copies")
    return select(made.c.id).add_cte(audit.counted(t, made, bindparam("place", type_=JSONB)))


def _is_task(p: Table) -> ColumnElement[Any]:
    """Whether it is a stored Celery task."""
    has = p.c.headers.op("?")(literal_column(f"'{TASK_HEADER}'", Text))
    return has.label("task")


def _wanted(p: Table) -> list[ColumnElement[bool]]:
    return [*within(p), p.c.seq > bindparam("after", type_=BigInteger), *wanted(p.c)]
