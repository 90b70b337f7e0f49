"""The outbox tables, as the relay uses them. A method runs one verb of `outbox_tasks/database/sql/` in its own short
transaction; mostly the verb has the method's name.

A method that changes leased messages returns those that it changed. A message that is missing from the answer has
another lease by now: that is a result to count, not an error.
"""

from __future__ import annotations

from functools import cached_property

from sqlalchemy import Engine

from outbox_tasks.database.connection import Database
from outbox_tasks.database.schema import VERSION, where
from outbox_tasks.errors import SchemaMismatch, SchemaMissing
from outbox_tasks.relay.store.claims import Claims
from outbox_tasks.relay.store.lanes import Progress
from outbox_tasks.relay.store.leases import Leases
from outbox_tasks.relay.store.takes import Takes
from outbox_tasks.relay.store.traffic import Limits, Traffic
from outbox_tasks.settings import Settings


class Store(Database):
    """The outbox tables of one database, and where this process goes on reading them."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        progress = Progress()
        self.limits = Limits(engine, settings)
        """What counts for a destination: its settings, or what people have set in their place."""
        self.traffic = Traffic(engine, settings, self.limits)
        """Which destinations get nothing now, and how much the others may take."""
        self.claims = Claims(engine, settings, progress)
        """What claims take, the slots of drains, and the housekeeping."""
        self.takes = Takes(engine, settings, progress, self.traffic)
        """What drains take."""
        self.leases = Leases(engine, settings)
        """Begin and settle."""

    def check_version(self) -> None:
        """Raises `SchemaMissing` or `SchemaMismatch` unless the tables are of this release."""
        found, place = self.ask("report/version.sql")[0].version, where(self.settings.database_schema)
        if found is None:
            raise SchemaMissing(where=place)
        if found != VERSION:
            raise SchemaMismatch(where=place, found=found, needed=VERSION)

    @cached_property
    def identity(self) -> str:
        """Which outbox this is, for its stamp on the broker. The same after a failover, and another one for a copy."""
        return str(self.ask("report/identity.sql", place=self.settings.database_schema)[0].identity)
