"""The runs of supervised tasks, as a model of its own: the relay hands a task over, workers of the application run it.

What the relay does before a send is in `pipe/hops.py`. Here it has fewer steps. The tasks' broker and the application's
workers are added: copies are lost, repeated, late and flushed; workers are paused for any time, and die between any
two steps. As there, time has no length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["work", "time", "fault", "person"]


class Row(NamedTuple):
    """One task's row. The last four fields are not in the database: they are for the properties."""

    place: str = "pending"
    """pending, dead, done or discarded."""
    due: bool = True
    lease: str = ""
    """Whose token it has: "relay", "run", or nobody's."""
    begun: bool = False
    handed: bool = False
    attempts: int = 0
    content: int = 0
    """What the task says: a retry, or an edit, changes it."""
    code: str = ""
    ran: int = 0
    """How many runs began; 2 stands for more."""
    good: bool = False
    """The body of a run has ended well."""
    lost: int = 0
    """How many workers it lost since a person redrove it."""


class Relay(NamedTuple):
    """A publish task of the relay."""

    message: int
    attempt: int
    current: bool = True
    """Its lease is the one that the row has."""
    stage: str = "queued"
    """queued, begun, sent or failed."""
    content: int = 0


class Copy(NamedTuple):
    """A task in the tasks' broker."""

    message: int
    content: int
    current: bool
    """Its hand-over is the last one: see `Runs.keeps`."""


class Run(NamedTuple):
    """What a worker of the application has in hand."""

    message: int
    current: bool = True
    stage: str = "runs"
    """runs; then what its end says: ok, failed, retry or rejected; returned: the copy goes back into the queue."""
    content: int = 0


class State(NamedTuple):
    rows: tuple[Row, ...]
    relays: tuple[Relay, ...] = ()
    copies: tuple[Copy, ...] = ()
    runs: tuple[Run, ...] = ()


class Move(NamedTuple):
    """One way in which something goes on."""

    what: str
    message: int
    state: State
    kind: Kind = "work"
    actor: Relay | Run | None = None
    copy: Copy | None = None
    """The copy that was dropped."""


class Limits(NamedTuple):
    """What a search begins with."""

    name: str
    messages: int = 1
    """They share a key."""
    max_attempts: int = 2
    changes: int = 1
    """How often what a task says may change."""
    relays: int = 2
    runs: int = 2
    people: bool = True


