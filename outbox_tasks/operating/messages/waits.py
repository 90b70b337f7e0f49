"""Why a message is where it is, until when, and what to do about it: for `show`, `keys`, the search and the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.heartbeats import Heartbeats
from outbox_tasks.operating.limits import in_force
from outbox_tasks.relay.store.claims import GRACE
from outbox_tasks.settings import DRAIN_QUEUE, PUBLISH_QUEUE
from outbox_tasks.text import many, moment, one_line, shell_line, span

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wait:
    """Why something waits."""

    because: str
    """With since when, and until when, where that is known."""
    remedy: str = ""
    """What to do; may be empty."""

    def __str__(self) -> str:
        return f"{self.because.rstrip('.')}." + (f" → {self.remedy}" if self.remedy else "")


def why(database: Database, message: Row) -> Wait:
    """Why a message of `Lookup.one` is where it is."""
    return (
        _ended(message)
        or _in_hand(message)
        or of_destinations(database).get(message["destination"])
        or _unknown(database, message)
        or (behind(message["ahead"]) if message["ahead"] else None)
        or _later(database, message)
        or _held_back(database, message)
        or _limited(database, message)
        or _locked(database, message)
        or _nobody(database, message)
        or _next(database, message)
    )


def _ended(message: Row) -> Wait | None:
    code = f": {message['last_error_code']}" if message["last_error_code"] else ""
    match message["state"]:
        case "sent":
            return Wait(f"It was sent at {moment(message['finished_at'])} by {message['locked_by'] or 'nobody known'}")
        case "discarded":
            return Wait(f"It was discarded at {moment(message['finished_at'])}{code}")
        case "dead":
            attempts = many(message["attempts"], "attempt")
            died = f"It is dead since {moment(message['dead_at'])}, after {attempts}{code}"
            return Wait(died, f"mend the cause, then {mend(message['id'])}")
    return None


def _in_hand(message: Row) -> Wait | None:
    """Whether somebody has it, and it is on its way."""
    holder, end = message["locked_by"] or "nobody known", message["locked_until"]
    match message["state"]:
        case "running":
            renewed = f"unless the run says again by {moment(end)} that it goes on, the task is sent again"
            return Wait(f"{holder} runs its task, which was handed over at {moment(message['handed_at'])}; {renewed}")
        case "handed over":
            handed = f"Its task is in the broker's queue since {moment(message['handed_at'])}"
            return Wait(f"{handed}; if no worker begins it by {moment(end)}, it is sent again")
        case "leased" if message["begun"]:
            since = moment(message["begun_at"])
            return Wait(f"{holder} has been sending it since {since}; the lease of this send ends at {moment(end)}")
    return None


def of_destinations(database: Database) -> dict[str, Wait]:
    """The destinations to which nothing is sent now, because they are paused or their circuit is open."""
    return dict(_shut(database))


def _shut(database: Database) -> Iterator[tuple[str, Wait]]:
    for row in database.ask("traffic/states.sql"):
        resume = shell_line("resume", row.name)
        if row.state == "paused":
            reason = f": {one_line(row.paused_why)}" if row.paused_why else ""
            paused = f"{row.name} is paused by {one_line(row.paused_by)} since {moment(row.paused_at)}{reason}"
            yield row.name, Wait(paused, resume)
        elif row.state in ("open", "trying"):
            error = one_line(f"{row.error_code}: {row.error}")
            tried = "a message tries it now" if row.state == "trying" else f"a message tries it at {_at(row)}"
            opened = f"the circuit of {row.name} is open since {moment(row.opened_at)}, and {tried}: {error}"
            yield row.name, Wait(opened, f"mend it; to try it at once: {resume}")


def _at(row: Any) -> str:
    return moment(row.pause_until)


def _unknown(database: Database, message: Row) -> Wait | None:
    if message["destination"] in database.settings.destinations:
        return None
    buried = moment(_due(message) + timedelta(seconds=GRACE))
    unknown = f"No destination {message['destination']!r} is configured here; at {buried} it becomes a dead letter"
    return Wait(unknown, "configure it, and restart the workers")


def behind(head: Row) -> Wait:
    """Why a message waits behind others of its key. `head`: see find/ahead.sql."""
    count, id = head["count"], head["id"]
    before = f"{many(count, 'message')} of its key {'is' if count == 1 else 'are'} before it, and the first ({id}) is "
    if head["state"] == "dead":
        return Wait(f"{before}dead since {moment(head['dead_at'])}: {head['last_error_code']}", mend(id))
    until = head["locked_until"]
    waits = until is not None and until > datetime.now(UTC)
    return Wait(f"{before}{head['state']}" + (f" until {moment(until)}" if waits else ""))


def mend(id: Any) -> str:
    """What to do about a dead letter."""
    return f"{shell_line('redrive', str(id))}, or discard"


def _later(database: Database, message: Row) -> Wait | None:
    """Whether its time has not come: it is scheduled, or waits for another try, in the table or by Celery."""
    due, code = _next_try(database, message), message["last_error_code"]
    if due <= datetime.now(UTC) or message["state"] == "leased":
        return None
    if message["place"] == "leased":
        lost = f"if its task is lost, it is claimed again at {moment(message['locked_until'])}"
        return Wait(f"It failed ({code}), and Celery tries it again at {moment(due)}; {lost}")
    return failed("It", str(code) if message["state"] == "retrying" else code, due)


def failed(which: str, code: str | None, due: datetime) -> Wait:
    """Why a message waits for its time. `code`: of its last error; None: it is scheduled."""
    if code is None:
        return Wait(f"{which} is scheduled for {moment(due)}")
    return Wait(f"{which} failed ({code}), and the next try is due at {moment(due)}")


def _next_try(database: Database, message: Row) -> datetime:
    """When it may be sent. The lease of a retry by Celery ends a `queue_lease` later; one that was given back has no
    holder."""
    until: datetime = message["locked_until"]
    if message["place"] != "leased" or message["locked_by"] is None:
        return until
    return until - timedelta(seconds=database.settings.queue_lease)


def _held_back(database: Database, message: Row) -> Wait | None:
    """Whether an open transaction may still write an earlier message of its key."""
    if message["key"] is None or message["place"] != "ready":
        return None
    asked = {name: message[name] for name in ("destination", "key", "seq")}
    rows = database.ask("doctor/open_writers.sql", place=database.settings.database_schema, **asked)
    row = next((row for row in rows if row.holds), None)
    if row is None:
        return None
    order = "has written a message of this key, or of many keys, and may still commit one that goes before this one"
    if row.pid is None:
        return Wait(f"A prepared transaction {order}", "outbox-tasks doctor names it")
    age = "" if row.age is None else f", open for {span(row.age)},"
    who = f"The transaction of session {row.pid} ({one_line(row.application or 'a client')}, role {one_line(row.role)})"
    return Wait(f"{who}{age} {order}", f"end it: SELECT pg_terminate_backend({row.pid})")


def _limited(database: Database, message: Row) -> Wait | None:
    """Whether the destination's slots are taken, or its rate is used up."""
    name, since = message["destination"], moment(_due(message))
    rate, most, _ = in_force(database, name)
    more = f"if {name} can take more, raise its {{}}: {shell_line('limit', name)}"
    if most.value is not None and len(database.ask("look/sends.sql", destination=name, most=most.value)) >= most.value:
        taken = f"All {many(most.value, 'slot')} of {name} are taken ({one_line(most.whence)}); it is due since {since}"
        return Wait(taken, more.format("concurrency"))
    if rate.value is not None:
        limited = f"{name} gets at most {one_line(str(rate))}; it is due since {since}"
        return Wait(limited, more.format("rate_limit"))
    return None


