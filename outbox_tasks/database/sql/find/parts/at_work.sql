-- Of `look` messages at work with numbers beyond `last`, the first `size` wanted ones. Looks through windows of numbers, the
-- first up to where the lanes of outbox_ready begin, then each 16 times as wide as the one before, until it has seen enough:
-- in ready and held by their BRIN indexes, in waiting, runs and dead by their primary keys. Only what it looked at is joined
-- to messages and trouble.
WITH RECURSIVE place AS (
  SELECT (SELECT min(destination) FROM :schema.outbox_ready WHERE key IS NULL AND NOT alone) AS name
  UNION ALL
  SELECT (SELECT min(r.destination) FROM :schema.outbox_ready r WHERE r.key IS NULL AND NOT r.alone AND r.destination > place.name)
  FROM place WHERE place.name IS NOT NULL
), lane AS (  -- the number at this end of each lane
  SELECT CASE WHEN :newer::boolean THEN (
      SELECT r.seq FROM :schema.outbox_ready r WHERE r.key IS NULL AND NOT r.alone AND r.destination = place.name AND r.priority = p
      ORDER BY r.xid, r.seq LIMIT 1)
    ELSE (
      SELECT r.seq FROM :schema.outbox_ready r WHERE r.key IS NULL AND NOT r.alone AND r.destination = place.name AND r.priority = p
      ORDER BY r.xid DESC, r.seq DESC LIMIT 1) END AS seq
  FROM (SELECT name FROM place LIMIT 100) AS place CROSS JOIN generate_series(-1, 1) AS p  -- a hint needs no more
), begin AS (
  SELECT CASE WHEN :newer::boolean THEN :last::bigint + 1 ELSE least(:last::bigint, n.last_value + 1) END AS start,
         CASE WHEN :newer::boolean THEN (SELECT min(seq) FROM lane) ELSE (SELECT max(seq) + 1 FROM lane) END AS hint
  FROM :schema.outbox_seq n
), clock AS MATERIALIZED (  -- most are beyond the hint; the first window is what is before it
  SELECT now() AS now, start,
         CASE WHEN :newer::boolean THEN greatest(start, hint) ELSE least(start, hint) END AS dense,
         coalesce(:states::text[] && ARRAY['pending', 'scheduled', 'retrying'], true) AS wide
  FROM begin
), leased AS MATERIALIZED (
  SELECT s AS seq, l.destination, l.locked_until, l.begun_at, l.holder
  FROM :schema.outbox_leases l CROSS JOIN LATERAL unnest(l.seqs) AS s
  WHERE :destination::text IS NULL OR l.destination = :destination::text
), spot AS (
  SELECT p.*
  FROM clock CROSS JOIN generate_series(-1, 4) AS n
  CROSS JOIN LATERAL (
    SELECT CASE WHEN n > 0 THEN :look::integer * power(16, n - 1) ELSE 0 END::bigint AS near,
           CASE WHEN n < 4 THEN :look::integer * power(16, n) ELSE 4e18 END::bigint AS far
  ) AS reach
  CROSS JOIN LATERAL (
    SELECT CASE WHEN n < 0 THEN least(start, dense) WHEN :newer::boolean THEN dense + near ELSE dense - far END AS low,
           CASE WHEN n < 0 THEN greatest(start, dense) WHEN :newer::boolean THEN dense + far ELSE dense - near END AS high
    OFFSET 0
  ) AS w
  CROSS JOIN LATERAL (
    SELECT * FROM (
      SELECT seq, destination, key, attempts::integer, since AS until, NULL AS doing, NULL AS holder, NULL::timestamptz AS dead_at
      FROM :schema.outbox_ready WHERE seq >= w.low AND seq < w.high AND wide
      UNION ALL
      SELECT seq, destination, key, attempts, since, NULL, NULL, NULL
      FROM :schema.outbox_held WHERE seq >= w.low AND seq < w.high AND wide
      UNION ALL
      SELECT seq, destination, NULL, attempts, due, NULL, NULL, NULL
      FROM :schema.outbox_waiting WHERE seq >= w.low AND seq < w.high AND wide
      UNION ALL
      SELECT seq, destination, key, attempts, locked_until, CASE WHEN locked_until > clock.now THEN state ELSE 'retrying' END,
             holder, NULL
      FROM :schema.outbox_runs WHERE seq >= w.low AND seq < w.high
      UNION ALL
      SELECT seq, destination, key, NULL, NULL, 'dead', NULL, dead_at
      FROM :schema.outbox_dead WHERE seq >= w.low AND seq < w.high
      UNION ALL
      SELECT seq, destination, NULL, (begun_at IS NOT NULL)::integer, locked_until, 'leased', holder, NULL
      FROM leased WHERE seq >= w.low AND seq < w.high
    ) AS p
    WHERE (:destination::text IS NULL OR p.destination = :destination::text)
      AND (:key::text IS NULL OR p.key = :key::text OR p.doing = 'leased')
      AND (:states::text[] IS NULL OR p.doing = 'leased' OR coalesce(p.doing,
             CASE WHEN p.attempts > 0 THEN 'retrying' WHEN p.until > clock.now THEN 'scheduled' ELSE 'pending' END)
           = ANY (:states::text[]))
    ORDER BY CASE WHEN :newer::boolean THEN p.seq ELSE -p.seq END LIMIT :look::integer
  ) AS p
  LIMIT :look::integer
), seen AS MATERIALIZED (
  SELECT spot.*, row_number() OVER (ORDER BY CASE WHEN :newer::boolean THEN seq ELSE -seq END) AS place FROM spot
), found AS MATERIALIZED (
  SELECT p.place, p.seq, m.id, m.destination, m.key, m.event_type, s.attempts, t.code AS last_error_code,
         t.error AS last_error, m.created_at, p.holder AS locked_by, s.state, p.until AS locked_until, p.dead_at
  FROM (SELECT seen.*, clock.now FROM seen CROSS JOIN clock ORDER BY place) AS p
  CROSS JOIN LATERAL (
    SELECT m.id, m.destination, m.key, m.event_type, m.created_at FROM :schema.outbox_messages m WHERE m.seq = p.seq LIMIT 1
  ) AS m
  LEFT JOIN LATERAL (
    SELECT t.attempts, t.since, t.code, t.error FROM :schema.outbox_trouble t WHERE t.seq = p.seq LIMIT 1
  ) AS t ON true
  CROSS JOIN LATERAL (
    SELECT coalesce(CASE WHEN p.doing = 'leased' THEN NULL ELSE p.attempts END, coalesce(t.attempts, 0) + coalesce(p.attempts, 0))
             AS attempts,
           CASE WHEN p.doing = 'leased' AND p.until > p.now AND (p.attempts > 0 OR coalesce(t.attempts, 0) = 0) THEN 'leased'
                WHEN p.doing <> 'leased' THEN p.doing
                WHEN p.attempts > 0 OR p.doing = 'leased' AND t.attempts > 0 THEN 'retrying'
                WHEN p.doing IS NULL AND p.until > p.now THEN 'scheduled'
                ELSE 'pending' END AS state
  ) AS s
  WHERE (:until::timestamptz IS NULL OR m.created_at <= :until::timestamptz) AND
    \ir wanted.sql
  ORDER BY p.place LIMIT :size::integer
)
