"""The outbox tables, as the relay uses them. A method runs one verb of `outbox_tasks/sql/` in its own short
transaction, or a few in one.

`claims` has what a claim runs, `deliveries` what the delivery of a bundle runs, `traffic` what both ask about
destinations. A method that changes leased messages returns those that it changed. One that is missing from the answer
belongs to somebody else by now: that is a result to count, not an error.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property

from outbox_tasks.database import schema
from outbox_tasks.database.schema import VERSION, where
from outbox_tasks.errors import DatabaseUnavailable, SchemaMismatch, SchemaMissing
from outbox_tasks.relay.store.claims import Claims
from outbox_tasks.relay.store.deliveries import Deliveries


class Store(Claims, Deliveries):
    """The outbox tables of one database."""

    def check_version(self) -> None:
        """Raises `SchemaMissing` or `SchemaMismatch` unless the tables are of this release."""
        found, place = self.rows(schema.version(self.tables), {})[0][0], where(self.settings.database_schema)
        if found is None:
            raise SchemaMissing(where=place)
        if found != VERSION:
            raise SchemaMismatch(where=place, found=found, needed=VERSION)

    @cached_property
    def identity(self) -> str:
        """Which outbox this is, for its stamp on the broker. The same after a failover, and another one for a copy."""
        return str(self.ask("report/identity.sql", place=self.settings.database_schema)[0].identity)

    def close(self) -> None:
        """Note that this process no longer sends, and close the connections."""
        with suppress(DatabaseUnavailable, SchemaMissing):
            self.traffic.leave()
        super().close()