def _locked(database: Database, message: Row) -> Wait | None:
    """Whether a role without a right on the outbox holds one of its locks."""
    place, names = database.settings.database_schema, json.dumps([message["destination"]])
    for row in database.ask("doctor/locks.sql", place=place, destinations=names):
        who = f"The session {row.pid} ({one_line(row.application or 'a client')}, role {one_line(row.role)})"
        locked = f"{who} holds a lock of the outbox, and has no right there; it is due since {moment(_due(message))}"
        return Wait(locked, f"SELECT pg_terminate_backend({row.pid})")
    return None


def _nobody(database: Database, message: Row) -> Wait | None:
    """Whether nobody does what it waits for."""
    beats, since = Heartbeats.read(database), moment(_due(message))
    queues = (PUBLISH_QUEUE,) if _is_queued(message) else (PUBLISH_QUEUE, DRAIN_QUEUE)
    if beats.claims_stopped(database.settings) and not _is_queued(message):
        age = beats.age("claim")
        ran = "has ever run" if age is None else f"has run for {span(age)}"
        return Wait(f"No claim {ran}; it is due since {since}", "start beat and a claim worker; outbox-tasks doctor")
    for queue in queues:
        if not beats.consumers(queue):
            return Wait(f"No worker consumes {queue}; it is due since {since}", "start a worker for it")
    return None


def _next(database: Database, message: Row) -> Wait:
    """What happens to it next, if nothing is in its way."""
    until = message["locked_until"]
    if _is_queued(message):
        lease = timedelta(seconds=database.settings.queue_lease)
        queued = f"Its task is in the queue {PUBLISH_QUEUE} since {moment(until - lease)}"
        return Wait(f"{queued}; if no worker begins it by {moment(until)}, it is claimed again")
    if message["place"] in ("leased", "handed over", "running"):
        return Wait(f"The lease of {message['locked_by'] or 'a claim'} ended at {moment(until)}: it is due again now")
    return Wait(f"It is due since {moment(_due(message))}, and a claim takes it when those before it are sent")


def _is_queued(message: Row) -> bool:
    """Whether its task should be in the queue of the publish workers."""
    return message["place"] == "leased" and not message["begun"] and message["locked_until"] > datetime.now(UTC)


def _due(message: Row) -> datetime:
    """Since when it has been due; of a message that was never tried, whatever put it off meanwhile."""
    again: datetime = message["locked_until"]
    wanted: datetime = max(message["created_at"], message["deliver_at"] or message["created_at"])
    return again if message["attempts"] else min(again, wanted)
