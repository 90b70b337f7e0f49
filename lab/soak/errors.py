"""What can go wrong with a soak itself."""

from __future__ import annotations

from outbox_tasks.errors import OutboxError


class NothingArrived(OutboxError):
    says = "Only {count} messages arrived within {seconds:g} s, before any fault. The logs are in {directory}"


class DiskNotMade(OutboxError):
    says = """The small disk could not be made: {reason}
    Only root may mount a file system. Run the soak as root, or without --with small-disk."""


class PoolerNotInstalled(OutboxError):
    says = "PgBouncer is not installed. Install it, or run the soak without --with pgbouncer."


class StandbyBehind(OutboxError):
    says = "The standby has not caught up with its primary within {seconds:g} s."
