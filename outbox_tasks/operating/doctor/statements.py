"""The doctor's statements. They read catalogs, statistics and small tables, and a bounded number of rows of large ones.

They change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    DateTime,
    Float,
    Integer,
    SmallInteger,
    TableClause,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    exists,
    extract,
    false,
    func,
    literal_column,
    or_,
    select,
    table,
    true,
)
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.sql import ColumnElement, FromClause, Select
from sqlalchemy.sql.selectable import LateralFromClause

from outbox_tasks.database.activity import SERVER
from outbox_tasks.database.pieces import json_rows, seconds, timeline
from outbox_tasks.database.schema import Tables, function

MOST = 10_000
"""Rows are counted up to this."""


def _catalog(catalog: str, /, **columns: Any) -> TableClause:
    return table(catalog, *(column(title, kind) for title, kind in columns.items()), schema="pg_catalog")


TIME = DateTime(True)
XID = Text  # only compared for equality
CLASS = _catalog("pg_class", oid=OID, relname=Text, relnamespace=OID, reloptions=ARRAY(Text))
ATTRIBUTE = _catalog("pg_attribute", attrelid=OID, attname=Text, attnum=SmallInteger)
NAMESPACE = _catalog("pg_namespace", oid=OID, nspname=Text)
INDEX = _catalog(
    "pg_index", indexrelid=OID, indrelid=OID, indisvalid=Boolean, indisready=Boolean, indnkeyatts=SmallInteger
)
FUNCTION = _catalog("pg_proc", oid=OID, proname=Text, pronamespace=OID)
STATISTICS = _catalog(
    "pg_stat_all_tables",
    relid=OID,
    n_live_tup=BigInteger,
    n_dead_tup=BigInteger,
    last_vacuum=TIME,
    last_autovacuum=TIME,
)
ACTIVITY = _catalog(
    "pg_stat_activity", pid=Integer, datname=Text, usename=Text, application_name=Text, state=Text, backend_type=Text,
    backend_xid=Text, backend_xmin=Text, xact_start=TIME, query=Text,
)  # fmt: skip
LOCKS = _catalog(
    "pg_locks", pid=Integer, locktype=Text, mode=Text, relation=OID, classid=OID, objsubid=SmallInteger,
    virtualtransaction=Text, transactionid=XID,
)  # fmt: skip
PREPARED = _catalog("pg_prepared_xacts", transaction=XID, gid=Text, owner=Text, database=Text, prepared=TIME)
SLOTS = _catalog("pg_replication_slots", slot_name=Text, active=Boolean, xmin=Text)
SETTINGS = _catalog("pg_settings", name=Text, setting=Text)
KEPT = _catalog("pg_prepared_statements", name=Text)


def server() -> Select[Any]:
    """The server's version, our role and database, and whether it takes writes."""
    return select(
        func.current_setting("server_version").label("version"),
        func.pg_is_in_recovery().label("standby"),
        (func.current_setting("transaction_read_only") == "on").label("read_only"),
        func.current_user().label("role"),
        func.current_database().label("database"),
    )


def clock() -> Select[Any]:
    """The database's time, in seconds since 1970."""
    return select(cast(extract("epoch", func.clock_timestamp()), Float).label("now"))


def on_timeline(t: Tables) -> Select[Any]:
    """The database's timeline: as it is now, as the relay knows it, the one before, since when, and whether that is
    still worth a word."""
    h = t.heartbeats
    known = [h.c.facts[name].astext.label(name) for name in ("timeline", "before", "changed")]
    changed = cast(h.c.facts["changed"].astext, DateTime(True))
    fresh = func.coalesce(changed > func.now() - seconds("fresh"), false()).label("fresh")
    return select(*known, timeline().label("now"), fresh).where(h.c.name == SERVER)


def backend() -> Select[Any]:
    """The server process that answers, and how many prepared statements of psycopg it keeps."""
    kept = select(func.count()).select_from(KEPT).where(KEPT.c.name.like(r"\_pg3\_%")).scalar_subquery()
    return select(func.pg_backend_pid().label("pid"), kept.label("kept"))


def options() -> Select[Any]:
    """Settings of our connections. Parameter: names (array)."""
    s = SETTINGS
    return select(s.c.name, s.c.setting).where(s.c.name == func.any_(bindparam("names", type_=ARRAY(Text))))


