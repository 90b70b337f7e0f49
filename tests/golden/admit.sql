WITH tried AS (UPDATE outbox_destinations SET pause_until=(clock_timestamp() + %(hold)s * interval '1 second'), probe=%(token)s::UUID FROM json_to_recordset(CAST(%(asked)s::VARCHAR AS JSON)) AS asked(destination TEXT, room INTEGER, patience FLOAT) WHERE outbox_destinations.name = asked.destination AND outbox_destinations.opened_at IS NOT NULL AND outbox_destinations.paused_at IS NULL AND outbox_destinations.pause_until <= now() RETURNING outbox_destinations.name)
SELECT found.name, found.shut, found.tried, found.slow
FROM (
  SELECT asked.destination AS name, coalesce(outbox_destinations.opened_at IS NOT NULL OR outbox_destinations.paused_at IS NOT NULL, false) AS shut, tried.name IS NOT NULL AS tried, (
    SELECT count(*) AS count_1
    FROM outbox_slots
    WHERE outbox_slots.destination = asked.destination
      AND outbox_slots.slot < asked.room
      AND outbox_slots.held_until > now()
      AND outbox_slots.taken_at <= now() - asked.patience * interval '1 second'
  ) AS slow
  FROM json_to_recordset(CAST(%(asked)s::VARCHAR AS JSON)) AS asked(destination TEXT, room INTEGER, patience FLOAT) LEFT OUTER
  JOIN outbox_destinations ON outbox_destinations.name = asked.destination LEFT OUTER
  JOIN tried ON tried.name = asked.destination
) AS found
WHERE found.shut OR found.slow > %(slow_1)s::INTEGER;
-- slow_1 = 0
