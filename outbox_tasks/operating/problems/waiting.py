"""The messages: whether any waits that should not."""

from __future__ import annotations

from collections import Counter

from outbox_tasks.operating.overview import DestinationStatus
from outbox_tasks.operating.problems.problem import Problem, error, first_ones, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.relay.claim import QUEUED_AT_MOST
from outbox_tasks.relay.store.claims import UNKNOWN_GRACE_SECONDS
from outbox_tasks.settings import DRAIN_QUEUE, PUBLISH_QUEUE
from outbox_tasks.text import many, number, one_line, shell_line, some, span

SILENT_SECONDS = 60.0
"""Seconds for which messages are due and none is sent, before that counts. One send takes less."""


def counted(site: Site) -> Problems:
    """Whether the database says in time how many messages wait. Other checks need that."""
    _ = site.destinations
    site.reached.add("counts")
    return ()


def stale(site: Site) -> Problems:
    """Whether a message has been due for longer than `stale_after`."""
    late = [
        (name, status)
        for name, status in site.destinations.items()
        if status.configured and (status.oldest or 0.0) > site.settings.stale_after
    ]
    return first_ones((_stale(site, *pair) for pair in late), "destination")


def _stale(site: Site, name: str, status: DestinationStatus) -> Problem:
    return error(
        "stale",
        f"{name}: the oldest message has been due for {span(status.oldest or 0.0)}.",
        f"More than stale_after ({site.settings.stale_after:g} s), and no other problem says why. Perhaps more is "
        "written than sent: compare the rates.",
        f"{shell_line('list', '--destination', name)}\nMore workers, or a higher limit: {shell_line('limit', name)}",
        which=name,
        since=status.oldest,
        how_many=status.due,
    )


def unknown(site: Site) -> Problems:
    """Whether messages wait for a destination that is not configured."""
    due = {name: each for name, each in site.destinations.items() if not each.configured and each.oldest is not None}
    return first_ones((_unknown(site, *pair) for pair in due.items()), "destination")


def _unknown(site: Site, name: str, status: DestinationStatus) -> Problem:
    return error(
        "destination_unknown",
        f"{name}: messages have been due for {span(status.oldest or 0.0)}, and no such destination is configured here; "
        f"after {span(UNKNOWN_GRACE_SECONDS)} they are dead letters.",
        "Their writer knows more destinations than the relay, or the relay reads another file than this one: "
        f"{site.settings.origin}.",
        f"Add [destinations.{one_line(name) or '…'}] to the relay's settings and restart its workers.",
        which=name,
        since=status.oldest,
        how_many=status.due,
    )


def silent(site: Site) -> Problems:
    """Whether messages are due and claimed, and workers are there to send them, but none is sent."""
    heartbeats = site.heartbeats
    in_service = [each for each in site.destinations.values() if each.configured and each.in_service]
    due = max((each.oldest or 0.0 for each in in_service), default=0.0)
    sent, claimed = heartbeats.age("publish"), heartbeats.age("claim")
    workers = sorted({each.name for queue in (PUBLISH_QUEUE, DRAIN_QUEUE) for each in heartbeats.consumers(queue)})
    if due <= SILENT_SECONDS or (sent is not None and sent <= SILENT_SECONDS):
        return
    if not workers or claimed is None or claimed > SILENT_SECONDS:
        return
    last = "nothing has ever been sent" if sent is None else f"nothing has been sent for {span(sent)}"
    yield error(
        "silent",
        f"Messages have been due for {span(due)}, and {last}, though there is {some(workers)} to do it.",
        "Claims run, and nothing comes of them. The workers that send hang, have lost the broker, or use another one.",
        "Read their logs, and restart them. Compare OUTBOX_BROKER_URL there and on the claim worker.",
        since=due,
    )


def queue(site: Site) -> Problems:
    """Whether queued singles are sent before their leases run out."""
    lease, waiting = site.settings.queue_lease, site.broker_facts.lengths.get(PUBLISH_QUEUE, 0)
    # A failed send also shows that somebody works.
    a_minute = sum(each.sent + each.failed for each in site.destinations.values())
    fact = f"About {waiting:,} singles wait in {PUBLISH_QUEUE}"
    if waiting >= QUEUED_AT_MOST and not a_minute:
        yield error(
            "queue_stuck",
            f"{fact}, and none was sent in the last minute.",
            "While so many wait, none is claimed singly. The workers have stopped, or hang.",
            f"Look at the publish workers (their logs; {site.celery} inspect active), and restart them.",
            how_many=waiting,
        )
    elif a_minute and waiting / a_minute * 60 > lease:
        yield warning(
            "queue_slow",
            f"{fact}, and about {a_minute:,.0f} a minute are sent: the last one is sent in "
            f"{span(waiting / a_minute * 60)}.",
            f"Leases run out in the queue (queue_lease: {lease:g} s), and the messages are queued once more.",
            "Start more publish workers; or set OUTBOX_SINGLES lower, so that drains send more of them in batches.",
            how_many=waiting,
        )


def dead_letters(site: Site) -> Problems:
    """Whether dead letters wait for a person."""
    dead = [(name, each) for name, each in site.destinations.items() if each.states["dead"]]
    worst = sorted(dead, key=lambda pair: (-pair[1].states["dead"], pair[0]))
    return first_ones((_dead(*pair) for pair in worst), "destination")


def _dead(name: str, status: DestinationStatus) -> Problem:
    count = status.states["dead"]
    letters = many(count, "dead letter", number(count, estimated="dead" in status.estimated))
    codes = some([code for code, _ in Counter(status.codes["dead"]).most_common()])
    why = f" ({codes})" if codes else ""
    since = f", the first for {span(status.dead_for)}" if status.dead_for is not None else ""
    return warning(
        "dead_letters",
        f"{name}: {letters} {'waits' if count == 1 else 'wait'} for a person{since}{why}.",
        "They can't be delivered as they are, or have no attempts left. They stay until a person sees to them.",
        f"{shell_line('list', '--by', 'error', '--destination', name)}\nThen outbox-tasks redrive, edit or discard.",
        which=name,
        since=status.dead_for,
        how_many=count,
    )


def keys(site: Site) -> Problems:
    """Whether a dead message holds up keys."""
    held = ((name, each.held_up) for name, each in site.destinations.items() if each.held_up)
    return first_ones((_keys(*pair) for pair in held), "destination")


def _keys(name: str, count: int) -> Problem:
    return warning(
        "keys_blocked",
        f"{name}: dead messages hold up {many(count, 'key')}.",
        'Later messages of such a key wait, so that none overtakes the dead one (on_dead = "block").',
        f"{shell_line('list', '--by', 'key', '--destination', name)}\n"
        'Redrive or discard the dead messages; on_dead = "skip" lets the others pass.',
        which=name,
        how_many=count,
    )
