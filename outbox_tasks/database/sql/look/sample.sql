-- About how many messages are in each state, from some random pages: destination, place, state, counted. percent: of pages.
WITH found AS (
  SELECT destination, CASE WHEN key IS NULL THEN 'ready' ELSE 'keyed' END AS place,
         CASE WHEN attempts > 0 THEN 'retrying' WHEN since > now() THEN 'scheduled' ELSE 'pending' END AS state
  FROM :schema.outbox_ready TABLESAMPLE SYSTEM (:percent::real)
  UNION ALL
  SELECT destination, 'held', CASE WHEN attempts > 0 THEN 'retrying' WHEN since > now() THEN 'scheduled' ELSE 'pending' END
  FROM :schema.outbox_held TABLESAMPLE SYSTEM (:percent)
  UNION ALL
  SELECT destination, 'waiting', CASE WHEN attempts > 0 THEN 'retrying' WHEN due > now() THEN 'scheduled' ELSE 'pending' END
  FROM :schema.outbox_waiting TABLESAMPLE SYSTEM (:percent)
  UNION ALL
  SELECT destination, 'dead', 'dead' FROM :schema.outbox_dead TABLESAMPLE SYSTEM (:percent)
)
SELECT destination, place, state, count(*) AS counted FROM found GROUP BY destination, place, state
