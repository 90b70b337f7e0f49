SELECT span.until, "some".id, "some".destination, "some".key, "some".event_type, "some".attempts, "some".dead_at, "some".code, "some".error
FROM (
  SELECT coalesce((
    SELECT CAST(outbox_heartbeats.facts ->> %(facts_1)s::TEXT AS TIMESTAMP WITH TIME ZONE) AS anon_1
    FROM outbox_heartbeats
    WHERE outbox_heartbeats.name = %(name_1)s::VARCHAR
  ), now() - interval '1 hour') AS since, now() - %(lag)s * interval '1 second' AS until
) AS span LEFT OUTER
JOIN LATERAL (
  SELECT each.id AS id, each.destination AS destination, each.key AS key, each.event_type AS event_type, each.attempts AS attempts, each.dead_at AS dead_at, each.code AS code, each.error AS error
  FROM unnest(%(names)s::TEXT[]) AS anon_2(name)
  JOIN LATERAL (
    SELECT CAST(outbox_messages.id AS TEXT) AS id, outbox_messages.destination AS destination, outbox_messages.key AS key, outbox_messages.event_type AS event_type, outbox_messages.attempts AS attempts, outbox_messages.dead_at AS dead_at, outbox_messages.last_error_code AS code, left(outbox_messages.last_error, %(left_1)s::INTEGER) AS error
    FROM outbox_messages
    WHERE outbox_messages.status = 'dead'
      AND outbox_messages.destination = anon_2.name
      AND outbox_messages.dead_at > span.since
      AND outbox_messages.dead_at <= span.until
      AND coalesce(outbox_messages.history[%(history_1)s::INT] ? %(param_1)s::VARCHAR, false)
    ORDER BY outbox_messages.dead_at
    LIMIT %(size)s::INTEGER
  ) AS each ON true
  ORDER BY each.dead_at
  LIMIT %(size)s::INTEGER
) AS "some" ON true
ORDER BY "some".dead_at;
-- facts_1 = 'upto'
-- history_1 = -1
-- left_1 = 300
-- name_1 = 'alerts'
-- param_1 = 'traceback'
