"""Where a message may go from each place, in one transaction. Steps within a place are not told.

A place with `, run out` is a lease that had run out when it ended. The trace of a run (`trace.py`) notes each move, and
whatever is not in this table is a bug.
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
TAKE = "`claim/take_….sql`, `keys.sql`"
SETTLE = "`deliver/settle.sql`"

TABLE = (
    Move("publish", (NOWHERE,), ("ready", "waiting"), "`writers.sql`"),
    Move("wake", ("waiting",), ("ready",), "`claim/wake.sql`, `act/try.sql`",
         "no key; its time has come, or a person tries it now"),
    Move("take singly", ("ready", "held"), ("leased",), TAKE, "with a key only the first message of it"),
    Move("take a batch", ("ready", "held"), ("begun",), TAKE, "of a key the first messages; its send has begun"),
    Move("put aside", ("ready",), ("held",), "`keys.sql`", "its key is busy, or it is not due yet"),
    Move("bury", ("ready", "held"), ("dead",), "`claim/bury.sql`", "its destination is unknown for an hour"),
    Move("begin", ("leased",), ("begun",), "`deliver/begin.sql`", "the token; its destination gets something now"),
    # A settle does not ask whether the lease has run out, nor whether the begin is still known: a crash may undo it.
    Move("settle: sent or discarded", LEASES, OVER, "`deliver/sent.sql`, `deliver/settle.sql`", "the token"),
    Move("settle: retry, short", LEASES, ("leased",), SETTLE, "the token; a new token, for the wait and `queue_lease`"),
    Move("settle: later", LEASES, ("waiting", "held"), SETTLE, "the token; after a wait"),
    Move("settle: behind", LEASES, ("ready",), SETTLE, "the token; there was no time left to send it"),
    Move("settle: dead", LEASES, ("dead",), SETTLE, "the token"),
    Move("settle: handed over", LEASES, ("handed over",), SETTLE, "the token; `confirm_within`"),
    Move("lease ran out", LATE, ("ready", "held"), "`claim/expire.sql`", "if it was begun, the attempt counts"),
    # A quick worker begins the run before the settle of the send.
    Move(
        "begin the run", (*HANDED, *either("begun")), ("running",), "`supervised/begin.sql`",
        "the copy says what the message says",
    ),
    Move("run: not begun", ("handed over, run out",), ("ready", "held"), "`supervised/expire.sql`"),
    Move(
        "run: worker lost", ("running, run out",), ("ready", "held"), "`supervised/expire.sql`", "the attempt counts"
    ),
    Move("run: done", RUNNING, OVER, "`supervised/end.sql`", "the run's token; what follows is inserted"),
    Move("run: failed for good", RUNNING, ("dead",), "`supervised/fail.sql`", "the run's token"),
    Move("run: the task's retry", RUNNING, ("waiting", "ready", "held"), "`supervised/retry.sql`", "the run's token"),
    Move("run: put back", RUNNING, ("handed over",), "`supervised/requeue.sql`", "the run's token"),
    Move("try", ("leased",), ("ready", "held"), "`act/try.sql`", "a single that waits for Celery's retry"),
    Move("redrive", ("dead",), ("ready", "held"), "`act/redrive.sql`"),
    Move(
        "discard · cancel", ("dead", "ready", "waiting", "held", *either("leased"), *HANDED), ("discarded",),
        "`act/discard.sql`, `write/cancel.sql`", "a lease is left alone, unless the message waits for a retry",
    ),
    Move("purge", ("dead",), (NOWHERE,), "`act/discard.sql`"),
)  # fmt: skip

MOVES = {pair: move.name for move in reversed(TABLE) for pair in product(move.before, move.after)}
"""The name of each pair of places."""
