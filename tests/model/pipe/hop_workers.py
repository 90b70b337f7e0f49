"""What workers do with tasks: begin, send, settle, and a drain's batches."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.explore import Kind, Step
from tests.model.pipe.hop_state import (
    CAUSE,
    DRAIN,
    FENCED,
    HOLDER,
    LATER,
    NEVER,
    NOW,
    ORDER,
    Db,
    Hand,
    Lease,
    Row,
    State,
    Task,
    changed,
    ended,
    new_token,
    put,
    with_fact,
    with_hand,
)  # fmt: skip


class Workers:
    """The half of `Hops` that runs in workers."""

    keyed: bool
    skip: bool
    max_attempts: int
    crashes: bool

    def to(
        self, state: State, what: str, db: Db, kind: Kind = "work", hurt: str | None = None, *, durable: bool = False
    ) -> Step:
        """A commit. Unless it is durable, a crash may undo it."""
        before = (state.before or state.db) if self.crashes and not durable else None
        return Step(what, state._replace(db=db, before=before).tidy(), kind, hurt)

    def takes(self, state: State, size: int) -> Iterator[tuple[tuple[int, ...], Db]]:
        raise NotImplementedError

    def leased(self, state: State, db: Db, numbers: tuple[int, ...], *, single: bool) -> tuple[Db, int]:
        raise NotImplementedError

    def freed(self, db: Db, lease: Lease, due: int, *, back: bool) -> Db:
        raise NotImplementedError

    def note(self, code: str) -> str:
        """What is noted on the row."""
        return code

    def receive(self, state: State, task: Task) -> Iterator[Step]:
        """A worker takes a task. The broker may deliver it once more."""
        db, place = state.db, state.hands.index(None)
        for tasks, told in ((state.tasks - {task}, ""), (state.tasks, ", and the broker keeps the task")):
            left = state._replace(tasks=tasks)
            if task.number == DRAIN:
                slot = db.slot
                if slot and slot.token == task.token and not slot.held:
                    works = with_hand(left, place, Hand(0, (), slot=task.token))
                    yield self.to(
                        works, f"a drain begins{told}", db._replace(slot=slot._replace(held=True, over=False))
                    )
                    continue
            elif (lease := db.lease(task.token)) and self.may_begin(lease):
                works = with_hand(left, place, Hand(task.token, lease.numbers))
                begun = self.begun(lease)
                hurt = HOLDER if begun.over or self._others_have(state, lease) else None
                yield self.to(works, f"a worker begins m{task.number + 1}{told}", changed(db, lease, begun), hurt=hurt)
                continue
            if not told:
                yield Step("a worker drops a task", left.tidy())

    def may_begin(self, lease: Lease) -> bool:
        return not lease.begun and not lease.over

    def begun(self, lease: Lease) -> Lease:
        return lease._replace(begun=True, over=False)

    def _others_have(self, state: State, lease: Lease) -> bool:
        """Whether a worker works under this lease. After a crash one may, that had its begin undone."""
        return not self.crashes and any(hand and hand.token == lease.token for hand in state.hands)

    def work(self, state: State, place: int, hand: Hand) -> Iterator[Step]:
        if len(hand.results) < len(hand.numbers):
            yield from self._send(state, place, hand)
        elif hand.numbers:
            yield from self._settle(state, place, hand)
        else:
            yield from self._drain(state, place, hand)

    def _drain(self, state: State, place: int, hand: Hand) -> Iterator[Step]:
        """Between two batches: it takes the next one, or ends, since nothing is due or another destination waits."""
        db = state.db
        slot = db.slot if db.slot and db.slot.token == hand.slot else None
        idle = with_hand(state, place, None)
        yield self.to(idle, "a drain ends", self.without_slot(db) if slot else db)
        if slot is None:
            return
        for numbers, db_ in self.takes(state, 2):
            goes_on = db_._replace(slot=slot._replace(over=False))
            if not numbers:
                yield self.to(state, "the drain moves messages of a busy key aside", goes_on)
                continue
            leased, token = self.leased(state, goes_on, numbers, single=False)
            works = with_hand(state, place, Hand(token, numbers, slot=hand.slot))
            yield self.to(works, f"the drain takes {len(numbers)}", leased)

    def without_slot(self, db: Db) -> Db:
        return db._replace(slot=None)

    def _stopped(self, numbers: tuple[int, ...], results: tuple[str, ...]) -> tuple[str, ...]:
        """The outcomes, with those that a failure decides: nothing goes behind it. In the order of their numbers."""
        stops = results and self.keyed and (results[-1] == "later" or (results[-1] == "dead" and not self.skip))
        return results + ("behind",) * (len(numbers) - len(results)) if stops else results

    def _send(self, state: State, place: int, hand: Hand) -> Iterator[Step]:
        n = hand.numbers[len(hand.results)]
        fact, row = state.facts[n], state.db.rows[n]
        last = row.attempts + 1 >= self.max_attempts
        if row.attempts >= self.max_attempts:  # no attempts are left: it is judged, and not sent
            yield self._sent(state, place, hand, "dead", f"m{n + 1} has no attempts left")
            return
        arrived = with_fact(state, n, fact._replace(arrived=min(2, fact.arrived + 1)))
        hurt = CAUSE if fact.arrived and not row.code else None
        if (
            not fact.arrived
            and self.keyed
            and not all(
                f.arrived or f.passed or r.place == "discarded"
                for f, r in zip(state.facts[:n], state.db.rows, strict=False)
            )
        ):
            hurt = ORDER
        told, failed = f"m{n + 1}", "dead" if last else "later"
        yield self._sent(arrived, place, hand, "sent", f"{told} is sent", hurt)
        yield self._sent(arrived, place, hand, failed, f"the send of {told} fails, though it arrives", hurt)
        yield self._sent(state, place, hand, failed, f"the send of {told} fails")
        yield self._sent(state, place, hand, "dead", f"{told} is refused")

    def _sent(self, state: State, place: int, hand: Hand, result: str, what: str, hurt: str | None = None) -> Step:
        results = self._stopped(hand.numbers, (*hand.results, result))
        n = hand.numbers[len(hand.results)]
        if result == "dead" and self.skip:
            state = with_fact(state, n, state.facts[n]._replace(passed=True))
        return Step(what, with_hand(state, place, hand._replace(results=results)).tidy(), hurt=hurt)

    # --- settle ---

    def _settle(self, state: State, place: int, hand: Hand) -> Iterator[Step]:
        db, single = state.db, hand.slot == -1
        left = with_hand(state, place, None if single else Hand(0, (), slot=hand.slot))
        lease = self.lease_to_settle(db, hand)
        if lease is None:
            yield Step("a worker settles nothing: its lease is gone", left.tidy())
            return
        hurt = None if db.lease(hand.token) else FENCED
        if self._others_have(left, lease):
            hurt = HOLDER
        if single and hand.results == ("later",):
            yield self._retry(left, hand, lease, hurt)
            yield self._retry(state, hand, lease, hurt, ", but its answer gets lost")
        after = {n: self.outcome(db.rows[n], result) for n, result in zip(hand.numbers, hand.results, strict=True)}
        due = NEVER if "dead" in hand.results and not self.skip else LATER if "later" in hand.results else NOW
        back = due == NEVER or any(row.place == "held" for row in after.values())
        settled = self.freed(put(ended(db, lease), after), lease, due, back=back)
        told = f"a worker settles: {', '.join(hand.results)}"
        yield self.to(left, told, settled, hurt=hurt)
        yield self.to(state, f"{told}, but its answer gets lost", settled, "fault", hurt)

    def lease_to_settle(self, db: Db, hand: Hand) -> Lease | None:
        """The fence."""
        return db.lease(hand.token)

    def outcome(self, row: Row, result: str) -> Row:
        if result == "sent":
            return row._replace(place="sent")
        if result == "behind":
            return row._replace(place="held")
        attempts = min(row.attempts + 1, self.max_attempts)
        if result == "dead":
            return Row("dead", attempts, row.code or "failed")
        return Row("held" if self.keyed else "waiting", attempts, self.note("failed"))

    def _retry(self, state: State, hand: Hand, lease: Lease, hurt: str | None, lost: str = "") -> Step:
        """Celery's own retry: the lease goes on under a new token, which the key's row gets, too."""
        db, [n] = state.db, hand.numbers
        token = self.retry_token(state, hand)
        db = put(changed(db, lease, lease._replace(token=token, begun=False, over=False)),
                 {n: db.rows[n]._replace(attempts=db.rows[n].attempts + 1, code=self.note("failed"))})  # fmt: skip
        if db.key is not None and db.key.token == hand.token:
            db = db._replace(key=db.key._replace(token=token))
        retried = state._replace(tasks=state.tasks | {Task(n, token)})
        return self.to(retried, f"m{n + 1} is retried by Celery{lost}", db, "fault" if lost else "work", hurt)

    def retry_token(self, state: State, hand: Hand) -> int:
        return new_token(state)
