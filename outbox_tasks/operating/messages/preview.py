"""What an act would do: which messages, and what stands in their way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.operating import overview
from outbox_tasks.operating.messages import waits
from outbox_tasks.operating.messages.acts import Action, Operator, Plan
from outbox_tasks.operating.messages.find import Filter

SENDS = ("redrive", "try", "replay")
"""Acts after which messages are due."""


class AddedChoice(Protocol):
    """Which messages an act of a satellite is for, such as a replay."""

    @property
    def to(self) -> str | None:
        """Another destination than that of each message."""

    @property
    def facts(self) -> dict[str, Any]:
        """What is not in the filter, for the audit."""

    def planned(self, database: Database) -> Plan:
        """Counts the messages. Raises the satellite's errors."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages an act is for: those of a filter, or these `ids`, if they have the states of the filter."""

    action: Action
    wanted: Filter
    ids: Sequence[UUID] = ()
    added: AddedChoice | None = None
    """Of an act that a satellite adds."""

    @property
    def tries_destination(self) -> bool:
        """Whether it also lets an open circuit be tried at once."""
        return self.action == "try" and not self.ids and self.wanted.whole_destination


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


def preview(
    database: Database,
    choice: Choice,
    seconds: float = inf,
) -> Preview:
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
    for number, name in enumerate(sorted(destinations) if choice.action in SENDS else ()):
        if name not in database.settings.destinations:
            result.remarks.append(f"{name!r} is not configured here: its messages would be dead again in an hour.")
        elif name in closed and tries and name not in paused:
            result.remarks.append(f"{closed[name].because}. One message would try it at once.")
        elif name in closed:
            result.remarks.append(f"These messages would wait: {closed[name]}")
        elif number < 5:  # of so many it is looked up
            result.remarks += _refuses(database, name)
    return result


def _refuses(database: Database, name: str) -> Iterator[str]:
    """Whether many of the sends to a destination fail at this moment."""
    status = overview.destinations(database, 1, estimate=False, only=name)[name]
    if status.refuses:
        yield f"{name} refuses everything at this moment: these messages would fail again."
    elif status.fails:
        yield f"{status.share_failed:.0%} of the sends to {name} fail at this moment: some of these would fail again."
