"""Why a message is not going out, since when, and what to do about it: for `show`, `keys` and the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.heartbeats import Heartbeats
from outbox_tasks.relay.store.claims import GRACE
from outbox_tasks.settings import DRAIN_QUEUE, PUBLISH_QUEUE
from outbox_tasks.text import many, moment, one_line, shell_line, span


@dataclass(frozen=True, slots=True)
class Wait:
    """Why something waits."""

    because: str
    """With since when."""
    remedy: str
    """What to do; may be empty."""

    def __str__(self) -> str:
        return f"{self.because.rstrip('.')}." + (f" → {self.remedy}" if self.remedy else "")


def why(database: Database, one: Mapping[str, Any]) -> Wait | None:
    """Why a message of `Lookup.one` is not going out; None: it is on its way, or at its end."""
    if one["state"] not in ("pending", "scheduled", "retrying"):
        return None
    return of_destinations(database).get(one["destination"]) or _unknown(database, one) or _own(database, one)


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
            opened = f"the circuit of {row.name} is open since {moment(row.opened_at)}: {error}"
            yield row.name, Wait(opened, f"mend it; one message tries it now and then, or at once after {resume}")


def _unknown(database: Database, one: Mapping[str, Any]) -> Wait | None:
    name = one["destination"]
    if name in database.settings.destinations:
        return None
    because = f"no destination {name!r} is configured here, and it is due since {moment(_due(one))}"
    return Wait(because, f"configure it and restart the workers; {span(GRACE)} after it was due it is a dead letter")


def _own(database: Database, one: Mapping[str, Any]) -> Wait | None:
    if one["ahead"] is not None:
        return behind(one["ahead"])
    if one["locked_until"] > datetime.now(UTC):
        due, failed = moment(one["locked_until"]), one["last_error_code"]
        if one["state"] == "retrying" or failed:
            return Wait(f"it failed ({failed}), and the next try is due at {due}", "")
        return Wait(f"it is scheduled for {due}", "")
    return _limited(database, one) or _locked(database, one) or _nobody(database, one)


def behind(head: Mapping[str, Any]) -> Wait:
    """Why a message waits behind others of its key. `head`: see find/ahead.sql."""
    count, id = head["count"], head["id"]
    before = f"{many(count, 'message')} of its key {'is' if count == 1 else 'are'} before it, and the first ({id}) is "
    if head["state"] == "dead":
        return Wait(f"{before}dead since {moment(head['dead_at'])}: {head['last_error_code']}", _mend(id))
    waits = head["state"] in ("retrying", "scheduled")
    return Wait(f"{before}{head['state']}" + (f" until {moment(head['locked_until'])}" if waits else ""), "")


def dead_head(row: Mapping[str, Any]) -> Wait:
    """Why a key waits. `row`: see `held_keys.blocked_keys`."""
    because = f"{row['id']} is dead since {moment(row['since'])}: {one_line(str(row['last_error_code']))}"
    return Wait(because, _mend(row["id"]))


def _mend(id: Any) -> str:
    return f"{shell_line('redrive', str(id))}, or discard"


def _limited(database: Database, one: Mapping[str, Any]) -> Wait | None:
    """Whether the destination's slots are taken, or its rate is used up."""
    name, since = one["destination"], moment(_due(one))
    own = database.settings.destinations[name]
    most = own.concurrency
    if most is not None and len(database.ask("look/sends.sql", destination=name, most=most)) >= most:
        because = f"all {many(most, 'slot')} of {name} are taken; it is due since {since}"
        return Wait(because, f"if {name} can take more, raise its concurrency")
    if own.rate_limit is not None:
        because = f"{name} gets at most {own.rate_limit:g} a second; it is due since {since}"
        return Wait(because, f"if {name} can take more, raise its rate_limit")
    return None


def _locked(database: Database, one: Mapping[str, Any]) -> Wait | None:
    """Whether a role without a right on the outbox holds one of its locks."""
    place, names = database.settings.database_schema, json.dumps([one["destination"]])
    for row in database.ask("doctor/locks.sql", place=place, destinations=names):
        who = f"the session {row.pid} ({one_line(row.application or 'a client')}, role {one_line(row.role)})"
        because = f"{who} holds a lock of the outbox, and has no right there; it is due since {moment(_due(one))}"
        return Wait(because, f"SELECT pg_terminate_backend({row.pid})")
    return None


def _nobody(database: Database, one: Mapping[str, Any]) -> Wait:
    beats, since = Heartbeats.read(database), moment(_due(one))
    if beats.claims_stopped(database.settings):
        age = beats.age("claim")
        ran = "has ever run" if age is None else f"has run for {span(age)}"
        return Wait(f"no claim {ran}; it is due since {since}", "start beat and a claim worker; outbox-tasks doctor")
    for queue in (PUBLISH_QUEUE, DRAIN_QUEUE):
        if not beats.consumers(queue):
            return Wait(f"no worker consumes {queue}; it is due since {since}", "start a worker for it")
    return Wait(f"it is due since {since}, and a claim takes it when those before it are sent", "")


def _due(one: Mapping[str, Any]) -> datetime:
    """Since when it has been due; of a message that was never tried, whatever put it off meanwhile."""
    again: datetime = one["locked_until"]
    return again if one["attempts"] else min(again, max(one["created_at"], one["deliver_at"] or one["created_at"]))
