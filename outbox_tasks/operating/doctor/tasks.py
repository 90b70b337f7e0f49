"""The tasks of `celery://` destinations: whether the workers that get them know them."""

from __future__ import annotations

from collections.abc import Sequence

from outbox_tasks.broker.task_broker import app_of
from outbox_tasks.operating.doctor.finding import Fine, error, warning
from outbox_tasks.operating.doctor.live_workers import Worker, ask_workers
from outbox_tasks.operating.doctor.site import TIMEOUT, Results, Site
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import many, shell_line
from outbox_tasks.writing.eager import REMEDY, eager

DONE_WHEN = {
    "run": "it has run (confirm = run)",
    "sent": "its broker has it (confirm = sent)",
    None: "it has run, if the app that stores it has install or supervise (confirm is not set)",
}

NEWEST_MESSAGES = 1_000
"""Workers are asked about the tasks of so many messages."""

NAMED_TASKS = 5
"""Tasks that have a finding each. The others are counted."""


def known(site: Site) -> Results:
    """Whether each worker knows the tasks that go to its queues. Celery lets a worker throw away tasks that it does not
    know. Only the log of this worker says so."""
    celery = {name: each for name, each in site.settings.destinations.items() if each.scheme == "celery"}
    if not celery:
        return
    unknown = {task: set(workers) for task, workers in site.heartbeats.unknown_tasks.items()}
    asked: dict[str, set[tuple[str, str]]] = {name: set() for name in celery}
    for name, destination in celery.items():
        if task := destination.option("task"):
            asked[name].add((task, destination.queue))
    for row in site.look("tasks", asked=list(celery), most=NEWEST_MESSAGES):
        made = celery[row.destination].option("task") or row.event
        asked[row.destination].add((row.task or made, row.queue or celery[row.destination].queue))
    for name, tasks in asked.items():
        workers = _workers(site, celery[name]) if tasks else ()
        for task, queue in tasks:
            for worker in workers:
                if queue in worker.queues and worker.tasks is not None and task not in worker.tasks:
                    unknown.setdefault(task, set()).add(worker.name)
    for task, names in sorted(unknown.items())[:NAMED_TASKS]:
        rest = len(unknown) - NAMED_TASKS
        others = f" (and {many(rest, 'other task')})" if rest > 0 else ""
        yield error(
            "task_unknown",
            f"{', '.join(sorted(names))} takes from the queue of {task}{others}, and does not know this task.",
            "Celery throws such a task away ('Received unregistered task'). If it is supervised, it is sent again "
            "until a worker knows it; if not, it is lost.",
            "Let the worker's app import the module of the task (include=…, autodiscover_tasks()), or correct the name "
            f"or the queue of the call. Then send what was lost again: {shell_line('replay', '--type', task)}",
        )
    if not unknown:
        yield Fine("no worker is known to get tasks that it does not know")


def stored(site: Site) -> Results:
    """Whether the calls of tasks of the app can be stored, and until when the outbox keeps them."""
    if site.installed and (fact := eager(site.installed)):
        yield warning("always_eager", fact, "Nobody repeats a task that fails or is killed there.", REMEDY)
    for name, destination in site.settings.destinations.items():
        if destination.scheme == "celery":
            yield Fine(f"a task of {name} is done when {DONE_WHEN[destination.confirm]}")


def _workers(site: Site, destination: Destination) -> Sequence[Worker]:
    """The workers that answer on the broker of a destination; none, if it can't be reached: another check says so."""
    if destination.takes_the_relays_broker and "broker" in site.reached:
        return site.workers
    app = app_of(destination, site.settings.model_copy(update={"send_timeout": 2 * TIMEOUT}))
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1)
            return ask_workers(app, connection) if connection.supports_exchange_type("fanout") else ()
    except app.trouble:
        return ()
    finally:
        app.close()
