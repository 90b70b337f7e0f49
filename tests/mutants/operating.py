"""Faults in what people ask and do: the problems, the looks at messages, and the acts on them."""

from tests.mutants import Fault

ROOM, SQL = "outbox_tasks/operating", "outbox_tasks/database/sql"
PROBLEMS = "tests/unit/test_problems.py"
WORKERS = "tests/integration/test_problems_workers.py"
TRANSACTIONS = "tests/integration/test_problems_tables.py::test_a_prepared_transaction"
RIGHTS = "tests/integration/test_rights_of_others.py"
LOCKS, ROWS = f"{RIGHTS}::test_a_lock_of_a_stranger_is_named_and_none_of_a_writer", f"{RIGHTS}::TestRowLevelSecurity"
WAITS = "tests/integration/test_waits.py"
BACKGROUND = "tests/integration/test_background.py::TestTrouble"
ACTS, FIND = "tests/storage/test_acts.py", "tests/storage/test_find.py"
LIMITS = (
    "tests/integration/test_limits.py::test_what_a_person_has_set_counts_until_its_end_by_the_databases_clock "
    "tests/integration/test_limits.py::test_singles_in_the_queue_go_back_and_no_more_are_taken_than_the_rate_allows"
)
FILTERS = "tests/unit/test_filters.py"

