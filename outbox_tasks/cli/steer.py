"""`outbox-tasks pause`, `resume` and `limit`: how much a destination gets."""

from __future__ import annotations

from typing import Any

import click

from outbox_tasks.cli.shared.options import Duration, who_and_why
from outbox_tasks.cli.shared.output import answer, json_option, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.errors import ActRefused
from outbox_tasks.operating import limits
from outbox_tasks.relay.store import Store
from outbox_tasks.text import one_line


@click.command()
@click.argument("destination")
@who_and_why
@json_option
def pause(destination: str, who: str, why: str | None) -> None:
    """Send nothing to a destination until it is resumed: its messages wait, and spend no attempts."""
    with open_store(destination) as store:
        limits.pause(store, destination, who, why)
    answer({"paused": destination}, f"{destination} is paused. Its messages wait.")


@click.command()
@click.argument("destination")
@who_and_why
@json_option
def resume(destination: str, who: str, why: str | None) -> None:
    """End the pause of a destination, or close its breaker: its messages are due again."""
    with open_store(destination) as store:
        changed = limits.resume(store, destination, who, why)
    outcome = "goes on" if changed else "was neither paused nor in trouble"
    answer({"resumed": destination, "changed": changed}, f"{destination} {outcome}.")


@click.command()
@click.argument("destination")
@click.option("--rate", "rate_limit", type=float, metavar="N", help="At most N messages a second.")
@click.option("--concurrency", type=int, metavar="N", help="At most N sends at once.")
@click.option("--singles", metavar="N|all", help="So many due messages travel as tasks of their own.")
@click.option("--for", "seconds", type=Duration(), metavar="TIME", help="For 90s, 15m, 2h, 3d; else until --clear.")
@click.option("--clear", is_flag=True, help="Let the settings count again.")
@who_and_why
@json_option
def limit(
    destination: str, seconds: float | None, clear: bool, who: str, why: str | None, **values: float | str | None
) -> None:
    """Limit a destination without a restart, in the place of its settings. Without options: show what counts.

    All workers keep to it within two seconds. The end comes by itself. --why is needed, and the audit keeps it.
    """
    wanted = {setting: value for setting, value in values.items() if value is not None}
    if clear and wanted:
        raise click.UsageError("--clear goes without limits")
    if not wanted and seconds is not None:
        raise click.UsageError("--for goes with --rate, --concurrency or --singles")
    with open_store(destination) as store:
        changes = []
        if clear:
            cleared = limits.clear(store, destination, who, why)
            changes = [f"Cleared: {', '.join(cleared) or 'nothing, nobody had set a limit'}."]
        elif wanted:
            try:
                limits.limit(store, destination, wanted, who, why or "", seconds)
            except ActRefused as error:
                raise click.UsageError(error.reason) from None
        _show(store, destination, changes)


def _show(store: Store, destination: str, changes: list[str]) -> None:
    in_force = limits.in_force(store, destination)
    if wants_json():
        facts: dict[str, Any] = {"destination": destination, "said": changes}
        for limit in in_force:
            change = None if limit.change is None else limit.change._asdict() | {"value": limit.value}
            facts[limit.setting] = {"value": limit.value, "whence": limit.whence, "change": change}
        answer(facts)
    else:
        answer(None, "\n".join([*changes, *(f"{limit.setting}: {one_line(str(limit))}" for limit in in_force)]))
