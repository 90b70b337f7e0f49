"""Every error the library raises. One family; the class docstring is the message.

A docstring says the fact, the cause and the remedy, with `{names}` filled in from the keywords
that the error was raised with. The keywords stay readable as attributes.
"""

from __future__ import annotations

import inspect
from typing import Any

from outbox_tasks.redaction import without_secrets


class OutboxError(Exception):
    """outbox_tasks failed."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts = {name: _clean(fact) if name != "rule" else fact for name, fact in facts.items()}
        template = " ".join(inspect.cleandoc(type(self).__doc__ or "").split())
        super().__init__(template.format_map(facts))

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["facts"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # Celery and multiprocessing pickle exceptions; the default would call __init__ with the text.
        return _rebuild, (type(self), self.facts)


def _clean(fact: Any) -> Any:
    """What comes from outside may quote a URL; a rule is ours."""
    return without_secrets(str(fact)) if isinstance(fact, str | BaseException) else fact


def _rebuild(kind: type[OutboxError], facts: dict[str, Any]) -> OutboxError:
    return kind(**facts)


class ConfigurationError(OutboxError):
    """Setting {setting} = {value!r} is not usable: {rule}"""


class SettingsFileError(OutboxError):
    """The settings file {path} could not be read: {reason}. Mend it, or point OUTBOX_CONFIG at another."""


class NoDestinations(OutboxError):
    """No destination is configured, so the relay can send nothing: {origin}. Add [destinations.<name>] with a url to
    the file, start in its directory, or name it in OUTBOX_CONFIG."""


class UnsupportedDialect(OutboxError):
    """The database dialect {dialect!r} is not supported, because claims need its FOR UPDATE SKIP LOCKED
    and SQLAlchemy drops that clause silently where it is unknown. Use one of: {supported}."""


class UnsupportedSession(OutboxError):
    """{kind} is no session that messages could be written, cancelled or marked through. Pass a SQLAlchemy Session,
    AsyncSession, Connection or AsyncConnection, or Django's connection, that is inside a transaction."""


class NotInTransaction(OutboxError):
    """{event_type!r} was not published: the session is not inside a transaction, so the message could not
    stand or fall with your change. Begin one first, for example `with session.begin():` or, in Django,
    `with transaction.atomic():`."""


class PublishedTooLate(OutboxError):
    """{count} messages were not written, the first of them {event_type!r}: they were published while their
    transaction was already being committed, and what else it changed is committed. Publish them again, in a
    transaction of their own; and publish before the commit, not beside it."""


class NoTransaction(OutboxError):
    """The inbox of {consumer!r} did not mark message {message!r}: the session is not inside a transaction, so the mark
    could not stand or fall with the effect. Begin one first, for example `with session.begin():` or, in Django,
    `with transaction.atomic():`."""


class InvalidMessageId(OutboxError):
    """The inbox of {consumer!r} refused the message id {value!r}: it must be a UUID, or text of 1 to {longest}
    characters, without NUL. Pass the id that came with the message; a hash of it if it is longer."""


class InboxMisused(OutboxError):
    """The inbox of {consumer!r} can't work: {reason}."""


class MessageRefused(OutboxError):
    """The message was refused before anything was written."""


class InvalidMessage(MessageRefused):
    """The message {event_type!r} was refused: {field} = {value!r} {rule}."""


class UnknownDestination(MessageRefused):
    """{event_type!r} was refused: {destination!r} is not a configured destination. Known: {known}.
    Add [destinations.{destination}] to outbox.toml, or correct the name."""


class NoRoute(MessageRefused):
    """{event_type!r} was refused: no route names a destination for it, `to` was not given, and there is no
    single destination to fall back on. Known destinations: {known}. Add a route to outbox.toml, or pass `to=`."""


class NoTaskDestination(MessageRefused):
    """The task {task!r} was refused: {found}, so that it is not known where to send it. Add a destination
    for tasks to outbox.toml ([destinations.tasks] with url = "celery://"), or a route for this task's name
    to one of several."""


class UncapturableTask(MessageRefused):
    """The task {task!r} was refused: {reason}."""


class ReusedId(OutboxError):
    """The id {id} was refused: it belongs to a message with other content. A repeated call must say the same; a
    message that says something else needs an id of its own. The transaction can only be rolled back."""


class ResultNotThereYet(OutboxError):
    """The result of task {task} was asked for inside the transaction that stores the task. The task is sent after the
    commit, so this would wait in vain. Commit first, then call get()."""


class PayloadNotSerializable(MessageRefused):
    """The payload of {event_type!r} was refused: it can't be serialised ({reason}). Pass JSON values with texts as
    keys, a dataclass or model of them, str or bytes with a content_type, or set a serializer of your own."""


class PayloadTooLarge(MessageRefused):
    """The payload of {event_type!r} was refused: it has {size} bytes and destination {destination!r} takes at
    most {limit}. Send a reference to the data; or, up to 64 MiB, raise max_bytes of the destination if it can take
    more, or set its claim_check, and the relay sends the reference."""


class DatabaseUnavailable(OutboxError):
    """The database {url} can't serve the outbox: {reason}. Check OUTBOX_DATABASE_URL and that the server is up
    and takes writes."""


class DatabaseTooSlow(DatabaseUnavailable):
    """The database {url} did not answer a statement in time: {reason}. See what holds it up: `outbox-tasks doctor`,
    its disk, and the network between."""


