"""The pipe in one process: the relay's own claim and publish, with destinations in memory, and no Celery.

A drain replaces the whole relay: claim, broker and workers. When it crashes, only the database is left. Each message is
sent singly, so that a test may stop at each of them.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args

from outbox_tasks.destinations import Publisher
from outbox_tasks.errors import PermanentError, TransientError
from outbox_tasks.model import LeasedMessage, Outcome, Result, Single, Step, Verdict
from outbox_tasks.relay.claim import Pace, claim
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.publishers import send
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import Due
from outbox_tasks.testing.errors import ConsumerNotPlain, DrainEndless, NotADestination, NotAPoint
from outbox_tasks.testing.messages import SeenMessage
from outbox_tasks.testing.rows import ProbeStore

Point: TypeAlias = Literal["after_claim", "before_send", "after_send", "before_settle", "after_settle"]

Consumer: TypeAlias = Callable[[SeenMessage], object]

REFUSED = Outcome.retry("refused", "refused by the test")


class SimulatedCrash(BaseException):
    """The drain stops as if its process was killed: it does nothing more.

    Like KeyboardInterrupt it passes every `except Exception`. A consumer may raise it too, to be killed half-way.
    """


@dataclass(slots=True)
class Drained:
    """What one drain did."""

    sent: int = 0
    """Deliveries, repeated ones too."""
    retried: int = 0
    """Attempts that failed and will be repeated."""
    dead: int = 0
    discarded: int = 0
    left: int = 0
    """Messages that are still to be sent: they wait until they are due, or for the end of a lease."""


@dataclass(slots=True)
class _Failure:
    destination: str
    event_type: str
    answer: Outcome | Exception
    remaining: float


@dataclass(slots=True)
class _Crash:
    point: Point
    event_type: str
    happened: bool = False


@dataclass(slots=True)
class _Retry:
    """A message that Celery's retry would hold, with its lease, until it is due."""

    single: Single
    due: float


class _Unhurried(Pace):
    """No other process sends, and each drain looks for messages to unknown destinations."""

    def buries(self) -> bool:
        return True

    def rooms(self, store: Store, due: Sequence[Due]) -> dict[str, int]:
        return {}


