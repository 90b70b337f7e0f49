"""The world around the relay, as a test makes it up: workers that stand still between any two steps, a broker that
loses, repeats and reorders, destinations that answer as they are told, and a server whose crash undoes statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from greenlet import getcurrent, greenlet
from sqlalchemy import text

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.model import DrainAsked, LeasedMessage, Outcome, Single, Step, Verdict, content
from outbox_tasks.relay.drain import drain
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.takes import Batch, Takes
from outbox_tasks.supervised.store import Run, Runs

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


Task = Single | DrainAsked


class Broker:
    """The queues of publish and drain tasks. Any of them may be taken next."""

    def __init__(self) -> None:
        self.queue: list[Task] = []
        self.mood = "takes"

    def send(self, singles: Sequence[Single], drains: Sequence[DrainAsked]) -> None:
        """As `Broker.send`: it takes the tasks, refuses them, or takes them without an answer."""
        mood, self.mood = self.mood, "takes"
        if mood != "refuses":
            self.queue += [*singles, *drains]
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
    """A process that runs one task. It goes on from one step to the next only when it is told."""

    def __init__(
        self,
        number: int,
        store: Forgetful,
        publishers: dict[str, Destination],
        task: Task | None = None,
        batches: int = 9,
    ) -> None:
        self.number = number
        self.retries: list[Single] = []
        self._store, self._publishers, self._batches = store, publishers, batches
        self._life = greenlet(lambda _: self._run(task))

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

    def _run(self, task: Task | None) -> None:
        if isinstance(task, DrainAsked):
            self._drain(task)
        elif task is not None:
            self._publish(task)

    def _drain(self, task: DrainAsked) -> None:
        """A killed one does not give its slot back."""
        batches: Iterator[bool] = iter([False] * self._batches)
        if self._store.begin_drain(task):
            drain(self._store, self._publishers, task.destination, Listener(), stop=lambda: next(batches, True))
            self._store.end_drain(task)

    def _publish(self, task: Single) -> None:
        by_celery = self.number % 2 == 0
        published = publish(
            self._store, self._publishers, task.destination, task.token, Listener(), by_celery=by_celery
        )
        if published is not None and published.verdict.step is Step.RETRY:
            pause()
            assert published.verdict.token
            self.retries.append(task._replace(token=published.verdict.token))


def check_order(database: Database, token: str) -> None:
    """Who begins a message finds no earlier one of its key at work, but those in its own hands."""
    work = f"{database.settings.database_schema}.outbox_at_work"
    earlier = "e.destination = w.destination AND e.key = w.key AND e.seq < w.seq AND e.lease IS DISTINCT FROM w.lease"
    query = f"SELECT FROM {work} w JOIN {work} e ON {earlier} WHERE w.lease = %s::uuid"
    assert not database.query(query, token), "begun before an earlier one of its key has ended"


CRASHED = {"code": "database_crashed", "error": "the database crashed", "most": 1000}


class ForgetfulTakes(Takes):
    """A crash of the server undoes its take."""

    take_is_lost = False

    def ask(self, verb: str, limit: float | None = None, /, **parameters: Any) -> Sequence[Any]:
        if not self.take_is_lost or not verb.startswith("claim/take"):
            return super().ask(verb, limit, **parameters)
        with suppress(Crash), self.transaction() as run:
            rows = run(verb, **parameters)
            raise Crash
        return rows

    def take(self, destination: str) -> Batch:
        batch = super().take(destination)
        if batch.messages and not self.take_is_lost:
            check_order(self, batch.token)
        return batch


class Crash(Exception):
    """The server forgets what it has not yet written to its disk."""


class Forgetful(Store):
    """On a server that may crash behind a statement which it has not yet written to its disk. After a crash, the relay
    notes on what is due that it may have been sent."""

    begin_is_lost = settle_is_lost = False
    worker: Worker
    """Who is at work."""
    begun: set[str]
    """Leases whose sends have begun."""
    takes: ForgetfulTakes

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.begun = set()
        self.takes = ForgetfulTakes(engine, settings, self._lanes, self._places, self.traffic)

    def start_anew(self) -> None:
        """Forget what the last history has left: the same draws make the same history."""
        sizes = self.takes._sizes
        self.takes = ForgetfulTakes(self.engine, self.settings, self._lanes, self._places, self.traffic)
        self.takes._sizes = sizes

    def restarted(self) -> None:
        """The server counts anew."""
        self._lanes._life = "before the crash"
        for place in self._places._places.values():
            place.life = "before the crash"

    def begin(self, token: str, destination: str) -> LeasedMessage | None:
        leases = f"{self.settings.database_schema}.outbox_leases"
        before = self.query(f"SELECT locked_until, holder FROM {leases} WHERE token = %s::uuid", token)
        begun = super().begin(token, destination)
        check_order(self, token)
        if begun and self.begin_is_lost:
            undone = "begun_at = NULL, locked_until = :locked_until, holder = :holder"
            [(locked_until, holder)] = before
            with self.engine.begin() as connection:
                undo = text(f"UPDATE {leases} SET {undone} WHERE token = :token")
                connection.execute(undo, {"locked_until": locked_until, "holder": holder, "token": token})
            self.ask("claim/suspects.sql", **CRASHED)
        elif begun:
            assert token not in self.begun, "two send a message"
            self.begun.add(token)
        return begun

    def settle(
        self, token: str, destination: str, verdicts: Sequence[Verdict], *, unhurried: bool = False
    ) -> tuple[set[int], bool]:
        if self.settle_is_lost:
            for verdict in verdicts:
                verdict.token = str(uuid4())  # that nobody has, if it was to be retried
            return {verdict.message.seq for verdict in verdicts}, False
        return super().settle(token, destination, verdicts, unhurried=unhurried)


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
