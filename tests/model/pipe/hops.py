"""The hops: claim, singles and drains with their leases, and all that may go wrong between them.

Here each statement is one step; `keys` has what happens inside. Tasks get lost, come twice or late; the broker is
flushed; processes die between any two steps; leases run out at any moment, so a worker may be paused for any time and
then go on; a send fails though the message arrived; the database crashes and forgets its last commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.explore import Step
from tests.model.pipe.hop_state import (
    ARRIVED,
    BOOKS,
    DRAIN,
    HOLDER,
    LATER,
    LIMIT,
    NEVER,
    NOW,
    OVER,
    REASON,
    Db,
    Fact,
    Key,
    Lease,
    Row,
    Slot,
    State,
    Task,
    changed,
    ended,
    new_token,
    put,
    with_hand,
)  # fmt: skip
from tests.model.pipe.hop_workers import Workers


@dataclass(frozen=True)
class Hops(Workers):
    """The protocol of the hops. `planted_hops` overrides a method at a time."""

    name: str
    messages: int = 2
    keyed: bool = True
    skip: bool = False
    """A dead message does not hold up its key (`on_dead = "skip"`)."""
    ways: frozenset[str] = frozenset({"single", "drain"})
    max_attempts: int = 2
    people: bool = False
    crashes: bool = False
    workers: int = 2

    def first(self) -> State:
        return State(Db((Row(),) * self.messages), (Fact(),) * self.messages, hands=(None,) * self.workers)

    def has_ended(self, state: State) -> bool:
        rows = state.db.rows
        blocked = self.keyed and not self.skip
        return all(
            row.place in OVER or (blocked and any(earlier.place == "dead" for earlier in rows[:n]))
            for n, row in enumerate(rows)
        )

    def broken(self, state: State) -> str | None:
        for row, fact in zip(state.db.rows, state.facts, strict=True):
            if row.place == "sent" and not fact.arrived:
                return ARRIVED
            if row.place == "dead" and not row.code:
                return REASON
            if row.attempts > self.max_attempts:
                return LIMIT
        leased = [n for lease in state.db.leases for n in lease.numbers]
        return BOOKS if sorted(leased) != [n for n, row in enumerate(state.db.rows) if row.place == "leased"] else None

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._world(state)
        yield from self._claim(state)
        for task in sorted(state.tasks):
            yield Step("a task gets lost", state._replace(tasks=state.tasks - {task}).tidy(), "fault")
            if None in state.hands:
                yield from self.receive(state, task)
        if len(state.tasks) > 1:
            yield Step("the broker is flushed", state._replace(tasks=frozenset()), "fault")
        for place, hand in enumerate(state.hands):
            if hand is not None:
                yield Step("a worker dies", with_hand(state, place, None).tidy(), "fault")
                yield from self.work(state, place, hand)

    # --- writers, time, people, the database ---

    def _world(self, state: State) -> Iterator[Step]:
        db = state.db
        new = [n for n, row in enumerate(db.rows) if row.place == "none"]
        if new:
            written = put(db, {new[0]: Row("ready")})
            yield self.to(state, f"m{new[0] + 1} is written", written, durable=True)
        for lease in db.leases:
            if not lease.over:
                yield Step("a lease runs out", state._replace(db=changed(db, lease, lease._replace(over=True))))
            yield from self._taken_back(state, lease)
        yield from self._waits(state)
        if self.people:
            yield from self._people(state)
        if state.before is not None:
            yield Step("the disk has all commits", state._replace(before=None).tidy())
            crashed = self.noted_crash(state.before)
            yield Step("the database crashes", state._replace(db=crashed, before=None).tidy(), "fault")

    def _waits(self, state: State) -> Iterator[Step]:
        db = state.db
        if db.slot and not db.slot.over:
            yield Step("the time of a slot is over", state._replace(db=db._replace(slot=db.slot._replace(over=True))))
        if db.key and not db.key.token and db.key.due == LATER:
            yield Step("the key's wait is over", state._replace(db=db._replace(key=db.key._replace(due=NOW))))
        for n, row in enumerate(db.rows):
            if row.place == "waiting":
                yield self.to(state, f"m{n + 1} wakes", put(db, {n: row._replace(place="ready")}), durable=True)

    def _taken_back(self, state: State, lease: Lease) -> Iterator[Step]:
        """Expire, of what has run out; and recall, of what has not begun."""
        if not (lease.over or self.may_recall(lease)):
            return
        hurt = HOLDER if lease.begun and not lease.over else None
        what = "expire takes a lease back" if lease.over else "recall takes back what has not begun"
        yield self.to(state, what, self.back(state.db, lease), "work", hurt, durable=True)

    def may_recall(self, lease: Lease) -> bool:
        return not lease.begun

    def back(self, db: Db, lease: Lease) -> Db:
        """What a lease leaves that nobody has settled."""
        after = {}
        for n in lease.numbers:
            row = db.rows[n]
            code, spent = ("unsettled", 1) if lease.begun else (row.code or "lease_expired", 0)
            place = "held" if self.keyed else "ready"
            after[n] = Row(place, min(row.attempts + spent, self.max_attempts), self.note(code))
        return self.freed(put(ended(db, lease), after), lease, NOW, back=True)

    def freed(self, db: Db, lease: Lease, due: int, *, back: bool) -> Db:
        """The key's row as an expire or a settle leaves it. `due`: of what goes back."""
        key = db.key
        if key is None or key.token != lease.token:
            return db
        if not (back or key.more):
            return db._replace(key=None)
        return db._replace(key=Key(0, min(due, key.due), more=True))

    def noted_crash(self, db: Db) -> Db:
        """What was due or leased may have been delivered by somebody of whom the database does not know any more."""
        notes = {
            n: row._replace(code=row.code or "database_crashed") for n, row in enumerate(db.rows) if self.at_work(row)
        }
        return put(db, notes)

    def at_work(self, row: Row) -> bool:
        return row.place not in (*OVER, "none")

    def _people(self, state: State) -> Iterator[Step]:
        db = state.db
        for n, row in enumerate(db.rows):
            told, gone = f"m{n + 1}", put(db, {n: row._replace(place="discarded")})
            looks = gone if gone.key is None or gone.key.token else gone._replace(key=gone.key._replace(due=NOW))
            if row.place == "dead":
                yield self.to(state, f"a person discards {told}", looks, "person", durable=True)
                again = put(db, {n: Row("held" if self.keyed else "ready", 0, row.code)})
                key = (db.key or Key())._replace(due=NOW, more=True) if self.keyed else None
                yield self.to(state, f"a person redrives {told}", again._replace(key=key), "person", durable=True)
            elif self.may_cancel(row):
                yield self.to(state, f"the application cancels {told}", looks, "person", durable=True)

    def may_cancel(self, row: Row) -> bool:
        return row.place in ("ready", "waiting", "held")

    # --- the claim ---

    def _claim(self, state: State) -> Iterator[Step]:
        db = state.db
        if db.slot and not db.slot.over:
            return  # it is left to the drains at work
        if "drain" in self.ways and self._is_due(db):
            slot = db._replace(slot=Slot(new_token(state)))
            asked = state._replace(tasks=state.tasks | {Task(DRAIN, new_token(state))})
            yield self.to(asked, "the claim asks for a drain", slot)
        if "single" in self.ways:
            for numbers, db_ in self.takes(state, 1):
                if not numbers:
                    yield self.to(state, "the claim moves messages of a busy key aside", db_)
                    continue
                leased, token = self.leased(state, db_, numbers, single=True)
                enqueued = state._replace(tasks=state.tasks | {Task(numbers[0], token)})
                yield self.to(enqueued, f"the claim leases m{numbers[0] + 1}", leased)

    def _is_due(self, db: Db) -> bool:
        free = db.key is not None and not db.key.token and db.key.due == NOW
        return any(row.place == "ready" or (row.place == "held" and free) for row in db.rows)

    def takes(self, state: State, size: int) -> Iterator[tuple[tuple[int, ...], Db]]:
        """What a take may find, and what it makes of the others."""
        db = state.db
        ready = [n for n, row in enumerate(db.rows) if row.place == "ready"]
        if not self.keyed:
            if ready:
                yield tuple(ready[:size]), db
            return
        key, held = db.key, [n for n, row in enumerate(db.rows) if row.place == "held"]
        if key is not None and (key.token or key.due != NOW):
            if ready:
                yield (), put(db, self._aside(db, ready))._replace(key=key._replace(more=True))
        elif key is not None or ready:
            dead = [n for n, row in enumerate(db.rows) if row.place == "dead" and not self.skip]
            run = tuple(n for n in (*held, *ready) if n < min([*dead, self.messages]))[:size]
            left = [n for n in (*held, *ready) if n not in run]
            aside = put(db, self._aside(db, [n for n in left if n in ready]))
            more = bool(left or dead)
            yield run, aside._replace(key=Key(0, NOW if run else NEVER, more) if run or more else None)

    @staticmethod
    def _aside(db: Db, numbers: list[int]) -> dict[int, Row]:
        return {n: db.rows[n]._replace(place="held") for n in numbers}

    def leased(self, state: State, db: Db, numbers: tuple[int, ...], *, single: bool) -> tuple[Db, int]:
        """A take with its lease."""
        token = new_token(state)
        lease = Lease(numbers, token, single, begun=not single)
        taken = put(db, {n: db.rows[n]._replace(place="leased") for n in numbers})
        taken = taken._replace(leases=tuple(sorted((*taken.leases, lease))))
        if taken.key is not None:
            taken = taken._replace(key=taken.key._replace(token=token, due=NEVER))
        return taken, token
