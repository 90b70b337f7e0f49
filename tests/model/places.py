"""How the places of the model are called in `lab/moves.py`."""

from __future__ import annotations

from lab.moves import NOWHERE
from tests.model.pipe.hop_state import Db

LATE = ", run out"


def place(db: Db, number: int) -> str:
    """Where a message of the model is, in the words of `lab/moves.py`."""
    for lease in db.leases:
        if number in lease.numbers:
            return ("begun" if lease.begun else "leased") + (LATE if lease.over else "")
    where = db.rows[number].place
    return NOWHERE if where == "none" else where
