"""The commands for supervisors: whether all is in order, and the same over HTTP."""

from __future__ import annotations

from dataclasses import asdict

import click

from outbox_tasks.cli.common import echo_json, json_option, say


@click.command()
@click.option("--worker", metavar="NODE", help="Only whether this worker is alive; %h in it is this host's name.")
@json_option
def health(worker: str | None, as_json: bool) -> None:
    """Judge by the database whether all is in order. Exit code 1 if it is not.

    Not in order: the database or its tables, a queue that no worker consumes, no claim or no beat, and messages that
    have been due for longer than `stale_after` for a destination that is neither paused nor left alone.
    """
    import socket

    from outbox_tasks.operating.health import examine
    from outbox_tasks.settings import Settings

    node = worker and worker.replace("%h", socket.gethostname())
    found = examine(Settings(), node)
    if as_json:
        echo_json({"ok": not found, "findings": [asdict(problem) for problem in found]})
    else:
        say("\n".join(problem.text for problem in found) or "in order")
    raise SystemExit(bool(found))


@click.command()
@click.option("--host", help="The address to listen on: that of `monitor_host`.")
@click.option("--port", type=click.IntRange(0, 65_535), help="That of `monitor_port`, or 9187; 0: any that is free.")
def monitor(host: str | None, port: int | None) -> None:
    """Answer /livez, /readyz and /metrics over HTTP, until Ctrl-C. A worker does so itself with `monitor_port`."""
    from outbox_tasks.settings import Settings
    from outbox_tasks.telemetry.monitor import Monitor, standalone

    settings = Settings()
    chosen = {"monitor_host": host, "monitor_port": port if port is not None else settings.monitor_port or 9187}
    settings = settings.replace(**{name: value for name, value in chosen.items() if value is not None})
    serving = Monitor(settings, standalone(settings))
    say(f"The monitor answers at {serving.url}/livez, /readyz and /metrics.")
    try:
        serving.run()
    except KeyboardInterrupt:
        pass
    finally:
        serving.stop()
