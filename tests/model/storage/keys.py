"""Messages that share a key: none overtakes another, and none is left behind, statement by statement.

A statement sees what was committed when it began. A claim runs alone at its destination: it reads the last number; the
marks of writers; then it looks at what is due, and locks it, but not what is held behind a lease; then it takes that,
holds it or puts it off, and takes the marks off rows whose key is busy. It locks what makes that key busy; if another
has locked it, or it is gone, the mark stays. All others are `changes`: they remove their rows, look at what is held of
their keys by then, and mark the first row of each key that nobody has locked; if others have locked all that they saw
of it, they leave a note. Who reads a note does the same for its key.

A claim does not read leases that ended before its claimer last looked for such leases. That look skips what another is
taking back, and does not see what another ends early: so these must not count as ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.storage.changes import changes, names
from tests.model.storage.explore import Step
from tests.model.storage.key_state import (
    AT_WORK,
    OVERTAKEN,
    Change,
    Claim,
    Mark,
    Memory,
    Row,
    Rows,
    State,
    Way,
    Writer,
)
from tests.model.storage.writers import writes


@dataclass(frozen=True)
class Keys:
    """The claims of one destination, and all that may free a key."""

    name: str
    keys: str = "aaa"
    """The key of each message, in the order of their numbers."""
    skip: bool = False
    """A dead message does not hold up its key (`on_dead = "skip"`)."""
    people: bool = True
    scheduled: bool = True
    size: int = 2
    """Messages of a bundle."""
    claimers: int = 2
    at_once: int = 1
    """Changes that are on their way at the same time."""
    notes_only: bool = False
    """A change that frees a key always leaves a note, as in a REPEATABLE READ transaction."""

    def first(self) -> State:
        return State((), memories=(Memory(),) * self.claimers)

    def steps(self, state: State) -> Iterator[Step]:
        yield from writes(self, state)
        yield from self._claim(state)
        yield from self._look_after(state)
        if len(state.changes) < self.at_once:
            for change in changes(self, state):
                kind = "person" if change.what.startswith("a person") else "work"
                begun = state._replace(notes=state.notes.difference(change.read))
                yield Step(change.what, begun._replace(changes=_in_order(*state.changes, change)), kind)
        for n, change in enumerate(state.changes):
            yield from self._go_on(state, change, (*state.changes[:n], *state.changes[n + 1 :]))

    def broken(self, state: State) -> str | None:
        return None

    def has_ended(self, state: State) -> bool:
        return not state.writers and all(
            row.place in ("over", "dead") or self._is_held_up(state.rows, n) for n, row in enumerate(state.rows)
        )

    def _is_held_up(self, rows: Rows, number: int) -> bool:
        return not self.skip and any(row.place == "dead" and row.key == rows[number].key for row in rows[:number])

    # --- writers ---

    def starts(self, writer: Writer) -> Writer:
        return writer

    # --- what is on its way ---

    def begun(self, state: State, change: Change) -> Change:
        """What a change has seen as it began; nothing that it relies on."""
        return change

    def _go_on(self, state: State, change: Change, others: tuple[Change, ...]) -> Iterator[Step]:
        left = state._replace(changes=others)
        if change.keys and not change.has_looked:
            after = change._replace(has_looked=True, seen=self.held(state, change))
            yield Step("that looks for what is held", left._replace(changes=_in_order(*others, after)))
        elif change.keys:  # one after the other
            key, *more = change.keys
            seen = {n: row for n, row in change.seen if row.key == key}
            found = self.locked_first(state, change, [*seen])
            marked = ((n, seen[n]._replace(free=True)) for n in found if state.rows[n] == seen[n])
            after = change._replace(
                keys=tuple(more),
                seen=tuple((n, row) for n, row in change.seen if row.key != key),
                locked=change.locked.union(found),
                after=(*change.after, *marked),
                notes=change.notes.union({key} if seen and not found and self.leaves_notes() else ()),
            )
            told = f"that marks {names(found)}" if found else f"that finds none of {key} to mark"
            yield Step(told, left._replace(changes=_in_order(*others, after)))
        else:
            done = left.with_rows(dict(change.after))
            yield Step("that is committed", done._replace(notes=state.notes | change.notes))
        yield Step("that is undone", left._replace(notes=state.notes.union(change.read)), "fault")

    def held(self, state: State, change: Change) -> tuple[tuple[int, Row], ...]:
        """What a change sees of its keys, in a snapshot from after it has removed its own rows."""
        held = ((n, row) for n, row in enumerate(state.rows) if row.place == "held" and row.key in change.keys)
        return tuple((n, row) for n, row in held if n not in dict(change.after))

    def locked_first(self, state: State, change: Change, seen: list[int]) -> list[int]:
        """The row of a key that a change locks, of those that it saw: the first one that is still held and not locked.
        If it has another mark than before, it keeps that."""
        if self.notes_only and not change.read:
            return []
        locked = self._locked_by_others(state, change)
        return [n for n in seen if state.rows[n].place == "held" and n not in locked][:1]

    def leaves_notes(self) -> bool:
        """Whether a change leaves a note if others have locked all that it saw of a key."""
        return True

    def _locked_by_others(self, state: State, change: Change) -> frozenset[int]:
        claims = state.claim.locked if state.claim is not None else frozenset[int]()
        others = [*state.changes]
        others.remove(change)
        return claims.union(*(other.locked for other in others))

    def unnamed(self, row: Row) -> Row:
        """What a settle makes of a message of its bundle that it does not name."""
        return row

    def marks_next(self, what: str) -> bool:
        """Whether a change marks the first held row of its key."""
        return True

    def waits_for(self, claim: Claim) -> frozenset[int]:
        """The rows that a change can't remove before the claim has ended."""
        return claim.locked

    def marks_behind(self) -> bool:
        """Whether a settle marks what was behind a message that failed."""
        return True

    def marks_what_runs_out(self) -> bool:
        """Whether rows have a mark whose lease has run out."""
        return True

    # --- leases that ended ---

    def _look_after(self, state: State) -> Iterator[Step]:
        """A claimer looks for leases that have run out, and takes those for gone that it will not read any more."""
        gone = frozenset(n for change in state.changes if self.takes_for_gone(change) for n in change.locked)
        for who, memory in enumerate(state.memories):
            if state.claim is None or state.claim.who != who:
                told = f"claimer {who + 1} looks for leases that have run out"
                yield Step(told, self._remember(state, who, memory._replace(gone=gone)))

    def takes_for_gone(self, change: Change) -> bool:
        """Whether a look counts the leases of a change that is on its way as ended. It reads all leases that ended
        later than any transaction can have been open."""
        return False

    def _remember(self, state: State, who: int, memory: Memory) -> State:
        memories = (*state.memories[:who], memory, *state.memories[who + 1 :])
        return state._replace(memories=tuple(sorted(memories, key=repr)) if state.claim is None else memories)

    # --- the claim ---

    def _claim(self, state: State) -> Iterator[Step]:
        claim = state.claim
        if claim is None:
            for who in range(self.claimers):
                reads = Claim(who, last=len(state.rows))
                yield Step(f"claimer {who + 1} reads the last number", state._replace(claim=reads))
            return
        if claim.marks is None:
            marks = frozenset(Mark(writer.key, writer.floor) for writer in state.writers)
            yield Step("the claim reads the marks of writers", state._replace(claim=claim._replace(marks=marks)))
        elif claim.looked is None:
            yield Step("the claim looks", state._replace(claim=self._look(state, claim)))
        elif claim.after is None:
            for what, after in self._take(state, claim):
                yield Step(what, state._replace(claim=after))
        else:
            done = self._settled(state, claim)
            yield Step("the claim commits", done, hurt=self._overtakes(state, claim))
        yield Step("the claim is undone", self._undone(state, claim), "fault")

    def _locked(self, state: State) -> frozenset[int]:
        return frozenset(n for change in state.changes for n in change.locked)

    def start(self, claim: Claim, memory: Memory) -> int:
        """The first number that a claim reads."""
        return min([memory.place, *(mark.floor for mark in memory.marks - claim.marks)])

    def may_read(self, claim: Claim, number: int, row: Row) -> bool:
        """Whether nobody can commit an earlier message of its key any more."""
        return number < claim.last and all(number < mark.floor for mark in claim.marks if mark.key == row.key)

    def _look(self, state: State, claim: Claim) -> Claim:
        theirs = self._locked(state)
        read = self._read(state.rows, claim, state.memories[claim.who])
        keys = self._keys_of(state.rows, read)
        gone = state.memories[claim.who].gone
        leased = {row.key for n, row in enumerate(state.rows) if row.place == "leased" and n not in gone}
        held = {n for n, row in enumerate(state.rows) if row.place == "held" and row.key in keys - leased}
        return claim._replace(looked=state.rows, theirs=theirs, locked=frozenset({*read} | held) - theirs)

    def _read(self, rows: Rows, claim: Claim, memory: Memory) -> list[int]:
        start = self.start(claim, memory)
        return [
            n for n, row in enumerate(rows)
            if row.place in ("ready", "later") and n >= start and self.may_read(claim, n, row)
        ]  # fmt: skip

    def _keys_of(self, rows: Rows, read: list[int]) -> set[str]:
        return {rows[n].key for n in read} | {row.key for row in rows if row.place == "held" and row.free}

    def _take(self, state: State, claim: Claim) -> Iterator[tuple[str, Claim]]:
        due = self._read(claim.looked, claim, state.memories[claim.who])
        memory = state.memories[claim.who]._replace(place=claim.last, marks=claim.marks)
        ways = [Way()]
        for key in sorted(self._keys_of(claim.looked, due)):
            read = [n for n in due if claim.looked[n].key == key]
            some = [*self._take_key(state, claim, key, read)]
            # What is in somebody's hands stays where it is, and the next claim looks again.
            left = read if not some else claim.theirs.intersection(read)
            memory = memory._replace(place=min([memory.place, *left]))
            if not some:
                continue
            ways = [one.and_then(other) for one in ways for other in some]
        for way in ways:
            taken = claim._replace(
                looked=(), theirs=frozenset(), after=tuple(sorted(way.after.items())),
                locked=claim.locked | way.holds | {*way.after}, memory=memory, notes=way.notes,
            )  # fmt: skip
            yield "the claim" + (way.told or " takes nothing"), taken

    def _take_key(self, state: State, claim: Claim, key: str, read: list[int]) -> Iterator[Way]:
        rows, theirs = claim.looked, claim.theirs
        run: list[int] = []
        stop: int | None = None
        for n, row in enumerate(self.judged_by(state, claim)):
            if row.key != key or not self.is_at_work(row):
                continue
            takes = n in read or row.place == "held"
            if takes and n in theirs and not run:
                return
            if not takes or n in theirs or row.place == "later" or len(run) == self.size:
                stop = n
                break
            run.append(n)
        moved = [n for n in read if n not in run and n not in theirs]
        after = {n: Row(key, "waiting" if rows[n].place == "later" else "held", passed=rows[n].passed) for n in moved}
        put = [n for n in moved if after[n].place == "held"]
        holds = frozenset[int]()
        if not run and stop is not None:
            if self.is_sure(state, claim, stop):
                holds = self.locks(stop)
                after |= {
                    n: row._replace(free=False)
                    for n, row in enumerate(state.rows)
                    if self._unmarks(state, n, key, stop)
                }
            else:
                after |= {n: after[n]._replace(free=True) for n in put[: self.marked_of_put()]}
        told = f" moves {names(moved)}" if moved else " takes marks off" if after else ""
        leased = {n: Row(key, "leased", lease=run[0], passed=rows[n].passed) for n in run}
        yield Way(f"{told} leases {names(run)}" if run else told, {**after, **leased}, holds)
        if run:
            dead, noted = self.buried(state, claim, run, after)
            yield Way(f"{told} buries m{run[0] + 1}", {**after, **dead}, holds, noted)

    def judged_by(self, state: State, claim: Claim) -> Rows:
        """The rows that say what is in the way of a message."""
        gone = state.memories[claim.who].gone
        return tuple(
            row._replace(place="over") if row.place == "leased" and n in gone else row
            for n, row in enumerate(claim.looked)
        )

    def _unmarks(self, state: State, number: int, key: str, stop: int) -> bool:
        row = state.rows[number]
        return (
            row.place == "held" and row.free and row.key == key and number > stop and number not in self._locked(state)
        )

    def is_sure(self, state: State, claim: Claim, busy: int) -> bool:
        """Whether the claim could lock what makes a key busy: who ends that will see what the claim has done."""
        return busy not in self._locked(state) and state.rows[busy] == claim.looked[busy]

    def locks(self, busy: int) -> frozenset[int]:
        return frozenset({busy})

    def marked_of_put(self) -> int:
        """How many of the rows of a key that are held now get a mark, if the claim is not sure."""
        return 1

    def is_at_work(self, row: Row) -> bool:
        """Whether a later message of its key must not go before it."""
        return row.place in AT_WORK or (row.place == "dead" and not self.skip)

    def buried(
        self, state: State, claim: Claim, run: list[int], after: dict[int, Row]
    ) -> tuple[dict[int, Row], frozenset[str]]:
        """The first one is dead. If others may pass it, no settle will mark the next one, so the claim does; or it
        leaves a note, if others have locked all that is held."""
        first, *rest = run
        rows = {first: Row(claim.looked[first].key, "dead", passed=self.skip)}
        rows |= {n: Row(claim.looked[n].key, "held", passed=claim.looked[n].passed) for n in rest}
        there = {**dict(enumerate(state.rows)), **after, **rows}
        held = [n for n in sorted(there) if there[n].key == rows[first].key and there[n].place == "held"]
        mine = [n for n in held if n not in self._locked(state)]
        noted = frozenset({rows[first].key} if held and not mine and self.leaves_notes() else ())
        return rows | {n: there[n]._replace(free=True) for n in mine[: self.marked_of_buried()]}, noted

    def marked_of_buried(self) -> int:
        return 1

    def _settled(self, state: State, claim: Claim) -> State:
        done = state.with_rows(dict(claim.after))._replace(claim=None, notes=state.notes | claim.notes)
        return self._remember(done, claim.who, claim.memory)

    def _undone(self, state: State, claim: Claim) -> State:
        return state._replace(claim=None)

    def _overtakes(self, state: State, claim: Claim) -> str | None:
        after = {**dict(enumerate(state.rows)), **dict(claim.after)}
        for n, row in claim.after:
            if row.place == "leased" and any(
                other.key == row.key and (self.is_at_work(other) or other.place == "open")
                and other.lease != row.lease and not other.passed
                for other in (after[i] for i in range(n))
            ):  # fmt: skip
                return OVERTAKEN
        return None


def _in_order(*changes: Change) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=repr))
