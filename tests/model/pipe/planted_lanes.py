"""Bugs, each planted in one place of the lanes, with the promise that the search must find broken."""

from __future__ import annotations

from collections.abc import Callable

from outbox_tasks.relay.store.lanes import END
from tests.model.explore import ENDS, Model
from tests.model.pipe.lanes import Claim, Claimer, Lanes, Memory, State

PLANTED: dict[str, tuple[Model, str]] = {}
"""By what it is: the model with it, and the promise."""


def planted(promise: str, **limits: object) -> Callable[[Callable[..., Model]], Callable[..., Model]]:
    """Register a bug: it is named by its docstring."""

    def register(bug: Callable[..., Model]) -> Callable[..., Model]:
        name = str(bug.__doc__).rstrip(".")
        PLANTED[name] = bug(name, **limits), promise
        return bug

    return register


@planted(ENDS, messages=2, claimers=1)
class NothingIsLate(Lanes):
    """A claimer forgets which transactions were open when it looked."""

    def after(self, memory: Memory, claim: Claim) -> Memory:
        return super().after(memory, claim)._replace(late=frozenset())


@planted(ENDS, messages=2, claimers=1)
class PlaceByTheRowAlone(Lanes):
    """A claimer heeds open transactions only if it has read to the end."""

    def after(self, memory: Memory, claim: Claim) -> Memory:
        found = super().after(memory, claim)
        return found if len(claim.rows) < self.size else found._replace(late=memory.late)


@planted(ENDS, messages=2, claimers=1)
class LateOnlyOnce(Lanes):
    """A claimer looks once at a late transaction, over or not."""

    def after(self, memory: Memory, claim: Claim) -> Memory:
        found = super().after(memory, claim)
        return found._replace(late=found.late - memory.late)


@planted(ENDS, messages=3, claimers=1, most=2)
class LateLeftAfterAPart(Lanes):
    """A claimer is done with a late transaction of which it has taken a part."""

    def after(self, memory: Memory, claim: Claim) -> Memory:
        found = super().after(memory, claim)
        return found._replace(late=found.late - {xid for xid, _ in claim.rows})


@planted(ENDS, messages=2, claimers=1)
class PlaceAtTheNextNumber(Lanes):
    """The place goes to the last number given out, though the snapshot does not list what came after its end."""

    def _take(self, state: State, mine: Claimer) -> tuple[str, Claimer, str, State]:
        what, after, kind, there = super()._take(state, mine)
        if after.claim is None:
            after = Claimer(Memory(state.given, END, after.memory.late))
        return what, after, kind, there


@planted(ENDS, messages=2, claimers=1, faults=1)
class RemembersTheUndone(Lanes):
    """A claimer goes on after what it has taken, though its claim was undone."""

    def after_undone(self, memory: Memory, claim: Claim) -> Memory:
        return self.after(memory, claim)


@planted(ENDS, messages=2, claimers=1, faults=1)
class RemembersThroughACrash(Lanes):
    """A claimer keeps its place through a crash of the server."""

    def after_crash(self, memory: Memory) -> Memory:
        return memory


@planted(ENDS, messages=2, claimers=2, faults=1)
class NobodyBeginsAtTheFront(Lanes):
    """Nobody looks from the front for what a claimer had in hand as it died."""

    def after_undone(self, memory: Memory, claim: Claim) -> Memory:
        return Memory(END, END)  # it claims no more
