SELECT CASE
    WHEN (outbox_messages.status = 'dead') THEN 'dead'
    WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN 'running'
    WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN 'handed over'
    WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_1)s::INTEGER)) THEN 'leased'
    WHEN (outbox_messages.attempts > %(attempts_2)s::INTEGER) THEN 'retrying'
    WHEN (outbox_messages.locked_until > now()) THEN 'scheduled'
    ELSE 'pending' END AS state, outbox_messages.locked_by
FROM outbox_messages
WHERE outbox_messages.id = %(id)s::UUID
UNION ALL
SELECT outbox_archive.state, outbox_archive.locked_by
FROM outbox_archive
WHERE outbox_archive.id = %(id)s::UUID;
-- attempts_1 = 0
-- attempts_2 = 0
