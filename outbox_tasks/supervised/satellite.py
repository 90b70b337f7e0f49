"""What supervised tasks add to the relay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from outbox_tasks.satellites import Satellite


class Supervised(Satellite):
    def install(self, app: Any, settings: Any) -> None:
        from outbox_tasks.supervised.supervise import supervise

        supervise(app, settings)

    def complete(self, session: Any, result: Any) -> Any:
        """See `Outbox.complete`."""
        from outbox_tasks.supervised.complete import complete

        return complete(session, result)

    def register(self, resources: Any, common: Mapping[str, Any]) -> None:
        from outbox_tasks.supervised.lost_tasks import look_before_claims

        look_before_claims(resources)

    def confirms(self, app: Any, settings: Any, destination: Any, task: str, queues: Collection[str]) -> bool:
        from outbox_tasks.supervised.by_default import by_default

        return by_default(app, settings, destination, task, queues)

    def expire(self, database: Any, most: int) -> Sequence[Any]:
        rows: Sequence[Any] = database.ask("supervised/expire.sql", most=most)
        return rows

    def checks(self) -> Sequence[Any]:
        from outbox_tasks.supervised.problems import CHECKS

        return CHECKS
