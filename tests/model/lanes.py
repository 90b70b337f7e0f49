"""Messages without a key: claimers remember where they stopped, and leave nothing behind.

The memory is the relay's own, `outbox_tasks.relay.store.lanes.Lane`. Transactions begin, write and end in any order; a
claim that has taken rows commits, is undone, or dies with its process; the server may crash, and gives numbers of
transactions out again that it has lost. No claimer looks from the front here but a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from outbox_tasks.relay.store.lanes import END, Lane, Snapshot
from tests.model.explore import Step

Row = tuple[int, int]
"""The transaction that wrote it, and its number."""


class Memory(NamedTuple):
    """What a `Lane` remembers."""

    xid: int = 0
    seq: int = 0
    late: frozenset[int] = frozenset()


class Claim(NamedTuple):
    """One that has taken rows, and is not committed."""

    xid: int
    rows: tuple[Row, ...]
    snapshot: Snapshot


class Claimer(NamedTuple):
    """A process that claims."""

    memory: Memory = Memory()
    claim: Claim | None = None


class State(NamedTuple):
    """All there is."""

    claimers: tuple[Claimer, ...]
    writing: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Open transactions, and the numbers of their rows."""
    ready: frozenset[Row] = frozenset()
    given: int = 0
    """The last number of a transaction."""
    ended: int = 0
    """The last one of a transaction that has ended."""
    durable: int = 0
    """The last one that no crash makes forgotten."""
    written: int = 0
    faults: int = 0


@dataclass(frozen=True)
class Lanes:
    """The claims of one lane."""

    name: str
    claimers: int = 2
    size: int = 1
    """Rows that a claim takes at most."""
    messages: int = 4
    most: int = 2
    """Messages of a transaction."""
    faults: int = 1
    crashes: bool = True

    def first(self) -> State:
        return State((Claimer(),) * self.claimers)

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._write(state)
        for n, claimer in enumerate(state.claimers):
            others = (*state.claimers[:n], *state.claimers[n + 1 :])
            for what, after, kind, changed in self._claim(state, claimer):
                claimers = tuple(sorted((*others, after), key=repr))
                yield Step(what, changed._replace(claimers=claimers), kind)
        if self.crashes and state.faults < self.faults:
            yield Step("the server crashes", self._crashed(state), "fault")

    def broken(self, state: State) -> str | None:
        return None

    def has_ended(self, state: State) -> bool:
        return not state.ready and not state.writing and not any(claimer.claim for claimer in state.claimers)

    # --- writers ---

    def _write(self, state: State) -> Iterator[Step]:
        seq = state.written + 1
        if seq <= self.messages:
            new = state._replace(
                written=seq, given=state.given + 1, writing=(*state.writing, (state.given + 1, (seq,)))
            )
            yield Step(f"transaction {new.given} writes m{seq}", new)
        for n, (xid, seqs) in enumerate(state.writing):
            others = (*state.writing[:n], *state.writing[n + 1 :])
            if seq <= self.messages and len(seqs) < self.most:
                more = tuple(sorted((*others, (xid, (*seqs, seq)))))
                yield Step(f"transaction {xid} writes m{seq}", state._replace(written=seq, writing=more))
            over = state._replace(writing=others, ended=max(state.ended, xid))
            there = over.ready.union((xid, each) for each in seqs)
            yield Step(f"transaction {xid} commits", over._replace(ready=there, durable=max(over.durable, xid)))
            yield Step(f"transaction {xid} is rolled back", over)

    # --- claims ---

    def _claim(self, state: State, mine: Claimer) -> Iterator[tuple[str, Claimer, str, State]]:
        claim = mine.claim
        if claim is None:
            yield self._take(state, mine)
            return
        over = state._replace(ended=max(state.ended, claim.xid)) if claim.xid else state
        done = over._replace(ready=over.ready.difference(claim.rows), durable=max(over.durable, claim.xid))
        yield "a claim commits", Claimer(self.after(mine.memory, claim)), "work", done
        if state.faults < self.faults:
            undone = over._replace(faults=state.faults + 1)
            yield "a claim is undone", Claimer(self.after_undone(mine.memory, claim)), "fault", undone
            yield "a claimer dies, and a new one begins", Claimer(), "fault", undone

    def _take(self, state: State, mine: Claimer) -> tuple[str, Claimer, str, State]:
        locked = {row for claimer in state.claimers if claimer.claim for row in claimer.claim.rows}
        lane = self._lane(mine.memory)
        found: set[Row] = set()
        for span in lane.spans():
            after, until = (int(span["xid"]), span["seq"]), (int(span["until"]), END)
            found.update(sorted(row for row in state.ready - locked if after < row <= until)[: self.size])
        rows = tuple(sorted(found)[: self.size])
        claim = Claim(state.given + 1 if rows else 0, rows, self.snapshot(state))
        if not rows:  # nothing that it changes, and nothing that others see
            return "a claim finds nothing", Claimer(self.after(mine.memory, claim)), "work", state
        told = " and ".join(f"m{seq}" for _, seq in rows)
        return f"a claim takes {told}", Claimer(mine.memory, claim), "work", state._replace(given=claim.xid)

    def snapshot(self, state: State) -> Snapshot:
        """Of a statement that begins now."""
        claiming = (claimer.claim.xid for claimer in state.claimers if claimer.claim)
        writing = (xid for xid, _ in state.writing)
        return Snapshot(state.ended + 1, frozenset(xid for xid in (*claiming, *writing) if 0 < xid <= state.ended))

    def after(self, memory: Memory, claim: Claim) -> Memory:
        """What is remembered after a claim."""
        lane = self._lane(memory)
        lane.read(claim.rows, claim.snapshot, to_its_end=len(claim.rows) < self.size)
        return Memory(lane.xid, lane.seq, frozenset(lane.late))

    def after_undone(self, memory: Memory, claim: Claim) -> Memory:
        """Nothing: `Lanes.clear`."""
        return Memory()

    def after_crash(self, memory: Memory) -> Memory:
        """Nothing: the server may give numbers out again."""
        return Memory()

    def _lane(self, memory: Memory) -> Lane:
        return Lane(memory.xid, memory.seq, set(memory.late))

    def _crashed(self, state: State) -> State:
        claimers = tuple(Claimer(self.after_crash(claimer.memory)) for claimer in state.claimers)
        return state._replace(
            claimers=claimers, writing=(), given=state.durable, ended=state.durable, faults=state.faults + 1
        )
