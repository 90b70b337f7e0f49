"""The messages: whether claims, beat and maintenance run, and whether anything waits that should not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from outbox_tasks.operating import health, overview
from outbox_tasks.operating.doctor.finding import Finding, Fine, error, note, or_fine, warning
from outbox_tasks.operating.doctor.site import Results, Site
from outbox_tasks.operating.doctor.transactions import oldest_snapshot
from outbox_tasks.operating.overview import COUNTED, MINUTES, Destinations, DestinationStatus, rates
from outbox_tasks.operating.status import dead_letters_wait, waits, why_not_in_order
from outbox_tasks.relay.claim import QUEUE_SHORT
from outbox_tasks.settings import PUBLISH_QUEUE
from outbox_tasks.text import many, one_line, shell_line, span

UNMAINTAINED = 3 * 3600.0
"""Seconds without maintenance after which it counts as stopped: it is due each hour."""

LONG_PAUSE = 3600.0
"""Seconds after which somebody may have forgotten a pause."""

SHOWN = 5
"""Keys that are named; the others are counted."""


def periodic_tasks(site: Site) -> Results:
    """Whether beat ticks, claims run, and maintenance is done."""
    claim = span(site.heartbeats.age("claim") or 0.0)
    return or_fine(_late(site), f"beat ticks, claims run (the last one {claim} ago), and so does maintenance")


def _late(site: Site) -> Iterator[Finding]:
    heartbeats = site.heartbeats
    beat, claim, maintain = (heartbeats.age(kind) for kind in ("beat", "claim", "maintain"))
    if heartbeats.beat_stopped(site.settings):
        yield error(
            "no_beat",
            f"Beat {_last('ticked', beat)}.",
            "New messages may still be sent. Retries, delayed messages, and messages whose nudge was lost wait for "
            "beat.",
            f"{site.celery} beat",
        )
    if heartbeats.claims_stopped(site.settings):
        yield error(
            "no_claims",
            f"A claim {_last('ran', claim)}.",
            "Nothing new is sent. Beat is missing, or a worker on outbox.claim; or each claim fails, or times out.",
            f"{site.celery} worker -Q outbox.claim,outbox.maintain -n claim@%h\nIts log says why.",
        )
    if heartbeats.claims_late:
        yield _claims_late(site)
    # Beat runs it for the first time an hour after its start.
    if (site.look("made")[0].age if maintain is None else maintain) > UNMAINTAINED:
        yield warning(
            "no_maintenance",
            f"Maintenance {_last('ran', maintain)}.",
            "Beat asks for it each hour. It makes and drops the archive's partitions, and deletes other old rows.",
            "outbox-tasks maintain\nThen see that beat runs, and a worker on outbox.maintain.",
        )


def _claims_late(site: Site) -> Finding:
    holder, remedy = oldest_snapshot(site)
    return error(
        "claims_late",
        f"The database does not answer claims in time. {holder}",
        "While a snapshot is open, dead rows can't be removed, and statements step over more and more of them.",
        remedy or "Look at the server's disk and load.",
    )


def _last(what: str, age: float | None) -> str:
    return f"has never {what.replace('ran', 'run to its end')} here" if age is None else f"last {what} {span(age)} ago"


def waiting(site: Site) -> Results:
    """Whether messages wait too long, wait for a destination that is not configured, or are claimed and not sent. Other
    checks tell of destinations that are paused, refuse everything, or have their circuit open."""
    settings, destinations = site.settings, site.destinations
    for problem in health.stale(settings, destinations):
        yield error(
            "stale",
            f"{problem.text}.",
            f"More than stale_after ({settings.stale_after:g} s). Another finding mostly says why: no worker, no beat, "
            "a queue that is stuck, an open transaction.",
            f"outbox-tasks status\n{shell_line('list', '--destination', problem.about)}",
        )
    for problem in health.unknown(destinations):
        yield error(
            "destination_unknown",
            f"{problem.text}.",
            "Their writer knows more destinations than the relay, or the relay reads another file than this one: "
            f"{settings.origin}.",
            f"Add [destinations.{one_line(problem.about) or '…'}] to the relay's settings and restart its workers.",
        )
    for problem in health.silent(destinations, site.heartbeats):
        yield error(
            "silent",
            problem.sentence,
            "Claims run, and nothing comes of them. The workers that send hang, have lost the broker, or use another "
            "one.",
            "Read their logs, and restart them. Compare OUTBOX_BROKER_URL there and on the claim worker.",
        )
    # Also what waits for a destination that is paused, unknown or out of reach has been due.
    longest = max((max(one.oldest or 0.0, one.waited or 0.0) for one in destinations.values()), default=0.0)
    if longest <= settings.stale_after:
        yield Fine(f"nothing has been due for longer than {span(settings.stale_after)}")


def dead_letters(site: Site) -> Results:
    """Whether dead letters wait for a person."""
    dead = dead_letters_wait(site.destinations)
    if dead is None:
        yield Fine("no dead letters")
        return
    yield warning(
        "dead_letters",
        f"{dead}.",
        "They can't be delivered as they are, or have no attempts left. They stay until a person sees to them.",
        "outbox-tasks errors\nThen outbox-tasks redrive, edit or discard.",
    )


def keys(site: Site) -> Results:
    """Whether a dead message holds up keys."""
    rows = overview.blocked_keys(site.store, SHOWN)
    if not rows:
        yield Fine("no key is held up")
        return
    some = "; ".join(f"{row.destination} {row.key!r}, {_many(row.waiting)} waiting" for row in rows)
    count = overview.count_blocked_keys(site.store, COUNTED)
    yield warning(
        "keys_blocked",
        f"Dead messages hold up {many(count, 'key', _many(count))}: {some}.",
        'Later messages of such a key wait, so that none overtakes the dead one (on_dead = "block").',
        'outbox-tasks keys\nThen redrive or discard the dead messages; on_dead = "skip" lets the others pass.',
    )


def pauses(site: Site) -> Results:
    """Whether destinations are paused, refuse everything, or have their circuit open."""
    found = [finding for row in site.store.traffic.states() for finding in _paused(row, site.destinations)]
    found += [_refuses(name, one) for name, one in site.destinations.items() if one.state == "refuses"]
    return or_fine(found, "no destination is paused, refuses everything, or has its circuit open")


def _refuses(name: str, one: DestinationStatus) -> Finding:
    return error(
        "destination_refuses",
        f"{why_not_in_order(name, one)}.",
        "It answers, but takes nothing: its address, its credentials or what it expects may have changed.",
        f"outbox-tasks errors\n{shell_line('pause', name)}: its messages wait, and spend no attempts.",
    )


def _paused(row: Any, destinations: Destinations) -> Iterator[Finding]:
    now = datetime.now(UTC)
    waiting = waits(destinations[row.name]) if row.name in destinations else ""
    if row.state == "paused":
        age = (now - row.paused_at).total_seconds()
        why = f": {row.paused_why}" if row.paused_why else ""
        yield (warning if age > LONG_PAUSE else note)(
            "paused",
            f"{row.name} has been paused for {span(age)}, by {row.paused_by}{why}{waiting}.",
            "Its messages wait until it is resumed.",
            shell_line("resume", row.name),
        )
    elif row.state in ("open", "trying"):
        yield error(
            "breaker_open",
            f"The circuit of {row.name} has been open for {span(row.open_for)}: {row.failures} sends in a row could "
            f"not reach it ({row.error_code}: {row.error}){waiting}.",
            "Its messages wait, and spend no attempts. The relay tries one of them from time to time. When one gets "
            "through, all are sent again.",
            f"Mend the destination. To try at once: {shell_line('resume', row.name)}",
        )


def queue(site: Site) -> Results:
    """Whether queued singles are sent before their leases run out."""
    waiting, lease = site.broker.queued(), site.settings.queue_lease
    # All outcomes: a failed send also shows that somebody works.
    a_minute = sum(rate for outcomes in rates(site.store).values() for rate in outcomes.values())
    fact = f"About {waiting:,} singles wait in {PUBLISH_QUEUE}"
    if waiting >= QUEUE_SHORT and not a_minute:
        yield error(
            "queue_stuck",
            f"{fact}, and none was sent in the last {MINUTES} minutes.",
            "While so many wait, none is claimed singly. The workers have stopped, or hang.",
            f"Look at the publish workers (their logs; {site.celery} inspect active), and restart them.",
        )
    elif a_minute and waiting / a_minute * 60 > lease:
        yield warning(
            "queue_slow",
            f"{fact}, and about {a_minute:,.0f} a minute are sent: the last one is sent in "
            f"{span(waiting / a_minute * 60)}.",
            f"Leases run out in the queue (queue_lease: {lease:g} s), and the messages are queued once more.",
            "Start more publish workers; or set OUTBOX_SINGLES lower, so that drains send more of them in batches.",
        )
    else:
        yield Fine(f"{waiting:,} singles wait in {PUBLISH_QUEUE}")


def _many(count: int) -> str:
    return f"{count:,} or more" if count >= COUNTED else f"{count:,}"
