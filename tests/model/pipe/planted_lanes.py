"""Bugs in the lanes: each overrides one method of the model, and breaks the promise that it names."""

from __future__ import annotations

from outbox_tasks.relay.store.lanes import END
from tests.model.explore import ENDS
from tests.model.pipe.lanes import Claim, Lanes, Memory
from tests.model.planted import planted


@planted(ENDS, messages=2, claimers=1)
class NothingIsLate(Lanes):
    """A claimer forgets which transactions were open when it looked."""

    def after(self, memory: Memory, claim: Claim) -> Memory:
        return super().after(memory, claim)._replace(late=frozenset())


@planted(ENDS, messages=2, claimers=1)
class LateOnlyOnce(Lanes):
    """A claimer looks once at a late transaction, over or not."""

    def after(self, memory: Memory, claim: Claim) -> Memory:
        found = super().after(memory, claim)
        return found._replace(late=found.late - memory.late)


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
