"""Two bridges between a source and the relay's database. Either may die or stall between any two steps; the source may
be restored to an earlier state, and then gives a number to another row; a lease may run out at any time.

A row is (number, id). The model tries every order of the steps that `relay/bridge.py` takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.model.explore import Step

Row = tuple[int, str]
Rows = tuple[Row, ...]

LOST, TWICE = "no row is lost", "no row is copied twice"
ROWS: Rows = ((1, "a"), (2, "b"))
AGAIN = "c"
"""The id of what the source writes after it was restored, with a number that it gave out before."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """Where one bridge is. `taken`: it has what its predecessor left; `clean`: it may look."""

    at: str = "idle"
    token: int = 0
    rows: Rows = ()


@dataclass(frozen=True, slots=True)
class World:
    source: Rows = ()
    backup: Rows | None = None
    unwritten: Rows = ROWS
    restored: bool = False
    token: int = 0
    held: bool = False
    """Whether the lease of this token still runs."""
    messages: Rows = ()
    noted: tuple[tuple[Row, bool], ...] = ()
    """What was copied, and whether it is deleted at the source for sure."""
    bridges: tuple[Bridge, Bridge] = (Bridge(), Bridge())


@dataclass(frozen=True, slots=True)
class Planted:
    """A wrong step. Each must be found."""

    name: str = "the protocol"
    no_fence: bool = False
    """The copy does not compare the token."""
    by_number: bool = False
    """Rows are deleted by their number alone."""
    known_by_number: bool = False
    """Rows are known by their number alone."""
    forgets: bool = False
    """What was copied is not remembered."""
    forgets_undeleted: bool = False
    """What was copied is forgotten before it is deleted at the source."""
    deletes_first: bool = False
    """Rows are deleted before they are copied."""
    notes_early: bool = False
    """A copy is noted as deleted before it is."""
    notes_apart: bool = False
    """A copy and its note are two transactions."""


PLANTED = [
    Planted("copies without comparing the token, and forgets what is deleted", no_fence=True),
    Planted("deletes by number alone", by_number=True),
    Planted("knows rows by number alone", known_by_number=True),
    Planted("remembers nothing", forgets=True),
    Planted("forgets what is not deleted", forgets_undeleted=True),
    Planted("deletes before it copies", deletes_first=True),
    Planted("notes deletes before they happen, and forgets what is deleted", notes_early=True),
    Planted("copies and notes in two transactions", notes_apart=True),
]


class Bridging:
    """The model. `forgetting`: whether retention forgets rows that are deleted; after that, no backup may be older."""

    def __init__(self, planted: Planted | None = None, *, forgetting: bool = False) -> None:
        self.planted = planted or Planted()
        bug = self.planted
        self.forgetting = forgetting or bug.no_fence or bug.notes_early or bug.forgets_undeleted
        self.name = self.planted.name

    def first(self) -> World:
        return World()

    def steps(self, w: World, /) -> Iterator[Step]:
        if w.unwritten:
            row, *rest = w.unwritten
            yield Step(f"the application writes {row}", replace(w, source=(*w.source, row), unwritten=tuple(rest)))
        if w.backup is None and not self.forgetting:
            yield Step("a backup is made", replace(w, backup=w.source), "fault")
        elif w.backup is not None and not (w.restored or w.unwritten):
            yield Step("the source is restored", self._restore(w), "fault")
        if w.held:
            yield Step("the lease runs out", replace(w, held=False), "work")
        if self.forgetting and w.noted:
            kept = tuple(one for one in w.noted if not (one[1] or self.planted.forgets_undeleted))
            if kept != w.noted:
                yield Step("what was copied is forgotten", replace(w, noted=kept), "fault")
        for n, bridge in enumerate(w.bridges):
            if bridge.at != "idle":
                yield Step(f"bridge {n} dies", self._with(w, n, Bridge()), "fault")
            yield from self._goes_on(w, n, bridge)

    def _restore(self, w: World) -> World:
        """Later rows are gone at the source, and the application writes another one, with a number again."""
        assert w.backup is not None
        number = max([row[0] for row in w.backup], default=0) + 1
        return replace(w, source=w.backup, unwritten=((number, AGAIN),), restored=True)

    def _goes_on(self, w: World, n: int, b: Bridge) -> Iterator[Step]:
        if b.at == "idle":
            if not w.held and w.token < 3:
                token = w.token + 1
                left = tuple(row for row, deleted in w.noted if not deleted)
                took = replace(w, token=token, held=True)
                yield Step(f"bridge {n} takes the lease", self._with(took, n, Bridge("taken", token, left)))
        elif b.at == "taken":
            yield Step(f"bridge {n} deletes what was left", self._deleted(w, n, b))
        elif b.at == "clean":
            yield from self._looks(w, n, b)
        elif b.at == "read":
            if self.planted.deletes_first:
                gone = self._without(w, b.rows)
                yield Step(f"bridge {n} deletes {b.rows}", self._with(gone, n, replace(b, at="gone")))
            else:
                yield Step(f"bridge {n} copies {b.rows}", self._copied(w, n, b))
        elif b.at == "gone":
            yield Step(f"bridge {n} copies {b.rows}", self._copied(w, n, b))
        elif b.at == "unnoted":
            noted = replace(w, noted=(*w.noted, *((row, False) for row in b.rows)))
            yield Step(f"bridge {n} notes {b.rows}", self._with(noted, n, replace(b, at="copied")))
        elif b.at == "copied":
            yield Step(f"bridge {n} deletes {b.rows}", self._deleted(w, n, b))

    def _looks(self, w: World, n: int, b: Bridge) -> Iterator[Step]:
        if w.source:
            yield Step(f"bridge {n} reads", self._with(w, n, Bridge("read", b.token, w.source)))
            return
        ended = self._with(w, n, Bridge())
        if w.token == b.token:
            ended = replace(ended, held=False, noted=tuple((row, True) for row, _ in w.noted))
        yield Step(f"bridge {n} ends", ended)

    def _copied(self, w: World, n: int, b: Bridge) -> World:
        if w.token != b.token and not self.planted.no_fence:
            return self._with(w, n, Bridge())
        fresh = tuple(row for row in b.rows if not self._is_known(w, row))
        noted = tuple((row, True) for row, _ in w.noted)  # it deleted these before it looked
        apart, early = self.planted.notes_apart, self.planted.notes_early
        if not (apart or self.planted.forgets):
            noted += tuple((row, early) for row in fresh)
        to = "unnoted" if apart else "copied"
        held = w.held or w.token == b.token
        return self._with(replace(w, messages=(*w.messages, *fresh), noted=noted, held=held), n, replace(b, at=to))

    def _is_known(self, w: World, row: Row) -> bool:
        if self.planted.known_by_number:
            return any(known[0] == row[0] for known, _ in w.noted)
        return any(known == row for known, _ in w.noted)

    def _deleted(self, w: World, n: int, b: Bridge) -> World:
        return self._with(self._without(w, b.rows), n, Bridge("clean", b.token))

    def _without(self, w: World, rows: Rows) -> World:
        if self.planted.by_number:
            return replace(w, source=tuple(one for one in w.source if one[0] not in {number for number, _ in rows}))
        return replace(w, source=tuple(one for one in w.source if one not in rows))

    @staticmethod
    def _with(w: World, n: int, bridge: Bridge) -> World:
        return replace(w, bridges=(bridge, w.bridges[1]) if n == 0 else (w.bridges[0], bridge))

    def broken(self, w: World, /) -> str | None:
        if len(set(w.messages)) < len(w.messages):
            return TWICE
        if w.restored:
            written = {id for _, id in w.backup or ()} | ({AGAIN} if not w.unwritten else set())
        else:
            written = {id for _, id in ROWS[: len(ROWS) - len(w.unwritten)]}
        there = {id for _, id in (*w.source, *w.messages)}
        return LOST if written - there else None

    def has_ended(self, w: World, /) -> bool:
        """All is copied; or the model has no more tokens to give."""
        return (not w.source and not w.unwritten) or w.token >= 3
