"""What is searched."""

from __future__ import annotations

from tests.model.explore import Model
from tests.model.pipe.changes import ALL
from tests.model.pipe.hops import Hops
from tests.model.pipe.keys import Keys
from tests.model.pipe.lanes import Lanes

RELAY = frozenset({"settle", "retry", "expire"})
"""Without people."""
SINGLES, DRAINS = frozenset({"single"}), frozenset({"drain"})
FIRST = frozenset({0})

SEARCHED: list[Model] = [
    Lanes("a lane, four messages, one claimer", claimers=1),
    Lanes("a lane, three messages, two claimers", messages=3),
    Keys("two of a key, people"),
    Keys("two of a key, people, `on_dead = skip`", skip=True),
    Keys("two of a key, the first is scheduled", scheduled=FIRST),
    Keys("two of a key, two changes at once", at_once=2),
    Keys("two held, the first is scheduled, and a new one", places=("held", "held"), scheduled=FIRST, messages=3,
         writers=1, fails=False, verbs=frozenset({"settle", "cancel"})),
    Keys("two dead letters of a key, and a new one", places=("dead", "dead"), messages=3, writers=1,
         verbs=ALL - {"cancel", "retry"}),
    Keys("three of a key", messages=3, verbs=RELAY - {"retry"}, fails=False),
    Hops("one message, singles and drains", messages=1),
    Hops("two of a key, singles", ways=SINGLES),
    Hops("two of a key, drains", ways=DRAINS, max_attempts=1),
    Hops("two of a key, singles and drains, one worker", workers=1),
    Hops("two of a key, people, one worker", workers=1, people=True, max_attempts=1, ways=DRAINS),
    Hops("two of a key, `on_dead = skip`, one worker", workers=1, skip=True, max_attempts=1),
    Hops("two without a key, drains, one worker", keyed=False, workers=1, ways=DRAINS, max_attempts=1),
    Hops("two of a key, crashes of the database", workers=1, crashes=True, max_attempts=1, ways=SINGLES),
]  # fmt: skip

BIG: list[Model] = [
    Hops("one message, people", messages=1, people=True, max_attempts=1),
    Hops("one message, crashes of the database", messages=1, keyed=False, workers=1, crashes=True, max_attempts=1),
    Lanes("a lane, three messages, two claimers that take two", messages=3, size=2),
    Keys("two of a key, people, `on_dead = skip`, two changes at once", skip=True, at_once=2),
    Keys("three of a key, failures", messages=3, verbs=RELAY),
    Keys("two of a key, two takes at once", takes=2, verbs=RELAY - {"retry"}),
    Hops("two of a key, singles and drains", max_attempts=1),
    Hops("two of a key, drains, two attempts", ways=DRAINS),
    Hops("two without a key, drains", keyed=False, ways=DRAINS, max_attempts=1),
    Hops("one message, crashes of the database, two workers", messages=1, keyed=False, crashes=True, max_attempts=1),
    Hops("two of a key, drains, crashes of the database", workers=1, crashes=True, max_attempts=1, ways=DRAINS),
]
"""They take minutes: for each week."""
