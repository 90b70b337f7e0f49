"""Mistakes in the use of `outbox_tasks.testing`."""

from __future__ import annotations

from outbox_tasks.errors import OutboxError


class NotADestination(OutboxError):
    says = """{name!r} is not a configured destination. Known: {known}. Correct the name, or add the destination to the
    settings that the fixture outbox_settings returns."""


class NotAPoint(OutboxError):
    says = "There is no crash point {point!r}. Choose one of: {known}."


class ConsumerNotPlain(OutboxError):
    says = """The consumer of {destination!r} is an `async def`, and drain() can't await it. Give a plain function; or
    call drain() and then, in the test, `for message in outbox.delivered: await consumer(message)`."""


class NotReadable(OutboxError):
    says = """{kind} can't be read without awaiting it. Pass a Session, a Connection or Django's connection; with an
    AsyncSession or AsyncConnection: `await session.run_sync(lambda s: outbox.within(s).assert_published(...))`."""


class NeverCommitted(OutboxError):
    says = """
    Django rolls back the transaction of this test, and drain() would see nothing of it. Use a TransactionTestCase, with
    pytest-django `@pytest.mark.django_db(transaction=True)`. Or give each message of `outbox.published` to your
    consumer yourself."""


class NotJson(OutboxError):
    says = "The payload of {event_type!r} ({content_type}) is not JSON: {reason}. Read it as `.payload` or `.text`."


class NotATask(OutboxError):
    says = """The header {header} of {event_type!r} is not that of a stored Celery task: {reason}. It was not written by
    Outbox.delay, apply_async or capture."""


class DrainEndless(OutboxError):
    says = """
    drain() has begun {count} sends, and there are more. A consumer that publishes what it consumes never ends; mend
    it, or raise `at_most` if there really is so much to send."""


class RelayAtWork(OutboxError):
    says = """
    A relay is connected to the database of this test (server process {pid}, from {address}). It would send what
    the test publishes, and drain() would take what it is to send. Stop it, or give the tests a database of their own.
    If it serves another schema of this database, build OutboxProbe(settings, beside_relay=True)."""
