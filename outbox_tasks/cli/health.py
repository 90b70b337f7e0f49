"""`outbox-tasks health`: whether all is in order, for supervisors."""

from __future__ import annotations

import socket
from dataclasses import asdict

import click

from outbox_tasks.cli.shared.output import answer, json_option
from outbox_tasks.cli.shared.store import relay_settings
from outbox_tasks.operating.health import examine


@click.command()
@click.option("--worker", metavar="NODE", help="Only check that this worker is alive. %h means this host.")
@json_option
def health(worker: str | None) -> None:
    """Judge by the database whether all is in order. Exit code 1 if it is not.

    It is not if the database does not answer or the tables are old, if no worker consumes a queue, if there was no
    claim or no beat lately, or if messages have been due for longer than `stale_after` to a destination that is
    not paused, and whose circuit is not open.
    """
    node = worker and worker.replace("%h", socket.gethostname())
    found = examine(relay_settings(), node)
    text = "\n".join(problem.text for problem in found) or "in order"
    answer({"ok": not found, "findings": [asdict(problem) for problem in found]}, text)
    raise SystemExit(bool(found))
