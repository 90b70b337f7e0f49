"""Why a message is where it is, until when, and what to do about it: for `show`, `list --by key` and the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.limits import in_force
from outbox_tasks.operating.overview import error_of_circuit
from outbox_tasks.relay.store.claims import UNKNOWN_GRACE_SECONDS
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.text import many, moment, one_line, shell_line, span

if TYPE_CHECKING:
    from outbox_tasks.operating.problems import Examination, Problem

Row = Mapping[str, Any]
Examined = Callable[[], "Examination"]

CLAIMING = {"no_claims", "no_beat", "claims_late", "sequence_behind", "lock_of_a_stranger"}
"""Problems that don't matter once a message is claimed."""

OF_SOME_KEYS = {"writer_open", "prepared_transaction"}
"""Problems for which only messages of some keys wait."""

UNHEARD = {"task_unknown", "tasks_unsupervised", "tasks_wait"}
"""Problems for which no worker begins a task."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why something waits."""

    because: str
    """With since when, and until when, where that is known."""
    remedy: str = ""
    """What to do; may be empty."""

    def __str__(self) -> str:
        return f"{self.because.rstrip('.')}." + (f" → {self.remedy}" if self.remedy else "")


class Reasons:
    """Why messages are where they are. What many may wait for is read once. `examined`: looks for problems; None:
    over connections of its own."""

    def __init__(self, database: Database, examined: Examined | None = None) -> None:
        self._database, self._examined = database, examined
        self._settings = database.settings

    @cached_property
    def shut(self) -> dict[str, Wait]:
        return of_destinations(self._database)

    @cached_property
    def _problems(self) -> list[Problem]:
        # It loads Celery, which takes longer than all else that shows a message.
        from outbox_tasks.operating.problems import examine

        return (self._examined() if self._examined else examine(self._settings)).everything

    def of(self, message: Row) -> Wait:
        """Why a message of `Lookup.one` is where it is: the first of these cases that holds.

        1. It was sent or discarded, or is dead. 2. A worker sends it, or runs its task, at this moment. 3. Its task
        was handed over, and no worker has begun it. 4. Its destination is paused, its circuit is open, or nobody knows
        it. 5. Another message of its key comes first. 6. Its time has not come, or that of its next try. 7. An open
        transaction may still write a message of its key that goes first. 8. The relay does not do what it waits for:
        one of the problems says why. 9. A claim has taken it, and a worker has not begun it yet. 10. Its destination
        is at its limit. 11. It is due, and a claim takes it in its turn."""
        return (
            _ended(message)
            or _in_hand(message)
            or self._handed_over(message)
            or self.shut.get(message["destination"])
            or _unknown(self._settings, message)
            or (behind(message["ahead"]) if message["ahead"] else None)
            or _later(self._settings, message)
            or self._held_back(message)
            or self._stopped(message)
            or _taken(self._settings, message)
            or self._limited(message)
            or Wait(f"It is due since {moment(_due(message))}, and a claim takes it in its turn")
        )

    def _held_back(self, message: Row) -> Wait | None:
        """Whether an open transaction may still write an earlier message of its key."""
        if message["key"] is None or message["place"] != "ready":
            return None
        asked = {name: message[name] for name in ("destination", "key", "seq")}
        rows = self._database.ask("doctor/open_writers.sql", place=self._settings.database_schema, **asked)
        row = next((row for row in rows if row.holds), None)
        if row is None:
            return None
        order = "has written a message of this key, or of many keys, and may still commit one that goes before this one"
        if row.pid is None:
            return Wait(f"A prepared transaction {order}", "outbox-tasks doctor names it")
        age = "" if row.age is None else f", open for {span(row.age)},"
        who = f"{one_line(row.application or 'a client')}, role {one_line(row.role)}"
        end = f"end it: SELECT pg_terminate_backend({row.pid})"
        return Wait(f"The transaction of session {row.pid} ({who}){age} {order}", end)

    def _limited(self, message: Row) -> Wait | None:
        """Whether the destination's slots are taken, or its rate is used up."""
        name, since = message["destination"], f"it is due since {moment(_due(message))}"
        rate, slots, _ = in_force(self._database, name)
        more = f"if {name} can take more, raise its {{}}: {shell_line('limit', name)}"
        if (most := slots.value) and len(self._database.ask("look/sends.sql", destination=name, most=most)) >= most:
            taken = f"All {many(most, 'slot')} of {name} are taken ({one_line(slots.whence)}); {since}"
            return Wait(taken, more.format("concurrency"))
        if rate.value is not None:
            limited = f"{name} gets at most {one_line(str(rate))}; {since}, and a claim takes it"
            return Wait(f"{limited} in its turn", more.format("rate_limit"))
        return None

    def _handed_over(self, message: Row) -> Wait | None:
        """Whether its task waits for a worker of the application."""
        if message["state"] != "handed over":
            return None
        again = f"if no worker begins it by {moment(message['locked_until'])}, it is sent again"
        names = {"task_unknown": message["event_type"], "tasks_wait": message["destination"]}
        for problem in self._problems:
            if problem.code in UNHEARD and problem.which == names.get(problem.code, problem.which):
                return _of_problem(problem, again)
        return Wait(f"Its task is in the broker's queue since {moment(message['handed_at'])}; {again}")

    def _stopped(self, message: Row) -> Wait | None:
        """Whether the relay does not do what it waits for."""
        from outbox_tasks.operating.problems.order import FOLLOWS

        wanted = {PUBLISH_QUEUE} if _is_queued(message) else {CLAIM_QUEUE, PUBLISH_QUEUE, DRAIN_QUEUE}
        passed_over = OF_SOME_KEYS | (CLAIMING if _is_queued(message) else set())
        for problem in self._problems:
            if "stale" not in FOLLOWS.get(problem.code, ()) or problem.code in passed_over:
                continue
            if problem.code == "no_workers" and wanted.isdisjoint(problem.which.split(", ")):
                continue
            return _of_problem(problem, f"it is due since {moment(_due(message))}")
        return None


