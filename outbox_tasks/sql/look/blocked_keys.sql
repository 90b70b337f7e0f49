-- The keys that a dead letter holds up, the longest first: which message, since when and why, and how many wait behind it,
-- counted up to 10,000. blocking: JSON rows of destination, and blocks: whether dead letters hold up its keys; most: of each
-- destination, how many keys with dead letters are looked at; size: how many are shown.
SELECT d.destination, d.key, m.id::text, m.event_type, d.dead_at AS since, t.code AS last_error_code, t.error AS last_error,
       d.fresh + (SELECT count(*) FROM (
         SELECT FROM :schema.outbox_held h
         WHERE h.destination = d.destination AND h.key = d.key AND h.seq > d.seq LIMIT 10000) AS behind) AS waiting
FROM (
  SELECT d.* FROM json_to_recordset(:blocking::json) AS a(destination text, blocks boolean)
  CROSS JOIN LATERAL (
    \ir parts/held_up.sql
  ) AS d
  ORDER BY d.dead_at LIMIT :size::integer
) AS d
CROSS JOIN LATERAL (SELECT m.id, m.event_type FROM :schema.outbox_messages m WHERE m.seq = d.seq LIMIT 1) AS m
LEFT JOIN LATERAL (SELECT t.code, t.error FROM :schema.outbox_trouble t WHERE t.seq = d.seq LIMIT 1) AS t ON true
ORDER BY d.dead_at
