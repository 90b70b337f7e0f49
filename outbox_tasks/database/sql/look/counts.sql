-- How many messages of each destination are in each state: destination, place, state, code (of the last error, if dead or
-- retrying), counted; oldest: for how many seconds the first of them has been due; waited: for how many seconds the first
-- could have been sent; dead_for: for how many the first has been dead; next: in how many seconds the first one that waits is due;
-- full: there may be more, of this place.
--
-- destinations: a text[]; most: rows that are counted of each destination and place, those that are due first. So this
-- reads the beginning of an index for each. What it must know of a message or its trouble, it looks up: one by one.
WITH asked AS MATERIALIZED (
  SELECT d AS destination FROM unnest(:destinations::text[]) AS d
), row AS (
  SELECT a.destination, r.* FROM asked a CROSS JOIN unnest(ARRAY[1, 0, -1]) AS p(priority) CROSS JOIN LATERAL (
    SELECT 'ready' AS place, seq, attempts::integer AS attempts, since, since AS wanted, NULL::timestamptz AS dead_at,
           NULL::text AS kin, CASE WHEN attempts > 0 THEN 'retrying' ELSE 'pending' END AS state
    FROM :schema.outbox_ready WHERE destination = a.destination AND key IS NULL AND NOT alone AND priority = p.priority
    ORDER BY xid, seq LIMIT :most::integer) AS r
  UNION ALL
  SELECT a.destination, r.* FROM asked a CROSS JOIN LATERAL (
    SELECT 'ready', seq, attempts::integer, since, since, NULL::timestamptz, NULL, CASE WHEN attempts > 0 THEN 'retrying' ELSE 'pending' END
    FROM :schema.outbox_ready WHERE destination = a.destination AND alone ORDER BY seq LIMIT :most::integer) AS r
  UNION ALL
  SELECT a.destination, r.* FROM asked a CROSS JOIN LATERAL (
    SELECT 'keyed', seq, attempts::integer, NULL::timestamptz, since, NULL::timestamptz, NULL,
           CASE WHEN attempts > 0 THEN 'retrying' WHEN since > now() THEN 'scheduled' ELSE 'pending' END
    FROM :schema.outbox_ready WHERE destination = a.destination AND key IS NOT NULL ORDER BY seq LIMIT :most::integer) AS r
  UNION ALL
  SELECT a.destination, r.* FROM asked a CROSS JOIN LATERAL (
    SELECT 'held', seq, attempts::integer, NULL::timestamptz, since, NULL::timestamptz, NULL,
           CASE WHEN attempts > 0 THEN 'retrying' WHEN since > now() THEN 'scheduled' ELSE 'pending' END
    FROM :schema.outbox_held WHERE destination = a.destination ORDER BY key, seq LIMIT :most::integer) AS r
  UNION ALL
  SELECT a.destination, r.* FROM asked a CROSS JOIN LATERAL (
    SELECT 'waiting', seq, attempts::integer, due, since, NULL::timestamptz, NULL,
           CASE WHEN attempts > 0 THEN 'retrying' WHEN due > now() THEN 'scheduled' ELSE 'pending' END
    FROM :schema.outbox_waiting WHERE destination = a.destination ORDER BY due LIMIT :most::integer) AS r
  UNION ALL
  SELECT a.destination, r.* FROM asked a CROSS JOIN LATERAL (
    SELECT 'dead', seq, NULL::integer, NULL::timestamptz, NULL::timestamptz, dead_at, kin, 'dead'
    FROM :schema.outbox_dead WHERE destination = a.destination ORDER BY dead_at LIMIT :most::integer) AS r
  UNION ALL
  SELECT a.destination, r.* FROM asked a CROSS JOIN unnest(ARRAY['running', 'handed over']) AS p(state) CROSS JOIN LATERAL (
    SELECT 'run', seq, attempts::integer, CASE WHEN locked_until <= now() THEN locked_until END, handed_at, NULL::timestamptz, NULL,
           CASE WHEN locked_until > now() THEN state ELSE 'retrying' END
    FROM :schema.outbox_runs WHERE destination = a.destination AND state = p.state ORDER BY locked_until LIMIT :most::integer) AS r
  UNION ALL
  \ir parts/leased.sql
)
SELECT g.destination, g.place, g.state, t.code, sum(g.counted)::bigint AS counted,
       date_part('epoch', now()) - date_part('epoch', min(g.since)) AS oldest,
       date_part('epoch', now()) - date_part('epoch', min(least(
         g.wanted, CASE WHEN g.state <> 'dead' AND coalesce(m.deliver_at, m.created_at) <= now()
                        THEN coalesce(m.deliver_at, m.created_at) END))) AS waited,
       date_part('epoch', now()) - date_part('epoch', min(g.dead_at)) AS dead_for,
       date_part('epoch', min(g.next)) - date_part('epoch', now()) AS next,
       sum(sum(g.counted)) OVER (PARTITION BY g.destination, g.place) >= :most AS full
FROM (
  SELECT r.destination, r.place, r.state, t.code, count(*) AS counted, min(r.seq) AS first, min(r.dead_at) AS dead_at,
         min(r.since) FILTER (WHERE r.since > now()) AS next,
         min(r.since) FILTER (WHERE r.since <= now()) AS since, min(r.wanted) FILTER (WHERE r.wanted <= now()) AS wanted
  FROM row r
  LEFT JOIN LATERAL (SELECT t.code FROM :schema.outbox_trouble t WHERE t.seq = r.seq AND r.state = 'retrying' LIMIT 1) AS t ON true
  GROUP BY r.destination, r.place, r.state, t.code, r.kin
) AS g
LEFT JOIN LATERAL (SELECT m.deliver_at, m.created_at FROM :schema.outbox_messages m WHERE m.seq = g.first LIMIT 1) AS m ON true
LEFT JOIN LATERAL (
  SELECT coalesce(g.code, (SELECT t.code FROM :schema.outbox_trouble t WHERE t.seq = g.first AND g.state = 'dead')) AS code
) AS t ON true
GROUP BY g.destination, g.place, g.state, t.code
