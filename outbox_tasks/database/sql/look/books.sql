-- The books of each day: of its messages, each is in the journal or at work. `missing` is how many are not; below 0: there
-- are places too many. look/strays.sql finds which. It counts everything: about a second for a million messages.
WITH place AS (
  SELECT 'message' AS name, seq >> 32 AS part, count(*) AS count FROM :schema.outbox_messages GROUP BY 2
  UNION ALL SELECT 'journal', first >> 32, sum(count) FROM :schema.outbox_journal GROUP BY 2
  UNION ALL SELECT 'ready', seq >> 32, count(*) FROM :schema.outbox_ready GROUP BY 2
  UNION ALL SELECT 'waiting', seq >> 32, count(*) FROM :schema.outbox_waiting GROUP BY 2
  UNION ALL SELECT 'held', seq >> 32, count(*) FROM :schema.outbox_held GROUP BY 2
  UNION ALL SELECT 'leased', s >> 32, count(*) FROM :schema.outbox_leases CROSS JOIN LATERAL unnest(seqs) AS s GROUP BY 2
  UNION ALL SELECT 'runs', seq >> 32, count(*) FROM :schema.outbox_runs GROUP BY 2
  UNION ALL SELECT 'dead', seq >> 32, count(*) FROM :schema.outbox_dead GROUP BY 2
  UNION ALL SELECT 'day', number, 0 FROM :schema.outbox_days
), day AS (
  SELECT part::integer, coalesce(sum(count) FILTER (WHERE name = 'message'), 0)::bigint AS messages,
         coalesce(sum(count) FILTER (WHERE name = 'journal'), 0)::bigint AS journal,
         coalesce(sum(count) FILTER (WHERE name = 'ready'), 0)::bigint AS ready,
         coalesce(sum(count) FILTER (WHERE name = 'waiting'), 0)::bigint AS waiting,
         coalesce(sum(count) FILTER (WHERE name = 'held'), 0)::bigint AS held,
         coalesce(sum(count) FILTER (WHERE name = 'leased'), 0)::bigint AS leased,
         coalesce(sum(count) FILTER (WHERE name = 'runs'), 0)::bigint AS runs,
         coalesce(sum(count) FILTER (WHERE name = 'dead'), 0)::bigint AS dead
  FROM place GROUP BY part
)
SELECT part AS number, d.began_at, d.ended_at, messages, journal, ready, waiting, held, leased, runs, dead,
       messages - journal - ready - waiting - held - leased - runs - dead AS missing
FROM day LEFT JOIN :schema.outbox_days d ON d.number = part ORDER BY part
