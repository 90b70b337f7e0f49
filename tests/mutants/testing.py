"""Faults in the test kit."""

from tests.mutants import Fault

KIT = "outbox_tasks/testing/"
PROBE, STORE, MATCHING, MESSAGES, TAKE = (
    KIT + "probe.py", KIT + "store.py", KIT + "matching.py", KIT + "messages.py", KIT + "sql/take.sql",
)  # fmt: skip
TESTS = "tests/integration/test_testing.py"
DRAIN, FAIL, PUBLISHED = TESTS + "::TestDrain", TESTS + "::TestFail", TESTS + "::TestPublished"
TASKS, WITHIN, READ = TESTS + "::TestTasks", TESTS + "::TestWithin", TESTS + "::TestFailuresRead"

FAULTS = [
    Fault(
        TAKE,
        "FROM :schema.outbox_ready WHERE seq > :since::bigint",
        "FROM :schema.outbox_ready WHERE seq >= 0",
        DRAIN,
        "a drain sends what earlier tests left",
    ),
    Fault(TAKE, " AND b.seq < p.seq", " AND false", DRAIN, "a message overtakes another one of its key that waits"),
    Fault(
        TAKE,
        "AND k.first > :since AND (",
        "AND (",
        DRAIN,
        "what earlier tests left under a key holds up the message of a test",
    ),
    Fault(
        TAKE,
        " AND NOT :schema.outbox_is_shut(p.destination)",
        "",
        DRAIN,
        "what a paused destination should get is taken",
    ),
    Fault(
        STORE,
        'unlimited = {"concurrency": None, "rate_limit": None}',
        "unlimited = {}",
        FAIL,
        "a destination with a rate is not tried again",
    ),
    Fault(STORE, "        [[store.since]] = ", "        [[_]] = ", PUBLISHED, "a test sees the messages of others"),
    Fault(
        STORE,
        "        if not begun:\n            session.rollback()",
        "        pass",
        WITHIN,
        "to look into a session begins a transaction",
    ),
    Fault(PROBE, "        self._store.check_alone()\n", "", DRAIN, "a drain takes what a relay is to send"),
    Fault(PROBE, "failure[0] -= 1", "pass", FAIL, "one failure lasts for ever"),
    Fault(PROBE, " and fnmatchcase(messages[0].event_type, event_type)", "", FAIL, "other events fail too"),
    Fault(
        PROBE,
        'hint = f"{is_eager} See docs/existing-tests.md." if is_eager else ""',
        'hint = ""',
        TASKS,
        "nobody is told that the app is eager",
    ),
    Fault(
        MATCHING,
        "{**fields, **others}",
        "{**others, **fields}",
        READ,
        "the field `to` of a payload is taken for the destination",
    ),
    Fault(
        MATCHING, " or bool(to_jsonable_python(wanted) == actual)", "", PUBLISHED, "a UUID is not found in a payload"
    ),
    Fault(MATCHING, "not (self.is_task and message.task is None)", "True", TASKS, "an event is taken for a task"),
    Fault(
        MESSAGES,
        "[*queues, envelope.routing_key][0]",
        "envelope.routing_key",
        TASKS,
        "the queue of a task is taken for its routing key",
    ),
]
