-- Gives back messages of a bundle that was not begun: they are due in `wait` seconds.
--
-- token; ids: which of them (null: all); wait. shut: only if their destination is paused, or its circuit is open.
-- Returns their ids.
WITH lease AS MATERIALIZED (
  SELECT l.token, s.seq, s.place, m.id, s.seq IS NOT NULL AND (:ids::uuid[] IS NULL OR m.id = ANY (:ids::uuid[])) AS gone
  FROM (SELECT * FROM :schema.outbox_leases l
        WHERE l.token = :token::uuid AND l.begun_at IS NULL
          AND (NOT :shut::boolean
               OR EXISTS (SELECT FROM :schema.outbox_destinations d
                          WHERE d.name = l.destination AND (d.paused_at IS NOT NULL OR d.opened_at IS NOT NULL)))
        FOR UPDATE) AS l
  CROSS JOIN LATERAL unnest(l.seqs) WITH ORDINALITY AS s(seq, place)
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = s.seq LIMIT 1) AS m
), ended AS (
  DELETE FROM :schema.outbox_leases l
  WHERE l.token = :token::uuid AND EXISTS (SELECT FROM lease) AND NOT EXISTS (SELECT FROM lease WHERE NOT gone)
), shortened AS (
  -- A key of which a message is given back stays with the lease if it has others: until they are settled.
  UPDATE :schema.outbox_leases l SET seqs = kept.seqs
  FROM (SELECT array_agg(seq ORDER BY place) AS seqs FROM lease WHERE NOT gone) AS kept
  WHERE l.token = :token::uuid AND kept.seqs IS NOT NULL AND EXISTS (SELECT FROM lease WHERE gone)
), ours AS MATERIALIZED (
  SELECT m.seq, m.id, m.destination, m.key, m.priority, m.latest, octet_length(m.payload) AS size,
         coalesce(t.since, m.deliver_at, m.created_at) AS since, coalesce(t.attempts, 0) AS attempts,
         coalesce(t.code IN ('unsettled', 'failed_together', 'failed_alone'), false) AS alone,
         CASE WHEN m.key IS NULL OR row_number() OVER (PARTITION BY m.key ORDER BY m.seq) = 1
              THEN clock_timestamp() + :wait::float * interval '1 second' END AS due
  FROM lease
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = lease.seq LIMIT 1) AS m
  LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = lease.seq LIMIT 1) AS t ON true
  WHERE lease.gone
), later AS (
  INSERT INTO :schema.outbox_waiting (seq, due, since, size, attempts, priority, alone, latest, destination, key)
  SELECT seq, due, since, size, attempts, priority, alone, latest, destination, key
  FROM ours WHERE due IS NOT NULL AND :wait::float > 0
), soon AS (
  INSERT INTO :schema.outbox_ready (seq, since, size, attempts, priority, alone, latest, destination)
  SELECT seq, since, size, attempts, priority, alone, latest, destination
  FROM ours WHERE key IS NULL AND :wait::float <= 0
), held AS (
  INSERT INTO :schema.outbox_held (seq, since, size, attempts, priority, alone, latest, destination, key, free)
  SELECT seq, since, size, attempts, priority, alone, latest, destination, key, true
  FROM ours WHERE key IS NOT NULL AND (due IS NULL OR :wait::float <= 0)
)
SELECT id::text FROM ours
