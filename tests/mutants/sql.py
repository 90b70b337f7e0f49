"""Faults in the SQL of claims, takes, settles, the breaker, and the tables' functions."""

from tests.mutants import Fault

SQL = "outbox_tasks/database/sql/"
CLAIM, DELIVER, TRAFFIC = SQL + "claim/", SQL + "deliver/", SQL + "traffic/"
SETTLE, BEGIN, TRIPPED, KEYS = DELIVER + "settle.sql", DELIVER + "begin.sql", TRAFFIC + "tripped.sql", SQL + "keys.sql"

STORE, BREAKER = "tests/integration/test_leases.py::", "tests/integration/test_breaker.py::"
CLAIMS, OF_KEYS = "tests/integration/test_claim.py::test_", "tests/storage/test_keys.py::test_"
DRAINS = "tests/storage/test_drain.py::test_"
SETTLES, BEGINS = (f"{STORE}Test{name} {STORE}TestFence" for name in ("Settle", "Begin"))
OVER, RECALLS = STORE + "TestALeaseThatRanOut", STORE + "TestRecall"
OPENS, TRIES = BREAKER + "TestOpening", BREAKER + "TestTrying"
LOST = "tests/integration/test_leases.py::test_after_a_crash_what_is_due_or_claimed_says_so_unless_it_has_an_error"
PAUSES = TRIES + "::test_three_tries_that_fail_double_the_pause_up_to_the_longest"

