"""What the model knows: the rows of the table, the tasks in the queue, and what each process has in hand.

Time is not counted. `due` says whether the database's clock has passed a row's `locked_until`, and a step of its own
lets that happen at any moment. So a worker may be as slow as it likes, and every lease may run out anywhere.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Place = Literal["unwritten", "open", "pending", "dead", "sent", "discarded", "rolled back"]
"""Where a row is: `open` while its transaction is; `sent` and `discarded` are the archive."""

Code = Literal["", "lease_expired", "unsettled", "failed"]
"""The row's `last_error_code`; `failed` stands for all that a destination, or a publisher, reports."""


class Row(NamedTuple):
    """One message's row. The last two fields are not in the database: they are for the properties."""

    place: Place = "unwritten"
    due: bool = False
    leased: bool = False
    begun: bool = False
    attempts: int = 0
    code: Code = ""
    arrived: int = 0
    """How often the destination took the message; 2 stands for more."""
    passed: bool = False
    """It was refused for good once, and does not hold up its key: later messages may have gone on."""


class Ticket(NamedTuple):
    """One message in a task: what the begin compares with the row."""

    message: int
    attempt: int
    current: bool = True
    """Its lease is the last one that was granted for the message. Leases are random, so an older one never matches
    again."""


Task = tuple[Ticket, ...]
"""A publish task, or the task of a bundle."""


class Held(NamedTuple):
    """One message in the hands of a worker."""

    message: int
    attempt: int
    current: bool
    stage: str
    """What has happened, or comes next: see `UNSENT` and the others."""


UNSENT = "unsent"
"""Begun, and not yet sent."""
SENT, FAILED, REFUSED, OUTAGE, BEHIND = "sent", "failed", "refused", "outage", "behind"
"""Its outcome, which is not yet settled."""
RETRY = "retry"
"""Settled; its retry is still to be sent to the broker."""
UNBEGUN = "unbegun"
"""It was not begun, or its retry was not taken: its lease is to be given back."""

SETTLED = frozenset({RETRY, UNBEGUN})

Hand = tuple[Held, ...]
"""What one worker has in hand; empty: it is idle."""


class Giving(NamedTuple):
    """A task on its way to the broker, from the claim."""

    task: Task
    refused: bool = False
    """The broker did not take it: the leases are to be given back."""


class Horizon(NamedTuple):
    """What a claim has read before it leases messages with keys: the last number, then the marks."""

    last: int
    marks: bool = False
    """The marks are read too: nothing beyond `last` may be leased."""


Rows = tuple[Row, ...]


class State(NamedTuple):
    """All there is. The workers are alike, so their hands are sorted."""

    rows: Rows
    queue: tuple[Task, ...] = ()
    hands: tuple[Hand, ...] = ((), ())
    giving: tuple[Giving, ...] = ()
    horizon: Horizon | None = None
