WITH asked AS (
  SELECT anon_1.destination AS destination
  FROM unnest(%(names)s::TEXT[]) AS anon_1(destination)
), lane AS (SELECT -1::smallint AS lane UNION ALL SELECT 0::smallint AS lane UNION ALL SELECT 1::smallint AS lane)
SELECT asked.destination, %(param_1)s::VARCHAR AS part, lane.lane AS lane, in_due.state, in_due.code, count(*) AS counted, CASE
    WHEN (min(in_due.since) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_due.since)), 1e10), -1e10) END AS oldest, CASE
    WHEN (min(in_due.waits) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_due.waits)), 1e10), -1e10) END AS waited, CASE
    WHEN (min(in_due.dead_at) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_due.dead_at)), 1e10), -1e10) END AS dead_for
FROM asked
JOIN lane ON true
JOIN LATERAL (
  SELECT CASE
      WHEN (outbox_messages.status = 'dead') THEN %(param_2)s::VARCHAR
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN %(param_3)s::VARCHAR
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN %(param_4)s::VARCHAR
      WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_1)s::INTEGER)) THEN %(param_5)s::VARCHAR
      WHEN (outbox_messages.attempts > %(attempts_2)s::INTEGER) THEN %(param_6)s::VARCHAR
      WHEN (outbox_messages.locked_until > now()) THEN %(param_7)s::VARCHAR
      ELSE %(param_8)s::VARCHAR END AS state, CASE
      WHEN (outbox_messages.status = 'dead' OR outbox_messages.attempts > %(attempts_3)s::INTEGER) THEN outbox_messages.last_error_code END AS code, CASE
      WHEN (outbox_messages.status = 'dead') THEN NULL
      WHEN (outbox_messages.attempts = %(attempts_4)s::INTEGER AND (outbox_messages.last_error_code = %(last_error_code_1)s::VARCHAR OR outbox_messages.last_error_code = %(last_error_code_2)s::VARCHAR)) THEN coalesce(outbox_messages.deliver_at, outbox_messages.created_at)
      WHEN (outbox_messages.locked_until <= now()) THEN outbox_messages.locked_until END AS since, CASE
      WHEN (outbox_messages.status != 'dead' AND coalesce(outbox_messages.deliver_at, outbox_messages.created_at) <= now()) THEN coalesce(outbox_messages.deliver_at, outbox_messages.created_at) END AS waits, outbox_messages.dead_at AS dead_at
  FROM outbox_messages
  WHERE outbox_messages.status = 'pending'
    AND outbox_messages.destination = asked.destination
    AND outbox_messages.key IS NULL
    AND outbox_messages.priority = lane.lane
    AND outbox_messages.locked_until <= now()
  ORDER BY outbox_messages.locked_until
  LIMIT %(bound)s::INTEGER
) AS in_due ON true GROUP BY asked.destination, in_due.state, in_due.code, lane.lane
UNION ALL
SELECT asked.destination, %(param_9)s::VARCHAR AS part, lane.lane AS lane, in_later.state, in_later.code, count(*) AS counted, CASE
    WHEN (min(in_later.since) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_later.since)), 1e10), -1e10) END AS oldest, CASE
    WHEN (min(in_later.waits) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_later.waits)), 1e10), -1e10) END AS waited, CASE
    WHEN (min(in_later.dead_at) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_later.dead_at)), 1e10), -1e10) END AS dead_for
FROM asked
JOIN lane ON true
JOIN LATERAL (
  SELECT CASE
      WHEN (outbox_messages.status = 'dead') THEN %(param_10)s::VARCHAR
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN %(param_11)s::VARCHAR
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN %(param_12)s::VARCHAR
      WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_5)s::INTEGER)) THEN %(param_13)s::VARCHAR
      WHEN (outbox_messages.attempts > %(attempts_6)s::INTEGER) THEN %(param_14)s::VARCHAR
      WHEN (outbox_messages.locked_until > now()) THEN %(param_15)s::VARCHAR
      ELSE %(param_16)s::VARCHAR END AS state, CASE
      WHEN (outbox_messages.status = 'dead' OR outbox_messages.attempts > %(attempts_7)s::INTEGER) THEN outbox_messages.last_error_code END AS code, CASE
      WHEN (outbox_messages.status = 'dead') THEN NULL
      WHEN (outbox_messages.attempts = %(attempts_8)s::INTEGER AND (outbox_messages.last_error_code = %(last_error_code_3)s::VARCHAR OR outbox_messages.last_error_code = %(last_error_code_4)s::VARCHAR)) THEN coalesce(outbox_messages.deliver_at, outbox_messages.created_at)
      WHEN (outbox_messages.locked_until <= now()) THEN outbox_messages.locked_until END AS since, CASE
      WHEN (outbox_messages.status != 'dead' AND coalesce(outbox_messages.deliver_at, outbox_messages.created_at) <= now()) THEN coalesce(outbox_messages.deliver_at, outbox_messages.created_at) END AS waits, outbox_messages.dead_at AS dead_at
  FROM outbox_messages
  WHERE outbox_messages.status = 'pending'
    AND outbox_messages.destination = asked.destination
    AND outbox_messages.key IS NULL
    AND outbox_messages.priority = lane.lane
    AND outbox_messages.locked_until > now()
  ORDER BY outbox_messages.locked_until
  LIMIT %(bound)s::INTEGER
) AS in_later ON true GROUP BY asked.destination, in_later.state, in_later.code, lane.lane
UNION ALL
SELECT asked.destination, %(param_17)s::VARCHAR AS part, CAST(NULL AS SMALLINT) AS lane, in_keyed.state, in_keyed.code, count(*) AS counted, CASE
    WHEN (min(in_keyed.since) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_keyed.since)), 1e10), -1e10) END AS oldest, CASE
    WHEN (min(in_keyed.waits) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_keyed.waits)), 1e10), -1e10) END AS waited, CASE
    WHEN (min(in_keyed.dead_at) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_keyed.dead_at)), 1e10), -1e10) END AS dead_for
