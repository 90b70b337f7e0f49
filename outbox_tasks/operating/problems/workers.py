"""The workers: whether each queue has some, whether their settings fit together, and whether another app shares the
broker's database."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from outbox_tasks.broker.names import ALL_QUEUES, DRAIN_TASK, PUBLISH_TASK, queues_of
from outbox_tasks.operating.problems.clocks import of_hosts
from outbox_tasks.operating.problems.live_workers import Worker
from outbox_tasks.operating.problems.problem import Problem, error, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, FEED_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE
from outbox_tasks.text import span
from outbox_tasks.wire.celery_message import CELERYS_OWN

KEY_SCANS = 20
"""How often a Redis is asked for the next thousand keys. A Redis that only the relay uses has fewer keys in all."""

CLAIMS = "worker -Q outbox.claim,outbox.maintain -n claim@%h"
SENDS = "worker -Q outbox.publish,outbox.drain -n publish1@%h -E"
STARTED_BY = {
    CLAIM_QUEUE: CLAIMS,
    PUBLISH_QUEUE: SENDS,
    DRAIN_QUEUE: SENDS,
    MAINTAIN_QUEUE: CLAIMS,
    FEED_QUEUE: "worker -Q outbox.feed -n feed@%h",
}

WITHOUT = {
    CLAIM_QUEUE: "Nothing is claimed, and so nothing is sent.",
    PUBLISH_QUEUE: "Claimed messages are not sent. Their leases run out, and they are claimed again.",
    DRAIN_QUEUE: "When many messages of a destination are due, none of them is sent.",
    MAINTAIN_QUEUE: "Nobody makes the archive's next partitions, or drops the old ones.",
    FEED_QUEUE: "Nothing is copied from the feeds. Their rows wait in the applications' databases.",
}

A_DATABASE_OF_ITS_OWN = (
    "Give the relay a Redis database of its own: OUTBOX_BROKER_URL=redis://…/<another number>, for celery:// "
    "destinations with ?broker=<the application's>. A Redis cluster has only one database: set global_keyprefix in "
    "the transport options of one of them."
)


def served(site: Site) -> Problems:
    """Whether each queue of the relay has a worker, by the heartbeats."""
    heartbeats = site.heartbeats
    for name in heartbeats.shared_names:
        yield _same_name(name, "Several")
    if heartbeats.shared_names:
        return  # one of these workers may consume any queue
    lost: dict[str, list[str]] = defaultdict(list)
    for queue in queues_of(site.settings):
        if not heartbeats.consumers(queue):
            last = heartbeats.last_consumer(queue)
            seen = f"{last.name} was last seen {span(last.age)} ago" if last else "none was ever seen"
            lost[seen].append(queue)
    for seen, queues in lost.items():
        last = heartbeats.last_consumer(queues[0])
        starts = dict.fromkeys(f"{site.celery} {STARTED_BY[queue]}" for queue in queues)
        yield error(
            "no_workers",
            f"No worker serves {', '.join(queues)}: {seen}.",
            " ".join(WITHOUT[queue] for queue in queues),
            "\n".join(starts),
            which=", ".join(queues),
            since=last.age if last else None,
        )


def unheard(site: Site) -> Problems:
    """Whether a worker serves a queue, and writes no heartbeat into this database."""
    for queue in queues_of(site.settings):
        there = [worker for worker in site.workers if not worker.foreign and queue in worker.queues]
        if there and not site.heartbeats.consumers(queue) and not site.heartbeats.shared_names:
            yield warning(
                "no_heartbeat",
                f"{there[0]} serves {queue}, and writes no heartbeat for it here.",
                "It can't reach this database, or uses another one. Then it takes tasks whose messages it can't find.",
                "Compare OUTBOX_DATABASE_URL and OUTBOX_DATABASE_SCHEMA of that worker with the ones here, and see its "
                "log.",
                which=queue,
            )


def settings(site: Site) -> Problems:
    """Whether the workers' settings let leases outlast sends, and waits end before the visibility timeout."""
    known = site.heartbeats.shared_names
    for worker in site.workers:
        yield from (*_visibility(site, worker), *_limits(site, worker))
        if worker.answers > 1 and worker.name not in known:
            yield _same_name(worker.name, str(worker.answers))
        if worker.foreign and worker.queues & {*ALL_QUEUES}:
            yield _wrong(worker)


def _visibility(site: Site, worker: Worker) -> Problems:
    own = site.settings.visibility_timeout
    needed = site.settings.least_visibility_timeout
    seconds = min(worker.visibility, default=own)
    if "redis" not in site.reached or seconds >= own:
        return
    whose = "is in the relay's Redis database with" if worker.foreign else "has"
    breaks = seconds < needed
    yield (error if breaks else warning)(
        "visibility_short",
        f"The worker {worker} {whose} a visibility timeout of {seconds:g} s. The relay's is {own:g} s"
        + (f", and it needs {needed:g}." if breaks else "."),
        "All workers of a Redis database share the list of unacknowledged tasks, and the shortest timeout counts for "
        f"all. After {seconds:g} s this worker puts every app's unacknowledged tasks back into their queues. So "
        "waiting retries of the relay come again and again. The leases keep them from being sent twice.",
        (
            f"Set broker_transport_options['visibility_timeout'] = {own:g} there."
            if not worker.foreign
            else A_DATABASE_OF_ITS_OWN
        ),
        which=worker.name,
    )