def upgraded(t: Tables) -> Select[Any]:
    """Seconds since the last migration."""
    return select(_age(func.max(t.versions.c.applied_at)).label("age"))


def rights(t: Tables) -> Select[Any]:
    """The rights that our role lacks. Parameter: needed (JSON rows of relation and privilege)."""
    c, needed = CLASS, json_rows("needed", relation=Text, privilege=Text)
    found = needed.join(c, c.c.relname == needed.c.relation)
    # A right on some columns: "UPDATE (count, facts)".
    name, columns = (func.split_part(needed.c.privilege, literal_column("' ('"), literal_column(n)) for n in "12")
    some = func.string_to_array(func.rtrim(columns, literal_column("')'")), literal_column("', '"), type_=ARRAY(Text))
    lacking = exists().where(
        ATTRIBUTE.c.attrelid == c.c.oid,
        ATTRIBUTE.c.attname == func.any_(some),
        ~func.has_column_privilege(c.c.oid, ATTRIBUTE.c.attnum, name),
    )
    granted = case((columns == literal_column("''"), func.has_table_privilege(c.c.oid, name)), else_=~lacking)
    return select(needed.c.relation, needed.c.privilege).select_from(found).where(_in_our_schema(t), ~granted)


def uncallable(t: Tables) -> Select[Any]:
    """The functions that our role may not call. Parameter: names (array)."""
    c, f = CLASS, FUNCTION
    named = f.c.proname == func.any_(bindparam("names", type_=ARRAY(Text)))
    return (
        select(cast(func.regprocedure(f.c.oid), Text).label("function"))
        .select_from(f.join(c, c.c.relnamespace == f.c.pronamespace))
        .where(c.c.relname == t.messages.name, _in_our_schema(t), named)
        .where(~func.has_function_privilege(f.c.oid, "EXECUTE"))
        .order_by(f.c.proname)
    )


def indexes(t: Tables) -> Select[Any]:
    """The indexes of the tables: their columns, and whether PostgreSQL can use them. Parameter: tables (array)."""
    c, x, named = CLASS, INDEX, CLASS.alias("named")
    place = (
        func.generate_series(literal_column("1"), cast(x.c.indnkeyatts, Integer))
        .table_valued("n")
        .render_derived(name="place")
    )
    columns = select(func.pg_get_indexdef(x.c.indexrelid, place.c.n, True)).select_from(place).correlate(x)
    return (
        select(c.c.relname.label("table"), named.c.relname.label("name"))
        .add_columns((x.c.indisvalid & x.c.indisready).label("valid"))
        .add_columns(func.array(columns.scalar_subquery()).label("columns"))
        .select_from(c.join(x, x.c.indrelid == c.c.oid).join(named, named.c.oid == x.c.indexrelid))
        .where(c.c.relname == func.any_(bindparam("tables", type_=ARRAY(Text))), _in_our_schema(t))
    )


def vacuuming(t: Tables) -> Select[Any]:
    """The live and dead rows of tables, by the statistics; when each was vacuumed; its options; and whether the server
    runs autovacuum at all. Parameter: tables (array)."""
    s, c = STATISTICS, CLASS
    vacuumed = func.greatest(s.c.last_vacuum, s.c.last_autovacuum)
    return (
        select(c.c.relname.label("name"), s.c.n_live_tup.label("live"), s.c.n_dead_tup.label("dead"))
        .add_columns(_age(vacuumed).label("vacuumed"))
        .add_columns(c.c.reloptions.label("options"))
        .add_columns(func.current_setting("autovacuum").label("autovacuum"))
        .add_columns(func.current_setting("track_counts").label("track_counts"))
        .select_from(c.join(s, s.c.relid == c.c.oid))
        .where(c.c.relname == func.any_(bindparam("tables", type_=ARRAY(Text))), _in_our_schema(t))
        .order_by(c.c.relname)
    )


def transactions(t: Tables) -> Select[Any]:
    """The sessions of this database whose transaction is older than `long` seconds, or than `soon` if it holds up all
    keys. `holds`: it keeps dead rows; `keys`: how many keys it has written messages with."""
    a = ACTIVITY
    marks = _marks(t, a, lambda lock: lock.c.pid == a.c.pid)
    age = func.clock_timestamp() - a.c.xact_start
    return (
        select(a.c.pid, a.c.usename.label("role"), a.c.application_name.label("application"), a.c.state)
        .add_columns(_age(a.c.xact_start).label("age"))
        .add_columns((a.c.backend_xmin.is_not(None) | a.c.backend_xid.is_not(None)).label("holds"))
        .add_columns(marks.c["keys"], marks.c.all_keys)
        .select_from(a.join(marks, true()))
        .where(
            a.c.datname == func.current_database(),
            a.c.pid != func.pg_backend_pid(),
            or_(age > seconds("long"), and_(marks.c.all_keys, age > seconds("soon"))),
        )
        .order_by(a.c.xact_start)
        .limit(MOST)
    )


