"""Where a message may go from each place, in one transaction. Steps within a place are not told.

A place with `, run out` is a lease that had run out when it ended. The trace of a run (`trace.py`) notes each move, and
whatever is not in this table is a bug. A test compares the table with the model of the protocol in both directions, and
docs/architecture.md shows it.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

NOWHERE = "none"
OVER = ("sent", "discarded")


class Move(NamedTuple):
    """A move that a message may make."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    verbs: str
    """The files in `sql/` that make it."""
    condition: str = ""


def either(*places: str) -> tuple[str, ...]:
    """Places, whether their leases have run out or not."""
    return tuple(each for place in places for each in (place, f"{place}, run out"))


LATE = ("leased, run out", "begun, run out")
LEASES = either("leased", "begun")
HANDED, RUNNING = either("handed over"), either("running")
TAKE = "`claim/take.sql`, `claim/look_keys.sql`, `claim/take_keys.sql`, `claim/lease.sql`"
SETTLE = "`deliver/settle.sql`"

TABLE = (
    Move("publish", (NOWHERE,), ("ready", "waiting"), "`writers.sql`"),
    Move("wake", ("waiting",), ("ready", "held"), "`claim/wake.sql`", "its time has come"),
    Move("take", ("ready", "held"), ("leased",), TAKE, "with a key only its [head](order.md) and the run behind it"),
    Move(
        "put aside", ("ready",), ("held", "waiting"), "`claim/aside_keys.sql`",
        "behind another message of its key, or too early",
    ),
    Move("too early", ("held",), ("waiting",), "`claim/aside_keys.sql`"),
    Move(
        "bury", ("ready", "held"), ("dead",), "`claim/bury.sql`",
        "no attempts left, too old, too large; or its destination is unknown for an hour",
    ),
    Move(
        "supersede", ("ready", "held"), ("discarded",), "`claim/supersede.sql`",
        "its route says `latest`, it failed, and there is a newer one",
    ),
    Move(
        "begin", ("leased",), ("begun",), "`deliver/begin.sql`", "the token; its circuit is not open, and there is room"
    ),
    # A settle does not ask whether the lease has run out, nor whether the begin is still known: a crash may undo it.
    Move("settle: sent or discarded", LEASES, OVER, "`deliver/sent.sql`, `deliver/settle.sql`", "the token"),
    Move("settle: retry, short", LEASES, ("leased",), SETTLE, "the token; a new token, for the wait and `queue_lease`"),
    Move("settle: later", LEASES, ("waiting",), SETTLE, "the token; after a wait"),
    Move("settle: behind", LEASES, ("held",), SETTLE, "the token; an earlier message of its key failed"),
    Move("settle: dead", LEASES, ("dead",), SETTLE, "the token"),
    Move("settle: handed over", LEASES, ("handed over",), SETTLE, "the token; `confirm_within`"),
    Move(
        "give back", ("leased",), ("ready", "waiting"), "`deliver/release.sql`",
        "the token; not begun; perhaps after a wait",
    ),
    Move("lease ran out", LATE, ("ready", "held", "dead"), "`claim/expire.sql`", "if it was begun, the attempt counts"),
    # A quick worker begins the run before the settle of the send.
    Move(
        "begin the run", (*HANDED, *either("begun")), ("running",), "`run/begin.sql`",
        "the copy says what the message says: `run_lease`",
    ),
    Move("run: not begun", ("handed over, run out",), ("ready", "held"), "`run/expire.sql`"),
    Move(
        "run: worker lost", ("running, run out",), ("ready", "held", "dead"), "`run/expire.sql`", "the attempt counts"
    ),
    Move("run: done", RUNNING, OVER, "`run/end.sql`", "the run's token; what follows is inserted"),
    Move("run: failed for good", RUNNING, ("dead",), "`run/fail.sql`", "the run's token"),
    Move("run: the task's retry", RUNNING, ("waiting", "ready", "held"), "`run/retry.sql`", "the run's token"),
    Move("run: put back", RUNNING, ("handed over",), "`run/requeue.sql`", "the run's token"),
    Move("redrive", ("dead",), ("ready", "held"), "`act/redrive.sql`"),
    Move(
        "discard · cancel", ("dead", "ready", "waiting", "held", *either("leased"), *HANDED), ("discarded",),
        "`act/discard.sql`, `write/cancel.sql`", "a lease is left alone, unless the message waits for a retry",
    ),
    Move("purge", ("dead",), (NOWHERE,), "`act/discard.sql`"),
)  # fmt: skip

MOVES = {pair: move.name for move in reversed(TABLE) for pair in product(move.before, move.after)}
"""The name of each pair of places."""
