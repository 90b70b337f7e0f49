"""Faults in what an application calls: publish, capture, the inbox, and what a message carries along."""

from tests.mutants import Fault

TRACING = "tests/unit/test_tracing.py"
ON_COMMIT = "tests/integration/test_capture.py::TestStoredCalls"
ROWS, WRITE, BLOCKS, TRANSACTIONS, DEFERRED, CAPTURING = (
    f"outbox_tasks/writing/{name}.py"
    for name in ("rows", "write", "blocks", "transactions", "async_session", "capture")
)

FAULTS = [
    Fault("outbox_tasks/database/sql/write/publish_once.sql", "coalesce(r.latest, false))", "false)",
        "tests/storage/test_write.py::test_all_that_a_message_has_is_written",
        "With a chosen id, a message loses latest."),
    Fault(ROWS, "at.tzinfo is None or at.utcoffset() is None:", "at.tzinfo is None:", "tests/unit/test_rows.py",
        "A time with an empty zone is taken for one in the server's zone."),
    Fault(WRITE, "ids = [id, *(sibling(id, name) for name in self._settings.destinations)]", "ids = [id]",
        "tests/integration/test_sessions.py", "An event is taken back from its first destination only."),
    Fault(TRANSACTIONS,
        "def _connection_rolled_back(connection: Connection) -> None:\n    _after_commit[connection] = {}",
        "def _connection_rolled_back(connection: Connection) -> None:\n    pass",
        "tests/integration/test_write.py::TestNudge",
        "After a rollback the next commit wakes the relay for nothing."),
    Fault(DEFERRED, "            session.info[WAITING].committed = True", "            pass",
        "tests/integration/test_async_sessions.py::test_a_message_published_during_the_commit_raises"
        "_published_too_late",
        "A message that came too late is lost without an error."),
    Fault(DEFERRED, "            del self.entries[: len(alike)]", "            self.entries.clear()",
        "tests/integration/test_async_sessions.py::test_messages_with_and_without_an_id_of_the_appli"
        "cation_wait_together",
        "Rows for two places: the second ones are lost."),
    Fault("outbox_tasks/writing/inbox.py", "(error.consumer, error.message) != (self.consumer, message)",
        "error.consumer != self.consumer", "tests/unit/test_inbox.py",
        "A collision of another message runs the function again."),
    Fault(BLOCKS, "        _block.set(current())  #", "        pass  #",
        "tests/integration/test_capture.py::TestContexts", "A context keeps the session of a block that has ended."),
    Fault("outbox_tasks/wire/tracing.py", "if len(sends.spans) != 1 or", "if", TRACING,
        "What a client traces of a batch belongs to its first message."),
    Fault(ROWS, "settings.destination(name, message.event_type).largest",
        "settings.destination(names[0], message.event_type).largest", "tests/unit/test_write.py",
        "An event is written that its second destination never takes."),
    Fault(TRANSACTIONS, "        self._connection.on_commit(partial(id, anchor))  # keeps", "        pass  # keeps",
        ON_COMMIT, "A task of Django's open transaction is waited for without end."),
    Fault(CAPTURING, "new = not any(function is old for old in before)", "new = True", ON_COMMIT,
        "A call that waited before the block is made before the commit."),
    Fault(CAPTURING, "return is_call and not task.app.conf.task_always_eager", "return is_call", ON_COMMIT,
        "A task of an eager app runs before the commit that it waits for."),
]  # fmt: skip
