"""The outbox tables, as the relay uses them. A method runs one statement of `database`, in its own short transaction.

`claims` has what a claim runs, `deliveries` what the delivery of a bundle runs, `traffic` what both ask about
destinations. A method that changes leased rows returns those that it changed. A row that is missing from the answer
belongs to somebody else by now: that is a result to count, not an error.

What runs for each bundle is a `Compiled`. The other statements are built when they first run, and kept by `cache`:
building them all would cost each process 9 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar

from outbox_tasks.database import schema
from outbox_tasks.database.connection import PIPE
from outbox_tasks.database.schema import VERSION, where
from outbox_tasks.errors import DatabaseUnavailable, SchemaMissing, SchemaTooNew, SchemaTooOld
from outbox_tasks.relay.store.claims import Claims
from outbox_tasks.relay.store.deliveries import Deliveries


class Store(Claims, Deliveries):
    """The outbox tables of one database."""

    # Otherwise PostgreSQL plans each claim anew, which takes a millisecond. The plan is always the same.
    session: ClassVar[Mapping[str, str]] = {**PIPE, "plan_cache_mode": "force_generic_plan"}

    def check_version(self) -> None:
        """Raises `SchemaMissing`, `SchemaTooOld` or `SchemaTooNew` unless the tables are of this release."""
        found = self.rows(schema.version(self.tables), {})[0][0]
        if found is None:
            raise SchemaMissing(where=where(self.settings.database_schema))
        if found < VERSION:
            raise SchemaTooOld(found=found, needed=VERSION)
        if found > VERSION:
            raise SchemaTooNew(found=found, needed=VERSION)

    def close(self) -> None:
        """Note that this process no longer sends, and close the connections."""
        with suppress(DatabaseUnavailable, SchemaMissing):
            self.traffic.leave()
        super().close()
