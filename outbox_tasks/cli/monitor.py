"""`outbox-tasks monitor`: health and metrics over HTTP."""

from __future__ import annotations

from contextlib import suppress

import click

from outbox_tasks.cli.shared.output import say
from outbox_tasks.cli.shared.store import relay_settings
from outbox_tasks.telemetry.monitor import Monitor, standalone


@click.command()
@click.option("--host", help="The address to listen on. Default: `monitor_host`.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Default: `monitor_port`, or 9187. 0: any free port.")
def monitor(host: str | None, port: int | None) -> None:
    """Answer /livez, /readyz and /metrics over HTTP, until Ctrl-C. A worker with `monitor_port` does it too."""
    settings = relay_settings()
    chosen = {"monitor_host": host, "monitor_port": port if port is not None else settings.monitor_port or 9187}
    settings = settings.replace(**{name: value for name, value in chosen.items() if value is not None})
    serving = Monitor(settings, standalone(settings))
    say(f"The monitor answers at {serving.url}/livez, /readyz and /metrics.")
    with serving, suppress(KeyboardInterrupt):
        serving.serve_forever()
