"""`outbox-tasks health`: whether all is in order, for supervisors."""

from __future__ import annotations

import socket

import click

from outbox_tasks.cli.shared.output import answer, json_option
from outbox_tasks.cli.shared.problems_shown import facts, for_programs
from outbox_tasks.cli.shared.store import installed
from outbox_tasks.operating.problems import examine, examine_worker
from outbox_tasks.settings import Settings


@click.command()
@click.option("--worker", metavar="NODE", help="Only check that this worker is alive. %h means this host.")
@json_option
def health(worker: str | None) -> None:
    """Say what is wrong: the root causes, and what follows from each. Exit code 1 if there is an error.

    It looks at the database, the broker, the workers, and how the messages of each destination go. Warnings and notes,
    such as dead letters or a pause, are shown, and leave the exit code 0. The doctor looks at more, and says what to
    do.
    """
    app, settings = installed() or (None, Settings())
    if worker is None:
        examination = examine(settings, app)
    else:
        examination = examine_worker(settings, worker.replace("%h", socket.gethostname()))
    answer({"ok": examination.healthy, "problems": for_programs(examination)}, facts(examination))
    raise SystemExit(not examination.healthy)
