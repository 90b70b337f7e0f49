"""Faults in connections to the database, in rights, and in what makes the tables."""

from tests.mutants import Fault

CONNECTION, ENGINE, RIGHTS, MIGRATIONS = (
    "outbox_tasks/database/connection.py",
    "outbox_tasks/database/engine.py",
    "outbox_tasks/database/rights.py",
    "outbox_tasks/migrations/__init__.py",
)

FAULTS = [
    Fault(CONNECTION, "    finally:\n        driver.patience = usual\n", "    finally:\n        pass\n",
        "tests/integration/test_connections.py",
        "After one statement with a limit of its own, a connection waits for long."),
    Fault(CONNECTION, "            pooled.invalidate()\n        if lost:", "            pass\n        if lost:",
        "tests/integration/test_connections.py",
        "After a failover or a time limit the same connection is used again."),
    Fault(ENGINE, "    if not settings.statement_timeout:\n        return {}\n", "",
        "tests/integration/test_connections.py", "Behind PgBouncer the relay asks for options."),
    Fault(ENGINE, "settings.statement_timeout + NETWORK_SECONDS if timeout else ANSWER_SECONDS_WITHOUT_LIMIT",
        "settings.statement_timeout + NETWORK_SECONDS", "tests/integration/test_connections.py",
        "With statement_timeout = 0 a statement of three seconds is given up."),
    Fault("outbox_tasks/database/patient.py", "if not ready and patience is not None", "if patience is not None",
        "tests/integration/test_store_trouble.py::TestSilence::test_an_answer_that_is_there_is_read_"
        "even_if_we_come_late",
        "An answer that is there is not read."),
    Fault(RIGHTS, 'HIDDEN = {"payload", "headers", "history"}', 'HIDDEN = {"payload", "headers"}',
        "tests/integration/test_roles.py::TestEachStatement::test_that_does_harm_is_allowed_to_those_who_can_t_do_without",
        "A reader sees errors that quote the payload."),
    Fault(MIGRATIONS, "'{version}');{set_back}", "'{version}');",
        "tests/integration/test_migrations.py::TestUpgrade::test_is_part_of_the_callers_transaction",
        "What the application does next in the transaction has another search_path."),
    Fault(MIGRATIONS, "    if version != str(VERSION):", "    if not version:",
        "tests/integration/test_migrations.py", "Tables of another version are taken for ours."),
    Fault("outbox_tasks/database/patient.py", "to our question.\n            self.close()\n", "to our question.\n",
        "tests/integration/test_store_trouble.py::TestSilence::test_a_time_limit_in_a_statement_leaves_nothing_behind",
        "In a transaction a time limit becomes an outage of the database."),
]  # fmt: skip
