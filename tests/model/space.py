"""The states of a protocol, as numbers.

What a worker, the claim or a transaction does depends on the rows and on what it has in hand, and on nothing else. So
the parts of a state have numbers, each such step is worked out once, and a state is a tuple of six numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model import properties
from tests.model.base import Step
from tests.model.protocol import Protocol
from tests.model.state import Giving, Row, Rows, Task

Numbers = tuple[int, int, int, int, int, int]
"""A state: rows, queue, the smaller and the larger hand, what is being given, and the horizon."""


class Table:
    """Gives each value a number."""

    def __init__(self, *values: Any) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}
        for value in values:
            self(value)

    def __call__(self, value: Any) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


Local = tuple[Step, int, int, Any, frozenset[int], bool]
"""A step that was worked out: its rows, what its actor has afterwards, the task that it puts, the messages whose leases
it ends, and whether it changes what is not the actor's."""


class Space:
    """The states of one protocol."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.rows, self.queues, self.hands = Table(), Table(()), Table(())
        self.givings, self.horizons = Table(()), Table(None)
        self._memo: dict[Any, Any] = {}
        self._clean: dict[tuple[int, int], int] = {}
        self._sending: dict[int, frozenset[int]] = {}

    def first(self) -> Numbers:
        return self.rows((Row(),) * self.protocol.variant.messages), 0, 0, 0, 0, 0

    def worked_out(self) -> Iterator[tuple[Rows, Step]]:
        """Every step that was worked out, with the rows before it."""
        for key, made in self._memo.items():
            if key[0] in ("world", "take", "work", "claim", "give"):
                yield from ((self.rows.values[key[1]], step) for step, *_ in made)

    def steps(self, state: Numbers) -> Iterator[tuple[Step, Numbers, str | None]]:
        """Every step from here: where it leads, and the promise that it breaks."""
        rows, queue, one, other, giving, horizon = state
        memo = self._memo
        key: tuple[Any, ...]
        if (key := ("world", rows)) not in memo:
            memo[key] = self._world(rows)
        for step, to, added, ended in memo[key]:
            gives = self._more(giving, added) if added else giving
            yield step, self._tidy(to, queue, one, other, gives, horizon), self._hurt(ended, one, other)
        if queue:
            if (key := ("take", rows, queue)) not in memo:
                memo[key] = self._take(rows, queue)
            for step, to, hand, left, hurt in memo[key]:
                if step.kind == "fault":
                    yield step, (rows, left, one, other, giving, horizon), None
                elif one == 0:
                    yield step, self._tidy(to, left, hand, other, giving, horizon), hurt
        for mine, theirs in ((one, other), (other, one)):
            if mine:
                if (key := ("work", rows, mine)) not in memo:
                    memo[key] = self._work(rows, mine)
                for step, to, hand, put, ended, unfenced in memo[key]:
                    left = self._put(queue, put) if put else queue
                    hurt = properties.FENCED if unfenced else self._hurt(ended, theirs)
                    yield step, self._tidy(to, left, hand, theirs, giving, horizon), hurt
            if one == other:
                break
        yield from self._claims(state)
        if giving:
            if (key := ("give", rows, giving)) not in memo:
                memo[key] = self._give(rows, giving)
            for step, to, gives, put, ended, unfenced in memo[key]:
                left = self._put(queue, put) if put else queue
                hurt = properties.FENCED if unfenced else self._hurt(ended, one, other)
                yield step, self._tidy(to, left, one, other, gives, horizon), hurt

    def _claims(self, state: Numbers) -> Iterator[tuple[Step, Numbers, str | None]]:
        rows, queue, one, other, giving, horizon = state
        memo = self._memo
        if (key := ("claim", rows, giving, horizon)) not in memo:
            memo[key] = self._claim(rows, giving, horizon)
        for step, to, added, then, ended in memo[key]:
            hurt = self._hurt(ended, one, other)
            if step.granted:
                queue_, one_, other_ = (self._stale(*each, step.granted) for each in (
                    (self.queues, queue), (self.hands, one), (self.hands, other)))  # fmt: skip
                gives = self._stale(self.givings, giving, step.granted)
                yield step, self._tidy(to, queue_, one_, other_, self._more(gives, added), then), hurt
            else:
                yield step, (to, queue, one, other, giving, then), hurt

    # --- each step, worked out once ---

    def _world(self, number: int) -> list[Any]:
        rows, protocol = self.rows.values[number], self.protocol
        steps = [*protocol.write(rows), *protocol.pass_time(rows)]
        if protocol.variant.people:
            steps += protocol.mend(rows)
        return [(step, self.rows(step.rows), step.giving, properties.taken_away(rows, step)) for step in steps]

    def _take(self, number: int, queue: int) -> list[Any]:
        rows, tasks = self.rows.values[number], self.queues.values[queue]
        made = []
        for task in tasks:
            rest = self.queues(tuple(other for other in tasks if other != task))
            for step in self.protocol.take(rows, task):
                hurt = properties.FENCED if properties.is_begun_by_stranger(step) else None
                left = queue if step.stays else rest
                made.append((step, self.rows(step.rows), self.hands(step.hand), left, hurt))
        if len(tasks) > 1:
            made.append((Step("the broker is flushed", (), rows, "fault"), number, 0, 0, None))
        return made

    def _work(self, number: int, hand: int) -> list[Local]:
        rows, mine = self.rows.values[number], self.hands.values[hand]
        return [self._local(rows, step, self.hands(step.hand), mine) for step in self.protocol.work(rows, mine)]

    def _give(self, number: int, giving: int) -> list[Local]:
        rows, all_of = self.rows.values[number], self.givings.values[giving]
        made = []
        for n, mine in enumerate(all_of):
            for step in self.protocol.give(rows, mine):
                left = tuple(sorted((*all_of[:n], *step.giving, *all_of[n + 1 :])))
                made.append(self._local(rows, step, self.givings(left), mine))
        return made

    def _local(self, rows: Any, step: Step, after: int, actor: Any) -> Local:
        unfenced = properties.is_unfenced(rows, step, actor)
        return step, self.rows(step.rows), after, step.tasks, properties.taken_away(rows, step), unfenced

    def _claim(self, number: int, giving: int, horizon: int) -> list[Any]:
        rows, seen = self.rows.values[number], self.horizons.values[horizon]
        steps = list(self.protocol.look(rows, seen))
        if len(self.givings.values[giving]) < self.protocol.variant.claims:
            steps += self.protocol.claim(rows, seen)
        return [
            (step, self.rows(step.rows), step.giving, self.horizons(step.horizon), properties.taken_away(rows, step))
            for step in steps
        ]

    # --- the parts of a state ---

    def _put(self, queue: int, tasks: tuple[Task, ...]) -> int:
        key = ("put", queue, tasks)
        if key not in self._memo:
            self._memo[key] = self.queues(tuple(sorted({*self.queues.values[queue], *tasks})))
        return self._memo[key]  # type: ignore[no-any-return]

    def _more(self, giving: int, added: tuple[Giving, ...]) -> int:
        key = ("more", giving, added)
        if key not in self._memo:
            self._memo[key] = self.givings(tuple(sorted((*self.givings.values[giving], *added))))
        return self._memo[key]  # type: ignore[no-any-return]

    def _stale(self, table: Table, number: int, granted: tuple[int, ...]) -> int:
        """What becomes of tickets when their messages get new leases."""
        if not number:
            return 0
        key = (id(table), number, granted)
        if key not in self._memo:
            value = table.values[number]
            if table is self.hands:
                made = _outdated(value, granted)
            elif table is self.queues:
                made = tuple(sorted({_outdated(task, granted) for task in value}))
            else:
                made = tuple(sorted(each._replace(task=_outdated(each.task, granted)) for each in value))
            self._memo[key] = table(made)
        return self._memo[key]  # type: ignore[no-any-return]

    def _tidy(self, rows: int, queue: int, one: int, other: int, giving: int, horizon: int) -> Numbers:
        """The state without tasks that nobody can begin any more, and with the hands sorted."""
        if queue and not self.protocol.keeps_tasks:
            key = (rows, queue)
            if key not in self._clean:
                tasks = tuple(task for task in self.queues.values[queue] if self._is_usable(rows, task))
                self._clean[key] = self.queues(tasks)
            queue = self._clean[key]
        return (
            (rows, queue, one, other, giving, horizon) if one <= other else (rows, queue, other, one, giving, horizon)
        )

    def _is_usable(self, rows: int, task: Task) -> bool:
        if self.protocol.keeps_tasks:
            return True
        values = self.rows.values[rows]
        return any(self.protocol.could_begin(values[ticket.message], ticket) for ticket in task)

    def _hurt(self, ended: frozenset[int], *hands: int) -> str | None:
        """Whether somebody loses a lease while it sends."""
        if ended:
            for hand in hands:
                if hand and ended & self.sending(hand):
                    return properties.EXPIRED
        return None

    def sending(self, hand: int) -> frozenset[int]:
        """`properties.sending`, by the number of the hand."""
        if hand not in self._sending:
            self._sending[hand] = properties.sending(self.hands.values[hand])
        return self._sending[hand]


def _outdated(tickets: tuple[Any, ...], granted: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(one._replace(current=False) if one.message in granted else one for one in tickets)
