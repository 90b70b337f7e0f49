"""The command line: `outbox-tasks`, also found as `celery -A outbox_tasks outbox`."""

from __future__ import annotations

from outbox_tasks.cli import (
    acting,
    alerts,
    doctor,
    editing,
    exposing,
    find,
    keep,
    look,
    mend,
    probe,
    purging,
    run,
    status,
)
from outbox_tasks.cli.common import Group, outbox

assert isinstance(outbox, Group)
outbox.show(
    {
        "Run it": [run.init, run.up, run.drain, run.demo, run.bench],
        "See what is going on": [
            status.status,
            probe.health,
            doctor.doctor,
            look.keys,
            alerts.alerts,
            exposing.metrics,
            probe.monitor,
        ],
        "Keep it small": [keep.maintain, keep.export, purging.purge],
        "Find and mend messages": [
            find.list_messages,
            find.show,
            find.errors,
            acting.redrive,
            acting.discard,
            editing.edit,
        ],
        "Steer it": [mend.pause, mend.resume, find.audit],
    }
)


def main() -> None:
    """The entry point of `outbox-tasks`."""
    outbox(prog_name="outbox-tasks")
