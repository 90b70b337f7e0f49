-- Deletes what is known of messages of days that are gone, up to `most` of each gap between days. Returns how many.
WITH gone AS (
  DELETE FROM :schema.outbox_trouble WHERE seq = ANY (ARRAY(
    SELECT t.seq
    FROM (SELECT lag(number, 1, -1) OVER (ORDER BY number) + 1 AS low, number AS high
          FROM :schema.outbox_days WHERE gone_at IS NULL) AS gap
    CROSS JOIN LATERAL (
      SELECT seq FROM :schema.outbox_trouble WHERE seq >= gap.low::bigint << 32 AND seq < gap.high::bigint << 32
      ORDER BY seq LIMIT :most::integer FOR UPDATE SKIP LOCKED) AS t
    WHERE gap.low < gap.high))
  RETURNING 1
)
SELECT count(*) AS count FROM gone
