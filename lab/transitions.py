"""The life of a row as a table: every change that a row may make.

A run with a trace (`trace.py`) notes each change of each row, and whatever is not in this table is a bug. A test
compares the table with the model of the protocol in both directions, and docs/architecture.md shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

OVER = ("sent", "discarded")
"""Where an archived row has gone."""


class Change(NamedTuple):
    """One change of one row, without what differs from message to message."""

    before: str
    """A state of the row: `none`, `waiting`, `pending` (due), `dead`, or one with a lease: `leased`, `begun`, `handed
    over` or `running`, each perhaps `…, run out`."""
    after: str
    """The same, but whether its time has come is in `ends`; or `sent`, `discarded`, or `deleted`."""
    lease: str
    """`none`, `same`, `new`, or `gone`."""
    counted: int
    """By how much the attempts changed."""
    fresh: bool
    """Without an attempt, afterwards."""
    ends: str
    """`locked_until` is `past`, `now` or `ahead`."""
    moved: str
    """`locked_until` is `earlier` or `later` than before, or the `same`."""
    code: str | None
    """The error code, afterwards."""
    kept: bool
    """The code is as it was."""
    rewritten: bool = False
    """What the message says has changed."""

    def __str__(self) -> str:
        code = f"{'still ' if self.kept else ''}{f'code {self.code}' if self.code else 'no code'}"
        said = ", rewritten" if self.rewritten else ""
        return (
            f"{self.before} → {self.after}: lease {self.lease}, attempts {self.counted:+d}, locked_until {self.ends} "
            f"({self.moved}), {code}{said}"
        )


@dataclass(frozen=True)
class Transition:
    """A change that a row may make."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    statement: str
    condition: str = ""
    """What the change itself does not show."""
    lease: str = "same"
    counted: tuple[int, ...] = (0,)
    fresh: bool = False
    """It has no attempts afterwards, however many it had."""
    ends: tuple[str, ...] = ("ahead",)
    moved: tuple[str, ...] = ()
    codes: tuple[str, ...] = ("kept",)
    """Any of: `kept`, `earlier` (kept, and there is one), `some` (there is one), or the code itself."""
    rewrites: bool | None = False
    """None: it may."""
    still: bool = False
    """The row stays in its state, whichever of these it is."""

    def allows(self, change: Change) -> bool:
        """Whether a change is this one."""
        return (
            change.before in self.before
            and change.after in self.after
            and (not self.still or change.after == plain(change.before))
            and self._lease_of(change) == change.lease
            and (change.fresh if self.fresh else change.counted in self.counted)
            and (self._leaves or change.ends in self.ends)
            and (not self.moved or change.moved in self.moved)
            and any(_has(code, change) for code in self.codes)
            and self.rewrites in (None, change.rewritten)
        )

    @property
    def _leaves(self) -> bool:
        """The row is not to be claimed any more."""
        return {*self.after} <= {"dead", "deleted", *OVER}

    def _lease_of(self, change: Change) -> str:
        """A row without a lease can't keep or lose it."""
        return "none" if self.lease != "new" and change.before in UNHELD else self.lease


def _has(code: str, change: Change) -> bool:
    if code == "kept":
        return change.kept
    if code == "earlier":
        return change.kept and change.code is not None
    return change.code is not None if code == "some" else change.code == code


def named(change: Change, *, archive: bool = True) -> str | None:
    """What a change is called; None: there must be no such change. Without an `archive`, rows that end are deleted, and
    only where they came from is known."""
    if change.after == "deleted" and not archive:
        return next(
            (e.name for e in TRANSITIONS if change.before in e.before and {*e.after} & {"deleted", *OVER}), None
        )
    return next((each.name for each in TRANSITIONS if each.allows(change)), None)


def plain(state: str) -> str:
    """A state, whether its time has come or not."""
    return "pending" if state == "waiting" else state.removesuffix(", run out")


def either(*states: str) -> tuple[str, ...]:
    """States, whether their leases have run out or not."""
    return tuple(each for state in states for each in (state, f"{state}, run out"))


UNHELD = ("none", "waiting", "pending", "dead")
LEASED, BEGUN, HANDED, RUNNING = either("leased"), either("begun"), either("handed over"), either("running")
BEFORE_RUN = ("handed over", "handed over, run out", "begun", "begun, run out")
CLAIM = "`database/claim.py` `leased`"
FAILED = "`database/settle.py` `settle_failed`"
OURS = "same lease and attempt"

WRITING = (
    Transition(
        "publish", ("none",), ("pending",), "`database/write.py` `publish`, `publish_one`; `outbox_publish`",
        lease="none", fresh=True, ends=("past", "now", "ahead"),
    ),
    Transition(
        "publish, direct", ("none",), ("leased",), "`database/write.py` `publish`",
        "no key, due now, little to send: 10 s, and `locked_by` is null", lease="new", fresh=True,
    ),
)  # fmt: skip

