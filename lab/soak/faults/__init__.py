"""All kinds of faults."""

from __future__ import annotations

from lab.soak.faults import broker, database, destination, processes
from lab.soak.faults.kind import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (*processes.KINDS, *broker.KINDS, *database.KINDS, *destination.KINDS)
}
