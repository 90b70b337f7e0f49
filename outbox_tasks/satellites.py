"""Satellites: what the core and the operations can do without. Each is one folder, with its SQL, tasks and commands.

The core and the operations import none. They ask all satellites at the places that `Satellite` names. A satellite is
found by its entry point in the group `outbox_tasks.satellites`; taking it out is deleting its folder and that line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, NamedTuple

GROUP = "outbox_tasks.satellites"


class Command(NamedTuple):
    """A command of a satellite."""

    section: str
    """The heading in `outbox-tasks --help` below which it stands."""
    purpose: str
    """The line there."""
    module: str


class Satellite:
    """What a satellite may add. It overrides the methods that it needs; each adds nothing by default. They import what
    they need when they are called: most processes don't need most satellites."""

    tables: ClassVar[str | None] = None
    """The SQL file that makes its tables in the relay's database."""
    rights: ClassVar[Mapping[str, Mapping[str, tuple[str, ...]]]] = {}
    """The privileges of each role on these tables, which are named without `outbox_`: see `database.rights`."""
    commands: ClassVar[Mapping[str, Command]] = {}
    """Commands of `outbox-tasks`, by name."""

    def check_settings(self, settings: Any) -> None:
        """Check, and convert in place, the settings that are its own. Raises `ConfigurationError`."""

    def install(self, app: Any, settings: Any) -> None:
        """Add its part to an application's Celery app, with `Outbox.install`."""

    def own_app(self, app: Any) -> None:
        """Add its part to the relay's own Celery app."""

    def register(self, resources: Any, common: Mapping[str, Any]) -> None:
        """Add its Celery tasks to an app, and what it does before each claim and at the end of a process: see
        `worker.resources.Resources`. `common`: options for all tasks."""

    def confirms(self, app: Any, settings: Any, destination: Any, task: str, queues: Collection[str]) -> bool:
        """Whether the row of a stored task that goes to `destination` stays until a worker says that it has run."""
        return False

    def expire(self, database: Any, most: int) -> Sequence[Any]:
        """Take back messages whose time with a worker is over: rows with `destination` and `cause`, at most `most`."""
        return ()

    def copy(self, store: Any, stop: Callable[[], bool]) -> bool:
        """Copy messages from elsewhere into the relay's tables, for some seconds. Returns whether there are more."""
        return False

    def maintain(self, store: Any) -> None:
        """Delete what is old, in the hourly housekeeping."""

    def checks(self) -> Sequence[Any]:
        """Checks of `operating.problems`, after those of the operations."""
        return ()

    def acts(self) -> Mapping[str, Any]:
        """Acts of people, by name, whose batches are done like `operating.messages.acts.do_batch`."""
        return {}

    def feeds(self, database: Any) -> Sequence[Any]:
        """What people see of the places from which it copies: see `operating.overview.FeedState`."""
        return ()


@cache
def satellites() -> Mapping[str, Satellite]:
    """The satellites that are installed, by name."""
    return {entry.name: entry.load()() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def satellite(name: str) -> Any:
    """The satellite called `name`, for what applications ask of this one alone: `feeds` has `writer`, `upgrade` and
    `wake`, `events` has `event`, `guard` has `guard`, `supervised` has `complete`. Raises `KeyError`
    if it was taken out."""
    return satellites()[name]
