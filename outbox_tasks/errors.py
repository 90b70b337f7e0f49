"""Every error that the library raises: one family. `says` is the message of a class: a docstring would be gone
with `python -OO`.

A message says the fact, the cause and the remedy. Its `{names}` are filled in from the keywords of the error, which
can be read as attributes too.
"""

from __future__ import annotations

from typing import Any, ClassVar

from outbox_tasks.text import one_line, without_secrets


class OutboxError(Exception):
    says = "outbox_tasks failed."
    usual: ClassVar[dict[str, Any]] = {}
    """Facts that are these, unless the keywords say otherwise."""

    def __init__(self, **facts: Any) -> None:
        facts = self.usual | facts
        self.facts = facts = {name: _clean(fact) if name != "rule" else fact for name, fact in facts.items()}
        template = " ".join(self.says.split())
        super().__init__(one_line(template.format_map(facts)))

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["facts"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # Celery and multiprocessing pickle exceptions. The default would call __init__ with the text.
        return _rebuild, (type(self), self.facts)


def _clean(fact: Any) -> Any:
    """Texts from outside may quote a URL with a password."""
    return without_secrets(str(fact)) if isinstance(fact, str | BaseException) else fact


def _rebuild(kind: type[OutboxError], facts: dict[str, Any]) -> OutboxError:
    return kind(**facts)


class ConfigurationError(OutboxError):
    says = "Setting {setting} = {value!r} is not usable: {rule}"


class SettingsFileError(OutboxError):
    says = "The settings file {path} could not be read: {reason}. Correct it, or name another file in OUTBOX_CONFIG."


class NoDestinations(OutboxError):
    says = """
    No destination is configured, so the relay can send nothing: {origin}. Add {addition}. If the settings file has
    one, start in the directory of the file, or name the file in OUTBOX_CONFIG."""


class UnsupportedDatabase(OutboxError):
    says = "The outbox can't work in this database: {reason}."


class UnsupportedSession(OutboxError):
    says = "The outbox can't use this session: {reason}."


class NotInTransaction(OutboxError):
    says = """
    Nothing was written for {subject!r}: the session is not inside a transaction, so the message or mark could not be
    committed or rolled back together with your change. Begin one first, for example `with session.begin():` or, in
    Django, `with transaction.atomic():`."""


class PublishedTooLate(OutboxError):
    says = """
    {count} messages were not written, the first of them {event_type!r}: they were published while their transaction
    was being committed, and its other changes are committed now. Publish the messages again, in a new transaction.
    Always publish before the commit begins."""


class Autocommit(NotInTransaction):
    says = """
    Nothing was written for {subject!r}: the connection is in AUTOCOMMIT, so each statement is committed by itself,
    also inside `session.begin()`, and could not be rolled back together with your change. Take
    isolation_level="AUTOCOMMIT" out of create_engine or execution_options (or the driver's own autocommit), or give
    this session engine.execution_options(isolation_level="READ COMMITTED")."""


class NotSupervised(OutboxError):
    says = """
    Nothing was completed: no supervised task runs here. Call complete in the task itself, in its own thread. The task
    must be stored, its app needs outbox.supervise(app), and its destination must not have confirm = "sent"."""


class RunLost(OutboxError):
    says = """
    Task {task} ({id}) was not completed: its lease ran out while it ran, and the task runs again or has run again.
    Let this error roll the transaction back. See docs/supervised-tasks.md."""


class InboxMisused(OutboxError):
    says = "The inbox of {consumer!r} can't work: {reason}."


class InboxCollision(OutboxError):
    says = """
    The inbox of {consumer!r} did not mark message {message!r}: other transactions mark it at the same moment, and the
    database has ended this one ({reason}). Run the transaction again."""


class MessageRefused(OutboxError):
    says = "The message was refused, and nothing was written."


class InvalidMessage(MessageRefused):
    says = "The message {event_type!r} was refused: {field} = {value!r} {rule}."


class InvalidArgument(MessageRefused):
    says = "The call was refused, and nothing was written: {argument} = {value!r} {rule}."


class NoRoute(MessageRefused):
    says = "{event_type!r} was refused: {reason}."


class UncapturableTask(MessageRefused):
    says = "The task {task!r} was refused: {reason}."


class SentPastOutbox(OutboxError):
    says = """
    Task {task!r} was called past the outbox in {place}, while {what}: a worker may run it before the commit, or
    although there is none. Store it with outbox.delay(session, task, …) or inside `with outbox.capture(session):`. If
    it is meant, say so: `with outbox.direct():`."""


class CaptureLost(OutboxError):
    says = """
    A block of outbox.capture or outbox.direct ended in another context than it began in, so calls of tasks between
    did not see it, and may have been sent past the outbox. FastAPI runs a dependency that is a generator in this way,
    unless it is async. Make the generator `async def`, or open the block in the function that calls the tasks."""


class ReusedId(OutboxError):
    says = """
    The id {id} was refused: another message, with other content, has it. Give each message its own id, and repeat a
    call only with the same content. This transaction can only be rolled back."""


class ResultNotThereYet(OutboxError):
    says = """
    The result of task {task} was asked for inside the transaction that stores the task. The task is sent only after
    the commit, so the wait would never end. Commit first, then call get()."""


class PayloadNotSerializable(MessageRefused):
    says = """
    The payload of {event_type!r} was refused: it can't be serialised ({reason}). Pass JSON values with text keys, a
    dataclass or model of such values, or str or bytes with a content_type."""


class PayloadTooLarge(MessageRefused):
    says = """
    The payload of {event_type!r} was refused: it has {size} bytes, and destination {destination!r} takes at most
    {limit}. Send a reference to the data instead. Up to 64 MiB you can also raise the destination's max_bytes, if it
    can take more, or set its claim_check: then the relay sends a reference."""


class InvalidEvent(MessageRefused):
    says = """
    The payload of {event_type!r} was refused: it does not fit {model}, which outbox.event declares ({reason}). Correct
    the payload, or the model."""


class EventsUnreadable(OutboxError):
    says = (
        "The events of {place} can't be read: {reason}. Name an Outbox as MODULE:NAME, and an asyncapi.json of export."
    )


class DatabaseUnavailable(OutboxError):
    says = "The database {url} can't serve the outbox: {reason}. {remedy}"
    usual: ClassVar = {
        "remedy": "Check OUTBOX_DATABASE_URL, and check that the server is up and takes writes. If a role lacks "
        "rights, `outbox-tasks doctor` names them."
    }


class DatabaseTooSlow(DatabaseUnavailable):
    says = "The database {url} did not answer a statement in time: {reason}. {remedy}"
    usual: ClassVar = {"remedy": "Find the cause with `outbox-tasks doctor`, and look at its disk and the network."}


class NotSettled(DatabaseUnavailable):
    says = """The send of message {id} has ended, and the database can't record how: {reason}. The message comes back
    when its lease has run out."""
    usual: ClassVar = {}


class BrokerUnreachable(OutboxError):
    says = """The broker {url} can't be reached: {reason}. Check that the server is up and the URL is right. It is
    OUTBOX_BROKER_URL, or else the broker of the Celery app that the relay is installed in."""


class CrossedWires(OutboxError):
    says = """
    The broker {broker} belongs to another outbox: {owner}. This relay serves {outbox}, and each would take the other's
    tasks. Give each a broker of its own (OUTBOX_BROKER_URL: another number of Redis, or another virtual host), or
    correct OUTBOX_DATABASE_URL. If it is the same outbox, which was moved here, run
    `outbox-tasks init --adopt-broker`."""


class SchemaMissing(OutboxError):
    says = """
    The outbox tables are not in {where} of this database, or they were emptied. Run `outbox-tasks init` once."""


class RightsMissing(OutboxError):
    says = "The database role of this session may not {act}: {reason}. {remedy}"


class FeedMissing(SchemaMissing):
    says = """
    The table {table} is not in {where} of this session's database. Create it once with `outbox-tasks feed init URL`,
    or in a migration with outbox_tasks.migrations.upgrade_feed(connection)."""


class SourceTrouble(OutboxError):
    says = "Feed {name} can't be copied from {url}: {reason}."


class FeedCantCancel(OutboxError):
    says = """
    Message {id} was not taken back: it was published through feed {feed!r}, whose rows may be copied to the relay at
    any moment. Cancel it in the relay's database, with a session of that and an Outbox without a feed."""


class SchemaMismatch(OutboxError):
    says = """
    The outbox tables in {where} are of version {found}, and this release needs version {needed}. Use the release that
    made them. Or let it send what is left (`outbox-tasks drain`), drop the tables (DROP SCHEMA … CASCADE, or the
    script of docs/how-to/remove.md if the schema has other tables too), and run `outbox-tasks init` of this release."""


class UnknownPublisher(OutboxError):
    says = """
    Destination {destination!r} has the URL scheme {scheme!r}, and no publisher for it is installed. Installed:
    {known}. Correct the URL, or install the package with the publisher."""


class NotInstalled(OutboxError):
    says = "{what} can't work without a package that is not installed ({missing}). Install it: pip install {packages}."


class ClaimCheckFailed(OutboxError):
    says = """
    The payload of message {id} ({size} bytes) could not be stored in {place}: {reason}. The relay tries again. Check
    that the storage is up, and that the relay may write there."""


class WebhookFailed(OutboxError):
    says = "An alert could not be posted to {place}: {reason}. The relay tries again. Check the alert_webhook."


class PortTaken(OutboxError):
    says = "{what} can't listen on {host}, port {port}: {reason}. {remedy}"


class WebMisused(OutboxError):
    says = "The page can't work: {reason}."


class ArchiveExportFailed(OutboxError):
    says = """
    {day} of the archive could not be written to {place}: {reason}. Its rows stay in the database, and the next
    maintenance tries again. Check that the storage is up and has room, and that the relay may write there."""


class DayKept(OutboxError):
    says = "The archive's {day} stays: {reason}."


class MaintainedElsewhere(OutboxError):
    says = """
    Another process runs the maintenance of this outbox. Wait until it has ended, then try again. If none does,
    `outbox-tasks doctor` names the session that holds its lock."""


class UnknownMessage(OutboxError):
    says = """
    There is no message {id}: it was never committed, or it was sent and has left the archive. Or it is elsewhere:
    `outbox-tasks show {id}` says what can be checked."""


class InvalidFilter(OutboxError):
    says = "The filter was refused: {reason}."


class ActRefused(OutboxError):
    says = "Nothing was done: {reason}."


class ActConflict(ActRefused):
    says = "Nothing was done: {reason}."


class PublishError(OutboxError):
    says = "{reason}"

    def __init__(self, reason: str, *, code: str) -> None:
        super().__init__(reason=reason, code=code)


class PermanentError(PublishError):
    says = "{reason}"


class TransientError(PublishError):
    says = "{reason}"


class OutageError(PublishError):
    says = "{reason}"


class PasswordUnavailable(OutageError, ConnectionError):
    says = """
    The password could not be had from {source}: {reason}. Correct that: the next connection asks again, and nothing is
    lost."""

    def __init__(self, *, source: str, reason: str, code: str = "no_password") -> None:
        OutboxError.__init__(self, source=source, reason=reason, code=code)


class AttemptFailed(OutboxError):
    says = "{code}"


class DeadLetter(OutboxError):
    says = "Message {id} is dead after attempt {attempt}: {code}"
