"""The supervised tasks: whether workers that know of them serve their queues, and whether some wait too long."""

from __future__ import annotations

import json

from outbox_tasks.database.activity import LATE
from outbox_tasks.operating.doctor.finding import Fine, error, warning
from outbox_tasks.operating.doctor.site import Results, Site
from outbox_tasks.text import shell_line, span

SUPERVISE = (
    "Call outbox.supervise(app) in the module of the application's Celery app, and restart its workers.\n"
    "Compare OUTBOX_DATABASE_URL and OUTBOX_DATABASE_SCHEMA there with the ones here."
)


def brokers(site: Site) -> Results:
    """Whether supervised tasks have a broker of their own."""
    for name, destination in site.settings.destinations.items():
        if destination.confirm == "run" and destination.takes_the_relays_broker:
            yield warning(
                "tasks_with_the_relay",
                f"{name} hands its tasks to the relay's own broker.",
                "A flush, a full memory or a short visibility timeout hits the application's tasks and the relay at "
                "once. No task is lost by that, but all of them wait.",
                f"Name the application's broker in the URL of {name}: celery://?broker=redis://…",
            )


def waiting(site: Site) -> Results:
    """Whether tasks that were handed over begin to run."""
    celery = {name: each for name, each in site.settings.destinations.items() if each.scheme == "celery"}
    if not celery:
        return
    asked = json.dumps([{"destination": name, "queue": each.queue} for name, each in celery.items()])
    rows = site.store.ask("run/handed_over.sql", asked=asked, soon=0.0, late=LATE)
    alive = [worker for worker in site.heartbeats.supervising if worker.alive]
    served = {queue for worker in alive for queue in worker.queues}
    for row in rows:
        tasks = f"{row.count:,} task{'s' * (row.count > 1)} of {row.destination}"
        where = f"the queue {row.queue}" if row.queue else "their queue"
        if not alive or (row.queue and row.queue not in served):
            last = min((worker.age for worker in site.heartbeats.supervising), default=None)
            seen = "none was ever seen" if last is None else f"one was last seen {span(last)} ago"
            yield error(
                "tasks_unsupervised",
                f"{tasks} wait in {where}, and no worker with supervise serves it"
                + (f" ({seen})." if not alive else f"; those alive serve {', '.join(sorted(served))}."),
                "A worker without it runs them and tells nobody. So they are sent again after confirm_within, and run "
                "again.",
                SUPERVISE,
            )
        elif row.oldest > site.settings.stale_after:
            again = f", and {row.again:,} of them {'were' if row.again > 1 else 'was'} sent again" if row.again else ""
            yield warning(
                "tasks_wait",
                f"{tasks} wait in {where}; the first has waited for {span(row.oldest)}{again}.",
                f"More than stale_after ({site.settings.stale_after:g} s). The workers are busy, or have lost the "
                "broker.",
                "Start more of the application's workers; see what they do: "
                + shell_line("list", "--destination", row.destination, "--state", "running"),
            )
    if not rows or (all(row.oldest <= site.settings.stale_after for row in rows) and alive):
        running = sum(site.destinations[name].states["running"] for name in celery if name in site.destinations)
        yield Fine(f"no handed-over task waits for long, and {running:,} run")