CLAIMING = (
    Transition(
        "claim", ("pending",), ("leased",), "`database/claim.py` `claim`, `database/claim_keys.py` `claim_keys`",
        "with a key only its [head](order.md) and the run behind it", lease="new",
    ),
    Transition(
        "claim: the lease ran out", ("leased, run out",), ("leased",), CLAIM, lease="new",
        codes=("earlier", "lease_expired", "direct_expired"),
    ),
    Transition(
        "claim: never settled", ("begun, run out",), ("leased",), CLAIM, "it travels alone from now on", lease="new",
        codes=("unsettled",),
    ),
    Transition(
        "claim: not started", ("handed over, run out",), ("leased",), CLAIM, "`outages` − 1", lease="new",
        counted=(-1,), codes=("earlier", "not_started"),
    ),
    Transition(
        "claim: worker lost", ("running, run out",), ("leased",), CLAIM, lease="new", codes=("worker_lost",)
    ),
    Transition(
        "claim: no attempts left", ("pending",), ("dead",), CLAIM, lease="gone", codes=("earlier", "attempts_exhausted")
    ),
    Transition(
        "claim: never settled, no attempts left", ("begun, run out",), ("dead",), CLAIM, lease="gone",
        codes=("unsettled",),
    ),
    Transition(
        "claim: worker lost, no attempts left", ("running, run out",), ("dead",), CLAIM, lease="gone",
        codes=("worker_lost",),
    ),
    Transition(
        "claim: too old or too large", ("pending", "leased, run out", "handed over, run out"), ("dead",), CLAIM,
        "`max_age` is over, or the payload is over `max_bytes`", lease="gone", counted=(0, -1),
        codes=("too_old", "too_large"),
    ),
    Transition(
        "supersede", LEASED, ("discarded",), "`database/settle.py` `settle_done`",
        "its route says `latest`, it failed, and there is a newer one", lease="gone", codes=("superseded",),
    ),
    Transition(
        "release · give back", LEASED, ("pending",), "`database/begin.py` `release`, `give_back`",
        f"{OURS}; due after a wait, or now if its circuit is open", lease="gone", ends=("now", "ahead"),
    ),
    Transition(
        "recall", ("leased", "begun"), ("leased", "begun"), "`database/claim.py` `recall`",
        "nobody will use the lease: its holder died, or the queue was lost; a retry keeps its wait",
        ends=("now", "ahead"), moved=("earlier", "same"), still=True,
    ),
    Transition(
        "bury", ("pending", *(f"{state}, run out" for state in ("leased", "begun", "handed over", "running"))),
        ("dead",), "`database/claim.py` `bury_unroutable`", "due for an hour, and its destination is unknown",
        lease="gone", codes=("unknown_destination",),
    ),
)  # fmt: skip

SENDING = (
    Transition(
        "begin", ("leased",), ("begun",), "`database/begin.py` `begin`",
        f"{OURS}, its circuit not open, a slot free; at least `run_lease` is left", counted=(1,),
        moved=("same", "later"),
    ),
    Transition(
        "begin again", ("begun",), ("begun",), "`database/begin.py` `begin`",
        "as begin; a crash of the server undid the settle before it", counted=(1,), codes=("unsettled",),
    ),
    Transition("sent", BEGUN, ("sent",), "`database/settle.py` `settle_done`", OURS, lease="gone"),
    Transition(
        "discarded", BEGUN, ("discarded",), "`database/settle.py` `settle_done`", f"{OURS}; nobody wants it any more",
        lease="gone", codes=("some",),
    ),
    Transition(
        "hand over", BEGUN, ("handed over",), "`database/settle.py` `settle_handed`",
        f"{OURS}; `confirm_within` · 2^n, n = −`outages` = how often in a row it was not begun",
    ),
    Transition(
        "retry, short", BEGUN, ("leased",), FAILED, f"{OURS}; wait + `queue_lease`", codes=("some",),
    ),
    Transition(
        "behind", BEGUN, ("pending",), FAILED, f"{OURS}; an earlier message of its key failed", lease="gone",
        counted=(-1,), ends=("now",),
    ),
    Transition(
        "outage", BEGUN, ("pending",), FAILED,
        f"{OURS}; also if a whole bundle failed for no known reason. From its `breaker_failures`-th outage in a row on "
        "a message keeps the attempt, as with a long retry, unless the breaker is open",
        lease="gone", counted=(-1,), codes=("some",),
    ),
    Transition("retry, long", BEGUN, ("pending",), FAILED, f"{OURS}; after a wait", lease="gone", codes=("some",)),
    Transition("dead", BEGUN, ("dead",), FAILED, OURS, lease="gone", codes=("some",)),
    Transition(
        "sent, begin undone", LEASED, ("sent",), "`database/settle.py` `settle_done`",
        "as above; a crash of the server undid the begin", lease="gone", counted=(1,),
    ),
    Transition(
        "end, begin undone", LEASED, ("discarded", "dead"), "`database/settle.py` `settle_done`, `settle_failed`",
        "the same; or a large message could not be fetched", lease="gone", counted=(1,), codes=("some",),
    ),
    Transition(
        "release, begin undone", LEASED, ("pending",), FAILED, "the same", lease="gone",
        counted=(0, 1), codes=("some",),
    ),
    Transition(
        "retry or hand over, begin undone", LEASED, ("leased", "handed over"),
        "`database/settle.py` `settle_failed`, `settle_handed`", "the same", counted=(1,), codes=("kept", "some"),
    ),
    Transition(
        "retry, short, again", LEASED, ("leased",), FAILED, "the answer to the first one was lost", moved=("later",),
        codes=("earlier",),
    ),
    Transition(
        "note", ("waiting", "pending", *LEASED, *BEGUN, *HANDED, *RUNNING, "dead"),
        ("pending", "leased", "begun", "handed over", "running", "dead"), "`database/settle.py` `sent_in_vain`",
        "who sent it could not settle it, and another has begun it; there is no code yet",
        ends=("past", "now", "ahead"), moved=("same",), codes=("unsettled",), still=True,
    ),
    Transition(
        "note the timeline", ("pending", *LEASED), ("pending", "leased"), "`database/claim.py` `note_timeline`",
        "the database is on another timeline: it may have been delivered before", ends=("past", "now", "ahead"),
        moved=("same",), codes=("timeline_changed",), still=True,
    ),
)  # fmt: skip

