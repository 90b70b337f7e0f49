SELECT found.destination, found.part, found.state, count(*) AS counted
FROM (
  SELECT outbox_messages_1.destination AS destination, CASE
      WHEN (outbox_messages_1.status = 'dead') THEN %(param_1)s::VARCHAR
      WHEN (outbox_messages_1.key IS NOT NULL) THEN %(param_2)s::VARCHAR
      WHEN (outbox_messages_1.locked_until <= now()) THEN %(param_3)s::VARCHAR
      ELSE %(param_4)s::VARCHAR END AS part, CASE
      WHEN (outbox_messages_1.status = 'dead') THEN %(param_5)s::VARCHAR
      WHEN (outbox_messages_1.handed_at IS NOT NULL AND outbox_messages_1.locked_until > now() AND outbox_messages_1.begun) THEN %(param_6)s::VARCHAR
      WHEN (outbox_messages_1.handed_at IS NOT NULL AND outbox_messages_1.locked_until > now()) THEN %(param_7)s::VARCHAR
      WHEN (outbox_messages_1.lease IS NOT NULL AND outbox_messages_1.locked_until > now() AND (outbox_messages_1.begun OR outbox_messages_1.attempts = %(attempts_1)s::INTEGER)) THEN %(param_8)s::VARCHAR
      WHEN (outbox_messages_1.attempts > %(attempts_2)s::INTEGER) THEN %(param_9)s::VARCHAR
      WHEN (outbox_messages_1.locked_until > now()) THEN %(param_10)s::VARCHAR
      ELSE %(param_11)s::VARCHAR END AS state
  FROM outbox_messages AS outbox_messages_1 TABLESAMPLE system(%(percent)s)
) AS found GROUP BY found.destination, found.part, found.state;
-- attempts_1 = 0
-- attempts_2 = 0
-- param_1 = 'dead'
-- param_10 = 'scheduled'
-- param_11 = 'pending'
-- param_2 = 'keyed'
-- param_3 = 'due'
-- param_4 = 'later'
-- param_5 = 'dead'
-- param_6 = 'running'
-- param_7 = 'handed over'
-- param_8 = 'leased'
-- param_9 = 'retrying'
