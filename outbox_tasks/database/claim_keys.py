"""The statements that keep the order of messages which share a key.

The head of a key is its first message that is not yet delivered. A claim leases heads, and the messages right behind
them in the same run. It hops along the index from key to key, so a long key costs no more than its first row. It leaves
a message for later if an open transaction may still commit an earlier one of the same key."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    Integer,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    table,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.sql import ColumnElement, CompoundSelect, FromClause, Select

from outbox_tasks.database.claim import BUNDLE_BYTES, SHARE, at, is_alone, is_due, is_spent, leased, state
from outbox_tasks.database.pieces import json_rows, pending
from outbox_tasks.database.schema import Tables, function

FEW = 10
"""While many keys have due messages, a claim takes so many of one: with fewer it would look at more keys for as many
messages, with more the other keys would wait longer."""

MARK = 0x7FFFFFFF
"""A mark holds the lowest 31 bits of its number."""

ONE = literal_column("1", Integer)

LAST = literal_column(str(2**63 - 1), BigInteger)
"""No message has a higher number."""

LOCKS = table(
    "pg_locks",
    *(column(name, Text) for name in ("locktype", "mode", "database", "classid", "objid", "objsubid")),
)


def horizon(t: Tables) -> Select[Any]:
    """Which messages with keys may be leased: those numbered up to `high`; in a class of keys that has marks, only
    those up to the lowest `floor` of these. A transaction that is still writing has left the mark (see
    `outbox_keep_order`).

    Returns a row for each mark, or one without; and none if these destinations have no messages with keys. The number
    is read before the marks: a transaction that leaves its mark later gets higher numbers. Parameter: asked (JSON rows
    of destination)."""
    m = t.messages
    asked = json_rows("asked", destination=Text)
    # Without the limit, the planner may read the whole index for all destinations at once.
    keyed = (
        select(m.c.id)
        .where(m.c.destination == asked.c.destination, m.c.key.is_not(None))
        .limit(1)
        .correlate(asked)
        .lateral("keyed")
    )
    numbers = table(
        f"{m.name}_seq_seq", column("last_value", BigInteger), column("is_called", Boolean), schema=m.schema
    )
    last = (
        select((numbers.c.last_value - 1 + cast(numbers.c.is_called, Integer)).label("high"))
        .where(exists(select(asked.c.destination).select_from(asked.join(keyed, true()))))
        .cte("last")
        .prefix_with("MATERIALIZED")
    )
    marks = _marks(t, last)
    return select(last.c.high, marks.c["class"], marks.c.floor).select_from(last.outerjoin(marks, true()))


def _marks(t: Tables, last: CTE) -> FromClause:
    """The marks of the transactions that are writing, and the numbers that they allow."""
    low, kind = cast(LOCKS.c.objid, BigInteger), cast(LOCKS.c.classid, BigInteger)
    return (
        select(
            kind.label("class"),
            (last.c.high - (last.c.high - low).op("&", return_type=BigInteger)(literal(MARK))).label("floor"),
        )
        .where(
            last.c.high.is_not(None),  # so that the marks are read after the number
            LOCKS.c.locktype == "advisory",
            LOCKS.c.objsubid == literal_column("2"),
            LOCKS.c.mode == "ShareLock",
            LOCKS.c.database
            == select(literal_column("oid", Text))
            .select_from(table("pg_database"))
            .where(literal_column("datname", Text) == func.current_database())
            .scalar_subquery(),
            or_(kind > MARK, kind == all_keys(t)),
        )
        .correlate(last)
        .lateral("mark")
    )


def claim_keys(t: Tables) -> CompoundSelect[Any]:
    """Lease due messages with keys: of at most `size` keys of each destination, after the key `past`, the head and as
    many messages behind it as the share allows.

    Returns a `Claimed` of each. A destination that may have more keys gets a row without an id, with the last key that
    was looked at. Parameters: as for `claim.claim`; high and marks (JSON rows of class and floor) as `horizon` found
    them.
    """
    m = t.messages
    share = select(json_rows("share", **SHARE)).cte("share")
    head = _heads(t, share)
    mine = _locked(m, _ready(t, head), "mine", "length", "reach")
    behind = _locked(m, _followers(m, mine), "behind", "place")
    # A row that could not be locked ends the run: the rows behind it would overtake it.
    found = func.row_number().over(partition_by=(behind.c.destination, behind.c.key), order_by=behind.c.place)
    numbered = select(behind, found.label("found")).subquery("numbered")
    names = [c.name for c in mine.c if c.name not in ("length", "reach")]
    gapless = select(*(numbered.c[name] for name in names)).where(numbered.c.found == numbered.c.place)
    picked = union_all(select(*(mine.c[name] for name in names)), gapless).cte("picked")
    newer = m.alias("newer")
    later = (newer.c.destination == m.c.destination, newer.c.key == m.c.key, newer.c.seq > m.c.seq)
    replaced = picked.c.latest & (picked.c.attempts > 0) & exists(select(newer.c.id).where(*later, *is_due(newer)))
    taken = leased(m, picked, replaced).cte("taken")
    theirs = {"destination": head.c.destination, "key": head.c.key}
    rest = [theirs.get(c.name, cast(literal(None), c.type)).label(c.name) for c in taken.c]
    return union_all(select(taken), select(*rest).where(~_goes_on(head, head)))


def _heads(t: Tables, share: CTE) -> CTE:
    """The first message of each key, in the order of the keys. A dead message is one too where it blocks its key."""
    m = t.messages
    wanted = (m.c.destination == share.c.destination, m.c.seq > share.c.beyond, or_(share.c.blocks, pending(m)))
    columns = (m.c.key, at(m).label("at"), m.c.seq, m.c.status, m.c.locked_until)
    # At the beginning, an empty key counts too: such rows may be left from an older release.
    past = tuple_(func.coalesce(share.c.past, literal_column("''")), case((share.c.past.is_(None), 0), else_=LAST))
    # The index holds only rows with a key. The planner does not see that from a comparison of rows.
    first = (
        select(*columns)
        .where(*wanted, m.c.key.is_not(None), tuple_(m.c.key, m.c.seq) > past)
        .order_by(m.c.key, m.c.seq)
        .limit(ONE)
        .correlate(share)
        .subquery("first")
    )
    zero = literal_column("0", Integer)
    start = select(
        first, literal_column("1", Integer).label("hop"), zero.label("before"), _due_of(t, share, first).label("due")
    )
    walk = start.cte("walk", recursive=True, nesting=True)
    following = (
        select(*columns)
        .where(*wanted, m.c.key > walk.c.key)
        .order_by(m.c.key, m.c.seq)
        .limit(ONE)
        .correlate(share, walk)
        .lateral("following")
    )
    step = select(following, walk.c.hop + 1, walk.c.before + walk.c.due, _due_of(t, share, following))
    step = step.select_from(walk.join(following, true())).where(_goes_on(share, walk))
    walk = walk.union_all(step.correlate(share))
    walked = select(walk).lateral("walked")
    return select(share, walked).select_from(share.join(walked, true())).cte("head").prefix_with("MATERIALIZED")


def _due_of(t: Tables, share: FromClause, head: FromClause) -> ColumnElement[int]:
    """How many messages of a key a claim may take, counted up to `FEW`: none if its head is not due."""
    m = t.messages.alias("behind")
    behind = (
        select(m.c.seq)
        .where(m.c.destination == share.c.destination, m.c.key == head.c.key, m.c.seq > head.c.seq)
        .order_by(m.c.key, m.c.seq)
        .limit(func.least(literal_column(str(FEW), Integer), share.c.longest) - 1)
        .correlate(share, head)
        .subquery("few")
    )
    count = select(cast(func.count(), Integer) + 1).select_from(behind).correlate(share, head).scalar_subquery()
    return case((and_(*is_due(head)), count), else_=literal_column("0", Integer))


def _goes_on(share: FromClause, walk: FromClause) -> ColumnElement[bool]:
    """Whether the claim looks at the key after this one: while there is room for its messages."""
    return and_(walk.c.hop < share.c.size, walk.c.before + walk.c.due < share.c.size)


def _ready(t: Tables, head: CTE) -> CTE:
    """The heads that may be leased, how long a run of each may be (length), and up to which number (reach)."""
    mark = json_rows("marks", **{"class": BigInteger, "floor": BigInteger})
    theirs = or_(mark.c["class"] == _key_class(t, head), mark.c["class"] == all_keys(t))
    floor = select(func.min(mark.c.floor)).where(theirs).correlate(head).scalar_subquery()
    reach = func.least(bindparam("high", type_=BigInteger), floor).label("reach")
    due = select(head, reach).where(*is_due(head)).subquery("due")
    few = literal_column(str(FEW), Integer)
    fair = due.c.size // func.count().over(partition_by=due.c.destination)
    room = case((fair < few, func.least(few, due.c.size - due.c.before)), else_=fair)
    length = cast(func.greatest(1, func.least(due.c.longest, room)), Integer).label("length")
    return select(due, length).where(due.c.seq <= due.c.reach).cte("ready").prefix_with("MATERIALIZED")


def _locked(m: Table, chosen: FromClause, name: str, *own: str) -> CTE:
    """Lock the chosen rows and read them again. Rows that are not due any more, or that others lock, are left out."""
    row = (
        select(*state(m))
        .where(at(m) == chosen.c.at, *is_due(m))
        .correlate(chosen)
        .with_for_update(skip_locked=True)
        .lateral("row")
    )
    columns = ("destination", "key", "seq", "ceiling", "oldest", "largest", *own)
    found = select(row, *(chosen.c[column_name] for column_name in columns)).select_from(chosen.join(row, true()))
    return found.cte(name).prefix_with("MATERIALIZED")


def _followers(m: Table, mine: CTE) -> CTE:
    """The messages right behind a head that may go with it: up to the first that must wait, or must travel alone, or
    would make the bundle too large."""
    now = select(*state(m), m.c.seq, m.c.status, m.c.locked_until)
    behind = (
        now.where(m.c.destination == mine.c.destination, m.c.key == mine.c.key, m.c.seq > mine.c.seq)
        .order_by(m.c.key, m.c.seq)
        .limit(mine.c.length - 1)
        .correlate(mine)
        .subquery("next")
    )
    fit = and_(
        *is_due(behind), ~_tried(behind), behind.c.seq <= mine.c.reach, ~is_alone(behind), ~is_spent(behind, mine)
    )
    by_seq: dict[str, Any] = {"order_by": behind.c.seq}
    placed = (
        select(behind.c.at, behind.c.seq, func.row_number().over(**by_seq).label("place"))
        .add_columns(func.bool_and(fit).over(**by_seq).label("fits"))
        .add_columns(func.sum(behind.c.bytes).over(**by_seq).label("bytes"))
        .correlate(mine)
        .lateral("placed")
    )
    columns = (mine.c.destination, mine.c.key, mine.c.ceiling, mine.c.oldest, mine.c.largest)
    together = (mine.c.length > 1, ~is_alone(mine), ~_tried(mine), ~is_spent(mine, mine), placed.c.fits)
    light = mine.c.bytes + placed.c.bytes <= literal_column(str(BUNDLE_BYTES))
    run = select(placed, *columns).select_from(mine.join(placed, true())).where(*together, light)
    return run.cte("run").prefix_with("MATERIALIZED")


def _tried(m: FromClause) -> ColumnElement[bool]:
    """Whether a newer message may replace this one. Then its run ends here."""
    return and_(m.c.latest, m.c.attempts > 0)


def _key_class(t: Tables, head: FromClause) -> ColumnElement[int]:
    """The class of a key, as an unsigned number, like in pg_locks."""
    return cast(
        function(t.messages.schema, "outbox_key_class")(head.c.destination, head.c.key, type_=Integer), BigInteger
    ) + 2 * (MARK + 1)


def all_keys(t: Tables) -> ColumnElement[int]:
    """The class of the mark that stands for all keys."""
    return function(t.messages.schema, "outbox_all_keys")()
