-- Of `look` dead letters beyond a place, in the order of their death, the first `size` wanted ones. Walks the index of
-- outbox_dead by destination and time, of each destination if none is named; or that by group (kin). Only what it looked at
-- is joined to messages and trouble, by number.
WITH RECURSIVE place AS (
  SELECT coalesce(:destination::text, (SELECT min(destination) FROM :schema.outbox_dead)) AS name WHERE :kin::text IS NULL
  UNION ALL
  SELECT (SELECT d.destination FROM :schema.outbox_dead d WHERE d.destination > place.name ORDER BY d.destination LIMIT 1)
  FROM place WHERE place.name IS NOT NULL AND :destination::text IS NULL
), spot AS (
  SELECT d.* FROM place CROSS JOIN LATERAL (
    (SELECT d.seq, d.dead_at FROM :schema.outbox_dead d
     WHERE NOT :newer::boolean AND d.destination = place.name
       AND (d.dead_at, d.seq) < (:time::timestamptz, :last::bigint) AND d.dead_at <= coalesce(:until::timestamptz, 'infinity')
     ORDER BY d.dead_at DESC, d.seq DESC LIMIT :look::integer)
    UNION ALL
    (SELECT d.seq, d.dead_at FROM :schema.outbox_dead d
     WHERE :newer::boolean AND d.destination = place.name
       AND (d.dead_at, d.seq) > (:time::timestamptz, :last::bigint) AND d.dead_at <= coalesce(:until::timestamptz, 'infinity')
     ORDER BY d.dead_at, d.seq LIMIT :look::integer)
  ) AS d
  UNION ALL
  (SELECT d.seq, d.dead_at FROM :schema.outbox_dead d
   WHERE NOT :newer::boolean AND d.kin = :kin::text
     AND (d.dead_at, d.seq) < (:time::timestamptz, :last::bigint) AND d.dead_at <= coalesce(:until::timestamptz, 'infinity')
   ORDER BY d.dead_at DESC, d.seq DESC LIMIT :look::integer)
  UNION ALL
  (SELECT d.seq, d.dead_at FROM :schema.outbox_dead d
   WHERE :newer::boolean AND d.kin = :kin::text
     AND (d.dead_at, d.seq) > (:time::timestamptz, :last::bigint) AND d.dead_at <= coalesce(:until::timestamptz, 'infinity')
   ORDER BY d.dead_at, d.seq LIMIT :look::integer)
), seen AS MATERIALIZED (
  SELECT spot.*, row_number() OVER way AS place FROM spot
  WINDOW way AS (ORDER BY CASE WHEN :newer::boolean THEN dead_at END, CASE WHEN :newer::boolean THEN seq END,
                          dead_at DESC, seq DESC)
  ORDER BY place LIMIT :look::integer
), found AS MATERIALIZED (
  SELECT s.place, s.seq, m.id, m.destination, m.key, m.event_type, coalesce(t.attempts, 0) AS attempts,
         t.code AS last_error_code, t.error AS last_error, m.created_at, s.state, s.dead_at
  FROM (SELECT seen.*, 'dead' AS state FROM seen ORDER BY place) AS s
  CROSS JOIN LATERAL (
    SELECT m.id, m.destination, m.key, m.event_type, m.created_at FROM :schema.outbox_messages m WHERE m.seq = s.seq LIMIT 1
  ) AS m
  LEFT JOIN LATERAL (
    SELECT t.attempts, t.since, t.code, t.error FROM :schema.outbox_trouble t WHERE t.seq = s.seq LIMIT 1
  ) AS t ON true
  WHERE
    \ir wanted.sql
  ORDER BY s.place LIMIT :size::integer
)
