"""The command line: `outbox-tasks`, also found as `celery -A outbox_tasks outbox`."""

from __future__ import annotations

from outbox_tasks.cli import acts, alerts, archive, doctor, edit, find, health, keys, metrics, pause, purge, run, status
from outbox_tasks.cli.common import Group, outbox

assert isinstance(outbox, Group)
outbox.show(
    {
        "Run it": [run.init, run.up, run.drain, run.demo, run.bench],
        "See what is going on": [
            status.status,
            health.health,
            doctor.doctor,
            keys.keys,
            alerts.alerts,
            metrics.metrics,
            health.monitor,
        ],
        "Keep it small": [archive.maintain, archive.export, purge.purge],
        "Find and mend messages": [
            find.list_messages,
            find.show,
            find.errors,
            acts.redrive,
            acts.discard,
            edit.edit,
        ],
        "Steer it": [pause.pause, pause.resume, find.audit],
    }
)


def main() -> None:
    """The entry point of `outbox-tasks`."""
    outbox(prog_name="outbox-tasks")
