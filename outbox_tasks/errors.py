"""Every error that the library raises: one family. `says` is the message of a class: a docstring would be gone
with `python -OO`.

A message says the fact, the cause and the remedy. Its `{names}` are filled in from the keywords of the error, which
can be read as attributes too.
"""

from __future__ import annotations

from typing import Any

from outbox_tasks.text import one_line, without_secrets


class OutboxError(Exception):
    says = "outbox_tasks failed."

    def __init__(self, **facts: Any) -> None:
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


class UnsupportedDialect(OutboxError):
    says = """
    The database dialect {dialect!r} is not supported here. Use one of: {supported}. The relay's own tables need
    PostgreSQL, in tests too: see docs/testing.md. An application whose data is in MySQL, MariaDB or SQLite for good
    publishes with Outbox(feed=…): see docs/feeds.md."""


class UnsupportedSession(OutboxError):
    says = """{kind} is not a session that the outbox can use. Pass a SQLAlchemy Session, AsyncSession, Connection or
    AsyncConnection, or Django's connection, that is inside a transaction."""


class UnboundSession(UnsupportedSession):
    says = """
    The session has no engine for {table}: its `binds` name other classes and tables. Give it a `bind=` for the rest,
    name the outbox's table in its `binds` (see docs/publishing.md), or pass the connection of one of its classes:
    `session.connection(bind_arguments={{"mapper": Order}})`."""


class NotInTransaction(OutboxError):
    says = """
    {event_type!r} was not published: the session is not inside a transaction, so the message could not be committed
    or rolled back together with your change. Begin one first, for example `with session.begin():` or, in Django,
    `with transaction.atomic():`."""


class PublishedTooLate(OutboxError):
    says = """
    {count} messages were not written, the first of them {event_type!r}: they were published while their transaction
    was being committed, and its other changes are committed now. Publish the messages again, in a new transaction.
    Always publish before the commit begins."""


class NoTransaction(OutboxError):
    says = """
    The inbox of {consumer!r} did not mark message {message!r}: the session is not inside a transaction, so the mark
    could not be committed or rolled back together with your change. Begin one first, for example
    `with session.begin():` or, in Django, `with transaction.atomic():`."""


