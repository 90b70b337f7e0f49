"""Traces a run: notes each change of each message's row, and finds those that no row may make.

trace = Trace(engine, schema)
trace.install()   # before the run: triggers, and the table outbox_transitions
...
found = trace.check()   # names and counts; `found.wrong` is empty if all is well
trace.remove()
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from importlib import resources
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    Uuid,
    func,
    select,
    text,
)
from sqlalchemy.sql import ColumnElement, Select

from lab.transitions import Change, Transition, named
from outbox_tasks.database.schema import quoted

SHOWN = 3
"""Messages whose lives are told, for each kind of wrong change."""

NAMES = ("outbox_note_transition", "outbox_note_archived", "outbox_state_of_row")
"""The functions that `trace.sql` makes."""


@dataclass(frozen=True)
class Wrong:
    """A change that is not in the table of transitions."""

    change: Change
    times: int
    lives: dict[str, list[str]]
    """All changes of the first of its messages, by the id."""

    def __str__(self) -> str:
        lives = "".join(f"\n  {id}\n    " + "\n    ".join(life) for id, life in self.lives.items())
        return f"{self.times} times, and there is no such transition: {self.change}{lives}"


@dataclass
class Traced:
    """What a run has done to the rows."""

    counts: Counter[str] = field(default_factory=Counter)
    """How often each transition was made."""
    wrong: list[Wrong] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(map(str, self.wrong)) or f"{self.counts.total():,} changes, each a transition"


class Trace:
    """The trace of one outbox. Only runs for tests have it: each change of a row writes one row more."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self._engine = engine
        self._schema = quoted(schema)
        self._table = _table(schema)

    def install(self) -> None:
        """Trace from now on. The role must own the tables."""
        script = resources.files(__package__).joinpath("trace.sql").read_text(encoding="utf-8")
        with self._engine.begin() as connection:
            options = {"no_parameters": True}  # its percent signs are none
            connection.exec_driver_sql(script.replace(":schema", self._schema), execution_options=options)

    def remove(self) -> None:
        """Trace no more, and forget what was noted."""
        with self._engine.begin() as connection:
            for name in NAMES:
                connection.execute(text(f"DROP FUNCTION IF EXISTS {self._schema}.{name} CASCADE"))
            connection.execute(text(f"DROP TABLE IF EXISTS {self._schema}.outbox_transitions"))

    def check(self, *also: Transition, archive: bool = True) -> Traced:
        """Name all changes. `also`: those that a test makes by hand. `archive`: the setting."""
        found = Traced()
        with self._engine.connect() as connection:
            counted = connection.execute(_changes(self._table)).all()
        for *facts, times in counted:
            change = Change(*facts)
            name = named(change, archive=archive) or next((each.name for each in also if each.allows(change)), None)
            if name:
                found.counts[name] += times
            else:
                found.wrong.append(Wrong(change, times, self._lives(change)))
        return found

    def life(self, id: str | UUID) -> list[str]:
        """All changes of a message, in order."""
        t = self._table
        noted = select(t.c.at, t.c.who, t.c.holder, *_facts(t)).where(t.c.id == UUID(str(id))).order_by(t.c.n)
        with self._engine.connect() as connection:
            rows = connection.execute(noted).all()
        return [f"{at:%H:%M:%S.%f} {Change(*facts)} [{who or '-'}, {by or '-'}]" for at, who, by, *facts in rows]

    def _lives(self, change: Change) -> dict[str, list[str]]:
        t = self._table
        same = [fact.is_not_distinct_from(value) for fact, value in zip(_facts(t), change, strict=True)]
        some = select(t.c.id).where(*same).group_by(t.c.id).order_by(func.min(t.c.n)).limit(SHOWN)
        with self._engine.connect() as connection:
            ids = connection.scalars(some).all()
        return {str(id): self.life(id) for id in ids}


def _table(schema: str) -> Table:
    kinds: dict[Any, tuple[str, ...]] = {
        BigInteger: ("n", "transaction"), DateTime(True): ("at",), Uuid: ("id",), Integer: ("counted", "attempts"),
        Boolean: ("kept", "rewritten"), Text: ("before", "after", "lease", "ends", "moved", "code", "who", "holder"),
    }  # fmt: skip
    columns = (Column(name, kind) for kind, names in kinds.items() for name in names)
    return Table("outbox_transitions", MetaData(schema=schema), *columns)


def _facts(t: Table) -> list[ColumnElement[Any]]:
    """The columns of a `Change`, in its order."""
    c = t.c
    fresh = func.coalesce(c.attempts, 0) == 0
    return [c.before, c.after, c.lease, c.counted, fresh, c.ends, c.moved, c.code, c.kept, c.rewritten]


def _changes(t: Table) -> Select[Any]:
    """Each kind of change, and how often it was made. A row that its own transaction has taken out again was never
    there: `outbox_publish` does so if the id was used before."""
    written = t.alias("written")
    same = (written.c.transaction == t.c.transaction, written.c.id == t.c.id, written.c.before == "none")
    withdrawn = (t.c.after == "deleted") & select(written.c.n).where(*same).exists()
    facts = [fact.label(f"fact_{n}") for n, fact in enumerate(_facts(t))]
    kind = select(*facts).where(~withdrawn).subquery("kind")
    return select(*kind.c, func.count()).group_by(*kind.c)
