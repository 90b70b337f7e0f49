"""The database goes away between the send and the settle, and in the middle of a drain."""

from __future__ import annotations

from tests.acceptance.nodes import Relay
from tests.conftest import Stream, eventually
from tests.fault.conftest import (
    LONG,
    SLOW,
    Here,
    OwnDatabase,
    archive_locked,
    check,
    drained,
    in_the_middle,
    slow_messages,
    waiting_for_locks,
)


def test_a_message_sent_as_the_database_died_is_sent_again_with_the_cause(
    relay_on_own: Relay, database: OwnDatabase, stream: Stream
) -> None:
    worker = relay_on_own.publish(pool="solo")
    relay_on_own.claim()
    relay_on_own.beat()
    relay_on_own.ready()
    with archive_locked(database.engine, database.schema) as connection:
        [id] = database.rows.insert()
        eventually(lambda: stream.ids() == [id])
        eventually(lambda: waiting_for_locks(database.engine, database.schema))
        worker.wait_for_log("could not settle 1 messages")  # a second later: its begin has reached the disk
        database.server.kill()
        connection.invalidate()
    # Away for longer than a publisher is ready to wait, so the message stays begun.
    worker.wait_for_log(f"[{id}] retry: Retry in ")
    database.server.start()
    drained(database.rows)
    assert check(database.rows, stream, [id]) == 1
    [row] = database.rows.archived()
    assert (row.attempts, row.last_error_code) == (2, "unsettled")


def test_messages_whose_begin_a_crash_may_have_undone_say_so(relay_on_own: Relay, database: OwnDatabase) -> None:
    """A begin that was undone looks like a single in the queue: it may have been sent."""
    relay_on_own.settings = relay_on_own.settings.replace(**LONG)
    here = Here(relay_on_own)
    here.broker.has_forgotten(here.store.identity)
    database.rows.insert(3)
    here.store.note_lost_commits()  # as each claim does when the database is back
    assert here.claim().singles == 3
    here.store.engine.dispose()
    database.server.kill()
    database.server.start()
    relay_on_own.claim(**LONG)
    relay_on_own.beat(**LONG)
    relay_on_own.ready()
    eventually(lambda: {row.last_error_code for row in database.rows.hot()} == {"database_crashed"})


def test_a_drain_goes_on_after_the_database_was_killed_and_after_it_was_stopped(
    relay_on_own: Relay, database: OwnDatabase, stream: Stream
) -> None:
    workers = [relay_on_own.publish(concurrency=2, **SLOW), relay_on_own.claim(**SLOW)]
    relay_on_own.beat()
    relay_on_own.ready()
    ids: list[str] = []
    for goes in (database.server.kill, database.server.restart):
        ids += slow_messages(database.rows)
        in_the_middle(stream)
        goes()
        database.server.start()
        assert len(set(stream.ids())) < len(ids)
        drained(database.rows)
        check(database.rows, stream, ids)
    assert {worker.container.status for worker in workers} == {"running"}
