"""The keys that are held up now: why, and until when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox_tasks.operating.messages.waits import Wait, failed, mend, of_destinations
from outbox_tasks.operating.overview import COUNTED_AT_MOST, blocking
from outbox_tasks.relay.store import Store
from outbox_tasks.text import moment, one_line


@dataclass(frozen=True, slots=True)
class HeldKeys:
    """What is held up."""

    keys: list[dict[str, Any]]
    """Those behind a dead letter first, then those whose first message waits for its time: destination, key, id (of
    the first message), until (None: until a person acts), last_error, waiting (how many are behind it, counted up to
    10,000), and waits: why."""
    shut: dict[str, Wait]
    """Destinations that get nothing now and have messages with keys: all their keys wait."""
    more: bool
    """Whether there are more keys."""


def held_up(store: Store, size: int, destination: str | None = None) -> HeldKeys:
    """Up to `size` keys that are held up, of one destination or of all."""
    names = [*store.settings.destinations] if destination is None else [destination]
    shut = {name: wait for name, wait in of_destinations(store).items() if destination in (None, name)}
    asked = {"blocking": blocking(store, names), "most": COUNTED_AT_MOST, "shut": [*shut], "size": size + 1}
    rows = store.ask("look/held_keys.sql", **asked)
    keys = [{**row._asdict(), "waits": str(_why(row))} for row in rows if row.key is not None]
    keyed = sorted(row.destination for row in rows if row.key is None)
    return HeldKeys(keys[:size], {name: shut[name] for name in keyed}, len(keys) > size)


def _why(row: Any) -> Wait:
    if row.since is None:
        return failed(row.id, row.last_error_code, row.until)
    return Wait(f"{row.id} is dead since {moment(row.since)}: {one_line(str(row.last_error_code))}", mend(row.id))