class Autocommit(NotInTransaction, NoTransaction):
    says = """
    Nothing was written for {event_type!r}: the connection is in AUTOCOMMIT, so each statement is committed by itself,
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


class InvalidMessageId(OutboxError):
    says = """The inbox of {consumer!r} refused the message id {value!r}: it must be a UUID, or text of 1 to {longest}
    characters, without NUL. Pass the id that came with the message, or a hash of it if it is longer."""


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


class UnknownDestination(MessageRefused):
    says = """{event_type!r} was refused: {destination!r} is not a configured destination. Known: {known}.
    Add [destinations.{destination}] to outbox.toml, or correct the name."""


class NoRoute(MessageRefused):
    says = """
    {event_type!r} was refused: no route names a destination for it, `to` was not given, and there isn't exactly one
    destination. Known destinations: {known}. Add a route to outbox.toml, or pass `to=`."""


class NoTaskDestination(MessageRefused):
    says = """The task {task!r} was refused, because its destination is unknown: {found}. Add a destination for tasks to
    outbox.toml ([destinations.tasks] with url = "celery://"). If there are several, add a route for this task's
    name."""


class UncapturableTask(MessageRefused):
    says = "The task {task!r} was refused: {reason}."


class CaptureLost(UncapturableTask):
    says = """
    The task {task!r} was {fate}. It was called while {where} had a block of outbox.capture or outbox.direct open in
    another context, so nobody can tell whether the task belongs to the block. FastAPI runs a dependency that is a
    generator in this way, unless it is async. Make the generator `async def`, or open the block in the function that
    calls the task."""


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


class DatabaseUnavailable(OutboxError):
    says = """
    The database {url} can't serve the outbox: {reason}. Check OUTBOX_DATABASE_URL, and check that the server is up
    and takes writes. If a role lacks rights, `outbox-tasks doctor` names them."""


class DatabaseTooSlow(DatabaseUnavailable):
    says = """
    The database {url} did not answer a statement in time: {reason}. Find the cause with `outbox-tasks doctor`, and
    look at its disk and the network."""


class LocksSpent(DatabaseUnavailable):
    says = """
    The database {url} has no room for more locks: {reason}. A look for a message locks each day that is kept.
    Keep fewer days (archive_retention), or raise max_locks_per_transaction: `outbox-tasks doctor` says how far."""


class RowsHidden(DatabaseUnavailable):
    says = """
    Row-level security would hide rows of the outbox from the role of {url}: {reason}. The relay would send nothing,
    and nobody would see why. Switch it off for the outbox's tables (ALTER TABLE … DISABLE ROW LEVEL SECURITY), or let
    the role see all rows (ALTER ROLE … BYPASSRLS). `outbox-tasks doctor` prints the statements."""


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


class UnsupportedEncoding(OutboxError):
    says = """
    The outbox needs a database in UTF8. This one is in {encoding}, which can't hold every message. Make another one for
    the outbox: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0. An application can keep its own, and publish
    through a feed in it: see docs/feeds.md."""


class SchemaRights(OutboxError):
    says = """
    The outbox tables in {where} were not made or changed, because the database role {role!r} may not: {reason}. Do it
    as the owner of the tables. If there are none yet, the owner of the schema can let this role make them: GRANT CREATE
    ON SCHEMA … TO {role}."""


class FeedMissing(SchemaMissing):
    says = """
    The table {table} is not in {where} of this session's database. Create it once with `outbox-tasks feed init URL`,
    or in a migration with outbox_tasks.migrations.upgrade_feed(connection)."""


class FeedRights(OutboxError):
    says = """
    The database user of this session may not write to {table}: {reason}. Its owner can allow it:
    GRANT INSERT (id, ordering_key, message) ON {table} TO …"""


class SourceTrouble(OutboxError):
    says = "Feed {name} can't be copied from {url}: {reason}."


class SourceUnavailable(SourceTrouble):
    says = "Feed {name} can't be copied from {url} now: {reason}. Its rows wait there, and the next run tries again."


class SourceMisused(SourceTrouble):
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


class UnsupportedDjangoDatabase(UnsupportedDialect):
    says = """The outbox tables can't be made in Django's database {alias!r}: it is {dialect}, and only {supported} is
    supported. Use that, in tests too (see docs/testing.md), or keep the app "outbox_tasks" out of this database with a
    database router (allow_migrate)."""


class UnknownRole(OutboxError):
    says = """
    The role {role!r} was given no rights: the database has no role of this name. Create it first, for example with
    CREATE ROLE … LOGIN, or correct the name."""


class WriterRights(OutboxError):
    says = """
    The database role of this session may not write messages: {reason}. The owner of the outbox tables can allow it:
    `outbox-tasks init --writer ROLE`."""


class SatelliteMissing(OutboxError):
    says = """
    This installation has no {name}: its folder or its entry point was taken out. Install the whole package, or leave
    out what needs it."""


class UnknownPublisher(OutboxError):
    says = """
    Destination {destination!r} has the URL scheme {scheme!r}, and no publisher for it is installed. Installed:
    {known}. Correct the URL, or install the package with the publisher."""


class PublisherNotInstalled(OutboxError):
    says = """Destination {destination!r} needs a client that is not installed ({missing}). Install it:
    pip install 'outbox-tasks[{extra}]'."""


class ClaimCheckNotInstalled(OutboxError):
    says = """
    Destination {destination!r} stores large payloads in {place}, and a client for that is not installed ({missing}).
    Install it: pip install 'outbox-tasks[claim-check]', and fsspec's package for {scheme}://, such as s3fs for
    s3://."""


class ClaimCheckFailed(OutboxError):
    says = """
    The payload of message {id} ({size} bytes) could not be stored in {place}: {reason}. The relay tries again. Check
    that the storage is up, and that the relay may write there."""


class AlertsNotInstalled(OutboxError):
    says = """Alerts can't be posted to the alert_webhook: its client is not installed ({missing}). Install it:
    pip install 'outbox-tasks[http]'. Or remove alert_webhook: then alerts are only logged."""


class WebhookFailed(OutboxError):
    says = "An alert could not be posted to {place}: {reason}. The relay tries again. Check the alert_webhook."


