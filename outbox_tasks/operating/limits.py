"""Pauses and limits of a destination that a person sets while the relay runs. The audit records each act, with who and
why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from pydantic import TypeAdapter, ValidationError

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ActRefused
from outbox_tasks.operating.wake import wake
from outbox_tasks.relay.store.traffic import Change, Limits
from outbox_tasks.settings.destination import PerSecond, Processes, Seconds, Singles
from outbox_tasks.text import moment, short

STEERED = ("rate_limit", "concurrency", "singles")
"""The settings of a destination that a person can change while the relay runs."""


@dataclass(frozen=True, slots=True)
class InForce:
    """One setting of a destination, as it counts now."""

    setting: str
    value: Any
    whence: str
    """Where the value comes from: a person, a setting or the default."""
    change: Change | None
    """What a person has set."""

    @property
    def shown(self) -> str:
        """The value in words, with its unit: 2 a second."""
        if self.value is None:
            return "none"
        if self.value in ("all", inf):
            return "all"
        return f"{self.value:g}{ {'rate_limit': ' a second', 'concurrency': ' at once'}.get(self.setting, '') }"

    def __str__(self) -> str:
        return f"{self.shown}, {self.whence}"


def in_force(database: Database, destination: str) -> list[InForce]:
    """What counts for a destination, of `STEERED`."""
    return _in_force(Limits(database.engine, database.settings), destination)


def set_by_people(database: Database) -> dict[str, list[InForce]]:
    """What people have set, by destination."""
    limits = Limits(database.engine, database.settings)
    changed = {name: [each for each in _in_force(limits, name) if each.change] for name in limits.set_by_people()}
    return {name: in_force for name, in_force in changed.items() if in_force}


def _in_force(limits: Limits, destination: str) -> list[InForce]:
    limit, own = limits.of(destination), limits.settings.destinations[destination]
    in_force = []
    for setting in STEERED:
        change = limit.changes.get(setting)
        if setting == "singles" and limit.concurrency is not None:
            change, whence = None, "because it has a concurrency"
        elif change:
            end = f"until {moment(change.until)}" if change.until else "until somebody clears it"
            whence = f"by {change.who} {end}" + (f": {change.why}" if change.why else "")
        elif getattr(own, setting) is not None:
            whence = "its own setting"
        else:
            whence = "the general setting" if hasattr(limits.settings, setting) else "the default"
        in_force.append(InForce(setting, getattr(limit, setting), whence, change))
    return in_force


def limit(
    database: Database, destination: str, wanted: Mapping[str, Any], who: str, why: str, seconds: float | None = None
) -> None:
    """Set limits in the place of settings, for so many seconds, or until `clear`. Workers keep to them within a second
    or two. Raises `ActRefused`."""
    values = {setting: _checked(setting, value) for setting, value in wanted.items()}
    if not values:
        raise ActRefused(reason=f"say which limit: {', '.join(STEERED)}")
    if not why.strip():
        raise ActRefused(reason="say why: others will want to know")
    rows = [{"setting": name, "value": "Infinity" if value == "all" else value} for name, value in values.items()]
    until = None if seconds is None else _checked("seconds", seconds)
    with database.transaction() as run:
        run("audit/limit.sql", destination=destination, wanted=json.dumps(rows), seconds=until, person=who, reason=why)
        if values.keys() != {"singles"}:  # what waits singly in the queue was not limited
            run("claim/hold_back.sql", destinations=[destination])


def _checked(setting: str, value: Any) -> Any:
    """The value, by the rules of the settings."""
    rules: dict[str, Any] = {
        "rate_limit": PerSecond, "concurrency": Processes, "singles": Singles, "seconds": Seconds,
    }  # fmt: skip
    try:
        return TypeAdapter(rules[setting]).validate_python(value)
    except ValidationError as error:
        rule = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ActRefused(reason=f"{setting} can't be {short(value)!r}: {rule}") from None


def clear(database: Database, destination: str, who: str, why: str | None = None) -> list[str]:
    """End all limits that people have set for a destination: its settings count. Returns the settings that it freed."""
    cleared = database.ask("audit/unlimit.sql", destination=destination, person=who, reason=why)
    return [row.setting for row in cleared]


def pause(database: Database, destination: str, who: str, why: str | None) -> None:
    """Send nothing to a destination until `resume`."""
    database.ask("audit/pause.sql", destination=destination, person=who, reason=why)


def resume(database: Database, destination: str, who: str, why: str | None = None) -> bool:
    """End a pause, and close the breaker. Returns whether the destination was paused or had failed."""
    resumed = bool(database.ask("audit/resume.sql", destination=destination, person=who, reason=why))
    if resumed:
        wake(database.settings)
    return resumed
