"""`OutboxProbe`: through it a test looks at its outbox, and sends its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from uuid import UUID

from celery import current_app

from outbox_tasks.destinations import Publisher
from outbox_tasks.model import Outcome
from outbox_tasks.settings import Settings
from outbox_tasks.testing.errors import NeverCommitted
from outbox_tasks.testing.matching import Wanted, WantedTask, explained
from outbox_tasks.testing.messages import SeenMessage, StoredTask
from outbox_tasks.testing.pipe import REFUSED, Consumer, Drained, Pipe, Point
from outbox_tasks.testing.rows import ProbeStore, rolled_back_by_django, seen_within
from outbox_tasks.writing.eager import eager

COMMITTED = "Only committed messages are seen here; for others there is outbox.within(session)."
OPEN = "Messages of an AsyncSession are written, and seen, when it commits."
TAKEN = "Call outbox.drain() first; messages that fail or wait are not delivered."

P = ParamSpec("P")
R = TypeVar("R")


class Published:
    """Published messages, and assertions on them.

    A message is asked for by its event type, which may be a pattern (`order.*`), by fields of its JSON payload as
    keywords (objects in it may be given in part), and by `key`, `to` (the destination), `headers` (in part),
    `message_id` and the whole `payload`. If a field has one of these names, use `payload`. Values are compared as JSON:
    `id=order.id` may be a UUID.
    """

    def __init__(self, read: Callable[[], list[SeenMessage]], hint: str, verb: str = "published") -> None:
        self._read = read
        self._hint = hint
        self._verb = verb

    @property
    def published(self) -> list[SeenMessage]:
        """Every message, stored Celery tasks too, in the order of insertion, in any state."""
        return self._read()

    def find(
        self,
        event_type: str = "*",
        /,
        *,
        payload: Any = None,
        key: str | None = None,
        to: str | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: UUID | str | None = None,
        **fields: Any,
    ) -> list[SeenMessage]:
        """The messages that match."""
        return _matching(Wanted(event_type, fields, payload, key, to, headers, message_id), self.published)

    def assert_published(
        self,
        event_type: str = "*",
        /,
        *,
        times: int | None = None,
        payload: Any = None,
        key: str | None = None,
        to: str | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: UUID | str | None = None,
        **fields: Any,
    ) -> SeenMessage:
        """The first message that matches. Raises `AssertionError` if there is none, or not exactly `times`; it lists
        what was published instead. One event to two destinations is two messages: say which with `to`."""
        __tracebackhide__ = True
        wanted = Wanted(event_type, fields, payload, key, to, headers, message_id)
        return self._check(wanted, _counted(times), f"assert_{self._verb}")[0]

    def assert_not_published(
        self,
        event_type: str = "*",
        /,
        *,
        payload: Any = None,
        key: str | None = None,
        to: str | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: UUID | str | None = None,
        **fields: Any,
    ) -> None:
        """Raises `AssertionError` if a message matches."""
        __tracebackhide__ = True
        wanted = Wanted(event_type, fields, payload, key, to, headers, message_id)
        self._check(wanted, 0, f"assert_not_{self._verb}")

    def assert_nothing_published(self) -> None:
        """Raises `AssertionError` if there is any message, or any stored Celery task."""
        __tracebackhide__ = True
        self._check(Wanted(), 0, "assert_nothing_published")

    def assert_task(
        self,
        task: Any,
        /,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        times: int | None = None,
    ) -> StoredTask:
        """The first stored Celery task that matches: `task` is a task or a name, which may be a pattern; `args` are
        all of its positional arguments, `kwargs` may be a part. Raises `AssertionError` as `assert_published`."""
        __tracebackhide__ = True
        is_eager = eager(current_app if isinstance(task, str) else task.app)
        found = self._check(WantedTask(_name(task), args, kwargs, queue, is_eager), _counted(times), "assert_task")
        assert found[0].task is not None
        return found[0].task

    def assert_no_task(self, task: Any = "*", /, args: Sequence[Any] | None = None) -> None:
        """Raises `AssertionError` if a Celery task that matches was stored."""
        __tracebackhide__ = True
        self._check(WantedTask(_name(task), args), 0, "assert_no_task")

    def _check(self, wanted: Wanted | WantedTask, times: int | None, call: str) -> list[SeenMessage]:
        __tracebackhide__ = True
        messages = self._read()
        found = _matching(wanted, messages)
        if len(found) != times if times is not None else not found:
            raise AssertionError(explained(wanted, times, messages, call=call, verb=self._verb, hint=self._hint))
        return found


def _of_the_delivered(assertion: Callable[Concatenate[Published, P], R]) -> Callable[Concatenate[OutboxProbe, P], R]:
    """The same assertion on delivered messages."""

    @wraps(assertion)
    def asserted(probe: OutboxProbe, /, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        return assertion(probe._taken, *args, **kwargs)

    asserted.__name__ = assertion.__name__.replace("published", "delivered")
    asserted.__qualname__ = f"OutboxProbe.{asserted.__name__}"
    asserted.__doc__ = f"As `{assertion.__name__}`, on delivered messages."
    return asserted


class OutboxProbe(Published):
    """The outbox of one test: it sees, drains and changes only messages written since the probe was made.

    It works on the real tables, with the real claim, begin and settle. Tables that are missing are made. `settings`
    default to those of the environment and `outbox.toml`, and must name the database and the schema that the
    application writes to. `drain` raises `RelayAtWork` while a relay is connected to that database, unless
    `beside_relay`: the messages of a database that is not for tests must not end in a test's memory.

    The fixture `outbox` is one; without pytest's fixtures, make one in `setUp` and close it, or use `with`.
    """

    def __init__(self, settings: Settings | None = None, *, beside_relay: bool = False) -> None:
        self.settings = settings or Settings()
        self._store = ProbeStore.open(self.settings)
        self._pipe = Pipe(self._store, beside_relay=beside_relay)
        self._taken = Published(lambda: self.delivered, TAKEN, "delivered")
        super().__init__(self._seen, COMMITTED)

    def _seen(self) -> list[SeenMessage]:
        connection = rolled_back_by_django(self.settings)
        return self._store.seen() if connection is None else self.within(connection).published

    def within(self, session: Any) -> Published:
        """The messages as that session sees them: with those of its open transaction.

        `session` is a Session, scoped_session, Connection or Django's connection; with an AsyncSession,
        `await session.run_sync(lambda s: outbox.within(s).assert_published(...))`. What an AsyncSession itself
        published is written, and seen, when it commits. A drain sees none of this. Raises `NotReadable`.
        """
        return Published(lambda: seen_within(session, self._store.tables, self._store.since), OPEN)

    @property
    def delivered(self) -> list[SeenMessage]:
        """The messages that the destinations took, in order. A repeated delivery is there twice, with the same id."""
        return list(self._pipe.delivered)

    assert_delivered = _of_the_delivered(Published.assert_published)
    assert_not_delivered = _of_the_delivered(Published.assert_not_published)

    def drain(
        self, *, skip_waits: bool = False, publishers: Mapping[str, Publisher] | None = None, at_most: int = 10_000
    ) -> Drained:
        """Claim, send and settle in this process until nothing is due; returns what it did.

        Nothing leaves the process: destinations are in memory (`delivered`, `consume`, `fail`). Those that `publishers`
        has by name are real; `Publishers(settings)` has all.
        A message that waits, for a retry or by its own delay, waits until `forward`. With `skip_waits` time passes at
        once, until every message is sent or dead; then leases run out too.
        Raises `RelayAtWork`; `NeverCommitted`; `DrainEndless` after `at_most` sends; an AssertionError of a consumer;
        `SimulatedCrash`.
        """
        if rolled_back_by_django(self.settings) is not None:
            raise NeverCommitted
        return self._pipe.drain(skip_waits=skip_waits, publishers=publishers or {}, at_most=at_most)

    def consume(self, destination: str, consumer: Consumer) -> None:
        """Give each message that is delivered to `destination` to a function of the test, as part of the delivery.

        Its exception is the answer of the destination: a `PermanentError` makes a dead letter, any other exception
        is a failure that is retried. An AssertionError is neither: it fails the test. Raises `NotADestination`.
        """
        self._pipe.consume(destination, consumer)

    def fail(
        self,
        destination: str,
        answer: Outcome | Exception = REFUSED,
        *,
        times: int | None = 1,
        event_type: str = "*",
    ) -> None:
        """Let the next `times` deliveries to `destination` fail (None: all from now on), or those of an event type.

        `answer` is the outcome, such as `Outcome.dead("no_such_user", "…")`, or an exception, which means what it
        would mean if a publisher raised it. Raises `NotADestination`.
        """
        self._pipe.fail(destination, answer, times, event_type)

    def forward(self, seconds: float) -> None:
        """Let time pass for the messages of this test. Their waits and leases end as they would by then.

        The lease of a message in Celery's retry does not run out: the relay would begin it before.
        """
        self._pipe.forward(seconds)

    def expire_leases(self) -> int:
        """End every lease, as if all workers were dead and the broker flushed: the next drain claims those messages
        again. Returns how many there were."""
        return self._pipe.expire_leases()

    def crash_at(self, point: Point, event_type: str = "*") -> AbstractContextManager[None]:
        """Inside, the drain that comes to `point` with a message of that type stops as if killed (`SimulatedCrash`,
        which ends the block): it does nothing more, and claimed messages stay leased. The test fails if no drain came
        there. `expire_leases` lets the next drain go on.

        The points: `after_claim` (leased, no send has begun), `before_send` (begun: the attempt is counted),
        `after_send` (the destination has it), `before_settle` (the same, and the relay knows the answer),
        `after_settle`. Raises `NotAPoint`.
        """
        return self._pipe.crash_at(point, event_type)

    def close(self) -> None:
        """Close the connections. The messages stay where they are."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _matching(wanted: Wanted | WantedTask, messages: Sequence[SeenMessage]) -> list[SeenMessage]:
    return [message for message in messages if wanted.is_named(message) and not wanted.differences(message)]


def _counted(times: int | None) -> int | None:
    if times is not None and times < 1:
        raise ValueError(f"times={times}: to assert that there is none, use assert_not_… or assert_no_…")
    return times


def _name(task: Any) -> str:
    return task if isinstance(task, str) else str(task.name)
