"""What must happen now and then: beat's tick, claims, maintenance."""

from __future__ import annotations

from outbox_tasks.operating.heartbeats import LATE_CLAIM, Heartbeat, longest_pause
from outbox_tasks.operating.problems.problem import error, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.operating.problems.transactions import oldest_snapshot
from outbox_tasks.settings import CLAIM_QUEUE
from outbox_tasks.text import span


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