def oldest_snapshot() -> Select[Any]:
    """The session of this database that holds the oldest snapshot. Since when: null, if our role may not see it."""
    a = ACTIVITY
    return (
        select(a.c.pid, a.c.usename.label("role"), a.c.application_name.label("application"))
        .add_columns(_age(a.c.xact_start).label("age"))
        .where(a.c.datname == func.current_database(), a.c.pid != func.pg_backend_pid(), a.c.backend_xmin.is_not(None))
        .order_by(func.age(a.c.backend_xmin).desc(), a.c.xact_start)
        .limit(1)
    )


def prepared(t: Tables) -> Select[Any]:
    """The prepared transactions of this database that are older than `long` seconds, and how many keys each has
    written messages with."""
    p = PREPARED
    # No process runs it. Its locks have the same virtual transaction as the lock of its transaction id.
    own = LOCKS.alias("own")
    place = select(own.c.virtualtransaction).where(own.c.pid.is_(None), own.c.transactionid == p.c.transaction)
    held = place.limit(1).correlate(p).scalar_subquery()
    marks = _marks(t, p, lambda lock: lock.c.pid.is_(None) & (lock.c.virtualtransaction == held))
    old = p.c.prepared < func.clock_timestamp() - seconds("long")
    return (
        select(p.c.gid, p.c.owner, _age(p.c.prepared).label("age"), marks.c["keys"])
        .select_from(p.join(marks, true()))
        .where(p.c.database == func.current_database(), old)
    )


def slots() -> Select[Any]:
    """The replication slots that keep dead rows for a standby; `age`: since how many transactions."""
    s = SLOTS
    age = func.age(s.c.xmin).label("age")
    return select(s.c.slot_name.label("name"), s.c.active, age).where(s.c.xmin.is_not(None))


def hidden() -> Select[Any]:
    """The number of sessions of this database that our role may not look into."""
    a = ACTIVITY
    unseen = a.c.query == literal_column("'<insufficient privilege>'")
    return select(func.count().label("sessions")).where(a.c.datname == func.current_database(), unseen)


def _marks(t: Tables, whose: TableClause, theirs: Callable[[FromClause], ColumnElement[bool]]) -> LateralFromClause:
    """The advisory locks of a transaction that has written to this very table (see `outbox_ordered`): for how many
    keys, and whether for all of them."""
    written, mark = LOCKS.alias("written"), LOCKS.alias("mark")
    classed = cast(mark.c.classid, BigInteger).op(">>")(literal_column("8"))
    every = classed == function(t.messages.schema, "outbox_all_keys")()
    wrote = exists(
        select(written.c.mode)
        .where(theirs(written), written.c.relation == _oid(t, "outbox_ready"), written.c.mode == "RowExclusiveLock")
        .correlate(whose)
    )
    return (
        select(func.count(classed.distinct()).label("keys"))
        .add_columns(func.coalesce(func.bool_or(every), false()).label("all_keys"))
        .where(theirs(mark), mark.c.locktype == "advisory", mark.c.objsubid == 1, mark.c.mode == "ShareLock", wrote)
        .correlate(whose)
        .lateral("marks")
    )


def _oid(t: Tables, name: str) -> ColumnElement[Any]:
    return select(CLASS.c.oid).where(CLASS.c.relname == name, _in_our_schema(t)).scalar_subquery()


def _in_our_schema(t: Tables) -> ColumnElement[bool]:
    """Whether a row of `CLASS` is in our schema. Needs no right on the schema."""
    if t.messages.schema is None:
        return func.pg_table_is_visible(CLASS.c.oid)
    return CLASS.c.relnamespace == (
        select(NAMESPACE.c.oid).where(NAMESPACE.c.nspname == str(t.messages.schema)).scalar_subquery()
    )


def _age(moment: Any) -> ColumnElement[float]:
    return cast(extract("epoch", func.clock_timestamp() - moment), Float)