RUNS = (
    Transition(
        "begin the run", BEFORE_RUN, ("running",), "`database/runs.py` `begin_run`",
        "the copy says what the row says: `run_lease`", lease="new",
    ),
    Transition("renew", RUNNING, ("running",), "`database/runs.py` `renew_runs`", "the run's token: `run_lease`"),
    Transition("lose", RUNNING, ("running",), "`database/runs.py` `lose_runs`", "the run's token", ends=("now",)),
    Transition(
        "done", RUNNING, ("sent",), "`database/runs.py` `end_run`", "the run's token; what follows is inserted",
        lease="gone",
    ),
    Transition(
        "discarded by its run", RUNNING, ("discarded",), "`database/runs.py` `end_run`", "the same", lease="gone",
        codes=("some",),
    ),
    Transition(
        "failed for good", RUNNING, ("dead",), "`database/runs.py` `fail_run`", "the same", lease="gone",
        codes=("some",),
    ),
    Transition(
        "the task's retry", RUNNING, ("pending",), "`database/runs.py` `retry_run`",
        "the run's token; the new copy's payload and headers", lease="gone", counted=(-1,), ends=("now", "ahead"),
        codes=("some",), rewrites=None,
    ),
    Transition(
        "put back", RUNNING, ("handed over",), "`database/runs.py` `requeue_run`",
        "the run's token: `confirm_within`, or now if its broker has no copy", ends=("now", "ahead"),
        codes=("requeued",),
    ),
    Transition(
        "end the wait", ("handed over",), ("handed over",),
        "`database/lost_tasks.py` `end_waits`; `database/runs.py` `unknown_run`",
        "its broker has lost it: [`relay/lost_tasks.py`](../outbox_tasks/relay/lost_tasks.py) `LostTasks`; or a worker "
        "does not know its task: after a wait",
        ends=("now", "ahead"), moved=("earlier",),
    ),
    Transition(
        "wait on", HANDED, ("handed over",), "`database/lost_tasks.py` `wait_on`",
        "its queue is long: `confirm_within`, at most 8 times that after `handed_at`", moved=("later",),
    ),
)  # fmt: skip

PEOPLE = (
    Transition(
        "discard · cancel", ("dead", "waiting", "pending", *LEASED, *HANDED), ("discarded",),
        "`outbox_cancel`; `operating/messages/act_statements.py` `discard`",
        "a claim's lease is left alone for as long as it lasts, unless the message waits for a retry", lease="gone",
        codes=("some",),
    ),
    Transition(
        "redrive", ("dead",), ("pending",), "`operating/messages/act_statements.py` `redrive`", lease="none",
        fresh=True, ends=("now",),
    ),
    Transition(
        "edit", ("dead",), ("dead",), "`operating/messages/act_statements.py` `edit`", lease="none", rewrites=True
    ),
    Transition(
        "purge", ("dead",), ("deleted",), "`operating/messages/act_statements.py` `discard`", lease="none",
    ),
)  # fmt: skip

TRANSITIONS = (*WRITING, *CLAIMING, *SENDING, *RUNS, *PEOPLE)
