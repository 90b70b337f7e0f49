"""The statements of the audit: who did what, and why.

An act on many messages has one entry. It is made before the first message is changed; each batch adds its number in the
transaction that changes the messages. So the entry never says more than was done, even if the act is cut short.

No parameter is named like a column that its statement sets: SQLAlchemy would set the column too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Integer,
    Text,
    Uuid,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.sql import ColumnElement, FromClause, Select
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from outbox_tasks.database.schema import Tables
from outbox_tasks.text import many

FORM = "form"
"""The fact that tells the form of an act from another one with the same token."""

FORMER = "former"
"""The fact that holds the former payload of an edit, in base64."""

NONE = literal_column("'[]'::jsonb", JSONB)

ID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

CHANGED, KEPT = "changed", 1_000
"""The fact that holds the ids of the messages that a redrive has changed, and how many of them: the first ones."""


def opened(t: Tables, *, once: bool = False) -> ReturningInsert[Any]:
    """Make the entry of an act that is about to begin; returns its seq. Parameters: person (who), reason (why), action,
    target, facts; `once`: also token, and nothing is returned if an entry with this token is there already."""
    entry = insert(t.audit).values(
        who=bindparam("person", type_=Text),
        why=bindparam("reason", type_=Text),
        action=bindparam("action", type_=Text),
        target=bindparam("target", type_=Text),
        count=0,
        facts=bindparam("facts", type_=JSONB),
    )
    if once:
        entry = entry.values(once=bindparam("token", type_=Uuid))
        entry = entry.on_conflict_do_nothing(index_elements=[t.audit.c.once])
    return entry.returning(t.audit.c.seq)


def counted(t: Tables, changed: FromClause, facts: ColumnElement[Any] | None = None) -> CTE:
    """Add the number of rows of `changed` to an entry, and these facts. Parameter: entry (its seq)."""
    a = t.audit
    count = select(func.count()).select_from(changed).scalar_subquery()
    more = {} if facts is None else {"facts": a.c.facts.op("||")(facts)}
    return (
        update(a)
        .where(a.c.seq == bindparam("entry", type_=BigInteger))
        .values(count=a.c.count + count, **more)
        .returning(a.c.seq)
        .cte("audited")
    )


def ids_of(t: Tables, changed: FromClause) -> ColumnElement[Any]:
    """The fact for `counted` that holds the ids of `changed`, behind those of the batches before."""
    a, before = t.audit, _kept(t)
    room = func.greatest(literal_column("0"), literal_column(str(KEPT)) - func.jsonb_array_length(before))
    some = select(changed.c.id).limit(room).correlate(a).subquery("some")
    fresh = select(func.coalesce(func.jsonb_agg(some.c.id), NONE)).scalar_subquery()
    return func.jsonb_build_object(literal_column(f"'{CHANGED}'", Text), before.op("||")(fresh))


def _kept(t: Tables) -> ColumnElement[Any]:
    kept = t.audit.c.facts.op("->", return_type=JSONB)(literal_column(f"'{CHANGED}'", Text))
    return case((func.jsonb_typeof(kept) == literal_column("'array'"), kept), else_=NONE)


def changed_ids(t: Tables) -> Select[Any]:
    """The ids that the entry of a redrive keeps, and when it began (at). Parameter: entry (its seq)."""
    a = t.audit
    ids = func.jsonb_array_elements_text(_kept(t)).table_valued("id", name="kept").render_derived()
    own = a.c.seq == bindparam("entry", type_=BigInteger)
    id = case((ids.c.id.op("~")(literal_column(f"'{ID}'")), cast(ids.c.id, Uuid)))
    return select(id.label("id"), a.c.at).select_from(a.join(ids, true())).where(own)


def closed(t: Tables) -> ReturningUpdate[Any]:
    """Close the entry of an act that has ended; returns its seq. Parameters: entry; found (facts)."""
    a = t.audit
    own = a.c.seq == bindparam("entry", type_=BigInteger)
    facts = a.c.facts.op("||")(bindparam("found", type_=JSONB))
    return update(a).where(own).values(facts=facts, closed_at=func.clock_timestamp()).returning(a.c.seq)


def recorded(t: Tables, action: str, target: ColumnElement[Any], cause: FromClause, **facts: Any) -> CTE:
    """An entry for each row of `cause`, with these facts, made in the statement that acts. Parameters: person,
    reason."""
    columns = {
        "who": bindparam("person", type_=Text),
        "why": bindparam("reason", type_=Text),
        "action": literal_column(f"'{action}'", Text),
        "target": target,
        "facts": func.jsonb_strip_nulls(func.jsonb_build_object(*(part for fact in facts.items() for part in fact))),
        "closed_at": func.clock_timestamp(),
    }
    rows = select(*columns.values()).select_from(cause)
    return insert(t.audit).from_select(list(columns), rows).returning(t.audit.c.seq).cte("audited")


def entries(t: Tables) -> Select[Any]:
    """The latest acts, the last one first. Parameters: size, before (the seq that ends the page before; null: the first
    page)."""
    before = func.coalesce(bindparam("before", type_=BigInteger), literal_column("9223372036854775807"))
    return shown(t).where(t.audit.c.seq < before).order_by(t.audit.c.seq.desc()).limit(bindparam("size", type_=Integer))


def entry(t: Tables) -> Select[Any]:
    """One act. Parameter: entry (its seq)."""
    return shown(t).where(t.audit.c.seq == bindparam("entry", type_=BigInteger))


def about(t: Tables) -> Select[Any]:
    """The acts on one message, the first one first. Parameters: target (its id), named (array of seqs that its history
    names)."""
    a = t.audit
    named = func.unnest(bindparam("named", type_=ARRAY(BigInteger))).table_valued("seq", name="named").render_derived()
    # Two look-ups by index. With an OR, the planner would read the table.
    found = select(a.c.seq).where(a.c.target == bindparam("target", type_=Text)).union(select(named.c.seq)).cte("found")
    return shown(t).where(a.c.seq == any_(func.array(select(found.c.seq).scalar_subquery()))).order_by(a.c.seq)


def former(t: Tables) -> Select[Any]:
    """The payload before the edit of this entry, in base64. Parameter: entry (its seq)."""
    a = t.audit
    text = a.c.facts[FORMER].astext
    own = a.c.seq == bindparam("entry", type_=BigInteger)
    return select(text.label("payload")).where(own, text.is_not(None))


def deed(act: Mapping[str, Any]) -> str:
    """What an act did, without its target: `redrive 12 messages`."""
    alone = act["action"] in ("pause", "resume") or (act["target"] and act["count"] == 1)
    return str(act["action"]) if alone else f"{act['action']} {many(act['count'], 'message')}"


def facts_of(act: Mapping[str, Any]) -> str:
    """The facts of an act in one line: which messages it was for, for example."""

    def plain(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    return ", ".join(f"{name.replace('_', ' ')} {plain(value)}" for name, value in act["facts"].items())


def shown(t: Tables) -> Select[Any]:
    """All entries, without former payloads, which `former` reads, without ids, which `changed_ids` reads, and without
    digests of forms."""
    a = t.audit
    # Whoever may write into the audit may have put there what is no object.
    is_object = func.jsonb_typeof(a.c.facts) == literal_column("'object'")
    facts: ColumnElement[Any] = case((is_object, a.c.facts), else_=literal_column("'{}'::jsonb", JSONB))
    for hidden in (FORMER, CHANGED, FORM):
        facts = facts.op("-", return_type=JSONB)(cast(hidden, Text))
    return select(a.c.seq, a.c.at, a.c.who, a.c.why, a.c.action, a.c.target, a.c.count, facts.label("facts"))