def _limits(site: Site, worker: Worker) -> Problems:
    for task, lease in {PUBLISH_TASK: site.settings.send_lease, DRAIN_TASK: site.settings.drain_lease}.items():
        attributes = (worker.tasks or {}).get(task)
        found = re.search(r"time_limit=([0-9.]+)", attributes or "")
        if attributes is None or (found is not None and float(found[1]) <= lease):
            continue
        limit = f"{float(found[1]):g} s" if found else "none"
        yield error(
            "lease_short",
            f"On the worker {worker} the time limit of {task} is {limit}, and its lease lasts {lease:g} s.",
            "It may outlast its lease. Meanwhile its messages are claimed and sent a second time.",
            "Give all workers the same send_timeout, statement_timeout and queue_lease, and no time_limit in "
            "task_annotations.",
            which=f"{worker.name} {task}",
        )


def _same_name(name: str, how_many: str) -> Problem:
    return warning(
        "same_name",
        f"{how_many} workers are called {name}.",
        "Flower, heartbeats and remote control take them for one. Nobody knows which queues they serve.",
        "Start each with a name of its own: celery … worker -n publish1@%h",
        which=name,
    )


def _wrong(worker: Worker) -> Problem:
    return error(
        "wrong_worker",
        f"The worker {worker} takes from the relay's queues, and does not know the relay's tasks.",
        "It throws these tasks away ('Received unregistered task'). Their messages wait until their leases end.",
        "Start it without the queues outbox.*, or with an app that calls outbox.install(app).",
        which=worker.name,
    )


def clocks(site: Site) -> Problems:
    """Whether the clocks of the workers' hosts agree with the database's. Heartbeats have their time."""
    apart: dict[str, float] = {}
    for worker in site.heartbeats.alive:
        if isinstance(time := worker.facts.get("clock"), int | float):
            apart[str(worker.facts.get("host", worker.name))] = time - worker.seen_at.timestamp()
    yield from of_hosts(apart)


def others(site: Site) -> Problems:
    """Whether another Celery app has its queues in the same Redis database."""
    strangers = [worker for worker in site.workers if worker.foreign]
    queues, keys = _bound(site)
    own = site.installed.amqp.queues if site.installed else ()
    ours = {*ALL_QUEUES, *own} | {q for worker in site.workers if not worker.foreign for q in worker.queues}
    foreign = sorted((queues | {q for worker in strangers for q in worker.queues}) - ours)
    if not foreign and not strangers and keys is None:
        return
    timeouts = [
        f"{worker} with a visibility timeout of {min(worker.visibility):g} s"
        for worker in strangers
        if worker.visibility
    ]
    facts = [
        *([f"Another Celery app has queues in the relay's Redis database: {', '.join(foreign)}."] if foreign else []),
        *([f"Its workers: {'; '.join(timeouts)}."] if timeouts else []),
        *([f"The database holds {keys:,} keys, far more than the relay's."] if keys is not None else []),
    ]
    yield warning(
        "shared_broker",
        " ".join(facts),
        "Both share one list of unacknowledged tasks, and the shorter visibility timeout counts for both: either may "
        "repeat the other's tasks. A flush or a full memory hits both.",
        A_DATABASE_OF_ITS_OWN,
    )


def _bound(site: Site) -> tuple[set[str], int | None]:
    """The queues that are bound in the Redis database; and its number of keys, if there are too many to look at."""
    with site.broker.producer() as producer, producer.channel.conn_or_acquire() as client:
        channel: Any = producer.channel
        prefix = str(channel.global_keyprefix)
        tables: set[str] = set()
        cursor = 0
        for _ in range(KEY_SCANS):
            # kombu adds the prefix to all commands here but SCAN.
            cursor, some = client.scan(cursor, match=f"{prefix}_kombu.binding.*", count=1000)
            tables.update(key.decode().removeprefix(prefix) for key in some)
            if not cursor:
                break
        members = {member.decode() for table in tables for member in client.smembers(table)}
        names = {member.split(channel.sep)[-1] for member in members}
        queues = {name for name in names if not CELERYS_OWN.fullmatch(name)}
        return queues, int(client.dbsize()) if cursor else None


def lost(site: Site, name: str) -> Problems:
    """Whether a worker writes heartbeats, by its node's name."""
    worker = next((worker for worker in site.heartbeats.workers if worker.name == name), None)
    if worker is None or not worker.alive:
        others = ", ".join(worker.name for worker in site.heartbeats.alive) or "none"
        yield error(
            "worker_lost",
            f"{name} {'has no heartbeat' if worker is None else f'was last seen {span(worker.age)} ago'}; those alive: "
            f"{others}.",
            "It has ended, hangs, or can't reach the database.",
            "Read its log, and restart it.",
            which=name,
            since=worker.age if worker else None,
        )
