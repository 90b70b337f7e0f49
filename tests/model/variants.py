"""What is searched: in the tests, and by `python -m tests.model --big`."""

from __future__ import annotations

from tests.model.base import Variant
from tests.model.planted import KeepsTasks
from tests.model.protocol import Protocol
from tests.model.runs import Limits

SEARCHED: list[tuple[type[Protocol], Variant]] = [
    (Protocol, Variant("two messages of a key", keyed=True, people=False)),
    (Protocol, Variant("two of a key, and people", keyed=True, max_attempts=1, outages=False)),
    (Protocol, Variant("two of a key in one transaction", keyed=True, together=True, people=False, outages=False)),
    (Protocol, Variant("two of a key, `on_dead = skip`", keyed=True, skip=True, max_attempts=1, people=False)),
    (Protocol, Variant("two of a key, two claims", keyed=True, max_attempts=1, people=False, outages=False, claims=2)),
    (Protocol, Variant("two without a key", max_attempts=1, people=False)),
    (
        Protocol,
        Variant(
            "two without a key in one transaction",
            together=True, max_attempts=1, people=False, outages=False,
        ),
    ),
    (Protocol, Variant("one message, three attempts, people", messages=1, max_attempts=3)),
    (KeepsTasks, Variant("one message, the queue never forgets a task", messages=1, outages=False)),
]  # fmt: skip
"""For the tests: about 1.9 million states, in half a minute of one core."""

BIG: list[tuple[type[Protocol], Variant]] = [
    (Protocol, Variant("two of a key, people and outages", keyed=True, max_attempts=1)),
    (Protocol, Variant("two of a key, `on_dead = skip`, people", keyed=True, skip=True, max_attempts=1, outages=False)),
    (Protocol, Variant("two of a key, two attempts, two claims", keyed=True, people=False, outages=False, claims=2)),
    (Protocol, Variant("two without a key, two attempts", people=False, outages=False)),
    (Protocol, Variant("two without a key, people", max_attempts=1, outages=False)),
    (KeepsTasks, Variant("two of a key, no task forgotten", keyed=True, max_attempts=1, people=False, outages=False)),
    (KeepsTasks, Variant("one message, no task forgotten, outages", messages=1)),
]
"""Some ten million states: five minutes, and 2 GB of memory."""

RUNS = [
    Limits("a supervised task, and people"),
    Limits("two supervised tasks of a key", messages=2, max_attempts=1, relays=1, people=False),
]
"""Of the runs, for the tests: a hundred thousand states, in ten seconds of one core."""

BIG_RUNS = [
    Limits("a supervised task, three attempts", max_attempts=3, people=False),
    Limits("two supervised tasks of a key, two senders", messages=2, max_attempts=1, people=False),
]
"""As many again."""