FAULTS = [
    Fault(f"{ROOM}/problems/order.py", "return root.which == other.which and other.code in", "return other.code in",
        PROBLEMS, "a paused destination explains why another one is stale"),
    Fault(f"{ROOM}/problems/order.py", "[root] if root.code in ON_PURPOSE else [root, *follows]", "[root, *follows]",
        PROBLEMS, "a pause is an error as soon as messages wait"),
    Fault(f"{ROOM}/problems/problem.py", "without_secrets(fact)", "fact", PROBLEMS,
        "a problem shows the password of a URL that a client quotes"),
    Fault(f"{ROOM}/overview.py", "self.failed_ago <= max(gap, self.arrived_ago)", "self.failed_ago <= gap", PROBLEMS,
        "a destination has recovered though nothing has arrived since"),
    Fault(f"{ROOM}/problems/workers.py", "tick.age - worker.age > longest_pause(site.settings)",
        "tick.age > longest_pause(site.settings)", WORKERS, "beat is blamed while no claim worker takes its ticks"),
    Fault(f"{ROOM}/messages/waits.py", 'next((row for row in rows if row.holds), None)', "next(iter(rows), None)",
        WAITS, "any open writer is the reason why a message with a key waits"),
    Fault(f"{ROOM}/messages/acts.py", 'size if most is None else min(size, most - act["count"])',
        "size if most is None else min(size, most)", "tests/integration/test_background.py",
        "an act that another process goes on with passes its limit"),
    Fault(f"{ROOM}/messages/background.py", "        self._slow.pop(entry, None)\n        return 0.0",
        "        return 0.0", BACKGROUND, "an act ends after five slow batches that were not in a row"),
    Fault(f"{ROOM}/messages/acts.py", 'if missed and not place["again"]:', 'if missed and place["again"]:',
        "tests/integration/test_background.py::TestAnAct",
        "what somebody was changing just then is not tried once more"),
    Fault(f"{SQL}/act/take.sql", " FOR UPDATE OF a SKIP LOCKED", "", "tests/integration/test_background.py::TestStop",
        "an act goes on after it was stopped, and two processes do one batch"),
    Fault(f"{SQL}/act/take.sql", "THEN 0 ELSE :overdue::float END", "THEN 0 ELSE 0 * :overdue::float END", BACKGROUND,
        "a process runs the acts of others"),
    Fault(f"{SQL}/act/redrive.sql", "attempts = 0, spared = 0, outages = 0, unheard = 0,", "spared = 0, unheard = 0,",
        ACTS, "a redriven message has no attempts left"),
    Fault(f"{SQL}/act/edit.sql", "AND sha256(m.payload) = :digest::bytea", "", ACTS,
        "of two people who edit, the second one overwrites the first"),
    Fault(f"{SQL}/act/try.sql", "    AND NOT EXISTS (SELECT FROM :schema.outbox_destinations d WHERE d.name = "
        "l.destination AND d.probe = l.token)\n", "", ACTS, "to try a message takes the probe of an open circuit"),
    Fault(f"{SQL}/act/try.sql", "AND t.code IS NOT NULL\n    AND NOT t.history @> jsonb_build_array("
        "jsonb_build_object('what', 'tried', 'entry', :entry::bigint))", "AND t.code IS NOT NULL", ACTS,
        "an act tries a message again and again"),
    Fault(f"{SQL}/find/one.sql", "CASE WHEN coalesce(:part::integer, 1) > 0 THEN coalesce(c.headers",
        "CASE WHEN true THEN coalesce(c.headers", FIND,
        "somebody who may not see contents gets headers or the history"),
    Fault(f"{SQL}/find/ahead.sql", "WHERE :blocks::boolean AND d.destination", "WHERE d.destination", FIND,
        "a dead letter is the reason why a message waits that it does not hold up"),
    Fault(f"{SQL}/find/became.sql", "  WHERE m.ended IS NULL OR m.finished_at >= :since::timestamptz\n", "", FIND,
        "an older delivery counts as what became of a redrive"),
    Fault(f"{SQL}/doctor/open_writers.sql", "WHERE w.pid IS DISTINCT FROM pg_backend_pid()", "WHERE w.pid <> "
        "pg_backend_pid()", TRANSACTIONS, "a prepared transaction is no reason why a message waits"),
    Fault(f"{SQL}/doctor/locks.sql", "l.objsubid = 1 AND l.mode = 'ShareLock' AND l.granted",
        "l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted", LOCKS,
        "a stranger who holds the marks of writers is not named"),
    Fault(f"{SQL}/doctor/hidden.sql", "AND row_security_active(c.oid)", "AND c.relrowsecurity AND NOT pg_has_role("
        "c.relowner, 'USAGE')", ROWS, "rows that are hidden from their owner are not missed"),
    Fault(f"{SQL}/report/beat.sql", "WHERE h.seen_at <= excluded.seen_at\n", "", "tests/storage/test_reports.py",
        "an old report of a run overwrites a newer one"),
    Fault(f"{SQL}/audit/parts/shown.sql", " - 'former'::text - 'changed'::text - 'form'::text", "",
        "tests/integration/test_redrive.py", "the audit shows the payload before an edit"),
    Fault(f"{ROOM}/limits.py", 'if values.keys() != {"singles"}:', "if values:", LIMITS,
        "to limit singles takes back what is queued"),
    Fault(f"{ROOM}/messages/filters.py", "if not set(wanted.states) <= {*able}:", "if wanted.states and not set("
        "wanted.states) & {*able}:", FILTERS, "an act is for states that it can't change"),
    Fault(f"{ROOM}/problems/database.py", 'if in_force.get("statement_timeout") == "0":', "if False:",
        "tests/integration/test_problems_servers.py::test_missing_session_settings",
        "nobody learns that a statement has no time limit"),
    Fault(f"{SQL}/report/lately.sql", "(1, 1 - date_part('epoch', now() - date_trunc('minute', now())) / 60)",
        "(1, 1)", "tests/storage/test_reports.py", "the rates are those of up to two minutes"),
    Fault(f"{SQL}/look/sends.sql", " AND l.locked_until > now()", "", WAITS, "leases that have ended take slots"),
    Fault(f"{SQL}/keep/forget.sql", "IN ('worker', 'tasks')", "= 'worker'", "tests/integration/test_retention.py",
        "workers of the application that were killed are lost for ever"),
    Fault(f"{SQL}/act/go_on.sql", "greatest(due, clock_timestamp() - interval '1 second')", "due", BACKGROUND,
        "an act that waited for an hour catches up at once, whatever its rate is"),
    Fault(f"{ROOM}/messages/background.py", "(own.discard if batch.place is None else own.add)(entry)",
        "(own.discard if batch.place is None else set().add)(entry)", BACKGROUND,
        "an act that another process goes on with does a batch in 15 s"),
    Fault(f"{ROOM}/messages/waits.py", ' and message["locked_until"] > datetime.now(UTC)\n', "\n", WAITS,
        "a message whose lease has ended is said to be in a queue"),
]  # fmt: skip
