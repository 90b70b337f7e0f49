"""One key of one destination, statement by statement: no message overtakes another, and none is left behind.

A statement sees what was committed when it began (READ COMMITTED). A row that it locks or changes it has in the newest
version; one that is deleted it does not find. `SKIP LOCKED` leaves out what another has locked.

A take of keys has an advisory lock, so there is one at a time. In one transaction it reads the last number, then the
marks of writers; its first statement locks the key's row, if that is free and due; its second has a later snapshot,
locks messages, and then takes, moves aside, or stays away. What the take finds decides: `due` of a key's row says only
when to look. Everything else is a `Change`: settles, leases that run out, and people. A cancel belongs to the
application's transaction, which may stay open for any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tests.model.changes import ALL, Changes, users_lock
from tests.model.explore import Step
from tests.model.key_state import BOOKS, NEVER, NOW, OVERTAKEN, WAITS, Key, Row, Rows, State, Take, Write, Writer


@dataclass(frozen=True)
class Keys(Changes):
    """The protocol of keys. `test_model` overrides a method at a time."""

    name: str
    messages: int = 2
    size: int = 2
    """Messages of a batch."""
    skip: bool = False
    """A dead message does not hold up its key (`on_dead = "skip"`)."""
    scheduled: frozenset[int] = frozenset()
    at_once: int = 1
    """Changes that are under way at the same time."""
    writers: int = 2
    takes: int = 1
    fails: bool = True
    verbs: frozenset[str] = ALL
    places: tuple[str, ...] = ()
    """Where the first messages are as the search begins."""

    stages: ClassVar[tuple[str, ...]] = ("number", "marks", "free", "snapshot", "messages", "key", "commit")
    """Of a take: it reads the last number, then the marks; its first statement locks the free key; its second one has a
    snapshot, locks messages, locks or inserts the key's row, and changes what it has locked."""

    def first(self) -> State:
        rows = [Row(place, passed=self.skip and place == "dead") for place in self.places]
        rows += [Row()] * (self.messages - len(rows))
        blocked = "dead" in self.places and not self.skip
        key = Key(due=NEVER if blocked else NOW, more=True) if blocked or "held" in self.places else None
        return State(tuple(rows), self.scheduled, key)

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._write(state)
        if len(state.takes) < self.takes:
            yield Step("a take begins", _with(state, Take(self.stages[0])))
        for take in state.takes:
            yield from self._take(state, take)
        for number in sorted(state.early):
            if state.rows[number].place in ("open", "ready", "held"):
                yield Step(f"the time of m{number + 1} comes", state._replace(early=state.early - {number}))
        if len(state.changes) < self.at_once:
            yield from self.changes(state)
        for change in state.changes:
            yield from self.go_on(state, change)

    def has_ended(self, state: State) -> bool:
        return not state.writers and all(
            row.place in ("over", "dead") or self._is_held_up(state.rows, n) for n, row in enumerate(state.rows)
        )

    def _is_held_up(self, rows: Rows, number: int) -> bool:
        return not self.skip and any(row.place == "dead" for row in rows[:number])

    # --- writers ---

    def _write(self, state: State) -> Iterator[Step]:
        drawn = number_drawn(state)
        under_way = sum(writer.number < 0 for writer in state.writers)
        if len(state.writers) < self.writers and drawn + under_way < self.messages:
            marked = state._replace(writers=tuple(sorted((*state.writers, Writer(drawn)))))
            yield Step("a transaction leaves a mark", marked)
        for writer in sorted({*state.writers}):
            others = list(state.writers)
            others.remove(writer)
            if writer.number < 0:
                written = put(state, {drawn: Row("open")})
                writers = tuple(sorted((*others, writer._replace(number=drawn))))
                yield Step(f"that transaction writes m{drawn + 1}", written._replace(writers=writers))
                continue
            over, told = state._replace(writers=tuple(others)), f"m{writer.number + 1}"
            yield Step(f"the transaction of {told} commits", put(over, {writer.number: Row("ready")}))
            yield Step(f"the transaction of {told} is rolled back", put(over, {writer.number: Row("over")}))

    # --- the take ---

    def _take(self, state: State, take: Take) -> Iterator[Step]:
        if take.stage == "key":
            yield from self._decide(state, take)
        elif take.stage == "commit":
            yield Step("the take commits", self._taken(state, take), hurt=self._hurt(state, take))
            yield Step("the take is undone", _without(state, take), "fault")
        else:
            after = getattr(self, f"_take_{take.stage}")(state, take)
            after = after._replace(stage=self.stages[self.stages.index(take.stage) + 1])
            yield self._go(state, take, after, f"the take: {take.stage}")

    @staticmethod
    def _go(state: State, take: Take, after: Take, what: str) -> Step:
        return Step(what, _with(_without(state, take), after))

    def _take_number(self, state: State, take: Take) -> Take:
        return take._replace(high=number_drawn(state))

    def _take_marks(self, state: State, take: Take) -> Take:
        return take._replace(floors=tuple(sorted({writer.floor for writer in state.writers if writer.floor >= 0})))

    def _take_free(self, state: State, take: Take) -> Take:
        """`FOR UPDATE SKIP LOCKED` of the key's row, with the condition on its newest version."""
        key = state.key
        free = key is not None and not key.leased and state.is_due(key) and not state.locks_key(but=take)
        return take._replace(free=True, key=key) if free else take

    def _take_snapshot(self, state: State, take: Take) -> Take:
        return take._replace(rows=state.rows, key=state.key)

    def _take_messages(self, state: State, take: Take) -> Take:
        """`FOR UPDATE SKIP LOCKED` of what is held of a free key, and of what is ready."""
        wanted = [*self._held(take), *self._ready(state, take)]
        return take._replace(locked=frozenset(n for n in wanted if self.may_lock(state, take, n)))

    def may_lock(self, state: State, take: Take, number: int) -> bool:
        """Whether a message is still where the snapshot shows it, and nobody has locked it."""
        return state.rows[number].place == take.rows[number].place and not state.locks(number, but=take)

    def _held(self, take: Take) -> list[int]:
        if not take.free or take.key is None:
            return []
        return [n for n, row in enumerate(take.rows) if row.place == "held" and n >= take.key.first]

    def _ready(self, state: State, take: Take) -> list[int]:
        return [
            n for n, row in enumerate(take.rows) if row.place == "ready" and n >= state.start and self.may_read(take, n)
        ]

    def may_read(self, take: Take, number: int) -> bool:
        """Whether nobody can commit an earlier message any more."""
        return number < take.high and all(number < floor for floor in take.floors)

    def _decide(self, state: State, take: Take) -> Iterator[Step]:
        ready = self._ready(state, take)
        fresh = self.ours(take, ready)
        if take.free:
            run, key, told = self.decide_free(state, take, fresh)
            yield self._done(state, take, run, fresh, ready, Write(key), told)
        elif take.key is not None:
            may = self.may_lock_key(state, take)
            if not may or state.key is None or not fresh:
                yield self._done(state, take, [], [], ready, None, "the take stays away from the busy key")
            else:
                told = f"the take moves {names(fresh)} aside"
                yield self._done(state, take, [], fresh, ready, Write(state.key._replace(more=True)), told)
                if take.key.leased:
                    yield self._done(state, take, [], [], ready, None, "the take leaves the rest to the drain at work")
        elif not fresh:
            yield self._done(state, take, [], [], ready, None, "the take finds nothing")
        elif state.locks_key(but=take):
            hurt = WAITS if users_lock(state) else None
            yield Step("the take waits: another inserts the key's row", state, hurt=hurt)
        elif state.key is not None:
            yield self._done(
                state, take, [], [], ready, None, "another has inserted the key's row: the take stays away"
            )
        else:
            run = self.run(state, fresh, NEVER)
            due = NEVER if run else fresh[0]
            key = Key(bool(run), due, len(run) < len(fresh), (run or fresh)[0])
            yield self._done(state, take, run, fresh, ready, Write(key), f"the take leases {names(run)}")
            if run and len(run) < len(fresh):
                write = Write(key._replace(more=False))
                yield self._done(
                    state, take, run, run, ready, write, f"the take leases {names(run)}, and leaves the rest"
                )

    def decide_free(self, state: State, take: Take, fresh: list[int]) -> tuple[list[int], Key | None, str]:
        """What it takes of a key whose row it has locked, and what becomes of the row."""
        assert take.key is not None
        held, dead = self._held(take), self.dead(take)
        ours = self.ours(take, held)
        run = self.run(state, ours, min(dead, default=NEVER))
        left = sorted({*held, *fresh} - {*run})
        more = bool(left or dead)
        first = min([*left, *dead, run[-1] if run else NEVER])
        if run:
            return run, Key(True, NEVER, more, first), f"the take leases {names(run)}"
        if not left and not dead:
            return [], None, "the take deletes the row of a key of which nothing is held"
        if held and not ours:
            return [], take.key._replace(more=True), "the take leaves a key whose first message is locked"
        if dead and dead[0] < min([*left, NEVER]):
            return [], Key(False, NEVER, True, first), "the take finds a dead letter in front"
        return (
            [],
            Key(False, left[0] if left[0] in state.early else NOW, True, first),
            "the take finds nothing due of the key",
        )

    def dead(self, take: Take) -> list[int]:
        """Dead letters that block the key."""
        return [] if self.skip else [n for n, row in enumerate(take.rows) if row.place == "dead"]

    def ours(self, take: Take, numbers: list[int]) -> list[int]:
        """Those that it has locked, up to the first that another has locked."""
        stop = next((n for n in numbers if n not in take.locked), NEVER)
        return [n for n in numbers if n < stop]

    def run(self, state: State, numbers: list[int], dead: int) -> list[int]:
        """The first of them that may go: up to a dead letter, or one whose time has not come."""
        stop = next((n for n in numbers if n in state.early or n > dead), NEVER)
        return [n for n in numbers if n < stop][: self.size]

    def may_lock_key(self, state: State, take: Take) -> bool:
        return not take.gone and not state.locks_key(but=take)

    def _done(
        self,
        state: State,
        take: Take,
        run: list[int],
        fresh: list[int],
        ready: list[int],
        write: Write | None,
        told: str,
    ) -> Step:
        after = {n: take.rows[n]._replace(place="held") for n in fresh}
        after |= {n: take.rows[n]._replace(place="leased") for n in run}
        start = self.next_start(take, [n for n in ready if n not in after])
        done = take._replace(
            stage="commit", rows=(), key=None, gone=False, write=write,
            after=tuple(sorted(after.items())), start=start,
        )  # fmt: skip
        return self._go(state, take, done, told)

    def next_start(self, take: Take, stayed: list[int]) -> int:
        """No lower number is in `ready`, or will be."""
        return min([take.high, *take.floors, *stayed])

    def _taken(self, state: State, take: Take) -> State:
        done = put(_without(state, take), dict(take.after))._replace(start=take.start)
        return done if take.write is None else done._replace(key=take.write.key)

    def _hurt(self, state: State, take: Take) -> str | None:
        after = dict(take.after)
        leased = [n for n, row in after.items() if row.place == "leased"]
        for n in after:
            if state.rows[n].place not in ("ready", "held"):
                return BOOKS
        for n in leased:
            if any(row.place != "over" and not row.passed and k not in leased for k, row in enumerate(state.rows[:n])):
                return OVERTAKEN
        if leased and any(row.place == "leased" for row in state.rows):
            return OVERTAKEN
        return None


def put(state: State, after: dict[int, Row]) -> State:
    return state._replace(rows=tuple(after.get(n, row) for n, row in enumerate(state.rows)))


def number_drawn(state: State) -> int:
    """The last number that was given to a message, plus one."""
    return sum(row.place != "none" for row in state.rows)


def _with(state: State, take: Take) -> State:
    return state._replace(takes=tuple(sorted((*state.takes, take), key=repr)))


def _without(state: State, take: Take) -> State:
    others = list(state.takes)
    others.remove(take)
    return state._replace(takes=tuple(others))


def names(numbers: object) -> str:
    return " and ".join(f"m{n + 1}" for n in sorted(numbers)) or "nothing"  # type: ignore[call-overload]
