"""What `outbox-tasks status` shows."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from outbox_tasks.store import Store

STYLES = {"closed": "green", "open": "red", "trying": "yellow", "paused": "yellow"}
"""The breaker's states, as `breaker.states` names them."""

SHOWN = {"closed": "in order", "open": "left alone", "trying": "being tried", "paused": "paused"}


def destinations(store: Store) -> list[dict[str, Any]]:
    """Every destination that is configured, or paused, or in trouble, by name."""
    found = {row.name: dict(row._mapping) for row in store.states()}
    for name in store.settings.destinations:
        found.setdefault(name, {"name": name, "state": "closed", "failures": 0})
    return [found[name] for name in sorted(found)]


def as_table(found: list[dict[str, Any]]) -> Table:
    """For people."""
    table = Table("destination", "state", "why", "until")
    for one in found:
        state = one["state"]
        why = _why(one)
        until = one.get("pause_until") if state in ("open", "trying") else None
        table.add_row(
            one["name"],
            f"[{STYLES[state]}]{SHOWN[state]}[/]",
            why,
            f"{until:%H:%M:%S}" if until else ("resume" if state == "paused" else ""),
        )
    return table


def _why(one: dict[str, Any]) -> str:
    if one["state"] == "paused":
        return f"by {one['paused_by']} since {one['paused_at']:%Y-%m-%d %H:%M}" + (
            f": {one['paused_why']}" if one["paused_why"] else ""
        )
    if one["failures"]:
        return f"{one['failures']} sends in a row failed: {one['error_code']}: {one['error']}"
    return ""
