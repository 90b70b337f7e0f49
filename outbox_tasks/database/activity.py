"""How what processes report is read: see sql/report."""

from __future__ import annotations

LATE_SECONDS = 20.0
"""A worker without a heartbeat for so many seconds counts as lost."""

SERVER = "server"
"""The name and kind of the row that remembers the database's timeline."""

CROSSED = "crossed"
"""The name and kind of the row which says that a relay found another outbox's stamp on its broker."""

SENT = ("sent", "handed")
"""Outcomes of a send that arrived."""

FAILED = ("retry", "later", "outage", "dead")
"""Outcomes of a failed send."""

REFUSED = ("retry", "later", "dead")
"""Outcomes of a send that the destination answered, and did not take."""
