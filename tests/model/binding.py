"""What binds the code to the model: each step of the model is a transition that the code's trace knows, and each
transition that it knows is a step of the model.

A row of the model says less than a row of the table. This is the whole abstraction:

- What is not committed is not there: the insert is noted, and a rollback undoes that. A commit changes no row.
- Time has no length: `due` stands for a `locked_until` that is over. A step that sets it stands for one to the present
  moment. When time goes by itself, no row changes.
- `failed` stands for all codes that a destination reports.
- The model forgets the attempts of a message that has ended.
- The steps of `OUTSIDE` are made by the code alone, each for a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lab.transitions import TRANSITIONS, Change, Transition, named, plain
from tests.model import page, runs
from tests.model.base import Kind
from tests.model.run_search import RunSearch
from tests.model.space import Space
from tests.model.state import Row

CRASH = "the model leaves out that a crash of the database may undo a begin or a settle"

OUTSIDE = {
    "claim: too old or too large": "messages of the model have no age and no size",
    "supersede": "the model knows no `latest`; like a person's act, it archives what nobody has begun",
    "discarded": "an end like `sent`, for which nothing arrives",
    "discarded by its run": "an end like `done`",
    "bury": "all destinations of the model are known",
    "edit": "the model edits and redrives in one step",
    "purge": "it deletes what has ended",
    "retry, short, again": "the model's settles always get their answer; a second one changes nothing else",
    "begin again": CRASH,
    "sent, begin undone": CRASH,
    "end, begin undone": CRASH,
    "release, begin undone": CRASH,
    "retry or hand over, begin undone": CRASH,
    "note": CRASH,
    "note the timeline": CRASH,
}
"""Transitions that are not steps of the model."""

Move = tuple[str, str, int]
"""From where to where, and how the attempts change."""


class Bound:
    """The transitions that the steps of the model stand for."""

    def __init__(self) -> None:
        self.moves: dict[str, set[Move]] = {}
        self.unknown: dict[str, Change] = {}
        """Steps that are no transition."""

    def add(self, what: str, kind: Kind, change: Change) -> None:
        """Take a step of the model."""
        name = named(change)
        if name is not None:
            self.moves.setdefault(name, set()).add((change.before, change.after, change.counted))
        elif kind != "time":
            self.unknown.setdefault(f"{what}: {change}", change)

    def add_space(self, space: Space) -> None:
        """Take all steps of a search of the protocol."""
        for before, step in space.worked_out():
            for n in step.messages:
                one, other = before[n], step.rows[n]
                # The commit changes no row, and a rollback leaves none.
                if _as_stored(one) != _as_stored(other) and one.place != "open":
                    self.add(step.what, step.kind, _change(one, other, n in step.granted))

    def add_runs(self, search: RunSearch) -> None:
        """Take all steps of a search of the runs."""
        for (what, kind), changes in search.edges.items():
            for before, after in changes:
                granted = "leases" in what or "begins the run" in what
                # What is said changes the row, also if it was said just before.
                if _as_stored(before) != _as_stored(after) or "says" in what or "wait on" in what:
                    self.add(what, kind, _run_change(before, after, granted))


def missing(bound: Bound) -> Iterator[str]:
    """What the table allows, and the model never does."""
    for transition in TRANSITIONS:
        if transition.name not in OUTSIDE:
            done = bound.moves.get(transition.name, set())
            for move in sorted(set(_moves(transition)) - done):
                yield f"{transition.name}: {move[0]} → {move[1]}, attempts {move[2]:+d}"


def _moves(transition: Transition) -> Iterable[Move]:
    counts = (0,) if transition.fresh else transition.counted
    for before in transition.before:
        for after in transition.after:
            if not transition.still or after == plain(before):
                yield from ((before, after, counted) for counted in counts)


def _as_stored(row: Row | runs.Row) -> Row | runs.Row:
    """Without what only the properties look at."""
    if isinstance(row, Row):
        return row._replace(arrived=0, passed=False)
    return row._replace(ran=0, good=False, lost=0)


def _change(before: Row, after: Row, granted: bool) -> Change:
    """What the trace would note."""
    held = before.place not in ("unwritten", "dead") and before.leased
    lease = "new" if granted and after.leased else _lease(held, after.leased)
    was = "none" if before.place == "unwritten" else page.state_of(before)
    now = page.state_of(after._replace(place="pending") if after.place == "open" else after)
    now = after.place if after.place in ("sent", "discarded") else plain(now)
    return _made(was, now, lease, before, after)


def _run_change(before: runs.Row, after: runs.Row, granted: bool) -> Change:
    lease = "new" if granted else _lease(bool(before.lease), bool(after.lease))
    now = {"done": "sent", "discarded": "discarded"}.get(after.place) or plain(page.run_state_of(after))
    change = _made(page.run_state_of(before), now, lease, before, after)
    return change._replace(rewritten=before.content != after.content and after.place == "pending" == before.place)


def _lease(before: bool, after: bool) -> str:
    return {(False, False): "none", (True, True): "same", (True, False): "gone"}.get((before, after), "new")


def _made(was: str, now: str, lease: str, before: Row | runs.Row, after: Row | runs.Row) -> Change:
    ends = "now" if after.due else "ahead"
    over = "dead" in (was, now) or now in ("sent", "discarded") or was == "none"
    counted = 0 if over else after.attempts - before.attempts
    moved = "earlier" if after.due else "later"
    fresh = after.attempts == 0
    code = after.code or ("discarded" if now == "discarded" else None)
    kept = before.code == after.code and not (now == "discarded" and not after.code)
    return Change(was, now, lease, counted, fresh, ends, moved, code, kept)