def _of_problem(problem: Problem, more: str) -> Wait:
    return Wait(f"{problem.fact.rstrip('.')}; {more}", "; ".join(problem.remedy.splitlines()))


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
        case "leased" if message["begun"]:
            since = moment(message["begun_at"])
            return Wait(f"{holder} has been sending it since {since}; the lease of this send ends at {moment(end)}")
    return None


def of_destinations(database: Database) -> dict[str, Wait]:
    """The destinations to which nothing is sent now, because they are paused or their circuit is open."""
    shut = {}
    for row in database.ask("traffic/states.sql"):
        if row.state == "paused":
            reason = f": {one_line(row.paused_why)}" if row.paused_why else ""
            paused = f"{row.name} is paused by {one_line(row.paused_by)} since {moment(row.paused_at)}{reason}"
            shut[row.name] = Wait(paused, shell_line("resume", row.name))
        elif row.state in ("open", "trying"):
            error = error_of_circuit(row.error_code, row.error)
            tried = (
                "a message tries it now"
                if row.state == "trying"
                else f"a message tries it at {moment(row.pause_until)}"
            )
            opened = f"the circuit of {row.name} is open since {moment(row.opened_at)}, and {tried}: {error}"
            at_once = shell_line("try", "--destination", row.name)
            shut[row.name] = Wait(opened, f"mend it; to try it at once: {at_once}")
    return shut


def _unknown(settings: Settings, message: Row) -> Wait | None:
    if message["destination"] in settings.destinations:
        return None
    buried = moment(_due(message) + timedelta(seconds=UNKNOWN_GRACE_SECONDS))
    unknown = f"No destination {message['destination']!r} is configured here; at {buried} it becomes a dead letter"
    return Wait(unknown, "configure it, and restart the workers")


def behind(head: Row) -> Wait:
    """Why a message waits behind others of its key. `head`: see find/ahead.sql."""
    count, id = head["count"], head["id"]
    before = f"{many(count, 'message')} of its key {'is' if count == 1 else 'are'} before it, and the first ({id}) is "
    if head["state"] == "dead":
        return Wait(f"{before}dead since {moment(head['dead_at'])}: {head['last_error_code']}", mend(id))
    until = head["locked_until"]
    if until is None or until <= datetime.now(UTC):
        return Wait(f"{before}{head['state']}")
    again = f"to try that one at once: {shell_line('try', str(id))}" if head["state"] == "retrying" else ""
    return Wait(f"{before}{head['state']} until {moment(until)}", again)


def mend(id: Any) -> str:
    """What to do about a dead letter."""
    return f"{shell_line('redrive', str(id))}, or discard"


def _later(settings: Settings, message: Row) -> Wait | None:
    """Whether its time has not come: it is scheduled, or waits for another try, in the table or by Celery."""
    due, code = _next_try(settings, message), message["last_error_code"]
    if due <= datetime.now(UTC) or message["state"] == "leased":
        return None
    if message["place"] == "leased":
        lost = f"if its task is lost, it is claimed again at {moment(message['locked_until'])}"
        return Wait(f"It failed ({code}), and Celery tries it again at {moment(due)}; {lost}")
    return failed(message["id"], str(code) if message["state"] == "retrying" else code, due, "It")


def failed(id: Any, code: str | None, due: datetime, which: str | None = None) -> Wait:
    """Why a message waits for its time. `code`: of its last error; None: it is scheduled. `which`: what to call it."""
    if code is None:
        return Wait(f"{which or id} is scheduled for {moment(due)}")
    again = f"{which or id} failed ({code}), and the next try is due at {moment(due)}"
    return Wait(again, f"to try it at once: {shell_line('try', str(id))}")


def _next_try(settings: Settings, message: Row) -> datetime:
    """When it may be sent. The lease of a retry by Celery ends a `queue_lease` later; one that was given back has no
    holder."""
    until: datetime = message["locked_until"]
    if message["place"] != "leased" or message["locked_by"] is None:
        return until
    return until - timedelta(seconds=settings.queue_lease)


def _taken(settings: Settings, message: Row) -> Wait | None:
    """Whether a claim has it, or somebody had it and was lost."""
    until = message["locked_until"]
    if _is_queued(message):
        lease = timedelta(seconds=settings.queue_lease)
        queued = f"Its task is in the queue {PUBLISH_QUEUE} since {moment(until - lease)}"
        return Wait(f"{queued}; if no worker begins it by {moment(until)}, it is claimed again")
    if message["place"] in ("leased", "handed over", "running"):
        return Wait(f"The lease of {message['locked_by'] or 'a claim'} ended at {moment(until)}: it is due again now")
    return None


def _is_queued(message: Row) -> bool:
    """Whether its task should be in the queue of the publish workers."""
    return message["place"] == "leased" and not message["begun"] and message["locked_until"] > datetime.now(UTC)


def _due(message: Row) -> datetime:
    """Since when it has been due; of a message that was never tried, whatever put it off meanwhile."""
    due: datetime = message["locked_until"] if message["attempts"] else message["deliver_at"] or message["created_at"]
    return due
