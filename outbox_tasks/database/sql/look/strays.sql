-- Messages that are in no place, or in several, and places without their message: what the books of a day only count.
--
-- first, last: which numbers; most: how many to return. It compares both sides in ranges of 65536 numbers, by their count and
-- their sum, and looks at each message only where they differ. Returns the number, its places, and whether there is a message.
WITH work AS (
  SELECT seq, 'ready' AS place FROM :schema.outbox_ready
  UNION ALL SELECT seq, 'waiting' FROM :schema.outbox_waiting
  UNION ALL SELECT seq, 'held' FROM :schema.outbox_held
  UNION ALL SELECT s, 'leased' FROM :schema.outbox_leases CROSS JOIN LATERAL unnest(seqs) AS s
  UNION ALL SELECT seq, 'runs' FROM :schema.outbox_runs
  UNION ALL SELECT seq, 'dead' FROM :schema.outbox_dead
), side AS (
  SELECT seq >> 16 AS range, count(*) AS count, sum(seq & 65535) AS sum
  FROM :schema.outbox_messages WHERE seq BETWEEN :first::bigint AND :last::bigint GROUP BY 1
  UNION ALL
  SELECT seq >> 16, -count(*), -sum(seq & 65535) FROM work WHERE seq BETWEEN :first::bigint AND :last::bigint GROUP BY 1
  UNION ALL
  SELECT lower(r) >> 16, -sum(upper(r) - lower(r)), -sum(((lower(r) & 65535) + ((upper(r) - 1) & 65535)) * (upper(r) - lower(r)) / 2)
  FROM :schema.outbox_journal CROSS JOIN LATERAL unnest(seqs) AS r
  WHERE first BETWEEN :first::bigint AND :last::bigint GROUP BY 1
), differs AS MATERIALIZED (
  SELECT range << 16 AS low, (range << 16) + 65535 AS high FROM side GROUP BY range HAVING sum(count) <> 0 OR sum(sum) <> 0
), found AS (
  SELECT m.seq, NULL AS place FROM differs JOIN :schema.outbox_messages m ON m.seq BETWEEN low AND high
  UNION ALL SELECT w.seq, w.place FROM differs JOIN work w ON w.seq BETWEEN low AND high
  UNION ALL
  SELECT s, j.state FROM differs JOIN :schema.outbox_journal j ON j.first BETWEEN low AND high
  CROSS JOIN LATERAL unnest(j.seqs) AS r CROSS JOIN LATERAL generate_series(lower(r), upper(r) - 1) AS s
)
SELECT seq, array_remove(array_agg(place ORDER BY place), NULL) AS places, count(*) > count(place) AS message
FROM found GROUP BY seq HAVING count(place) <> 1 OR count(*) = count(place) ORDER BY seq LIMIT :most::integer
