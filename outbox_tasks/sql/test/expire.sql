-- Ends the leases of a test's messages, those with a higher number than `since`. Returns how many messages they had.
WITH ended AS (
  UPDATE :schema.outbox_leases SET locked_until = clock_timestamp() WHERE seqs[1] > :since::bigint RETURNING cardinality(seqs) AS n
), runs AS (
  UPDATE :schema.outbox_runs SET locked_until = clock_timestamp() WHERE seq > :since RETURNING 1 AS n
)
SELECT coalesce(sum(n), 0)::integer FROM (SELECT n FROM ended UNION ALL SELECT n FROM runs) AS e
