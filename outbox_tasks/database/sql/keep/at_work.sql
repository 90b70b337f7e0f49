-- How many messages of a day are still at work, counted up to `most`. first, until: its numbers.
SELECT count(*) AS count FROM (
  SELECT FROM :schema.outbox_dead WHERE seq >= :first::bigint AND seq < :until::bigint
  UNION ALL SELECT FROM :schema.outbox_waiting WHERE seq >= :first AND seq < :until
  UNION ALL SELECT FROM :schema.outbox_held WHERE seq >= :first AND seq < :until
  UNION ALL SELECT FROM :schema.outbox_ready WHERE seq >= :first AND seq < :until
  UNION ALL SELECT FROM :schema.outbox_runs WHERE seq >= :first AND seq < :until
  UNION ALL SELECT FROM :schema.outbox_leases CROSS JOIN LATERAL unnest(seqs) AS s WHERE s >= :first AND s < :until
  LIMIT :most::integer
) AS left_over
