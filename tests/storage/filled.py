"""Fills the tables of an outbox with as many messages as it may have in earnest."""

from __future__ import annotations

from tests.storage.conftest import Box


def fill(box: Box, sent: int, work: int) -> None:
    """`sent` messages in the journal, and behind them `work` messages at work: most are ready, a tenth is held, and
    some are in each other place. Each hundredth of the sent ones was in trouble.
    """
    last = sent + work
    for statement in (
        f"""
        INSERT INTO outbox_messages (seq, created_at, event_type, destination, key, payload)
        SELECT n, now() - interval '2 days' + n * interval '1 day' / {last}, 'order.' || (n % 5), 'd' || (n % 4),
               CASE WHEN n % 10 = 0 THEN 'k' || (n % 1000) END, '{{"some": "payload of a usual length, more or less"}}'
        FROM generate_series(1, {last}) AS n
        """,
        f"""
        INSERT INTO outbox_journal (first, at, state, count, destination, holder, seqs)
        SELECT min(n), now() - interval '1 day', CASE WHEN n / 400 % 50 = 0 THEN 'discarded' ELSE 'sent' END, count(*),
               'd' || (n % 4), 'w', range_agg(int8range(n, n, '[]'))
        FROM generate_series(1, {sent}) AS n GROUP BY n / 400, n % 4, n >> 16
        """,
        f"""
        INSERT INTO outbox_ready (seq, since, size, destination, key)
        SELECT n, now() - interval '1 day', 50, 'd' || (n % 4), NULL
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 10 <> 0 AND n % 1000 > 5
        """,
        f"""
        INSERT INTO outbox_held (seq, since, size, destination, key)
        SELECT n, now() - interval '1 day', 50, 'd' || (n % 4), 'k' || (n % 1000)
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 10 = 0
        """,
        f"""
        INSERT INTO outbox_waiting (seq, due, since, size, attempts, destination)
        SELECT n, now() + interval '1 hour', now(), 50, 1, 'd' || (n % 4)
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 1000 = 1
        """,
        f"""
        INSERT INTO outbox_leases (token, locked_until, begun_at, destination, holder, seqs)
        SELECT gen_random_uuid(), now() + interval '1 hour', now(), 'd2', 'w', array_agg(n ORDER BY n)
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 1000 = 2 GROUP BY n / 100000
        """,
        f"""
        INSERT INTO outbox_runs (seq, state, token, locked_until, attempts, id, destination)
        SELECT n, 'running', gen_random_uuid(), now() + interval '1 hour', 1, gen_random_uuid(), 'd' || (n % 4)
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 1000 = 3
        """,
        f"""
        INSERT INTO outbox_dead (seq, dead_at, kin, destination)
        SELECT n, now() - interval '1 day' + n * interval '1 millisecond', 'kin' || (n % 7), 'd' || (n % 4)
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 1000 IN (4, 5)
        """,
        f"""
        INSERT INTO outbox_trouble (seq, attempts, code, error)
        SELECT n, 1, 'http_' || (n % 3), 'refused' FROM generate_series(1, {last}) AS n
        WHERE n % 1000 IN (1, 4, 5) OR n <= {sent} AND n % 100 = 1
        """,
        f"SELECT setval('outbox_seq', {last})",
        "SELECT brin_summarize_new_values('outbox_ready_seq'), brin_summarize_new_values('outbox_held_seq')",
        "ANALYZE outbox_messages, outbox_journal, outbox_ready, outbox_held, outbox_waiting, outbox_leases",
        "ANALYZE outbox_runs, outbox_dead, outbox_trouble",
    ):
        box.connection.execute(statement.encode())
