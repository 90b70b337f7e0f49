"""`outbox-tasks status`: what is wrong, what waits, who is at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from outbox_tasks import __version__
from outbox_tasks.cli.shared.output import cell, console, echo_json, json_option
from outbox_tasks.cli.shared.status_table import status_shown
from outbox_tasks.cli.shared.store import installed, open_store
from outbox_tasks.database.schema import VERSION
from outbox_tasks.errors import BrokerUnreachable, OutboxError
from outbox_tasks.operating import health, overview
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

    from outbox_tasks.broker.broker import Broker

PATIENCE = 0.5
"""Seconds that the broker has to say how much is queued. Everything else comes from the database."""


@click.command()
@click.option(
    "--watch", is_flag=False, flag_value=2.0, type=click.FloatRange(0.2, 3600), metavar="[SECONDS]",
    help="Look again every 2 or SECONDS seconds, until Ctrl-C.",
)  # fmt: skip
@json_option
def status(watch: float | None, as_json: bool) -> None:
    """Show what is wrong, how much waits for each destination and for how long, and who is at work.

    Counts are exact up to 10,000; "~" marks an estimate. Rates are those of the last few minutes. Exit code 0, even
    if something is wrong: for supervisors there is `health`.
    """
    app, settings = installed() or (None, None)
    with open_store(settings=settings) as store:
        queues = Queues(store.settings, app)
        if watch is None:
            found = snapshot(store, queues)
            if as_json:
                echo_json(found)
            else:
                console().print(status_shown(found, console().width))
        else:
            try:
                _watch(lambda: snapshot(store, queues), watch, as_json)
            except KeyboardInterrupt:
                return


def snapshot(store: Store, queues: Queues) -> dict[str, Any]:
    """Everything that is shown, for programs."""
    queued = queues.ask()
    problem = health.slow(store)
    seen = overview.read(store)
    archived, estimated = overview.archived(store)
    destinations = [
        {"name": name, **(one := asdict(status)).pop("breaker"), **one, "estimated": sorted(one["estimated"])}
        for name, status in sorted(seen.destinations.items())
    ]
    lengths = queued()
    ran = {kind: seen.heartbeats.last.get(kind) for kind in ("claim", "beat", "maintain")}
    return {
        "findings": [asdict(one) for one in (*filter(None, [problem]), *health.judge(store.settings, seen))],
        "destinations": destinations,
        "workers": [
            {"name": worker.name, "seen_at": worker.seen_at, "age": worker.age, **worker.facts}
            for worker in (*seen.heartbeats.workers, *seen.heartbeats.supervising)
        ],
        "publishers": seen.publish_processes,
        **{kind: last and {"seen_at": last.seen_at, "age": last.age, **last.facts} for kind, last in ran.items()},
        "queues": lengths if isinstance(lengths, dict) else None,
        "queues_unknown": None if isinstance(lengths, dict) else lengths,
        "archived": {"count": archived, "estimated": estimated},
        "stale_after": store.settings.stale_after,
        "version": __version__,
        "tables": VERSION,
    }


def _watch(take: Callable[[], dict[str, Any]], every: float, as_json: bool) -> None:
    if as_json:
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


class Queues:
    """Asks the broker how much is queued, in a thread: a broker that hangs does not hold up the rest."""

    def __init__(self, settings: Settings, app: Celery | None = None) -> None:
        self._settings = settings
        self._app = app

    def ask(self) -> Callable[[], dict[str, int] | str]:
        """Start to ask. The function returned gives the lengths, or the reason why there are none."""
        if self._app is None and self._settings.broker_url is None:
            return lambda: "not asked: OUTBOX_BROKER_URL is not set"
        found: dict[str, int] = {}
        thread = threading.Thread(target=self._ask, args=(found,), name="outbox-queues", daemon=True)
        thread.start()

        def answer() -> dict[str, int] | str:
            thread.join(PATIENCE)
            return f"the broker did not answer within {PATIENCE:g} s" if thread.is_alive() or not found else found

        return answer

    def _ask(self, found: dict[str, int]) -> None:
        with suppress(BrokerUnreachable):
            found.update(self._broker.lengths())

    @cached_property
    def _broker(self) -> Broker:
        from outbox_tasks.broker.broker import Broker
        from outbox_tasks.broker.pinned import PinnedCelery

        url = str(self._settings.broker_url)
        app = self._app or PinnedCelery("outbox_tasks.status", broker=url, settings=self._settings, timeout=PATIENCE)
        return Broker(app, self._settings, timeout=PATIENCE)