FROM asked
JOIN LATERAL (
  SELECT CASE
      WHEN (outbox_messages.status = 'dead') THEN %(param_18)s::VARCHAR
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN %(param_19)s::VARCHAR
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN %(param_20)s::VARCHAR
      WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_9)s::INTEGER)) THEN %(param_21)s::VARCHAR
      WHEN (outbox_messages.attempts > %(attempts_10)s::INTEGER) THEN %(param_22)s::VARCHAR
      WHEN (outbox_messages.locked_until > now()) THEN %(param_23)s::VARCHAR
      ELSE %(param_24)s::VARCHAR END AS state, CASE
      WHEN (outbox_messages.status = 'dead' OR outbox_messages.attempts > %(attempts_11)s::INTEGER) THEN outbox_messages.last_error_code END AS code, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since, CASE
      WHEN (outbox_messages.status != 'dead' AND coalesce(outbox_messages.deliver_at, outbox_messages.created_at) <= now()) THEN coalesce(outbox_messages.deliver_at, outbox_messages.created_at) END AS waits, outbox_messages.dead_at AS dead_at
  FROM outbox_messages
  WHERE outbox_messages.destination = asked.destination
    AND outbox_messages.key IS NOT NULL
  ORDER BY outbox_messages.key, outbox_messages.seq
  LIMIT %(bound)s::INTEGER
) AS in_keyed ON true GROUP BY asked.destination, in_keyed.state, in_keyed.code
UNION ALL
SELECT asked.destination, %(param_25)s::VARCHAR AS part, CAST(NULL AS SMALLINT) AS lane, in_dead.state, in_dead.code, count(*) AS counted, CASE
    WHEN (min(in_dead.since) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_dead.since)), 1e10), -1e10) END AS oldest, CASE
    WHEN (min(in_dead.waits) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_dead.waits)), 1e10), -1e10) END AS waited, CASE
    WHEN (min(in_dead.dead_at) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(in_dead.dead_at)), 1e10), -1e10) END AS dead_for
FROM asked
JOIN LATERAL (
  SELECT CASE
      WHEN (outbox_messages.status = 'dead') THEN %(param_26)s::VARCHAR
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN %(param_27)s::VARCHAR
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN %(param_28)s::VARCHAR
      WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_12)s::INTEGER)) THEN %(param_29)s::VARCHAR
      WHEN (outbox_messages.attempts > %(attempts_13)s::INTEGER) THEN %(param_30)s::VARCHAR
      WHEN (outbox_messages.locked_until > now()) THEN %(param_31)s::VARCHAR
      ELSE %(param_32)s::VARCHAR END AS state, CASE
      WHEN (outbox_messages.status = 'dead' OR outbox_messages.attempts > %(attempts_14)s::INTEGER) THEN outbox_messages.last_error_code END AS code, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since, CASE
      WHEN (outbox_messages.status != 'dead' AND coalesce(outbox_messages.deliver_at, outbox_messages.created_at) <= now()) THEN coalesce(outbox_messages.deliver_at, outbox_messages.created_at) END AS waits, outbox_messages.dead_at AS dead_at
  FROM outbox_messages
  WHERE outbox_messages.destination = asked.destination
    AND outbox_messages.status = 'dead'
  ORDER BY outbox_messages.dead_at
  LIMIT %(bound)s::INTEGER
) AS in_dead ON true GROUP BY asked.destination, in_dead.state, in_dead.code;
-- attempts_1 = 0
-- attempts_10 = 0
-- attempts_11 = 0
-- attempts_12 = 0
-- attempts_13 = 0
-- attempts_14 = 0
-- attempts_2 = 0
-- attempts_3 = 0
-- attempts_4 = 0
-- attempts_5 = 0
-- attempts_6 = 0
-- attempts_7 = 0
-- attempts_8 = 0
-- attempts_9 = 0
-- last_error_code_1 = 'lease_expired'
-- last_error_code_2 = 'direct_expired'
-- last_error_code_3 = 'lease_expired'
-- last_error_code_4 = 'direct_expired'
-- param_1 = 'due'
-- param_10 = 'dead'
-- param_11 = 'running'
-- param_12 = 'handed over'
-- param_13 = 'leased'
-- param_14 = 'retrying'
-- param_15 = 'scheduled'
-- param_16 = 'pending'
-- param_17 = 'keyed'
-- param_18 = 'dead'
-- param_19 = 'running'
-- param_2 = 'dead'
-- param_20 = 'handed over'
-- param_21 = 'leased'
-- param_22 = 'retrying'
-- param_23 = 'scheduled'
-- param_24 = 'pending'
-- param_25 = 'dead'
-- param_26 = 'dead'
-- param_27 = 'running'
-- param_28 = 'handed over'
-- param_29 = 'leased'
-- param_3 = 'running'
-- param_30 = 'retrying'
-- param_31 = 'scheduled'
-- param_32 = 'pending'
-- param_4 = 'handed over'
-- param_5 = 'leased'
-- param_6 = 'retrying'
-- param_7 = 'scheduled'
-- param_8 = 'pending'
-- param_9 = 'later'
