"""Feeds: their sources, copies, leases and writers."""

from tests.mutants import Fault

COPY = "tests/feeds/test_copy.py"
BRIDGE, ROWS, SOURCE = (f"outbox_tasks/feeds/{name}.py" for name in ("bridge", "rows", "source"))
SQL = "outbox_tasks/feeds/sql"

FAULTS = [
    Fault(ROWS, 'headers=TaskHeaders(source.get("headers") or {})', "headers=None",
        f"{COPY}::test_what_was_written_is_copied_once_in_its_order_and_deleted", "A row loses its headers."),
    Fault(ROWS, "        if latest is not None:\n", "        if False:\n",
        f"{COPY}::test_what_was_written_is_copied_once_in_its_order_and_deleted", "A row loses its own `latest`."),
    Fault(BRIDGE, "        _delete(feeds, source, token, left)\n", "",
        f"{COPY}::test_what_a_dead_bridge_has_copied_is_deleted_first",
        "Rows that a dead bridge has copied stay at their source."),
    Fault(BRIDGE, "if rows[0][:2] == former:", "if False:",
        f"{COPY}::test_rows_that_the_source_keeps_are_trouble_that_is_told",
        "A row that is never deleted ends no run."),
    Fault(SOURCE, "            self.close()\n            if isinstance", "            if isinstance",
        "tests/feeds/test_feed_source_trouble.py", "A connection is used again after trouble."),
    Fault("outbox_tasks/feeds/sqlite.py", "return self._identity != self._file()", "return False",
        "tests/feeds/test_feed_source_trouble.py", "A restored file is not read."),
    Fault("outbox_tasks/feeds/nudge.py", "client.delete(NUDGED + name)", "pass",
        "tests/feeds/test_feed_views.py", "A feed that was written while its task began is not woken."),
    Fault(f"{SQL}/take.sql", "f.locked_until <= clock_timestamp() AND ", "",
        f"{COPY}::test_a_stalled_bridge_copies_nothing", "Two bridges copy one feed."),
    Fault(f"{SQL}/copy.sql", "k.number = s.number AND k.id = s.id", "k.number = s.number",
        f"{COPY}::test_a_source_restored_to_an_earlier_state_brings_nothing_twice",
        "A restored source that gives a number again loses the new row."),
    Fault(f"{SQL}/copy.sql", "f.name = :feed AND f.token = :token::uuid", "f.name = :feed",
        f"{COPY}::test_a_stalled_bridge_copies_nothing", "A bridge copies without its lease."),
    Fault(f"{SQL}/end.sql", "failures = CASE WHEN :error::text IS NULL THEN 0", "failures = CASE WHEN false THEN 0",
        f"{COPY}::test_a_source_that_fails_is_left_alone_for_a_while", "Failures are counted on after a success."),
    Fault(f"{SQL}/end.sql", "coalesce(failed_at, clock_timestamp())", "clock_timestamp()",
        "tests/feeds/test_feed_views.py " + COPY + "::test_a_source_that_fails_is_left_alone_for_a_while",
        "A feed that fails for an hour is said to fail since its last run."),
    Fault(f"{SQL}/deleted.sql", " AND f.token = :token::uuid", "",
        f"{COPY}::test_what_was_copied_is_forgotten_only_once_it_is_deleted",
        "A bridge without its lease marks the rows of another one as deleted."),
    Fault(f"{SQL}/forget.sql", "deleted AND ", "",
        f"{COPY}::test_what_was_copied_is_forgotten_only_once_it_is_deleted",
        "A row that is still at its source is forgotten, and copied again."),
    Fault("outbox_tasks/feeds/feed_list.py", "self._open[:2] == (name, place)", "self._open[0] == name",
        f"{COPY}::test_a_drain_copies_all_feeds_and_one_in_trouble_holds_up_no_other",
        "A feed whose address was changed is read at the old one."),
    Fault("outbox_tasks/feeds/feed_list.py", "{**self._found, **own}", "{**own, **self._found}",
        f"{COPY}::test_a_drain_copies_all_feeds_and_one_in_trouble_holds_up_no_other",
        "A listed feed wins over the one in the settings."),
    Fault("outbox_tasks/feeds/task.py", "    if done.more:\n", "    if False:\n",
        f"{COPY}::test_the_task_of_a_feed_copies_it_and_goes_on_at_once",
        "What a run left waits for beat."),
]  # fmt: skip
