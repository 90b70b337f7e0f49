-- The error groups of dead letters, by name: of each the last one to die, when the first died, and how many there are, up to
-- 100000. One probe of the index of outbox_dead (kin, dead_at, seq) for each group.
--
-- past: groups after this one; most: groups at most; destination: null: all; groups of another one have no count.
WITH RECURSIVE walk AS (
  (SELECT d.kin, 1 AS hop FROM :schema.outbox_dead d WHERE d.kin > :past::text ORDER BY d.kin LIMIT 1)
  UNION ALL
  SELECT n.kin, walk.hop + 1
  FROM walk CROSS JOIN LATERAL (
    SELECT d.kin FROM :schema.outbox_dead d WHERE d.kin > walk.kin ORDER BY d.kin LIMIT 1
  ) AS n
  WHERE walk.hop < :most::integer
)
SELECT walk.kin AS group, m.id, l.destination, m.event_type, t.code AS last_error_code, left(t.error, 300) AS last_error,
       l.dead_at, c.first_at, c.count
FROM walk
CROSS JOIN LATERAL (
  SELECT * FROM :schema.outbox_dead d WHERE d.kin = walk.kin ORDER BY d.dead_at DESC, d.seq DESC LIMIT 1
) AS l
CROSS JOIN LATERAL (
    SELECT m.id, m.destination, m.key, m.event_type, m.created_at FROM :schema.outbox_messages m WHERE m.seq = l.seq LIMIT 1
  ) AS m
LEFT JOIN LATERAL (
    SELECT t.attempts, t.since, t.code, t.error FROM :schema.outbox_trouble t WHERE t.seq = l.seq LIMIT 1
  ) AS t ON true
LEFT JOIN LATERAL (
  SELECT min(n.dead_at) AS first_at, count(*) AS count
  FROM (SELECT d.dead_at FROM :schema.outbox_dead d WHERE d.kin = walk.kin ORDER BY d.dead_at, d.seq LIMIT 100000) AS n
  HAVING :destination::text IS NULL OR l.destination = :destination::text
) AS c ON true
ORDER BY walk.kin
