"""Traces a run: notes each move of a message between the tables, and finds those that no message may make.

trace = Trace(engine, schema)
trace.install()   # before the run: triggers, and the table outbox_transitions
...
found = trace.check()   # names and counts; `found.wrong` is empty if all is well
trace.remove()

A message is in exactly one place after each transaction. Whoever moves it has locked its row, so its moves are noted in
the order in which they are committed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, text

from lab.moves import MOVES, NOWHERE
from outbox_tasks.database.schema import quoted

SHOWN = 3
"""Messages whose lives are told, for each kind of wrong move."""

NAMES = ("outbox_note_transition", "outbox_note_place")
"""The functions that `trace.sql` makes."""

Move = tuple[str, str]
"""The place before, and the place after."""


@dataclass(frozen=True)
class Wrong:
    """A move that is not in the table of moves."""

    move: Move
    times: int
    lives: dict[str, list[str]]
    """All moves of the first of its messages, by the id."""

    def __str__(self) -> str:
        lives = "".join(f"\n  {id}\n    " + "\n    ".join(life) for id, life in self.lives.items())
        return f"{self.times} times, and there is no such move: {self.move[0]} → {self.move[1]}{lives}"


@dataclass
class Traced:
    """What a run has done to the messages."""

    counts: Counter[str] = field(default_factory=Counter)
    """How often each move was made."""
    wrong: list[Wrong] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(map(str, self.wrong)) or f"{self.counts.total():,} moves, each of the table"


class Trace:
    """The trace of one outbox. Only runs for tests have it: each change of a row writes rows more."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self._engine = engine
        self._schema = quoted(schema)

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

    def check(self) -> Traced:
        """Name all moves."""
        counts: Counter[Move] = Counter()
        examples: dict[Move, list[int]] = defaultdict(list)
        with self._engine.connect() as connection:
            noted = connection.execute(text(f"SELECT * FROM {self._schema}.outbox_transitions ORDER BY seq, n")).all()
        for seq, rows in groupby(noted, lambda row: row.seq):
            for move in _moves(rows):
                counts[move] += 1
                examples[move].append(seq)
        traced = Traced()
        for move, times in counts.items():
            if move in MOVES:
                traced.counts[MOVES[move]] += times
            else:
                seqs = list(dict.fromkeys(examples[move]))[:SHOWN]
                traced.wrong.append(Wrong(move, times, dict(map(self._life, seqs))))
        return traced

    def life(self, id: str | UUID) -> list[str]:
        """All that was noted of a message, in order."""
        with self._engine.connect() as connection:
            traced = f"SELECT seq FROM {self._schema}.outbox_messages WHERE id = :id"
            seqs = connection.scalars(text(traced), {"id": UUID(str(id))}).all()
        return [line for seq in seqs for line in self._life(seq)[1]]

    def _life(self, seq: int) -> tuple[str, list[str]]:
        with self._engine.connect() as connection:
            query = f"SELECT * FROM {self._schema}.outbox_transitions WHERE seq = :seq ORDER BY n"
            rows = connection.execute(text(query), {"seq": seq}).all()
            query = f"SELECT id FROM {self._schema}.outbox_messages WHERE seq = :seq"
            id = connection.scalar(text(query), {"seq": seq})
        return str(id or seq), [_told(row) for row in rows]


def _told(row: Any) -> str:
    how = f"{'to' if row.rows > 0 else 'from'} {row.place}{', run out' if row.run_out else ''}"
    return f"{row.at:%H:%M:%S.%f} {row.transaction} {how} [{row.who or '-'}, {row.holder or '-'}, {row.token or '-'}]"


def _moves(rows: Iterable[Any]) -> Iterator[Move]:
    """The moves of one message. A move that leads from where it was not, or to two places, names all of them."""
    at: str | None = None
    for _, changes in groupby(rows, lambda row: row.transaction):
        net: Counter[tuple[str, Any]] = Counter()
        late: set[str] = set()
        for row in changes:
            net[row.place, row.token] += row.rows
            if row.run_out and row.rows < 0:
                late.add(row.place)
        places_before = [place for (place, _), n in net.items() for _ in range(-n)]
        places_after = [place for (place, _), n in net.items() for _ in range(n)]
        if not places_before and not places_after:
            continue  # the row changed in its place
        before = " and ".join(f"{place}, run out" if place in late else place for place in places_before) or NOWHERE
        if at is not None and (" and ".join(places_before) or NOWHERE) != at:
            before = f"{before} (it was {at})"
        after = at = " and ".join(places_after) or NOWHERE
        yield before, after
