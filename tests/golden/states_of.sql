SELECT CAST(outbox_messages.id AS TEXT) AS id, CASE
    WHEN (outbox_messages.status = 'dead') THEN 'dead'
    WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN 'running'
    WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN 'handed over'
    WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_1)s::INTEGER)) THEN 'leased'
    WHEN (outbox_messages.attempts > %(attempts_2)s::INTEGER) THEN 'retrying'
    WHEN (outbox_messages.locked_until > now()) THEN 'scheduled'
    ELSE 'pending' END AS state, outbox_messages.destination
FROM unnest(%(ids)s::UUID[]) AS anon_1(id)
JOIN outbox_messages ON outbox_messages.id = ANY (ARRAY[anon_1.id])
UNION ALL
SELECT CAST(outbox_archive.id AS TEXT) AS id, outbox_archive.state, outbox_archive.destination
FROM unnest(%(ids)s::UUID[]) AS anon_1(id)
JOIN outbox_archive ON outbox_archive.id = ANY (ARRAY[anon_1.id]);
-- attempts_1 = 0
-- attempts_2 = 0
