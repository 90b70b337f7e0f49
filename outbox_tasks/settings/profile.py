"""Profiles: several settings under one name."""

from __future__ import annotations

from typing import Any, Literal

from outbox_tasks.errors import ConfigurationError

Profile = Literal["per-message"]

PER_MESSAGE: Profile = "per-message"

SETS: dict[str, dict[str, Any]] = {PER_MESSAGE: {"bundle_size": 1, "nudge": False}}
"""What each profile sets."""


def with_profile(values: dict[str, Any]) -> dict[str, Any]:
    """The values, and what their profile sets."""
    name = values.get("profile")
    return {**SETS[name], **values} if isinstance(name, str) and name in SETS else values


def check_profile(profile: str | None, prefix: str, said: object) -> None:
    """Raise `ConfigurationError` if a setting of `said`, the settings or a destination, breaks the profile. `prefix`
    stands before its name in the error."""
    for name, value in SETS[profile].items() if profile else ():
        own = getattr(said, name, None)
        if own is not None and own != value:
            rule = f"with profile = {profile} it is {str(value).lower()}; leave out one of the two"
            raise ConfigurationError(setting=f"{prefix}{name}", value=own, rule=rule)
