"""What claims and sends ask about destinations. A lease that has begun is a send that runs: there are no slots."""

from __future__ import annotations

import json
from typing import Any, Literal

from outbox_tasks.model import Bundle
from outbox_tasks.relay.store.traffic import Admitted, Traffic
from outbox_tasks.settings import SLOW
from outbox_tasks.storage.tables import Tables


class Sends(Tables, Traffic):
    """The statements about destinations, over the next storage."""

    def _make_slots(self, limited: list[dict[str, Any]]) -> None:
        """A lease is a place."""

    def _admitted(self, asked: list[dict[str, Any]], lease: str) -> list[Admitted]:
        rows = self.ask(
            "claim/admit.sql",
            asked=json.dumps(asked),
            token=lease,
            hold=self.settings.queue_lease,
            keep=self.settings.soft_time_limit,
        )
        return [Admitted(*row) for row in rows]

    def slots_for(self, bundle: Bundle) -> Literal["free", "quick", "slow"]:
        """Whether a bundle, of which nothing was begun, had room, or who has it: quick sends, so that there is room
        soon, or only slow ones."""
        room = self.rooms(publishing=True).get(bundle.destination)
        if room is None:
            return "free"
        keep = self.settings.soft_time_limit
        [row] = self.ask("deliver/crowded.sql", destination=bundle.destination, patience=SLOW, keep=keep)
        if row.busy < room:
            return "free"
        return "slow" if row.slow >= room else "quick"
