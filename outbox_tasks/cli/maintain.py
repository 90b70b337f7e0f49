"""`outbox-tasks maintain`: housekeeping."""

from __future__ import annotations

import click

from outbox_tasks.cli.shared.output import echo_json, json_option, say
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating import retention
from outbox_tasks.telemetry.counters import Counters
from outbox_tasks.text import many


@click.command()
@json_option
def maintain(as_json: bool) -> None:
    """Do the housekeeping that beat asks for every hour, until nothing is left to do.

    It makes the archive's next partitions, exports and drops its old days, and deletes old inbox marks, counts and
    audit entries. Exit code 1 if it could not drop an old day, or if anything else failed.
    """
    dropped: set[str] = set()
    made = forgotten = 0
    with open_store() as store:
        while True:
            done = retention.maintain(store)
            made, forgotten = made + done.made, forgotten + done.forgotten
            dropped |= {str(day) for day in done.trimmed.dropped}
            if not done.more:
                break
        counters = Counters(lambda: store)
        counters.ran("maintain")
        counters.close()
    kept = {str(day): why for day, why in done.trimmed.kept.items()}
    if as_json:
        found = {"partitions": made, "marks": forgotten, "dropped": sorted(dropped), "kept": kept}
        echo_json({**found, "failed": done.failed})
    else:
        say(f"Made {many(made, 'partition')}, forgot {many(forgotten, 'mark')}, dropped {many(len(dropped), 'day')}.")
        for day, why in kept.items():
            say(f"{day} is still there: {why}", err=True)
        for what in done.failed:
            say(what, err=True)
    raise SystemExit(bool(kept or done.failed))