class Runs:
    """The steps. Their conditions are methods of their own, so that `planted_runs` can override one at a time."""

    keeps = False
    """Whether what can't change anything any more stays in the state: stale tasks and runs, and whether a copy is of
    the last hand-over. Only planted bugs look at these."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def first(self) -> State:
        return State((Row(),) * self.limits.messages)

    def moves(self, state: State) -> Iterator[Move]:
        """Every step from here."""
        for n, row in enumerate(state.rows):
            yield from self._world(state, n, row)
        for relay in state.relays:
            yield from self._relay(state, relay)
        for copy in state.copies:
            yield from self._copy(state, copy)
        if state.copies:
            yield Move("the tasks' broker is flushed", 0, state._replace(copies=()), "fault")
        for run in state.runs:
            yield from self._run(state, run)

    # --- time, the claim, people ---

    def _world(self, state: State, n: int, row: Row) -> Iterator[Move]:
        if row.place == "pending" and not row.due:
            yield Move("the wait or the lease of {} is over", n, put(state, n, row._replace(due=True)), "time")
        if row.place == "pending" and row.handed and not row.begun and not row.due:
            what = "the claim takes {} for lost in the broker, rightly or not"
            yield Move(what, n, put(state, n, row._replace(due=True)))
        if row.place == "pending" and row.handed and not row.begun:
            what = "the claim lets {} wait on, because its queue is long"
            yield Move(what, n, put(state, n, row._replace(due=False)))
        if self.is_claimable(state, n, row) and len(state.relays) < self.limits.relays:
            yield self._claim(state, n, row)
        if self.limits.people:
            yield from self._mend(state, n, row)

    def is_claimable(self, state: State, n: int, row: Row) -> bool:
        """Whether it is due; with a key, only the first that has not ended."""
        return row.place == "pending" and row.due and all(each.place in OVER for each in state.rows[:n])

    def _claim(self, state: State, n: int, row: Row) -> Move:
        after = self.claimed(row)
        state = self.stale(put(state, n, after), n)
        if after.place == "dead":
            return Move("the claim makes {} a dead letter", n, state)
        return Move("the claim leases {}", n, add_relay(state, Relay(n, after.attempts)))

    def claimed(self, row: Row) -> Row:
        """`supervised/expire.sql` and `claim/expire.sql`, then a take."""
        not_started, lost = row.handed and not row.begun, row.handed and row.begun
        code = row.code or ("not_started" if not_started else "lease_expired" if row.lease else "")
        code = "worker_lost" if lost else "unsettled" if row.begun else code
        after = row._replace(begun=False, handed=False, code=code, lost=row.lost + lost)
        if row.attempts >= self.limits.max_attempts and not self.gets_attempt_back(row):
            return after._replace(place="dead", due=False, lease="")
        back = 1 if self.gets_attempt_back(row) else 0
        return after._replace(lease="relay", due=False, attempts=row.attempts - back)

    def gets_attempt_back(self, row: Row) -> bool:
        """Whether the claim gives the attempt back: no worker began the task."""
        return row.handed and not row.begun

    def _mend(self, state: State, n: int, row: Row) -> Iterator[Move]:
        if row.place == "dead":
            again = row._replace(place="pending", due=True, attempts=0, lost=0)
            yield Move("a person redrives {}", n, put(state, n, again), "person")
            if row.content < self.limits.changes:
                edited = again._replace(content=row.content + 1)
                yield Move("a person edits {}, and redrives it", n, put(state, n, edited), "person")
        if row.place == "dead" or (row.place == "pending" and not row.begun):
            gone = row._replace(place="discarded", due=False, lease="", handed=False)
            yield Move("a person discards or cancels {}", n, self.stale(put(state, n, gone), n), "person")

    # --- the relay ---

    def _relay(self, state: State, relay: Relay) -> Iterator[Move]:
        n, row, rest = relay.message, state.rows[relay.message], without(state, relay)
        if relay.stage == "queued":
            yield Move("the publish task of {} gets lost", n, rest, "fault", relay)
            if self.holds(row, relay) and not row.due and not row.begun:
                began = row._replace(attempts=row.attempts + 1, begun=True)
                held = relay._replace(attempt=began.attempts, stage="begun", content=row.content)
                yield Move("the relay begins {}", n, add_relay(put(rest, n, began), held), actor=relay)
                yield Move("{} goes back to the table", n, release(rest, n), actor=relay)
            else:
                yield Move("the relay drops the publish task of {}", n, rest, actor=relay)
            return
        yield Move("the relay's worker of {} dies", n, rest, "fault", relay)
        if relay.stage == "begun":
            copied = add_copy(rest, Copy(n, relay.content, relay.current or not self.keeps))
            sent, failed = relay._replace(stage="sent"), relay._replace(stage="failed")
            yield Move("the broker takes {}", n, add_relay(copied, sent), actor=relay)
            yield Move("the send of {} fails", n, add_relay(rest, failed), actor=relay)
            yield Move("the send of {} fails, yet the broker has it", n, add_relay(copied, failed), actor=relay)
        elif not self.holds(row, relay):
            yield Move("the relay can't settle {}: a worker was quicker, or it is sent again", n, rest, actor=relay)
        elif relay.stage == "sent":
            handed = row._replace(begun=False, handed=True, due=False)
            yield Move("{} is settled as handed over", n, put(rest, n, handed), actor=relay)
        else:
            failed_row = row._replace(begun=False, lease="", due=False, code="failed")
            if row.attempts >= self.limits.max_attempts:
                yield Move("{} is settled as dead", n, put(rest, n, failed_row._replace(place="dead")), actor=relay)
            else:
                yield Move("{} is settled to be sent again", n, put(rest, n, failed_row), actor=relay)
            back = failed_row._replace(attempts=row.attempts - 1)
            yield Move("the outage of {} is settled", n, put(rest, n, back), actor=relay)

    @staticmethod
    def holds(row: Row, relay: Relay) -> bool:
        """The fence of `deliver/settle.sql`: the token."""
        ours = row.lease == "relay" and relay.current
        return row.place == "pending" and ours and row.attempts == relay.attempt

    # --- the tasks' broker, and the workers ---

    def _copy(self, state: State, copy: Copy) -> Iterator[Move]:
        n, row, rest = copy.message, state.rows[copy.message], without(state, copy)
        yield Move("a copy of {} gets lost", n, rest, "fault")
        if len(state.runs) == self.limits.runs:
            return
        if not self.may_begin(row, copy):
            yield Move("a worker drops a copy of {}", n, rest, copy=copy)
            return
        began = row._replace(lease="run", begun=True, handed=True, due=False, ran=min(2, row.ran + 1))
        for left, what in ((rest, ""), (state, ", and the broker delivers the copy again")):
            running = self.stale(put(left, n, began), n)
            running = running._replace(runs=tuple(sorted((*running.runs, Run(n, content=copy.content)))))
            yield Move(f"a worker begins the run of {{}}{what}", n, running)

    def may_begin(self, row: Row, copy: Copy) -> bool:
        """`supervised/begin.sql`."""
        waits = row.begun != row.handed
        return row.place == "pending" and waits and row.content == copy.content

    def _run(self, state: State, run: Run) -> Iterator[Move]:
        n, row, rest = run.message, state.rows[run.message], without(state, run)
        ours = self.may_end(row, run)
        yield Move("the worker that runs {} dies", n, rest, "fault", run)
        if self.may_renew(row, run):
            yield Move("a worker says that {} still runs", n, put(state, n, row._replace(due=False)), actor=run)
        if ours:
            yield Move("a worker says that its child of {} died", n, put(rest, n, row._replace(due=True)), actor=run)
        if run.stage == "runs":
            yield from self._bodies(state, rest, run)
        elif run.stage == "returned":
            yield Move("the copy of {} is back in the queue", n, add_copy(rest, Copy(n, run.content, True)), actor=run)
        elif not ours:
            yield Move("a worker can't end the run of {}: it is not its own any more", n, rest, actor=run)
        else:
            yield self.end(rest, n, row, run)

    def stale(self, state: State, n: int) -> State:
        """The row has another token now: what the others have of it is not current any more."""
        copies = sorted(set(_outdated(state.copies, n))) if self.keeps else state.copies
        runs, relays = sorted(_outdated(state.runs, n)), sorted(_outdated(state.relays, n))
        return state._replace(relays=tuple(relays), copies=tuple(copies), runs=tuple(runs))

    def tidy(self, state: State) -> State:
        """Without what can't change anything any more."""
        if self.keeps:
            return state
        return State(
            state.rows,
            tuple([each for each in state.relays if each.current or each.stage == "begun"]),
            tuple([each for each in state.copies if state.rows[each.message].place not in OVER]),
            tuple([each for each in state.runs if each.current or each.stage == "returned"]),
        )

    def _bodies(self, state: State, rest: State, run: Run) -> Iterator[Move]:
        n, row = run.message, state.rows[run.message]
        ends = {"ok": "ends well", "failed": "fails for good", "rejected": "is put back"}
        if row.content < self.limits.changes:
            ends["retry"] = "asks for a retry"
        for stage, what in ends.items():
            after = put(rest, n, row._replace(good=row.good or stage == "ok"))
            ended = after._replace(runs=tuple(sorted((*after.runs, run._replace(stage=stage)))))
            yield Move(f"the body of {{}} {what}", n, ended, actor=run)

    def may_end(self, row: Row, run: Run) -> bool:
        """The fence of `supervised/end.sql` and the others."""
        return row.place == "pending" and run.current and row.lease == "run" and row.begun

    def may_renew(self, row: Row, run: Run) -> bool:
        """`supervised/renew.sql`."""
        return self.may_end(row, run)

    def end(self, rest: State, n: int, row: Row, run: Run) -> Move:
        """The statement that ends a run, by what the body came to."""
        over = row._replace(lease="", begun=False, handed=False, due=False)
        if run.stage == "ok":
            return Move("the run of {} ends as done", n, put(rest, n, over._replace(place="done")), actor=run)
        if run.stage == "failed":
            dead = over._replace(place="dead", code="failed")
            return Move("the run of {} ends as dead", n, put(rest, n, dead), actor=run)
        if run.stage == "retry":
            again = over._replace(attempts=row.attempts - 1, code="failed", content=row.content + 1)
            return Move("the run of {} ends with a retry", n, put(rest, n, again), actor=run)
        back = row._replace(begun=False, due=False, code="requeued")
        returns = put(rest, n, back)
        returns = returns._replace(runs=tuple(sorted((*returns.runs, run._replace(stage="returned", current=False)))))
        return Move("the run of {} ends: handed over again", n, returns, actor=run)


OVER = ("done", "discarded")


def put(state: State, n: int, row: Row) -> State:
    return State((*state.rows[:n], row, *state.rows[n + 1 :]), state.relays, state.copies, state.runs)


def add_relay(state: State, relay: Relay) -> State:
    return state._replace(relays=tuple(sorted((*state.relays, relay))))


def add_copy(state: State, copy: Copy) -> State:
    return state._replace(copies=tuple(sorted({*state.copies, copy})))


def without(state: State, one: Relay | Copy | Run) -> State:
    name = {Relay: "relays", Copy: "copies", Run: "runs"}[type(one)]
    rest = list(getattr(state, name))
    rest.remove(one)
    return state._replace(**{name: tuple(rest)})


def release(state: State, n: int) -> State:
    return put(state, n, state.rows[n]._replace(lease="", due=False))


def _outdated(some: tuple[Relay | Copy | Run, ...], n: int) -> list[Relay | Copy | Run]:
    return [each._replace(current=False) if each.message == n and each.current else each for each in some]
