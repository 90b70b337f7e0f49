"""The tasks of `celery://` destinations: whether the workers that get them know them, and whether somebody runs those
that are supervised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from outbox_tasks.broker.task_broker import app_of
from outbox_tasks.operating.problems.answers import Worker, ask_workers
from outbox_tasks.operating.problems.problem import Problem, error, first_ones, warning
from outbox_tasks.operating.problems.site import ANSWER_SECONDS, Check, Problems, Site
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import many, shell_line, some, span
from outbox_tasks.writing.eager import REMEDY, eager

SUPERVISE = (
    "Start a worker of the application that serves it, and whose module calls outbox.supervise(app).\n"
    "Compare OUTBOX_DATABASE_URL and OUTBOX_DATABASE_SCHEMA there with the ones here."
)


def unknown(site: Site) -> Problems:
    """Whether workers that supervise got tasks that they don't know. Their heartbeats say so."""
    tasks = sorted(site.heartbeats.unknown_tasks.items())
    return first_ones((_unknown(*pair) for pair in tasks), "task")


def unregistered(site: Site) -> Problems:
    """Whether each worker knows the tasks that go to its queues. It asks the workers, so also those that don't
    supervise."""
    celery = _celery(site.settings)
    asked: dict[str, set[tuple[str, str]]] = {name: set() for name in celery}
    for name, destination in celery.items():
        if task := destination.option("task"):
            asked[name].add((task, destination.queue))
    for row in site.look("tasks", asked=list(celery), most=1_000):
        made = celery[row.destination].option("task") or row.event
        asked[row.destination].add((row.task or made, row.queue or celery[row.destination].queue))
    lacking: dict[str, set[str]] = {}
    for name, tasks in asked.items():
        workers = _workers(site, celery[name]) if tasks else ()
        for task, queue in tasks:
            for worker in workers:
                if queue in worker.queues and worker.tasks is not None and task not in worker.tasks:
                    lacking.setdefault(task, set()).add(worker.name)
    known = site.heartbeats.unknown_tasks
    others = [(task, sorted(lacking[task])) for task in sorted(lacking) if task not in known]
    return first_ones((_unknown(*pair) for pair in others), "task")


def _unknown(task: str, workers: Sequence[str]) -> Problem:
    return error(
        "task_unknown",
        f"{some(workers)} takes from the queue of {task}, and does not know this task.",
        "Celery throws such a task away ('Received unregistered task'). If it is supervised, it is sent again until a "
        "worker knows it; if not, it is lost.",
        "Let the worker's app import the module of the task (include=…, autodiscover_tasks()), or correct the name or "
        f"the queue of the call. Then send what was lost again:\n{shell_line('replay', '--type', task)}",
        which=task,
    )


def begun(site: Site) -> Problems:
    """Whether tasks that were handed over begin to run."""
    celery = _celery(site.settings).items()
    asked = json.dumps([{"destination": name, "queue": each.queue} for name, each in celery])
    served = {queue for worker in site.heartbeats.supervising if worker.alive for queue in worker.queues}
    for row in site.store.ask("supervised/handed_over.sql", asked=asked):
        if not served if row.queue is None else row.queue not in served:
            yield _unsupervised(row, site.heartbeats.supervising, served)
        elif row.oldest > site.settings.stale_after:
            yield warning(
                "tasks_wait",
                f"{many(row.count, 'task')} of {row.destination} wait in the queue {row.queue or '?'}, the first for "
                f"{span(row.oldest)}" + (f"; sent again: {row.again:,}." if row.again else "."),
                f"That is more than stale_after ({site.settings.stale_after:g} s). The workers are busy, or have lost "
                "the broker.",
                "Start more of the application's workers; see what they do:\n"
                + shell_line("list", "--destination", row.destination, "--state", "running"),
                which=row.destination,
                since=row.oldest,
                how_many=row.count,
            )


def _unsupervised(row: Any, workers: Sequence[Any], served: set[str]) -> Problem:
    queue = row.queue or "of the tasks"
    ages = [worker.age for worker in workers if row.queue in worker.queues]
    last = f"one was last seen {span(min(ages))} ago" if ages else "none was ever seen"
    others = f" Those alive serve {', '.join(sorted(served))}." if served else ""
    wait = f"{many(row.count, 'task')} {'waits' if row.count == 1 else 'wait'}"
    return error(
        "tasks_unsupervised",
        f"No worker with supervise serves the queue {queue} ({last}), and {wait} there.{others}",
        "Without a worker the tasks wait. A worker without supervise runs them and tells nobody, so they are sent "
        "again after confirm_within, and run again.",
        SUPERVISE,
        which=queue,
        since=min(ages, default=row.oldest),
        how_many=row.count,
    )


def stored(site: Site) -> Problems:
    """Whether calls of tasks are stored, and not run at once."""
    if site.installed and (fact := eager(site.installed)):
        yield warning("always_eager", fact, "Nobody repeats a task that fails or is killed there.", REMEDY)


def _celery(settings: Settings) -> dict[str, Destination]:
    """The `celery://` destinations."""
    return {name: each for name, each in settings.destinations.items() if each.scheme == "celery"}


def _workers(site: Site, destination: Destination) -> Sequence[Worker]:
    """The workers that answer on the broker of a destination; none, if it can't be reached: another check says so."""
    if destination.takes_the_relays_broker and "broker" in site.reached:
        return site.workers
    app = app_of(destination, site.settings.model_copy(update={"send_timeout": 2 * ANSWER_SECONDS}))
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1)
            return ask_workers(app, connection) if connection.supports_exchange_type("fanout") else ()
    except app.trouble:
        return ()
    finally:
        app.close()


SUBJECT = "Celery tasks"

CHECKS = (
    Check(SUBJECT, "workers know the tasks that they get", unknown, {"task_unknown"}, needs=("tables",),
          concerns=_celery),
    Check(SUBJECT, "workers know the tasks of their queues", unregistered, {"task_unknown"}, needs=("tables",),
          uses=("broker",), concerns=_celery, deep=True),
    Check(SUBJECT, "calls are stored", stored, {"always_eager"}, concerns=_celery),
    Check(SUBJECT, "supervised tasks begin", begun, {"tasks_unsupervised", "tasks_wait"}, needs=("tables",),
          concerns=_celery),
)  # fmt: skip
