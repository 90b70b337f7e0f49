"""The keys that are held up now: why, and until when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox_tasks.operating import overview
from outbox_tasks.operating.messages.waits import Wait, failed, mend, of_destinations
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
    found = [row._asdict() for row in overview.blocked_keys(store, size + 1, destination)]
    for key in found:
        died = f"{key['id']} is dead since {moment(key['since'])}: {one_line(str(key['last_error_code']))}"
        key |= {"until": None, "waits": str(Wait(died, mend(key["id"])))}
    shut = {name: wait for name, wait in of_destinations(store).items() if destination in (None, name)}
    keyed = set()
    for row in store.ask("look/waiting_keys.sql", destinations=names, shut=[*shut], size=size + 1):
        if row.key is None:
            keyed.add(row.destination)
        else:
            found.append({**row._asdict(), "waits": str(failed(row.id, row.last_error_code, row.until))})
    return HeldKeys(found[:size], {name: shut[name] for name in sorted(keyed)}, len(found) > size)
