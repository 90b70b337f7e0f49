WITH here AS (INSERT INTO outbox_publishers (holder, seen_at) SELECT unnest(%(holders)s::TEXT[]) AS unnest_1, clock_timestamp() AS clock_timestamp_1 ON CONFLICT (holder) DO UPDATE SET seen_at = excluded.seen_at)
SELECT count(*) AS count_1
FROM outbox_publishers
WHERE outbox_publishers.seen_at > now() - %(param_1)s * interval '1 second'
  AND outbox_publishers.holder != all(%(holders)s::TEXT[]);
-- param_1 = 30.0
