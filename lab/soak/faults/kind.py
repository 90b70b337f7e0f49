"""What a kind of fault is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.soak.stage import Stage

End = Callable[[], None]

FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


class NothingToHurt(Exception):
    """What it would hurt is not there any more."""


def always(stage: Stage) -> str | None:
    """It concerns our own processes and connections only."""
    return None


def own_database(stage: Stage) -> str | None:
    """It hurts the database server."""
    return None if stage.database else "the database is not the soak's own"


def own_broker(stage: Stage) -> str | None:
    """It hurts the broker."""
    return None if stage.valkey else "the broker is not the soak's own"


def database_proxy(stage: Stage) -> str | None:
    """It needs the proxy before the database."""
    return (
        None
        if stage.to_database
        else "no proxy can stand before this database: it has several addresses, or \
checks its name"
    )


def faketime(stage: Stage) -> str | None:
    """It needs libfaketime."""
    return None if FAKETIME else "libfaketime is not installed (the Debian package faketime)"


def extra(name: str) -> Callable[[Stage], str | None]:
    """It needs something around the soak's own database."""

    def missing(stage: Stage) -> str | None:
        return own_database(stage) or (None if name in stage.options.extras else f"it needs --with {name}")

    return missing


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    name: str
    begin: Callable[[Stage, random.Random], End | None]
    """Makes it happen. Returns what ends it; None: it is over at once."""
    missing: Callable[[Stage], str | None] = always
    """Why it can't or may not happen here; None: it can."""
    place: str = ""
    """Two faults of one place don't happen at the same time; by default those of one kind."""
