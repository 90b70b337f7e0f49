"""`outbox-tasks health`: whether all is in order, for supervisors."""

from __future__ import annotations

import socket
from contextlib import suppress

import click

from outbox_tasks.cli.shared.output import answer, json_option, say
from outbox_tasks.cli.shared.problems_shown import facts, for_programs
from outbox_tasks.cli.shared.store import installed, relay_settings
from outbox_tasks.operating.problems import examine, examine_worker
from outbox_tasks.settings import Settings


@click.command()
@click.option("--worker", metavar="NODE", help="Only check that this worker is alive. %h means this host.")
@click.option("--serve", is_flag=True, help="Answer /livez, /readyz and /metrics over HTTP, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Default: `monitor_port`, or 9187. 0: any free port.")
@json_option
def health(worker: str | None, serve: bool, port: int | None) -> None:
    """Say what is wrong: the root causes, and what follows from each. Exit code 1 if there is an error.

    It looks at the database, the broker, the workers, and how the messages of each destination go. Warnings and notes,
    such as dead letters or a pause, are shown, and leave the exit code 0. The doctor looks at more, and says what to
    do.

    --serve answers on `monitor_host`. A worker with `monitor_port` answers the same paths.
    """
    if (worker is not None and serve) or (port is not None and not serve):
        raise click.UsageError("--serve goes without --worker, and --port goes with --serve")
    if serve:
        _serve(port)
        return
    app, settings = installed() or (None, Settings())
    if worker is None:
        examination = examine(settings, app)
    else:
        examination = examine_worker(settings, worker.replace("%h", socket.gethostname()))
    answer({"ok": examination.healthy, "problems": for_programs(examination)}, facts(examination))
    raise SystemExit(not examination.healthy)


def _serve(port: int | None) -> None:
    from outbox_tasks.telemetry.monitor import Monitor, standalone

    settings = relay_settings()
    if port is None:
        port = settings.monitor_port or 9187
    settings = settings.replace(monitor_port=port)
    serving = Monitor(settings, standalone(settings))
    say(f"The monitor answers at {serving.url}/livez, /readyz and /metrics.")
    with serving, suppress(KeyboardInterrupt):
        serving.serve_forever()
