"""The workers: whether each queue has some, whether their settings and names fit together, and whether that happens
which must happen now and then: beat's tick, claims, maintenance."""

from __future__ import annotations

from collections import defaultdict

from outbox_tasks.broker.names import ALL_QUEUES, queues_of
from outbox_tasks.operating.heartbeats import LATE_CLAIM, Heartbeat, longest_pause
from outbox_tasks.operating.problems.answers import Worker
from outbox_tasks.operating.problems.problem import Problem, error, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.operating.problems.transactions import oldest_snapshot
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, FEED_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE
from outbox_tasks.text import span

CLAIMS = "worker -Q outbox.claim,outbox.maintain -n claim@%h"
SENDS = "worker -Q outbox.publish,outbox.drain -n publish1@%h -E"
STARTED_BY = {
    CLAIM_QUEUE: CLAIMS,
    PUBLISH_QUEUE: SENDS,
    DRAIN_QUEUE: SENDS,
    MAINTAIN_QUEUE: CLAIMS,
    FEED_QUEUE: "worker -Q outbox.feed -n feed@%h",
}
"""How a worker of each queue is started."""

WITHOUT = {
    CLAIM_QUEUE: "Nothing is claimed, and so nothing is sent.",
    PUBLISH_QUEUE: "Claimed messages are not sent. Their leases run out, and they are claimed again.",
    DRAIN_QUEUE: "When many messages of a destination are due, none of them is sent.",
    MAINTAIN_QUEUE: "Nobody makes the archive's next partitions, or drops the old ones.",
    FEED_QUEUE: "Nothing is copied from the feeds. Their rows wait in the applications' databases.",
}
"""What happens without a worker of each queue."""


def served(site: Site) -> Problems:
    """Whether each queue of the relay has a worker, by the heartbeats."""
    heartbeats = site.heartbeats
    for name in heartbeats.shared_names:
        yield _same_name(name, "Several")
    if heartbeats.shared_names:
        return  # one of these workers may consume any queue
    unserved: dict[str, list[str]] = defaultdict(list)
    for queue in queues_of(site.settings):
        if not heartbeats.consumers(queue):
            last = heartbeats.last_consumer(queue)
            since = f"{last.name} was last seen {span(last.age)} ago" if last else "none was ever seen"
            unserved[since].append(queue)
    for since, queues in unserved.items():
        last = heartbeats.last_consumer(queues[0])
        yield error(
            "no_workers",
            f"No worker serves {', '.join(queues)}: {since}.",
            " ".join(WITHOUT[queue] for queue in queues),
            "\n".join(dict.fromkeys(f"{site.celery} {STARTED_BY[queue]}" for queue in queues)),
            which=", ".join(queues),
            since=last.age if last else None,
        )


def unheard(site: Site) -> Problems:
    """Whether a worker serves a queue, and writes no heartbeat into this database."""
    for queue in queues_of(site.settings):
        serving = [worker for worker in site.workers if not worker.foreign and queue in worker.queues]
        if serving and not site.heartbeats.consumers(queue) and not site.heartbeats.shared_names:
            yield warning(
                "no_heartbeat",
                f"{serving[0]} serves {queue}, and writes no heartbeat for it here.",
                "It can't reach this database, or uses another one. Then it takes tasks whose messages it can't find.",
                "Compare OUTBOX_DATABASE_URL and OUTBOX_DATABASE_SCHEMA of that worker with the ones here, and see its "
                "log.",
                which=queue,
            )


def settings(site: Site) -> Problems:
    """Whether the workers' names, tasks and visibility timeouts fit together."""
    for worker in site.workers:
        yield from _visibility(site, worker)
        if worker.answers > 1 and worker.name not in site.heartbeats.shared_names:
            yield _same_name(worker.name, str(worker.answers))
        if worker.foreign and worker.queues & {*ALL_QUEUES}:
            yield error(
                "wrong_worker",
                f"The worker {worker} takes from the relay's queues, and does not know the relay's tasks.",
                "It throws these tasks away ('Received unregistered task'). Their messages wait until their leases "
                "end.",
                "Start it without the queues outbox.*, or with an app that calls outbox.install(app).",
                which=worker.name,
            )


