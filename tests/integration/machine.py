"""The world around the relay, as a test makes it up: workers that stand still between any two steps, a broker that
loses, repeats and reorders, destinations that answer as they are told, and a server whose crash undoes statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from greenlet import getcurrent, greenlet
from sqlalchemy import text

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.model import Bundle, LeasedMessage, Outcome, Step, Verdict, content
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.runs import Run, Runs

T = TypeVar("T")

ANSWERS = {
    "sent": Outcome.sent(),
    "retry": Outcome.retry("busy", "later"),
    "outage": Outcome.outage("away", "gone"),
    "dead": Outcome.dead("no", "no"),
    "unheard": Outcome.retry("timeout", "it arrived, and its answer did not"),
    "discarded": Outcome.discarded("ignored", "nobody wants it"),
}
LONG = 1000.0
"""Seconds: a lease that does not run out by itself."""


class Chance:
    """What decides: `number(sides)` is one of as many numbers, from 0 on. Nothing that is random by itself decides, as
    ids are, so that a history can be repeated."""

    def __init__(self, number: Callable[[int], int]) -> None:
        self.number = number

    def of(self, some: Sequence[T]) -> T:
        return some[self.number(len(some))]

    def one_in(self, sides: int) -> bool:
        return self.number(sides) == sides - 1


class Broker:
    """The queue of publish tasks. Any of them may be taken next."""

    def __init__(self) -> None:
        self.queue: list[Bundle] = []
        self.mood = "takes"

    def send(self, bundles: Sequence[Bundle]) -> None:
        """As `Broker.send`: it takes the tasks, refuses them, or takes them without an answer."""
        mood, self.mood = self.mood, "takes"
        if mood != "refuses":
            self.queue += bundles
        if mood != "takes":
            raise BrokerUnreachable(url="test", reason=mood)


class Destination:
    """Answers as it was told, and keeps the order of what arrived. The worker stands still before and after."""

    def __init__(self) -> None:
        self.arrived: list[str] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        answers = self.answers(pause(), messages)
        for message, answer in zip(messages, answers, strict=True):
            if answer in ("sent", "unheard"):
                self.take(message)
        pause()
        return [self.outcome(answer) for answer in answers]

    @staticmethod
    def answers(told: list[str], messages: Sequence[LeasedMessage]) -> list[str]:
        return [told.pop(0) if told else "sent" for _ in messages]

    def take(self, message: LeasedMessage) -> None:
        self.arrived.append(message.id)

    def outcome(self, answer: str) -> Outcome:
        return ANSWERS[answer]

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class Copy:
    """A task in the application's queue."""

    id: str
    content: str


