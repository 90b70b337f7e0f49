"""What binds the code to the model: each step of the model is a move that the code's trace knows, and each move that it
knows is a step of the model.

A row of the model says less than the tables. This is the whole abstraction:

- What is not committed is not there. A commit moves nothing.
- Time has no length: `due` stands for a time that is over. When time goes by itself, nothing moves.
- The lease and the attempt of the model together are one token of the tables: each retry has a token of its own.
- `pending` and `waiting` of the model are `ready` and `waiting`. What is `held` behind its key is pending in the model,
  and the model of keys (`storage/keys.py`) says when it may be taken.
- A claim of the model that takes what has run out makes two moves: what ran out gets ready, and is taken.
- The moves of `OUTSIDE` are made by the code alone, each for a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from lab.moves import MOVES, NOWHERE, OVER, TABLE
from tests.model import page, runs
from tests.model.base import Kind
from tests.model.run_search import RunSearch
from tests.model.space import Space
from tests.model.state import Row

Pair = tuple[str, str]
"""From where to where."""

PATIENT = "in the model, what is sent again always waits first"
LIKE_SENT = "an end like `sent`, for which nothing arrives"

OUTSIDE: dict[str | Pair, str] = {
    "wake": "in the model a message is due as soon as its time has come",
    "put aside": "the model of keys has it",
    "too early": "the model of keys has it",
    "supersede": "the model knows no `latest`; like a person's act, it ends what nobody has begun",
    "purge": "it deletes what has ended",
    (NOWHERE, "waiting"): "what is published to be due later is like what waits for a retry",
    ("leased", "ready"): PATIENT,
    ("running", "ready"): PATIENT,
    ("leased, run out", "dead"): "messages of the model have no age and no size",
    ("begun", "discarded"): LIKE_SENT,
    ("begun, run out", "discarded"): LIKE_SENT,
    ("running", "discarded"): LIKE_SENT,
    ("running, run out", "discarded"): LIKE_SENT,
}
"""Moves, by name or by place, that are not steps of the model."""


class Bound:
    """The moves that the steps of the model stand for."""

    def __init__(self) -> None:
        self.moves: set[Pair] = set()
        self.unknown: set[str] = set()
        """Steps that are no move."""

    def add_space(self, space: Space) -> None:
        """Take all steps of a search of the protocol."""
        for before, step in space.worked_out():
            for n in step.messages:
                if before[n].place != "open":  # a commit moves nothing, and a rollback leaves nothing
                    self._add(step.what, step.kind, _place(before[n]), _place(step.rows[n]))

    def add_runs(self, search: RunSearch) -> None:
        """Take all steps of a search of the runs."""
        for (what, kind), changes in search.edges.items():
            for before, after in changes:
                self._add(what, kind, _run_place(before), _run_place(after))

    def _add(self, what: str, kind: Kind, before: str, after: str) -> None:
        after = after.removesuffix(", run out")
        claimed = "leases" in what and before != NOWHERE
        if kind == "time" or (before.removesuffix(", run out") == after and not claimed):
            return
        path = [(before, after)]
        if claimed:
            path = [(before, "ready"), ("ready", after)]
        elif path[0] not in MOVES and after == "ready":
            path = [(before, "held")]
        if all(pair in MOVES or pair == ("ready", "ready") for pair in path):
            self.moves |= {*path}
        else:
            self.unknown.add(f"{what}: {before} → {after}")


def missing(bound: Bound) -> Iterator[str]:
    """What the table allows, and the model never does. It leaves out that a crash of the database may undo a begin."""
    for move in TABLE:
        for pair in product(move.before, move.after):
            undone = move.name.startswith("settle") and pair[0] in ("leased", "leased, run out")
            outside = undone or move.name in OUTSIDE or pair in OUTSIDE or "held" in pair
            if not outside and pair not in bound.moves:
                yield f"{move.name}: {pair[0]} → {pair[1]}"


def _place(row: Row) -> str:
    if row.place in OVER:
        return row.place
    if row.place in ("unwritten", "rolled back"):
        return NOWHERE
    return _named(page.state_of(row._replace(place="pending") if row.place == "open" else row))


def _run_place(row: runs.Row) -> str:
    return {"done": "sent", "discarded": "discarded"}.get(row.place) or _named(page.run_state_of(row))


def _named(state: str) -> str:
    return {"pending": "ready", "archived": "sent"}.get(state, state)
