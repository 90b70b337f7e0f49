"""What is searched of the next storage."""

from __future__ import annotations

from tests.model.storage.explore import Model
from tests.model.storage.lanes import Lanes

SEARCHED: list[Model] = [
    Lanes("a lane, four messages, one claimer", claimers=1),
    Lanes("a lane, three messages, two claimers", messages=3),
    Lanes("a lane, three messages, two claimers that take two", messages=3, size=2),
]
