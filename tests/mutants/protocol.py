"""Faults in what a message's life rests on: claim, begin, settle, and the rows of busy keys."""

from tests.mutants import Fault

STORAGE = "tests/storage/test_keys.py tests/storage/test_drain.py tests/supervised/test_verbs.py"
SQL = "outbox_tasks/database/sql"
MOVES = "tests/integration/test_transitions.py"

FAULTS = [
    Fault(
        f"{SQL}/claim/expire.sql",
        "WHEN ended.begun_at IS NOT NULL THEN 'unsettled'",
        "",
        "tests/integration/test_claim.py tests/integration/test_leases.py",
        "a send that was never settled is repeated without a cause on the row",
    ),
    Fault(
        f"{SQL}/deliver/begin.sql",
        "l.begun_at IS NULL AND",
        "",
        "tests/integration/test_leases.py",
        "a single begins twice",
    ),
    Fault(
        f"{SQL}/claim/expire.sql",
        "k.token = b.token",
        "false",
        STORAGE,
        "a lease that ran out leaves its key busy for ever",
    ),
    Fault(
        f"{SQL}/deliver/sent.sql",
        "k.token = :token AND",
        "false AND",
        STORAGE,
        "what is sent leaves its key busy for ever",
    ),
    Fault(
        f"{SQL}/deliver/sent.sql",
        "WHERE more RETURNING",
        "WHERE false RETURNING",
        STORAGE,
        "what waits behind a message that was sent is forgotten",
    ),
    Fault(
        f"{SQL}/deliver/settle.sql",
        "= :token\n  RETURNING",
        "= NULL\n  RETURNING",
        STORAGE,
        "what fails leaves its key busy for ever",
    ),
    Fault(f"{SQL}/deliver/settle.sql", "NOT EXISTS (SELECT FROM ours WHERE step = 'retry')", "false", MOVES,
          "a settle leaves the lease"),
    Fault(f"{SQL}/deliver/settle.sql", "FROM ours WHERE step = 'dead'", "FROM ours WHERE false", MOVES,
          "a settle forgets what died"),
    Fault(f"{SQL}/claim/take_free_singly.sql", "FROM single WHERE", "FROM single WHERE false AND", MOVES,
          "a take forgets to lease"),
]  # fmt: skip