class MonitorPortTaken(OutboxError):
    says = """The monitor can't listen on {host}, port {port}: {reason}. Each worker on a host needs its own port: set
    OUTBOX_MONITOR_PORT for each, or 0 for any free port. OUTBOX_MONITOR_HOST must be an address of this host."""


class MetricsNotInstalled(OutboxError):
    says = """There are no metrics, because a package for them is not installed ({missing}). Install it:
    pip install 'outbox-tasks[metrics]'."""


class WebNotInstalled(OutboxError):
    says = """There is no page, because a package for it is not installed ({missing}). Install it:
    pip install 'outbox-tasks[web]'."""


class WebPortTaken(OutboxError):
    says = """
    The page can't listen on {host}, port {port}: {reason}. Name another one with --port (0: any free one), or with
    --host an address of this host."""


class WebMisused(OutboxError):
    says = "The page can't work: {reason}."


class WebClosed(OutboxError):
    says = """
    The page does not start, because nobody could sign in. Add [web_users.<name>] with a password to the settings
    file. In an application, you can pass `who` to Page instead."""


class ArchiveFilesNotInstalled(OutboxError):
    says = """The archive can't be written to {place}: a library for that is not installed ({missing}). Install it:
    pip install 'outbox-tasks[archive]', and fsspec's package for {scheme}://, such as s3fs for s3://."""


class ArchiveExportFailed(OutboxError):
    says = """
    {day} of the archive could not be written to {place}: {reason}. Its rows stay in the database, and the next
    maintenance tries again. Check that the storage is up and has room, and that the relay may write there."""


class ArchiveNotVerified(OutboxError):
    says = """
    {day} of the archive was written to {place}, but the file does not hold what the database holds: {found} instead
    of {expected}. The rows stay in the database, and the next maintenance tries again. If this happens again, check the
    storage."""


class ReplayRefused(OutboxError):
    says = "The replay was refused: {reason}."


class DayAtWork(OutboxError):
    says = """
    The archive's {day} stays: {count} of its messages are still at work. See `outbox-tasks list`: dead letters can be
    redriven or discarded."""


class DayIncomplete(OutboxError):
    says = """
    The archive's {day} stays: {count} of its messages are neither at work, nor does the journal say that they ended.
    Somebody has deleted rows by hand, or it is a bug: please report it. `sql/look/strays.sql` names them."""


class DayOpen(OutboxError):
    says = """
    The archive's {day} stays: a transaction that wrote messages on that day is still open. The next maintenance tries
    again. End sessions that stay open for hours."""


class DayNotOver(OutboxError):
    says = "{day} can't be exported: rows may still be added to it. A day (UTC) can be exported an hour after its end."


class ArchiveBusy(OutboxError):
    says = """
    {day} of the archive could not be removed in {tries} tries: other sessions were reading or writing there, and the
    maintenance does not make them wait. The next maintenance tries again. End sessions that stay open for hours."""


class MaintainedElsewhere(OutboxError):
    says = """
    Another process runs the maintenance of this outbox. Wait until it has ended, then try again. If none does,
    `outbox-tasks doctor` names the session that holds its lock."""


class UnknownMessage(OutboxError):
    says = """
    There is no message {id}: it was never committed, or it was sent and has left the archive. Or it is elsewhere:
    `outbox-tasks show {id}` says what can be checked."""


class NotDead(OutboxError):
    says = """Message {id} can't be edited: it is {state}, and only a dead letter can be edited. Look at it with
    `outbox-tasks show {id}`."""


class InvalidFilter(OutboxError):
    says = "The filter was refused: {reason}."


class InvalidAct(OutboxError):
    says = "Nothing was done: {reason}."


class InvalidLimit(OutboxError):
    says = "No limit was set: {reason}."


class ActBegun(OutboxError):
    says = "This form has begun act {entry} already, which is another one. Nothing was done. Begin with a new preview."


class EditRefused(OutboxError):
    says = "The new payload of message {id} was refused: {reason}."


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


class AttemptFailed(OutboxError):
    says = "{code}"


class DeadLetter(OutboxError):
    says = "Message {id} is dead after attempt {attempt}: {code}"