FAULTS = [
    Fault(SETTLE, "coalesce(t.spared, 0) + (", "(", OPENS, "only the last outage of a message is spared"),
    Fault(SETTLE, "+ 1 ELSE 0 END", "+ 1 ELSE t.outages END",
          DRAINS + "outages_in_a_row_of_a_message_are_counted_anew_after_an_answer",
          "outages in a row are counted over an answer in between"),
    Fault(BEGIN, "AND l.begun_at IS NULL AND l.locked_until > clock_timestamp()", "AND l.begun_at IS NULL", BEGINS,
          "a send begins under a lease that has run out"),
    Fault(BEGIN, "greatest(l.locked_until, clock_timestamp()", "least(l.locked_until, clock_timestamp()", BEGINS,
          "a lease runs out in the middle of its send"),
    Fault(DELIVER + "give_back.sql", "AND l.begun_at IS NULL", "", STORE + "TestGiveBack",
          "a lease whose send has begun is given back, and its message sent twice"),
    Fault(DELIVER + "sent_in_vain.sql", "code = coalesce(t.code, excluded.code)", "code = excluded.code", SETTLES,
          "a message that was sent in vain loses its error"),
    Fault(TRIPPED, "least(failures, different) >=", "failures >=", OPENS,
          "one message that fails again and again opens the circuit"),
    Fault(TRIPPED, "probe = CASE WHEN tried THEN NULL ELSE d.probe END", "probe = d.probe", PAUSES,
          "after a try that failed nobody tries again"),
    Fault(DELIVER + "parts/recovered.sql", "probe = NULL, ", "", TRIES,
          "in the second outage of a destination nobody sees whether it is tried"),
    Fault(TRAFFIC + "grant.sql", "least(greatest(:rate::float", "greatest(least(:rate::float",
          "tests/integration/test_traffic.py::TestRate", "an idle destination gets a whole minute's rate at once"),
    Fault(CLAIM + "expire.sql", "coalesce(t.attempts, 0) + (ended.begun_at IS NOT NULL)::integer AS attempts",
          "coalesce(t.attempts, 0) AS attempts", OVER, "a message that kills workers lives for ever"),
    Fault(CLAIM + "expire.sql", "first = least(k.first, b.first)", "first = k.first",
          OF_KEYS + "what_is_behind_a_message_that_may_have_killed_a_worker_waits_for_it",
          "a message that came back is never read again"),
    Fault(CLAIM + "recall.sql", "greatest(now(), l.locked_until - :hold::float * interval '1 second')", "now()",
          RECALLS, "after a flush of Redis retries do not wait"),
    Fault(CLAIM + "hold_back.sql", "AND l.begun_at IS NULL AND l.destination", "AND l.destination",
          CLAIMS + "a_destination_that_is_not_known_to_be_quick_leaves_a_process_to_the_others",
          "a slow destination's sends are sent twice"),
    Fault(CLAIM + "reserve_slots.sql", "AND d.slot = n AND d.until > now())", "AND d.slot = n)",
          CLAIMS + "a_slot_of_a_drain_that_was_killed_is_free_when_its_time_is_over",
          "the slot of a killed drain is never free again"),
    Fault(CLAIM + "take_keyless.sql", "(place = 1 OR total <= :bytes::bigint)", "total <= :bytes::bigint",
          DRAINS + "a_batch_has_no_more_bytes_than_one_statement_can_fetch_and_a_large_message_is_one",
          "a large message is never sent"),
    Fault(CLAIM + "take_keyless_singly.sql", "ORDER BY failed, turn, xid, seq", "ORDER BY turn, xid, seq",
          TRIES + "::test_messages_that_have_never_failed_try_first",
          "a message that failed before tries a destination first"),
    Fault(CLAIM + "bury.sql", "key IS NOT NULL AND destination = strange.destination AND since <=",
          "key IS NOT NULL AND destination = strange.destination OR false AND since <=",
          STORE + "TestBuryStrangers",
          "messages for a destination that the relay learns of in a minute are dead letters"),
    Fault(KEYS, "q.since <= moment AND (q.place", "(q.place",
          OF_KEYS + "a_scheduled_message_that_was_held_waits_for_its_time",
          "a scheduled message is sent at once behind another"),
    Fault(KEYS, "AND (q.wall IS NULL OR q.seq < q.wall)", "",
          OF_KEYS + "a_dead_head_blocks_its_key_or_not", "messages overtake a dead letter that blocks"),
    Fault(SQL + "writers.sql", "WHERE seq > mark.floor AND", "WHERE seq > mark.floor + 2 AND",
          OF_KEYS + "a_later_writer_waits_for_an_earlier_one", "a message overtakes one that is not yet committed"),
    Fault(SQL + "days.sql", "     OR EXISTS (SELECT FROM outbox_waiting WHERE seq >= low AND seq < high)\n", "",
          "tests/storage/test_day_races.py", "a scheduled message is dropped with its day"),
    Fault(CLAIM + "note_lost_commits.sql", "AS s WHERE l.begun_at IS NULL", "AS s WHERE false", LOST,
          "after a crash a message in the queue does not say that it may be repeated"),
    Fault(CLAIM + "take_keyless.sql", "r.alone AND NOT (SELECT :schema.outbox_is_shut(:destination))", "r.alone",
          DRAINS + "nothing_begins_for_a_destination_that_gets_nothing", "a message that goes alone passes a pause"),
    Fault(CLAIM + "take_keyless_singly.sql", "CASE WHEN NOT s.alone THEN s.xid::text END", "s.xid::text", OVER,
          "a message that goes alone hides others for a minute"),
    Fault(SQL + "functions.sql", "r.key IS NOT NULL AND r.since <= now()", "r.key IS NOT NULL",
          "tests/integration/test_backlog.py", "workers are started for scheduled messages"),
    Fault(TRAFFIC + "outstanding.sql", "locked_until <= now() + :hold::float * interval '1 second')", "true)",
          CLAIMS + "a_destination_that_is_not_known_to_be_quick_leaves_a_process_to_the_others",
          "singles that wait for their retries stop a destination"),
    Fault(SQL + "functions.sql", "priority, latest)\n$$;\n\n-- Cancels", "'normal', latest)\n$$;\n\n-- Cancels",
          "tests/integration/test_in_sql.py", "a payload of the type json loses its priority"),
    Fault(SQL + "act/redrive.sql", "spared = 0, ", "", "tests/storage/test_acts.py::TestRedrive",
          "a redriven message has more attempts than max_attempts"),
]  # fmt: skip
