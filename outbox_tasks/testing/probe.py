"""`OutboxProbe`: through it a test looks at its outbox, and sends its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from math import inf
from typing import Any, Self
from uuid import UUID

from celery import current_app

from outbox_tasks.model import LeasedMessage, Outcome, Step
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.settle import Listener
from outbox_tasks.settings import Settings
from outbox_tasks.settings.django_project import alias_of
from outbox_tasks.testing.matching import Wanted, explained
from outbox_tasks.testing.messages import SeenMessage, StoredTask
from outbox_tasks.testing.store import ProbeMisused, ProbeStore, seen_within
from outbox_tasks.writing.eager import eager
from outbox_tasks.writing.internals import block_of_test

COMMITTED = "Only committed messages are seen here; for others there is outbox.within(session)."
REFUSED = Outcome.retry("refused", "refused by the test")


class Published:
    """Published messages, and assertions on them."""

    def __init__(self, read: Callable[[], list[SeenMessage]], hint: str = "") -> None:
        self._read = read
        self._hint = hint

    @property
    def published(self) -> list[SeenMessage]:
        """Every message, stored Celery tasks too, in the order of insertion, in any state."""
        return self._read()

    def assert_published(self, event_type: str = "*", /, *, times: int | None = None, **facts: Any) -> SeenMessage:
        """The first message that matches. Raises `AssertionError` if there is none, or not exactly `times`; it lists
        what was published instead.

        A message is asked for by its event type, which may be a pattern (`order.*`), and by `key`, `to` (its
        destination: one event to two destinations is two messages), `headers` and `payload`. Other keywords are fields
        of a JSON payload. Objects may be given in part. Values are compared as JSON: `id=order.id` may be a UUID.
        """
        __tracebackhide__ = True
        return self._check("assert_published", Wanted(event_type, facts), times)[0]

    def assert_not_published(self, event_type: str = "*", /, **facts: Any) -> None:
        """Raises `AssertionError` if a message matches, as in `assert_published`. Without any arguments: if there is
        any message, or any stored Celery task."""
        __tracebackhide__ = True
        self._check("assert_not_published", Wanted(event_type, facts), 0)

    def assert_task(self, task: Any, /, *, times: int | None = None, **facts: Any) -> StoredTask:
        """The first stored Celery task that matches: `task` is a task or a name, which may be a pattern; `args` are
        all of its positional arguments, `kwargs` may be a part, `queue` is a name. Raises as `assert_published`."""
        __tracebackhide__ = True
        is_eager = eager(current_app if isinstance(task, str) else task.app)
        hint = f"{is_eager} See docs/existing-tests.md." if is_eager else ""
        wanted = Wanted(task if isinstance(task, str) else task.name, facts, is_task=True)
        stored = self._check("assert_task", wanted, times, hint)[0].task
        assert stored is not None
        return stored

    def _check(self, call: str, wanted: Wanted, times: int | None, hint: str = "") -> list[SeenMessage]:
        __tracebackhide__ = True
        messages = self._read()
        matching = [message for message in messages if wanted.matches(message)]
        if len(matching) != times if times is not None else not matching:
            hint = hint or ("" if messages else self._hint)
            raise AssertionError(explained(call, wanted, times, messages, hint))
        return matching


class OutboxProbe(Published):
    """The outbox of one test: it sees and sends only messages written since the probe was made.

    It works on the real tables. Tables that are missing are made. `settings` default to those of the environment and
    `outbox.toml`, and must name the database and the schema that the application writes to. The fixture `outbox` is
    one; without pytest's fixtures, make one in `setUp` and close it, or use `with`.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._store = ProbeStore.open(self.settings)
        self._destinations = {name: SimulatedDestination() for name in self.settings.destinations}
        super().__init__(self._seen, COMMITTED)

    def within(self, session: Any) -> Published:
        """The messages as that session sees them: with those of its open transaction, which `drain` does not see.

        `session` is a Session, scoped_session, Connection or Django's connection; with an AsyncSession,
        `await session.run_sync(lambda s: outbox.within(s).assert_published(...))`. What an AsyncSession itself
        published is written, and seen, when it commits.
        """
        return Published(lambda: seen_within(session, self._store.tables, self._store.since))

    def fail(
        self, destination: str, answer: Outcome | Exception = REFUSED, *, times: float | None = 1, event_type: str = "*"
    ) -> None:
        """Let the next `times` deliveries to `destination` fail (None: all from now on), or those of an event type.

        `answer` is the outcome, such as `Outcome.dead("no_such_user", "…")`, or an exception, which means what it
        means if a publisher raises it.
        """
        if destination not in self._destinations:
            known = ", ".join(sorted(self._destinations)) or "none"
            raise ProbeMisused(reason=f"{destination!r} is not a configured destination. Known: {known}.")
        self._destinations[destination].failures.append([inf if times is None else times, event_type, answer])

    def drain(self) -> list[SeenMessage]:
        """Send in this process until nothing is due, with the relay's own begin, send and settle; returns what was
        delivered.

        Nothing leaves the process: destinations are in memory. Messages go in the order in which they were written.
        What fails is tried again at once, until it is sent or dead; if the destination asks for a long wait, it is
        left, and so are messages whose own delay is not over.

        Raises `ProbeMisused` in a transaction that Django rolls back, and while a relay is connected to this database:
        messages that are not a test's must not end in its memory.
        """
        if self._rolled_back_by_django() is not None:
            reason = """Django rolls back the transaction of this test, and drain() would see nothing of it. Use a
                TransactionTestCase, with pytest-django `@pytest.mark.django_db(transaction=True)`. Or give each message
                of `outbox.published` to your consumer yourself."""
            raise ProbeMisused(reason=reason)
        self._store.check_alone()
        sent, past = list[UUID](), self._store.since
        while (taken := self._store.take(past)) is not None:
            token, destination, past = taken
            while token and (
                done := publish(self._store, self._destinations, destination, token, Listener(), by_celery=True)
            ):
                if done.verdict.step is Step.SENT:
                    sent.append(UUID(done.verdict.message.id))
                token = done.verdict.token  # of a retry: in the relay, Celery would hold it until its time
        seen = {message.id: message for message in self._store.seen()}
        return [seen[id] for id in sent]

    def close(self) -> None:
        """Close the connections. The messages stay where they are."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _seen(self) -> list[SeenMessage]:
        connection = self._rolled_back_by_django()
        return self._store.seen() if connection is None else self.within(connection).published

    def _rolled_back_by_django(self) -> Any:
        """Django's connection to this outbox while a `TestCase` has a transaction open there, which it never commits;
        else None."""
        if (alias := alias_of(self.settings.database_url)) is None:
            return None
        from django.db import connections

        return connections[alias] if block_of_test(connections[alias]) is not None else None


class SimulatedDestination:
    """A destination in memory: it takes each message, unless the test lets it fail."""

    def __init__(self) -> None:
        self.failures: list[list[Any]] = []
        """How often, for which event types, and with what answer."""

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """The outcome of a message: singles come one at a time."""
        for failure in self.failures:
            remaining, event_type, answer = failure
            if remaining >= 1 and fnmatchcase(messages[0].event_type, event_type):
                failure[0] -= 1
                if isinstance(answer, Exception):
                    raise answer
                return [answer]
        return [Outcome.sent()]

    def close(self) -> None:
        """There is nothing to close."""
