"""`outbox-tasks adopt`: makes the broker this outbox's."""

from __future__ import annotations

from contextlib import closing

import click

from outbox_tasks.cli.shared.output import answer, json_option
from outbox_tasks.cli.shared.store import installed, open_store, relay_settings


@click.command()
@json_option
def adopt() -> None:
    """Take over the broker for this outbox, which was moved to another server.

    A relay leaves in its broker which outbox it serves, and the relay of another outbox does not start there. Stop the
    relay at the old place first: after this it claims nothing more.
    """
    from outbox_tasks.broker.broker import Broker
    from outbox_tasks.celery import make_app

    app, settings = installed() or (None, relay_settings())
    with open_store(settings=settings) as store:
        outbox = store.identity
        with closing(Broker(app or make_app(settings), settings)) as broker:
            before = broker.adopt(outbox)
    text = f"The broker belongs to {outbox}."
    if before != outbox:
        text += " It belonged to none before." if before is None else f" Before: {before}."
    answer({"outbox": outbox, "before": before}, text)