class Pipe(Listener):
    """Drains the messages of a test."""

    def __init__(self, store: ProbeStore, *, beside_relay: bool) -> None:
        self._store = store
        self._beside_relay = beside_relay
        self.delivered: list[SeenMessage] = []
        self._failures: list[_Failure] = []
        self._consumers: list[tuple[str, Consumer]] = []
        self._crashes: list[_Crash] = []
        self._retries: list[_Retry] = []
        self._real: Mapping[str, Publisher] = {}
        self._failed_test: AssertionError | None = None

    def drain(self, *, skip_waits: bool, publishers: Mapping[str, Publisher], at_most: int) -> Drained:
        """See `OutboxProbe.drain`."""
        if not self._beside_relay:
            self._store.check_alone()
        self._real = publishers
        drained, begun = Drained(), 0
        ours = {name: _InMemory(self, name) for name in self._store.settings.destinations}
        try:
            while singles := self._due(drained) or (skip_waits and self._due_later(drained)):
                for single in singles:
                    begun += 1
                    if begun > at_most:
                        raise DrainEndless(count=at_most)
                    self._publish(single, ours, drained)
        except BaseException:
            self._retries.clear()  # the broker and the workers are gone
            raise
        finally:
            self._store.return_keys()
        drained.left = self._store.pending()
        return drained

    def forward(self, seconds: float) -> None:
        """See `OutboxProbe.forward`."""
        now = time.monotonic()
        for retry in self._retries:
            # The relay would begin it in that time, before its lease runs out.
            step = min(seconds, max(0.0, retry.due - now))
            self._store.forward_one(retry.single.id, step)
            retry.due -= step
        self._store.forward(seconds, but=[retry.single.id for retry in self._retries])

    def expire_leases(self) -> int:
        """See `OutboxProbe.expire_leases`."""
        self._retries.clear()
        return self._store.expire_leases()

    def fail(self, destination: str, answer: Outcome | Exception, times: int | None, event_type: str) -> None:
        """See `OutboxProbe.fail`."""
        self._check_destination(destination)
        self._failures.append(_Failure(destination, event_type, answer, float("inf") if times is None else times))

    def consume(self, destination: str, consumer: Consumer) -> None:
        """See `OutboxProbe.consume`."""
        self._check_destination(destination)
        if inspect.iscoroutinefunction(consumer):
            raise ConsumerNotPlain(destination=destination)
        self._consumers.append((destination, consumer))

    @contextmanager
    def crash_at(self, point: Point, event_type: str) -> Iterator[None]:
        """See `OutboxProbe.crash_at`."""
        __tracebackhide__ = True
        if point not in get_args(Point):
            raise NotAPoint(point=point, known=", ".join(get_args(Point)))
        crash = _Crash(point, event_type)
        self._crashes.append(crash)
        try:
            yield
        except SimulatedCrash:
            if not crash.happened:
                raise
        finally:
            self._crashes.remove(crash)
        if not crash.happened:
            of = "" if event_type == "*" else f" with a message {event_type!r}"
            raise AssertionError(f"crash_at({point!r}): no drain came to this point{of}, so that nothing crashed.")

    def reach(self, point: Point, event_types: Sequence[str]) -> None:
        """Crash here, if the test asked for it."""
        for crash in self._crashes:
            if crash.point == point and any(fnmatchcase(each, crash.event_type) for each in event_types):
                crash.happened = True
                raise SimulatedCrash(point)

    def answers(self, destination: str, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """One outcome for each: those that the test wants to fail do so, the others are sent and consumed."""
        event_types = [message.event_type for message in messages]
        self.reach("before_send", event_types)
        chosen = {message.id: answer for message in messages if (answer := self._chosen(destination, message))}
        rest = [message for message in messages if message.id not in chosen]
        if rest and destination in self._real:
            outcomes = send(self._real, destination, rest)
            chosen |= {message.id: outcome for message, outcome in zip(rest, outcomes, strict=True)}
        result = []
        for message in messages:
            outcome = chosen.get(message.id) or Outcome.sent()
            if outcome.result in (Result.SENT, Result.HANDED):  # no worker is here to run a supervised task
                outcome = self._consumed(destination, SeenMessage.delivered(message))
            result.append(outcome)
        self.reach("after_send", event_types)
        return result

    def _chosen(self, destination: str, message: LeasedMessage) -> Outcome | None:
        for failure in self._failures:
            if failure.destination == destination and fnmatchcase(message.event_type, failure.event_type):
                if failure.remaining < 1:
                    continue
                failure.remaining -= 1
                return failure.answer if isinstance(failure.answer, Outcome) else _outcome(failure.answer)
        return None

    def _consumed(self, destination: str, message: SeenMessage) -> Outcome:
        try:
            for name, consumer in self._consumers:
                if name == destination:
                    consumer(message)
        except AssertionError as error:
            # It fails the test, not the delivery. So it is raised later, where nobody catches a publisher's errors.
            self._failed_test = self._failed_test or error
        except Exception as error:  # the test's own code may raise anything
            return _outcome(error)
        self.delivered.append(message)
        return Outcome.sent()

    def _due(self, drained: Drained) -> list[Single]:
        """What is to be sent now: retries first, then what can be claimed."""
        now = time.monotonic()
        due = [retry.single for retry in self._retries if retry.due <= now]
        self._retries = [retry for retry in self._retries if retry.due > now]
        return due or self._claimed(drained)

    def _claimed(self, drained: Drained) -> list[Single]:
        claimed: list[Single] = []
        buried = True
        while buried and not claimed:  # a claim buries only some messages at a time
            with self._store.others_locked():
                tally = claim(self._store, lambda singles, _: claimed.extend(singles), lambda: 0, _Unhurried())
            drained.dead += len(tally.buried)
            buried = bool(tally.buried)
        if claimed:
            self.reach("after_claim", [single.event_type for single in claimed])
        return claimed

    def _due_later(self, drained: Drained) -> list[Single]:
        """What is to be sent after the shortest wait."""
        while (wait := self._shortest_wait()) is not None:
            self.forward(max(0.0, wait))
            singles = self._due(drained)
            if singles or wait <= 0:  # it is due and can't be claimed: somebody has locked it
                return singles
        return []

    def _shortest_wait(self) -> float | None:
        waits = [retry.due - time.monotonic() for retry in self._retries]
        in_table = self._store.next_due(but=[retry.single.id for retry in self._retries])
        return min(waits if in_table is None else [*waits, in_table], default=None)

    def _publish(self, single: Single, publishers: Mapping[str, Publisher], drained: Drained) -> None:
        published = publish(self._store, publishers, single.destination, single.token, self, by_celery=True)
        if published is None:
            return
        verdict = published.verdict
        if verdict.step is Step.RETRY:
            again = single._replace(attempts=verdict.message.attempts, token=verdict.token or "")
            self._retries.append(_Retry(again, time.monotonic() + verdict.wait))
        drained.sent += verdict.step is Step.SENT
        drained.retried += verdict.step in (Step.RETRY, Step.LATER, Step.OUTAGE)
        drained.dead += verdict.step is Step.DEAD
        drained.discarded += verdict.step is Step.DISCARDED
        self.reach("after_settle", [single.event_type])

    def sent(self, destination: str, verdicts: Sequence[Verdict]) -> None:
        """Raise the AssertionError of a consumer, where nobody catches a publisher's errors."""
        if self._failed_test is not None:
            failed, self._failed_test = self._failed_test, None
            raise failed
        self.reach("before_settle", [verdict.message.event_type for verdict in verdicts if verdict.sent])

    def _check_destination(self, name: str) -> None:
        destinations = self._store.settings.destinations
        if name not in destinations:
            raise NotADestination(name=name, known=", ".join(sorted(destinations)) or "none")


class _InMemory:
    """A destination in memory."""

    def __init__(self, pipe: Pipe, name: str) -> None:
        self._pipe, self._name = pipe, name

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        return self._pipe.answers(self._name, messages)

    def close(self) -> None:
        """There is nothing to close."""


def _outcome(error: Exception) -> Outcome:
    """The outcome, as if a publisher had raised this."""
    if isinstance(error, PermanentError):
        return Outcome.dead(error.code, str(error))
    code = error.code if isinstance(error, TransientError) else type(error).__name__
    return Outcome.retry(code, str(error) or repr(error))
