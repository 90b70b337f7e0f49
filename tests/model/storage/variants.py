"""What is searched."""

from __future__ import annotations

from tests.model.storage.explore import Model
from tests.model.storage.keys import Keys
from tests.model.storage.lanes import Lanes

SEARCHED: list[Model] = [
    Lanes("a lane, four messages, one claimer", claimers=1),
    Lanes("a lane, three messages, two claimers", messages=3),
    Lanes("a lane, three messages, two claimers that take two", messages=3, size=2),
    Keys("two of a key, two claimers", keys="aa", scheduled=False),
    Keys("two of a key, two changes at once", keys="aa", claimers=1, at_once=2),
    Keys(
        "two of a key, `on_dead = skip`, two changes at once", keys="aa", claimers=1, at_once=2, skip=True, people=False
    ),
    Keys("two of a key, `on_dead = skip`, and notes only", keys="aa", claimers=1, skip=True, notes_only=True),
    Keys("three of a key, `on_dead = skip`", claimers=1, scheduled=False, people=False, skip=True),
]

BIG: list[Model] = [
    Keys("three of a key, and people", claimers=1, scheduled=False),
    Keys("two of a key and one of another", keys="aab", claimers=1, scheduled=False, people=False),
]
"""Most of the states: the tests leave these to `python -m tests.model.storage`."""