class Tasks(Destination):
    """The application's broker: tasks are handed over, and any copy may be taken next."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copy] = []

    def take(self, message: LeasedMessage) -> None:
        self.copies.append(Copy(message.id, content(message.payload, message.headers)))

    def outcome(self, answer: str) -> Outcome:
        return Outcome.handed(LONG) if answer == "sent" else ANSWERS[answer]


class Killed(BaseException):
    """The process of a worker ended, wherever it was."""


def pause() -> list[str]:
    """The worker stands still here. Returns what the destination is told to answer."""
    told: list[str] = getcurrent().parent.switch()
    return told


class Worker:
    """A process that delivers one bundle. It goes on from one step to the next only when it is told."""

    def __init__(self, number: int, store: Forgetful, publishers: dict[str, Destination], bundle: Bundle) -> None:
        self.number, self.bundle = number, bundle
        self.frail = False
        """A crash of the server has undone its begin: only it can tell what it has sent."""
        self.retries: list[Bundle] = []
        self._store = store
        self._life = greenlet(lambda _: self._deliver(publishers))

    def go_on(self, answers: Sequence[str] = ()) -> bool:
        """To the next step. False: there is none."""
        self._store.worker = self
        self._life.switch([*answers])
        return not self._life.dead

    def finish(self, answers: Sequence[str] = ()) -> None:
        """To its end."""
        while self.go_on(answers):
            pass

    def kill(self) -> None:
        """Here and now."""
        self._store.worker = self
        with suppress(Killed):
            self._life.throw(Killed())

    def _deliver(self, publishers: dict[str, Destination]) -> None:
        for verdict in deliver(self._store, publishers, self.bundle):
            if verdict.step is Step.RETRY:
                pause()
                assert verdict.lease
                self.retries.append(Bundle(self.bundle.destination, verdict.lease, (verdict.ticket,)))


def check_order(database: Database, token: str) -> None:
    """Who begins a message finds no earlier one of its key at work, but those in its own hands."""
    work = f"{database.settings.database_schema}.outbox_at_work"
    earlier = "e.destination = w.destination AND e.key = w.key AND e.seq < w.seq AND e.lease IS DISTINCT FROM w.lease"
    query = text(f"SELECT FROM {work} w JOIN {work} e ON {earlier} WHERE w.lease = :token")
    assert not database.rows(query, {"token": token}), "begun before an earlier one of its key has ended"


class Forgetful(Store):
    """On a server that may crash behind a statement which it has not yet written to its disk."""

    begin_is_lost = settle_is_lost = False
    worker: Worker
    """Who is at work."""
    begun: set[str]
    """Leases whose sends have begun."""

    def begin(self, bundle: Bundle, **keywords: Any) -> dict[str, LeasedMessage]:
        leases, token = f"{self.settings.database_schema}.outbox_leases", {"token": bundle.lease}
        tokens = {"tokens": [bundle.lease, *bundle.leases]}
        asked = text(f"SELECT locked_until, holder FROM {leases} WHERE token = ANY (CAST(:tokens AS uuid[]))")
        before = self.rows(asked, tokens)
        begun = super().begin(bundle, **keywords)
        check_order(self, bundle.lease)
        if begun and self.begin_is_lost:
            undone = "begun_at = NULL, locked_until = :locked_until, holder = :holder"
            with self.engine.begin() as connection:
                undo = text(f"UPDATE {leases} SET {undone} WHERE token = :token")
                connection.execute(undo, {**before[0]._mapping, **token})
            self.worker.frail = True
        elif begun:
            assert bundle.lease not in self.begun, "two send a bundle"
            self.begun.add(bundle.lease)
        return begun

    def settle(
        self, lease: str, destination: str, verdicts: Sequence[Verdict], sender: Any = None, **keywords: Any
    ) -> set[str]:
        if self.settle_is_lost:
            for verdict in verdicts:
                verdict.lease = str(uuid4())  # that nobody has, if it was to be retried
            return {verdict.ticket.id for verdict in verdicts}
        return super().settle(lease, destination, verdicts, sender, **keywords)


class Runner:
    """The application's workers, which run tasks."""

    def __init__(self, runs: Runs, tasks: Tasks) -> None:
        self.runs, self.tasks = runs, tasks
        self.running: list[tuple[Run, Copy]] = []
        self.began: list[str] = []
        """The task of each run."""

    def begin(self, copy: Copy, number: int) -> bool:
        run = Run(copy.id, str(uuid4()))
        if self.runs.begin(run, copy.content, LONG, f"run:{number}") is None:
            return False
        check_order(self.runs, run.token)
        self.running.append((run, copy))
        self.began.append(copy.id)
        return True

    def end(self, run: Run, copy: Copy, how: str, again: int) -> None:
        """As a worker does when the body of a task has ended somehow."""
        self.running.remove((run, copy))
        if how == "done":
            self.runs.done(run)
        elif how == "dead":
            self.runs.dead(run, "ValueError", "no", None)
        elif how == "discarded":
            self.runs.discard(run, "ignored", "no")
        elif how == "lost":
            self.runs.lose([run])
        elif how == "retry":
            said = {"text": f'{{"again": {again}}}', "headers": {}, "content_type": "application/json"}
            self.runs.retry(run, said, 0.0, "Retry", "once more")
        elif how == "put back" and self.runs.requeue(run, LONG):
            self.tasks.copies.append(copy)
