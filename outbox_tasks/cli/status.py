"""`outbox-tasks status`: what is wrong, what waits, who is at work."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import click

from outbox_tasks import __version__
from outbox_tasks.cli.shared.output import answer, cell, console, echo_json, json_option, wants_json
from outbox_tasks.cli.shared.status_table import status_shown
from outbox_tasks.cli.shared.store import installed, open_store
from outbox_tasks.database.schema import VERSION
from outbox_tasks.errors import OutboxError
from outbox_tasks.operating.overview import cut
from outbox_tasks.operating.status import Queues, dead_letters_wait, read, why_not_in_order
from outbox_tasks.relay.store import Store


@click.command()
@click.option(
    "--watch", is_flag=False, flag_value=2.0, type=click.FloatRange(0.2, 3600), metavar="[SECONDS]",
    help="Look again every 2 or SECONDS seconds, until Ctrl-C.",
)  # fmt: skip
@json_option
def status(watch: float | None) -> None:
    """Show what is wrong, how much waits for each destination and for how long, and who is at work.

    Counts are exact up to 10,000; "~" marks an estimate. Rates are those of the last few minutes. Exit code 0, even
    if something is wrong: for supervisors there is `health`.
    """
    app, settings = installed() or (None, None)
    with open_store(settings=settings) as store:
        queues = Queues(store.settings, app)
        if watch is None:
            found = snapshot(store, queues)
            answer(found, status_shown(found, console().width))
        else:
            with suppress(KeyboardInterrupt):
                _watch(lambda: snapshot(store, queues), watch)


def snapshot(store: Store, queues: Queues) -> dict[str, Any]:
    """Everything that is shown, for programs."""
    found = read(store, queues)
    seen, known = found.seen, isinstance(found.queues, dict)
    destinations = [
        {
            "name": name,
            **(one := asdict(status)).pop("breaker"),
            **one,
            "state": status.state,
            "estimated": sorted(one["estimated"]),
            "why": why_not_in_order(name, status),
        }
        for name, status in sorted(seen.destinations.items())
    ]
    ran = {kind: seen.heartbeats.last.get(kind) for kind in ("claim", "beat", "maintain")}
    return {
        "findings": [asdict(problem) for problem in found.problems],
        "destinations": destinations,
        "more_destinations": cut(seen.destinations),
        "feeds": [state._asdict() for state in seen.feeds],
        "dead_letters": dead_letters_wait(seen.destinations),
        "workers": [
            {"name": worker.name, "seen_at": worker.seen_at, "age": worker.age, **worker.facts}
            for worker in (*seen.heartbeats.workers, *seen.heartbeats.supervising)
        ],
        "drains": seen.drains,
        "processes": found.processes,
        **{kind: last and {"seen_at": last.seen_at, "age": last.age, **last.facts} for kind, last in ran.items()},
        "queues": found.queues if known else None,
        "queues_unknown": None if known else found.queues,
        "archived": {"count": found.archived, "estimated": found.estimated},
        "stale_after": store.settings.stale_after,
        "version": __version__,
        "tables": VERSION,
    }


def _watch(take: Callable[[], dict[str, Any]], every: float) -> None:
    if wants_json():
        while True:
            echo_json(take())
            time.sleep(every)
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, screen=True) as live:
        while True:
            try:
                shown = status_shown(take(), live.console.width)
            except OutboxError as error:  # show it, and go on: the database may come back
                shown = cell(f"✗ {error}", "red")
            live.update(shown, refresh=True)
            time.sleep(every)
