"""What an act would do: which messages, and what stands in their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.messages import waits
from outbox_tasks.operating.messages.acts import Action, Operator, Plan
from outbox_tasks.operating.messages.find import Filter

SENDS = ("redrive", "try", "replay")
"""Acts after which messages are due."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages an act is for: those of a filter, or these `ids`, if they have the states of the filter."""

    action: Action
    wanted: Filter
    ids: Sequence[UUID] = ()
    added: Any = None
    """Of an act that a satellite adds, such as a replay: `planned(database)` counts the messages, `to` is another
    destination, and `facts` are for the audit."""

    @property
    def tries_destination(self) -> bool:
        """Whether it also lets an open circuit be tried at once."""
        return self.action == "try" and self.wanted.whole_destination


@dataclass(slots=True)
class Preview:
    """What an act would change, and what a person should know before."""

    plan: Plan | None = None
    """Of a filter, and of a replay."""
    states: dict[UUID, str] = field(default_factory=dict)
    """Of named messages that are there."""
    count: int = 0
    """Messages that it would change."""
    empty: bool = False
    """Whether there is nothing to do."""
    remarks: list[str] = field(default_factory=list)
    """Sentences: what stands in the way."""

    @property
    def more(self) -> bool:
        """Whether there may be more than were counted."""
        return self.plan is not None and self.plan.more


def preview(database: Database, choice: Choice, seconds: float = inf) -> Preview:
    """Look at the messages of a choice. `seconds`: see `Operator.plan`."""
    result = Preview()
    if choice.added is not None:
        result.plan = plan = choice.added.planned(database)
        result.count = plan.count
        destinations = {choice.added.to or kind.destination for kind in plan.kinds}
    elif choice.ids:
        # If a message was replayed, its copy that waits comes first, and counts.
        rows = list(reversed(database.ask("find/states.sql", ids=list(choice.ids))))
        result.states = {UUID(str(row.id)): row.state for row in rows}
        result.count = sum(state in choice.wanted.states for state in result.states.values())
        destinations = {row.destination for row in rows}
    else:
        result.plan = plan = Operator(database, "").plan(choice.wanted, seconds)
        result.count = plan.count
        destinations = {kind.destination for kind in plan.kinds}
        if choice.wanted.destination is not None:
            destinations.add(choice.wanted.destination)
    closed = waits.of_destinations(database) if choice.action in SENDS else {}
    paused = {row.name for row in database.ask("traffic/states.sql") if row.state == "paused"} if closed else set()
    tries = choice.tries_destination and bool(closed.keys() & destinations - paused)
    result.empty = not (result.count or tries or (choice.ids and result.plan is None))
    for name in sorted(destinations) if choice.action in SENDS else ():
        if name not in database.settings.destinations:
            result.remarks.append(f"{name!r} is not configured here: its messages would be dead again in an hour.")
        elif name in closed and tries and name not in paused:
            result.remarks.append(f"{closed[name].because}. One message would try it at once.")
        elif name in closed:
            result.remarks.append(f"These messages would wait: {closed[name]}")
    return result
