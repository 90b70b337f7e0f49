"""`outbox-tasks status`: in a few seconds a person sees what is wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from outbox_tasks.cli.common import console, echo_json, installed, json_option, open_store

if TYPE_CHECKING:
    from celery import Celery

    from outbox_tasks.broker.broker import Broker
    from outbox_tasks.relay.store import Store
    from outbox_tasks.settings import Settings

PATIENCE = 0.5
"""Seconds that the broker has to tell how much is queued. All else comes from the database."""


@click.command(short_help="Show what is wrong, what waits, and who is at work.")
@click.option(
    "--watch", is_flag=False, flag_value=2.0, type=click.FloatRange(0.2, 3600), metavar="[SECONDS]",
    help="Look again every so many seconds (2), until Ctrl-C.",
)  # fmt: skip
@json_option
def status(watch: float | None, as_json: bool) -> None:
    """Show what is wrong, how much waits for each destination and for how long, and who is at work.

    Counts are exact up to 10,000; "~" marks an estimate. Rates are those of the last few minutes. Exit code 0, whatever
    is found: see `health`.
    """
    app, settings = installed() or (None, None)
    with open_store(settings=settings) as store:
        queues = Queues(store.settings, app)
        if watch is None:
            found = snapshot(store, queues)
            if as_json:
                echo_json(found)
            else:
                from outbox_tasks.cli.tables import status_shown

                console().print(status_shown(found, console().width))
        else:
            try:
                _watch(lambda: snapshot(store, queues), watch, as_json)
            except KeyboardInterrupt:
                return


def snapshot(store: Store, queues: Queues) -> dict[str, Any]:
    """All that is shown, for programs."""
    from outbox_tasks import __version__
    from outbox_tasks.database.schema import VERSION
    from outbox_tasks.operating import health, overview

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
            for worker in seen.heartbeats.workers
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


def _watch(look: Callable[[], dict[str, Any]], every: float, as_json: bool) -> None:
    from rich.live import Live

    from outbox_tasks.cli.tables import status_shown
    from outbox_tasks.cli.texts import cell
    from outbox_tasks.errors import OutboxError

    if as_json:
        while True:
            echo_json(look())
            time.sleep(every)
    with Live(console=console(), auto_refresh=False, screen=True) as live:
        while True:
            try:
                shown = status_shown(look(), live.console.width)
            except OutboxError as error:  # it may come back, and whoever watches wants to see that
                shown = cell(f"✗ {error}", "red")
            live.update(shown, refresh=True)
            time.sleep(every)


class Queues:
    """How much is queued, asked in threads that nobody has to wait for."""

    def __init__(self, settings: Settings, app: Celery | None = None) -> None:
        self._settings = settings
        self._app = app

    def ask(self) -> Callable[[], dict[str, int] | str]:
        """Ask the broker. What is returned gives the answer, or why there is none."""
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
        from outbox_tasks.errors import BrokerUnreachable

        with suppress(BrokerUnreachable):
            found.update(self._broker.lengths())

    @cached_property
    def _broker(self) -> Broker:
        from outbox_tasks.broker.broker import Broker
        from outbox_tasks.broker.pinned import PinnedCelery

        url = str(self._settings.broker_url)
        app = self._app or PinnedCelery("outbox_tasks.status", broker=url, settings=self._settings, timeout=PATIENCE)
        return Broker(app, self._settings, timeout=PATIENCE)
