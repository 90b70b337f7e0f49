"""What the model of the hops knows. Time has no length: what may run out does so at any moment."""

from __future__ import annotations

from typing import NamedTuple

ARRIVED = "what is archived as sent has arrived"
ORDER = "the first delivery comes after the earlier message of its key was delivered, discarded, or passed"
BOOKS = "a message is in one place"
CAUSE = "a repeated delivery has its cause on the row"
REASON = "a dead letter says why"
HOLDER = "nobody loses a lease that has begun and not run out, and no two workers have one"
FENCED = "a worker changes nothing of which it has not the lease"
LIMIT = "no message has more attempts than its limit"

NOW, LATER, NEVER = range(3)
"""When a key's row is due."""
OVER = ("sent", "dead", "discarded")
DRAIN = -1
"""In the place of a message's number: the task is that of a drain."""


class Row(NamedTuple):
    """A message, by the table that it is in: none, ready, waiting, held, leased, dead, sent, discarded."""

    place: str = "none"
    attempts: int = 0
    code: str = ""
    """What its trouble says."""


class Lease(NamedTuple):
    """Of one single, or of the batch of a drain."""

    numbers: tuple[int, ...]
    token: int
    single: bool
    begun: bool = False
    over: bool = False
    """Its time has run out."""


class Key(NamedTuple):
    """The row of `outbox_keys`. Token 0: nobody has it."""

    token: int = 0
    due: int = NOW
    more: bool = False


class Slot(NamedTuple):
    """A drain that was asked for, or is at work."""

    token: int
    held: bool = False
    over: bool = False


class Db(NamedTuple):
    """What the database knows."""

    rows: tuple[Row, ...]
    leases: tuple[Lease, ...] = ()
    key: Key | None = None
    slot: Slot | None = None

    def tokens(self) -> list[int]:
        key, slot = self.key, self.slot
        return [*(lease.token for lease in self.leases), key.token if key else 0, slot.token if slot else 0]

    def lease(self, token: int) -> Lease | None:
        return next((lease for lease in self.leases if lease.token == token), None)

    def named(self, names: dict[int, int]) -> Db:
        """With other names for tokens."""
        return self._replace(
            leases=tuple(lease._replace(token=names[lease.token]) for lease in self.leases),
            key=self.key and self.key._replace(token=names[self.key.token]),
            slot=self.slot and self.slot._replace(token=names[self.slot.token]),
        )


class Task(NamedTuple):
    """A Celery task in the broker: of a single, or of a drain (-1)."""

    number: int
    token: int


class Hand(NamedTuple):
    """What a worker has begun, and the outcomes so far. A drain between two batches has no numbers."""

    token: int
    numbers: tuple[int, ...]
    results: tuple[str, ...] = ()
    slot: int = -1
    """The token of the drain's slot; -1: it is a single."""


class Fact(NamedTuple):
    """What is true of a message, whatever the database knows."""

    arrived: int = 0
    """How often it arrived; 2 stands for more."""
    passed: bool = False
    """It was dead, and `on_dead = "skip"` let others pass."""


class State(NamedTuple):
    """All there is. The workers are alike."""

    db: Db
    facts: tuple[Fact, ...]
    tasks: frozenset[Task] = frozenset()
    hands: tuple[Hand | None, ...] = (None, None)
    before: Db | None = None
    """What the database knows if it crashes now: its last commits did not wait for the disk."""

    def tidy(self) -> State:
        """Without what can't change anything any more, and with the first names for tokens. So states are few."""
        names = {0: 0}
        for token in [*self.db.tokens(), *(self.before.tokens() if self.before else ())]:
            names.setdefault(token, len(names))
        hands = [self._tidy_hand(hand, names) for hand in self.hands]
        return State(
            self.db.named(names),
            self.facts,
            frozenset(task._replace(token=names[task.token]) for task in self.tasks if task.token in names),
            tuple(sorted(hands, key=lambda hand: hand or ())),
            self.before and self.before.named(names),
        )

    @staticmethod
    def _tidy_hand(hand: Hand | None, names: dict[int, int]) -> Hand | None:
        if hand is None:
            return None
        slot = hand.slot if hand.slot < 0 else names.get(hand.slot, 0)
        return hand._replace(token=names.get(hand.token, 0), slot=slot)


def new_token(state: State) -> int:
    """One that nobody has."""
    before = state.before.tokens() if state.before else []
    return max([*state.db.tokens(), *before]) + 1


def put(db: Db, rows: dict[int, Row]) -> Db:
    return db._replace(rows=tuple(rows.get(n, row) for n, row in enumerate(db.rows)))


def changed(db: Db, lease: Lease, after: Lease) -> Db:
    return db._replace(leases=tuple(after if each == lease else each for each in db.leases))


def ended(db: Db, lease: Lease) -> Db:
    return db._replace(leases=tuple(each for each in db.leases if each != lease))


def with_hand(state: State, place: int, hand: Hand | None) -> State:
    return state._replace(hands=(*state.hands[:place], hand, *state.hands[place + 1 :]))


def with_fact(state: State, n: int, fact: Fact) -> State:
    return state._replace(facts=(*state.facts[:n], fact, *state.facts[n + 1 :]))
