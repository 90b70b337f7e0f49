-- What a message with a key waits for: the first message of its key, and how many are before it.
--
-- destination, key, seq; blocks: whether dead letters hold up their key. Indexes: those of outbox_held, outbox_keys,
-- outbox_runs and outbox_dead by destination and key; outbox_ready (destination, seq), where it reads the first 100,000.
WITH before AS MATERIALIZED (
  SELECT seq FROM :schema.outbox_held h WHERE h.destination = :destination::text AND h.key = :key::text AND h.seq < :seq::bigint
  UNION ALL
  SELECT seq FROM :schema.outbox_runs r WHERE r.destination = :destination::text AND r.key = :key::text AND r.seq < :seq::bigint
  UNION ALL
  SELECT seq FROM :schema.outbox_dead d
  WHERE :blocks::boolean AND d.destination = :destination::text AND d.key = :key::text AND d.seq < :seq::bigint
  UNION ALL
  SELECT r.seq FROM (
    SELECT r.seq, r.key FROM :schema.outbox_ready r
    WHERE r.destination = :destination::text AND r.key IS NOT NULL AND r.seq < :seq::bigint ORDER BY r.seq LIMIT 100000) AS r
  WHERE r.key = :key::text
  UNION ALL
  SELECT m.seq
  FROM :schema.outbox_keys k JOIN :schema.outbox_leases l ON l.token = k.token CROSS JOIN LATERAL unnest(l.seqs) AS s
  CROSS JOIN LATERAL (SELECT m.seq, m.key FROM :schema.outbox_messages m WHERE m.seq = s LIMIT 1) AS m
  WHERE k.destination = :destination::text AND k.key = :key::text AND m.key = :key::text AND s < :seq::bigint
)
SELECT v.id, v.state, v.dead_at, CASE WHEN v.state <> 'dead' THEN v.locked_until END AS locked_until, v.last_error_code,
       (SELECT count(*) FROM before) AS count
FROM :schema.outbox_at_work v
WHERE v.seq = (SELECT min(seq) FROM before)
