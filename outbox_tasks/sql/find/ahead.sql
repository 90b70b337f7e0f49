-- What a message with a key waits for: the first message of its key, and how many are before it.
--
-- destination, key, seq; blocks: whether dead letters hold up their key. Indexes: those of outbox_held, outbox_waiting,
-- outbox_runs and outbox_dead by destination and key; outbox_ready (destination, seq), where it reads all earlier ones.
WITH before AS MATERIALIZED (
  SELECT seq FROM :schema.outbox_held h WHERE h.destination = :destination::text AND h.key = :key::text AND h.seq < :seq::bigint
  UNION ALL
  SELECT seq FROM :schema.outbox_waiting w WHERE w.destination = :destination::text AND w.key = :key::text AND w.seq < :seq::bigint
  UNION ALL
  SELECT seq FROM :schema.outbox_runs r WHERE r.destination = :destination::text AND r.key = :key::text AND r.seq < :seq::bigint
  UNION ALL
  SELECT seq FROM :schema.outbox_dead d
  WHERE :blocks::boolean AND d.destination = :destination::text AND d.key = :key::text AND d.seq < :seq::bigint
  UNION ALL
  SELECT seq FROM :schema.outbox_ready r
  WHERE r.destination = :destination::text AND r.key = :key::text AND r.key IS NOT NULL AND r.seq < :seq::bigint
  UNION ALL
  SELECT m.seq
  FROM :schema.outbox_leases l CROSS JOIN LATERAL unnest(l.seqs) AS s
  CROSS JOIN LATERAL (SELECT m.seq, m.key FROM :schema.outbox_messages m WHERE m.seq = s LIMIT 1) AS m
  WHERE l.destination = :destination::text AND l.keys @> ARRAY[:key::text] AND m.key = :key::text AND s < :seq::bigint
)
SELECT v.id, v.state, v.dead_at, CASE WHEN v.state <> 'dead' THEN v.locked_until END AS locked_until, v.last_error_code,
       (SELECT count(*) FROM before) AS count
FROM :schema.outbox_at_work v
WHERE v.seq = (SELECT min(seq) FROM before)
