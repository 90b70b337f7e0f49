"""`outbox-tasks demo`: the relay at work, with failures."""

from __future__ import annotations

import click

from outbox_tasks.cli.shared.output import json_option, wants_json


@click.command()
@json_option
@click.option(
    "--orders", default=5000, show_default=True, type=click.IntRange(1, 1_000_000), help="How many orders to commit."
)
def demo(orders: int) -> None:
    """Show the relay at work, and count at the destination what arrived.

    It commits orders with their messages, and rolls others back. The destination fails sometimes, one message can
    never be delivered, and a publish worker is killed while it sends. Exit code 0 only if no message was lost and
    no rolled-back message was delivered.
    """
    from outbox_tasks.local.demo import demo as run

    raise SystemExit(run(orders=orders, as_json=wants_json()))
