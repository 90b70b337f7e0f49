"""The next storage behind the functions that the hops call."""

from __future__ import annotations

from collections.abc import Set

from outbox_tasks.relay.store import Store
from outbox_tasks.storage.claims import Claiming
from outbox_tasks.storage.deliveries import Delivering


class Storage(Claiming, Delivering, Store):  # type: ignore[misc]  # `traffic` is narrower
    """A `Store` over the tables of `sql/schema.sql`."""

    @property
    def unfinished(self) -> Set[str]:
        """A claim looks at all that is due: it never stops on its way."""
        return set()

    def new_round(self) -> None:
        """Nothing is left over from the last round."""

    def check_version(self) -> None:
        """It has no version yet."""