def _visibility(site: Site, worker: Worker) -> Problems:
    own, needed = site.settings.visibility_timeout, site.settings.least_visibility_timeout
    seconds = min(worker.visibility, default=own)
    if "redis" not in site.reached or seconds >= own:
        return
    short = seconds < needed
    has = "is in the relay's Redis database with" if worker.foreign else "has"
    yield (error if short else warning)(
        "visibility_short",
        f"The worker {worker} {has} a visibility timeout of {seconds:g} s. The relay's is {own:g} s"
        + (f", and it needs {needed:g}." if short else "."),
        "All workers of a Redis database share the list of unacknowledged tasks, and the shortest timeout counts for "
        f"all. After {seconds:g} s this worker puts every app's unacknowledged tasks back into their queues. So "
        "waiting retries of the relay come again and again. The leases keep them from being sent twice.",
        "Give the relay a Redis database of its own: OUTBOX_BROKER_URL=redis://…/<another number>, for celery:// "
        "destinations with ?broker=<the application's>. If it has only one database, set global_keyprefix in the "
        "transport options of one of them."
        if worker.foreign
        else f"Set broker_transport_options['visibility_timeout'] = {own:g} there.",
        which=worker.name,
    )


def _same_name(name: str, how_many: str) -> Problem:
    return warning(
        "same_name",
        f"{how_many} workers are called {name}.",
        "Flower, heartbeats and remote control take them for one. Nobody knows which queues they serve.",
        "Start each with a name of its own: celery … worker -n publish1@%h",
        which=name,
    )


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


def beat(site: Site) -> Problems:
    """Whether beat ticks. A tick shows only by the claim that it causes. So time without a claim worker does not
    count."""
    tick, worker = site.heartbeats.last.get("beat"), site.heartbeats.last_consumer(CLAIM_QUEUE)
    if tick is None or (worker is not None and tick.age - worker.age > longest_pause(site.settings)):
        yield error(
            "no_beat",
            f"Beat {_last('ticked', tick)}.",
            "New messages may still be sent. Retries, delayed messages, and messages whose nudge was lost wait for "
            "beat.",
            f"{site.celery} beat",
            since=tick.age if tick else None,
        )


def claims(site: Site) -> Problems:
    """Whether claims run, and end in time."""
    claim, late = site.heartbeats.last.get("claim"), site.heartbeats.last.get(LATE_CLAIM)
    if claim is None or claim.age > longest_pause(site.settings):
        yield error(
            "no_claims",
            f"A claim {_last('ran', claim)}.",
            "Nothing new is sent. Beat is missing, or a worker on outbox.claim; or each claim fails, or times out.",
            f"{site.celery} worker -Q outbox.claim,outbox.maintain -n claim@%h\nIts log says why.",
            since=claim.age if claim else None,
        )
    if late is not None and late.alive:
        holder, remedy = oldest_snapshot(site)
        yield error(
            "claims_late",
            f"The database does not answer claims in time. {holder}",
            "While a snapshot is open, dead rows can't be removed, and statements step over more and more of them.",
            remedy or "Look at the server's disk and load.",
            since=late.age,
        )


def maintenance(site: Site) -> Problems:
    """Whether maintenance is done. Beat runs it for the first time an hour after its start."""
    last = site.heartbeats.last.get("maintain")
    age = last.age if last else site.look("made")[0].age
    if age > 3 * 3600:  # it is due each hour
        yield warning(
            "no_maintenance",
            f"Maintenance {_last('ran', last)}.",
            "Beat asks for it each hour. It makes and drops the archive's partitions, and deletes other old rows.",
            "outbox-tasks maintain\nThen see that beat runs, and a worker on outbox.maintain.",
            since=age,
        )


def _last(what: str, heartbeat: Heartbeat | None) -> str:
    if heartbeat is None:
        return f"has never {what.replace('ran', 'run to its end')} here"
    return f"last {what} {span(heartbeat.age)} ago"
