"""The protocol as it is in `outbox_tasks`: all that can happen next.

Each method is one step of the relay, or of those around it, and yields every way that the step can go. The conditions
(`may_begin`, `may_settle`, …) are methods of their own, so that `planted` can override one of them at a time. They name
the statement whose condition they are.
"""

from __future__ import annotations

from tests.model.claiming import Claiming
from tests.model.sending import Sending
from tests.model.writing import Writing


class Protocol(Writing, Claiming, Sending):
    """The whole of it."""
