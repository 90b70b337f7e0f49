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
    Fault(CONNECTION, "limit + NETWORK_SECONDS\n    try:", "limit\n    try:", "tests/integration/test_connections.py",
        "An answer that is under way is given up."),
    Fault(CONNECTION, "            pooled.invalidate()\n        if lost:", "            pass\n        if lost:",
        "tests/integration/test_connections.py",
        "After a failover or a time limit the same connection is used again."),
    Fault(CONNECTION, "or error.sqlstate == READ_ONLY:", "or False:",
        "tests/integration/test_store_trouble.py::TestSilence::test_after_a_failover_the_next_connec"
        "tion_is_a_new_one",
        "After a failover the connection to the old primary stays."),
    Fault(CONNECTION, "lost or not isinstance(error, psycopg.Error) or", "lost or",
        "tests/integration/test_connections.py", "After an interruption a connection may be inside a conversation."),
    Fault(CONNECTION, "            self.engine.dispose()  # the other", "            pass  # the other",
        "tests/integration/test_store_trouble.py::TestServerGone::test_a_connection_that_the_server_"
        "closed_is_replaced",
        "Each idle connection of a server that is gone costs a try."),
    Fault(ENGINE, "    if not settings.statement_timeout:\n        return {}\n", "",
        "tests/integration/test_connections.py", "Behind PgBouncer the relay asks for options."),
    Fault(ENGINE, "settings.statement_timeout + NETWORK_SECONDS if timeout else ANSWER_SECONDS_WITHOUT_LIMIT",
        "settings.statement_timeout + NETWORK_SECONDS", "tests/integration/test_connections.py",
        "With statement_timeout = 0 a statement of three seconds is given up."),
    Fault(ENGINE, '"TimeZone": "UTC", ', "", "tests/integration/test_connections.py",
        "The role's time zone moves the days."),
    Fault(ENGINE, "    except (ValueError, RecursionError):\n        return text if",
        "    except ValueError:\n        return text if", "tests/integration/test_connections.py",
        "A header that is nested too deeply makes an answer unreadable."),
    Fault(CONNECTION,
        '            driver.execute("SET LOCAL idle_in_transaction_session_timeout = 0", prepare=False)\n', "",
        "tests/integration/test_connections.py", "A long maintenance loses its lock after five seconds."),
    Fault(CONNECTION, 'reason = without_secrets(" ".join(text.split()).rstrip(".?"), url)',
        'reason = " ".join(text.split()).rstrip(".?")',
        "tests/unit/test_shown.py "
        "tests/integration/test_store_trouble.py::TestServerGone::test_an_address_that_is_wrong_is_named",
        "The error of the database quotes the password."),
    Fault(ENGINE, "PIPE = {**SESSION, **PLANNING", "PIPE = {**SESSION", "tests/integration/test_connections.py",
        "A plan made for empty tables reads all rows."),
    Fault("outbox_tasks/database/patient.py", "if not ready and patience is not None", "if patience is not None",
        "tests/integration/test_store_trouble.py::TestSilence::test_an_answer_that_is_there_is_read_"
        "even_if_we_come_late",
        "An answer that is there is not read."),
    Fault(RIGHTS, 'HIDDEN = {"payload", "headers", "history"}', 'HIDDEN = {"payload", "headers"}',
        "tests/integration/test_roles.py::TestEachStatement::test_that_does_harm_is_allowed_to_those_who_can_t_do_without",
        "A reader sees errors that quote the payload."),
    Fault(RIGHTS, '"ready": ("INSERT",),', '"ready": ("SELECT", "INSERT"),',
        "tests/integration/test_roles.py::TestEachStatement::test_that_does_harm_is_allowed_to_those_who_can_t_do_without",
        "A worker of tasks may read the queue."),
    Fault(MIGRATIONS, "'{version}');{set_back}", "'{version}');",
        "tests/integration/test_migrations.py::TestUpgrade::test_is_part_of_the_callers_transaction",
        "What the application does next in the transaction has another search_path."),
    Fault(MIGRATIONS, "    if version != str(VERSION):", "    if not version:",
        "tests/integration/test_migrations.py", "Tables of another version are taken for ours."),
    Fault(MIGRATIONS, "r\"['%:$\\\\\\x00-\\x1f]\"", "r\"['%:\\\\\\x00-\\x1f]\"",
        "tests/integration/test_hostile_values.py::test_a_schema_whose_name_could_leave_its_quotes_is_refused",
        "A dollar in a schema's name ends the script's quotes."),
]  # fmt: skip
