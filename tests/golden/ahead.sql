SELECT outbox_messages.id, CASE
    WHEN (outbox_messages.status = 'dead') THEN 'dead'
    WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN 'running'
    WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN 'handed over'
    WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_1)s::INTEGER)) THEN 'leased'
    WHEN (outbox_messages.attempts > %(attempts_2)s::INTEGER) THEN 'retrying'
    WHEN (outbox_messages.locked_until > now()) THEN 'scheduled'
    ELSE 'pending' END AS state, outbox_messages.dead_at, outbox_messages.locked_until, outbox_messages.last_error_code, (
  SELECT count(*) AS count_1
  FROM (
    SELECT outbox_messages.id AS id
    FROM outbox_messages
    WHERE outbox_messages.destination = %(destination)s::VARCHAR
      AND outbox_messages.key = %(key)s::VARCHAR
      AND outbox_messages.seq < %(seq)s::BIGINT
      AND (%(blocks)s OR outbox_messages.status = 'pending')
    ORDER BY outbox_messages.key, outbox_messages.seq
    LIMIT %(param_1)s::INTEGER
  ) AS "some"
) AS count
FROM outbox_messages
WHERE outbox_messages.destination = %(destination)s::VARCHAR
  AND outbox_messages.key = %(key)s::VARCHAR
  AND outbox_messages.seq < %(seq)s::BIGINT
  AND (%(blocks)s OR outbox_messages.status = 'pending')
ORDER BY outbox_messages.key, outbox_messages.seq
LIMIT %(param_2)s::INTEGER;
-- attempts_1 = 0
-- attempts_2 = 0
-- param_1 = 100000
-- param_2 = 1
