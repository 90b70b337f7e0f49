"""Faults in the test kit."""

from tests.mutants import Fault

KIT = "outbox_tasks/testing/"
STORE, TAKE = KIT + "store.py", KIT + "sql/take.sql"
TESTS = "tests/integration/test_testing.py"
DRAIN, FAIL = f"{TESTS}::TestDrain", f"{TESTS}::TestFail"

FAULTS = [
    Fault(TAKE, "FROM :schema.outbox_ready WHERE seq > :since::bigint", "FROM :schema.outbox_ready WHERE seq >= 0",
        DRAIN, "a drain sends what earlier tests left"),
    Fault(TAKE, " AND b.seq < p.seq", " AND false", DRAIN, "a message overtakes another one of its key that waits"),
    Fault(STORE, 'unlimited = {"concurrency": None, "rate_limit": None}', "unlimited = {}", FAIL,
        "a destination with a rate is not tried again"),
]  # fmt: skip
