"""Claims as a test wants them: what is taken of a destination is one bundle, under the lease that the test names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from outbox_tasks.database.schema import DEAD
from outbox_tasks.model import Bundle, Ticket
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import Claimed


def take(store: Store, shares: Mapping[str, int], lease: str) -> list[Claimed]:
    """Claim, and return what was claimed or became a dead letter. Of several destinations, the first has the lease."""

    def pack(rows: Sequence[Claimed]) -> list[Bundle]:
        together: dict[str, list[Ticket]] = defaultdict(list)
        for row in rows:
            if row.status != DEAD and not row.superseded:
                together[row.destination].append(Ticket(row.id, row.attempts, row.event_type))
        return [Bundle(name, lease, tuple(some), probe=not n) for n, (name, some) in enumerate(together.items())]

    return store.claim(shares, lease, pack)[0]
