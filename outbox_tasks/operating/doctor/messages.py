"""The messages: whether what must run now and then runs, and whether anything waits that should not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from outbox_tasks.operating import overview
from outbox_tasks.operating.doctor import statements
from outbox_tasks.operating.doctor.finding import Finding, Fine, error, lasting, note, warning
from outbox_tasks.operating.doctor.site import COUNTED, Results, Site
from outbox_tasks.operating.health import nobody_sends
from outbox_tasks.operating.overview import MINUTES, rates
from outbox_tasks.relay.store.claims import GRACE

UNMAINTAINED = 3 * 3600.0
"""Seconds without maintenance, which is due each hour."""

LONG_PAUSE = 3600.0
"""Seconds after which a pause may have been forgotten."""

SHOWN = 5
"""So many are named; the others are counted."""


def clockwork(site: Site) -> Results:
    """Whether beat ticks, claims run, and maintenance is done."""
    heartbeats = site.heartbeats
    beat, claim, maintain = (heartbeats.age(kind) for kind in ("beat", "claim", "maintain"))
    found: list[Finding] = []
    if heartbeats.beat_stopped(site.settings):
        found.append(
            error(
                "no_beat",
                f"Beat {_last('ticked', beat)}.",
                "Retries, what was published with a delay, and lost nudges wait for it; new messages may still be "
                "sent.",
                "celery -A outbox_tasks beat",
            )
        )
    if heartbeats.claims_stopped(site.settings):
        found.append(
            error(
                "no_claims",
                f"A claim {_last('ran', claim)}.",
                "Nothing new is sent. Without beat, or a worker on outbox.claim that takes what it sends, none is run.",
                "celery -A outbox_tasks worker -Q outbox.claim,outbox.maintain -n claim@%h\nIts log says why.",
            )
        )
    # Beat runs it for the first time an hour after its start.
    if (site.rows(statements.upgraded(site.store.tables))[0].age if maintain is None else maintain) > UNMAINTAINED:
        found.append(
            warning(
                "no_maintenance",
                f"Maintenance {_last('ran', maintain)}.",
                "Beat asks for it each hour: the archive's partitions are made and dropped, old marks of inboxes "
                "forgotten.",
                "outbox-tasks maintain\nThen see that beat runs, and a worker on outbox.maintain.",
            )
        )
    yield from found
    if not found:
        yield Fine(f"beat ticks, claims run (the last one {lasting(claim or 0.0)} ago), and so does maintenance")


def _last(what: str, age: float | None) -> str:
    return f"has never {what.replace('ran', 'run')} here" if age is None else f"last {what} {lasting(age)} ago"


def stale(site: Site) -> Results:
    """Whether messages have been due for longer than `stale_after`. Of destinations that are paused, left alone, or
    not configured, another check tells."""
    limit = site.settings.stale_after
    stale = {name: one for name, one in site.destinations.items() if one.configured and one.stale(site.settings)}
    for name, one in stale.items():
        yield error(
            "stale",
            f"{name}: the oldest message has been due for {lasting(one.oldest or 0.0)}; {_many(one.due)} wait.",
            f"More than stale_after ({limit:g} s). What else is found here mostly says why: no worker, no beat, a "
            "queue that is stuck, a transaction that is open.",
            f"outbox-tasks status\noutbox-tasks list --destination {name}",
        )
    if not stale:
        yield Fine(f"nothing has been due for longer than {lasting(limit)}")


def unknown(site: Site) -> Results:
    """Whether messages wait for destinations that are not configured here."""
    for name, one in site.destinations.items():
        if not one.configured and one.oldest is not None:
            yield error(
                "destination_unknown",
                f"{name}: {_many(one.due)} messages wait, due for {lasting(one.oldest)} at most, and no such "
                f"destination is configured; {site.settings.origin}.",
                f"When they have been due for {lasting(GRACE)} they become dead letters. Who wrote "
                "them knows more destinations than the relay does, or the relay reads another file than this one.",
                f"Add [destinations.{name}] to the relay's settings and restart its workers.",
            )


def silent(site: Site) -> Results:
    """Whether messages are claimed, and nobody sends them."""
    silence = nobody_sends(site.destinations, site.heartbeats)
    if silence is None:
        yield Fine("what is claimed is sent")
        return
    yield error(
        "silent",
        f"{silence[0].upper()}{silence[1:]}.",
        "They are claimed, and their leases run out. The publish workers hang, or have lost the broker, or take from "
        "another one.",
        "See their logs, and start them anew. Compare OUTBOX_BROKER_URL there and on the claim worker.",
    )


def dead_letters(site: Site) -> Results:
    """Whether dead letters wait for a person."""
    dead = {name: one.states["dead"] for name, one in site.destinations.items() if one.states["dead"]}
    if not dead:
        yield Fine("no dead letters")
        return
    yield warning(
        "dead_letters",
        f"Dead letters wait: {', '.join(f'{name} {_many(count)}' for name, count in dead.items())}.",
        "They can't be delivered as they are, or their attempts are used up. Nobody but a person ends that.",
        "outbox-tasks errors\nThen outbox-tasks redrive, edit or discard.",
    )


def keys(site: Site) -> Results:
    """Whether keys are held up by a dead message."""
    rows = overview.blocked_keys(site.store, COUNTED)
    if not rows:
        yield Fine("no key is held up")
        return
    some = "; ".join(f"{row.destination} {row.key!r}, {_many(row.waiting)} waiting" for row in rows[:SHOWN])
    yield warning(
        "keys_blocked",
        f"Dead messages hold up {_many(len(rows))} key{'s' * (len(rows) > 1)}: {some}.",
        'What follows it under its key waits, so that nothing is overtaken (on_dead = "block").',
        'outbox-tasks keys\nThen redrive or discard the dead messages; on_dead = "skip" lets the others pass.',
    )


def traffic(site: Site) -> Results:
    """Whether destinations are left alone or paused."""
    found = [finding for row in site.store.traffic.states() for finding in _state(row)]
    yield from found
    if not found:
        yield Fine("no destination is paused or left alone")


def _state(row: Any) -> Iterator[Finding]:
    now = datetime.now(UTC)
    if row.state == "paused":
        age = (now - row.paused_at).total_seconds()
        why = f": {row.paused_why}" if row.paused_why else ""
        yield (warning if age > LONG_PAUSE else note)(
            "paused",
            f"{row.name} has been paused for {lasting(age)}, by {row.paused_by}{why}.",
            "Its messages wait until it is resumed.",
            f"outbox-tasks resume {row.name}",
        )
    elif row.state in ("open", "trying"):
        yield error(
            "breaker_open",
            f"{row.name} has been left alone for {lasting((now - row.opened_at).total_seconds())}: {row.failures} "
            f"sends in a row found it out of reach ({row.error_code}: {row.error}).",
            "Its messages wait, and spend no attempts. One is tried from time to time, and the first that gets "
            "through ends it.",
            f"Bring it back. Not to wait for the next try: outbox-tasks resume {row.name}",
        )


def queue(site: Site) -> Results:
    """Whether what is queued is also sent, before its leases run out."""
    waiting, settings = site.broker.waiting(), site.settings
    # All that a send can come to: also one that failed shows that somebody works.
    a_minute = sum(rate for outcomes in rates(site.store).values() for rate in outcomes.values())
    fact = f"About {waiting:,} messages are queued for the publish workers"
    if waiting >= settings.max_in_flight and not a_minute:
        yield error(
            "queue_stuck",
            f"{fact}, and none was sent in the last {MINUTES} minutes.",
            f"More than max_in_flight ({settings.max_in_flight:,}) wait, so nothing more is claimed: the workers have "
            "stopped, or hang.",
            "Look at the publish workers (their logs; celery -A outbox_tasks inspect active), and start them anew.",
        )
    elif waiting >= settings.max_in_flight / 2 and a_minute and waiting / a_minute * 60 > settings.queue_lease:
        most = round(a_minute / 60 * settings.queue_lease / 2)
        yield warning(
            "queue_slow",
            f"{fact}, and about {a_minute:,.0f} a minute are sent: it takes {lasting(waiting / a_minute * 60)} to get "
            "to the last one.",
            f"Leases run out in the queue (queue_lease: {settings.queue_lease:g} s), and the messages are queued once "
            "more.",
            f"Start more publish workers; or set OUTBOX_MAX_IN_FLIGHT to {max(1, most):,}, half of what they send "
            "meanwhile.",
        )
    else:
        yield Fine(f"{waiting:,} messages at most are queued for the publish workers")


def _many(count: int) -> str:
    return f"{count:,} or more" if count >= COUNTED else f"{count:,}"