class BrokerUnreachable(OutboxError):
    """The broker {url} can't be reached: {reason}. Check that the server is up, and the
    URL: the relay's is OUTBOX_BROKER_URL, or the broker of the Celery app that it is installed in."""


class SchemaMissing(OutboxError):
    """The outbox tables are not in {where} of this database. Run `outbox-tasks init` once."""


class SchemaTooOld(OutboxError):
    """The outbox tables have version {found}, and this release needs {needed}. Run `outbox-tasks init`
    to upgrade them, then start the relay again."""


class UnsupportedDjangoDatabase(UnsupportedDialect):
    """The outbox tables can't be made in Django's database {alias!r}, because it is {dialect} and only {supported}
    will do. Use that there, in tests too; or keep the app "outbox_tasks" out of it with a database router
    (allow_migrate)."""


class UnknownRole(OutboxError):
    """The role {role!r} was given no rights: there is none of this name in the database. Create it first, for example
    with CREATE ROLE … LOGIN, or correct the name."""


class WriterRights(OutboxError):
    """The database role of this session may not write messages: {reason}. Let the owner of the outbox tables run
    `outbox-tasks init --writer ROLE` with its name."""


class SchemaTooNew(OutboxError):
    """The outbox tables have version {found}, and this release knows only {needed}: a newer release has
    upgraded them. Install that release here too."""


class UnknownPublisher(OutboxError):
    """Destination {destination!r} has the URL scheme {scheme!r}, for which no publisher is installed.
    Installed: {known}. Correct the URL, or install the package that brings the publisher."""


class PublisherNotInstalled(OutboxError):
    """Destination {destination!r} needs a client that is not installed ({missing}).
    Install it: pip install 'outbox-tasks[{extra}]'."""


class ClaimCheckNotInstalled(OutboxError):
    """Destination {destination!r} puts large payloads into {place}, and a client for that is not installed ({missing}).
    Install it: pip install 'outbox-tasks[claim-check]', and the package with which fsspec reaches {scheme}://, such as
    s3fs for s3://."""


class ClaimCheckFailed(OutboxError):
    """The payload of message {id} ({size} bytes) could not be put into {place}: {reason}. It is tried again; see that
    the storage is up, and that the relay may write there."""


class AlertsNotInstalled(OutboxError):
    """Alerts are to be posted to the alert_webhook, and the client for that is not installed ({missing}). Install it:
    pip install 'outbox-tasks[http]'. Or remove alert_webhook: then they are only logged."""


class WebhookFailed(OutboxError):
    """An alert could not be posted to {place}: {reason}. Check the alert_webhook; it is tried again."""


class MonitorPortTaken(OutboxError):
    """The monitor can't listen on {host}, port {port}: {reason}. Each worker of a host needs a port of its own: set
    OUTBOX_MONITOR_PORT for each, or to 0 for any that is free, and OUTBOX_MONITOR_HOST to an address of this host."""


class MetricsNotInstalled(OutboxError):
    """There are no metrics, because a package for them is not installed ({missing}).
    Install it: pip install 'outbox-tasks[metrics]'."""


class ArchiveFilesNotInstalled(OutboxError):
    """The archive can't be written to {place}: a library for that is not installed ({missing}). Install it:
    pip install 'outbox-tasks[archive]', and the package with which fsspec reaches {scheme}://, such as s3fs for s3://."""


class ArchiveExportFailed(OutboxError):
    """{day} of the archive could not be written to {place}: {reason}. Its rows stay in the database, and it is tried
    again by the next maintenance; see that the storage is up, has room, and that the relay may write there."""


class ArchiveNotVerified(OutboxError):
    """{day} of the archive was written to {place}, but what was read back is not what the database holds: {found}
    instead of {expected}. The rows stay in the database, and it is tried again by the next maintenance. If this comes
    again, look at the storage."""


class DayNotOver(OutboxError):
    """{day} can't be exported: rows may still be added to it. A day (UTC) can be exported an hour after its end."""


class ArchiveBusy(OutboxError):
    """{day} of the archive could not be taken out at {tries} tries, because others were reading or writing there, and
    they are not kept waiting. The next maintenance tries again; end reports and sessions that stay open for hours."""


class MaintainedElsewhere(OutboxError):
    """Another process is at the maintenance of this outbox. Wait for it to end, then try again."""


class UnknownMessage(OutboxError):
    """There is no message {id}: it was never committed, or it was sent and the archive does not keep it any more. Look
    for it with `outbox-tasks list`."""


class NotDead(OutboxError):
    """Message {id} can't be edited, because it is {state}: only a dead letter waits for a person. Look at it with
    `outbox-tasks show {id}`."""


class EditRefused(OutboxError):
    """The new payload of message {id} was refused: {reason}."""


class PublishError(OutboxError):
    """{reason}"""

    def __init__(self, reason: str, *, code: str) -> None:
        super().__init__(reason=reason, code=code)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_publish_error, (type(self), self.reason, self.code)


class PermanentError(PublishError):
    """{reason}"""


class TransientError(PublishError):
    """{reason}"""


class OutageError(PublishError):
    """{reason}"""


class AttemptFailed(OutboxError):
    """{code}"""


class DeadLetter(OutboxError):
    """Message {id} is dead after attempt {attempt}: {code}"""


def _rebuild_publish_error(kind: type[PublishError], reason: str, code: str) -> PublishError:
    return kind(reason, code=code)
