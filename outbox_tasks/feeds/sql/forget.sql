-- Forgets what was copied more than `age` seconds ago, and is deleted at the source; and feeds that nobody has looked at
-- for as long. most: batches. Returns how many.
WITH old AS (
  SELECT ctid FROM :schema.outbox_copied WHERE deleted AND at < clock_timestamp() - :age::float * interval '1 second'
  ORDER BY at LIMIT :most::integer FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM :schema.outbox_copied c USING old WHERE c.ctid = old.ctid RETURNING 1
), removed AS (
  DELETE FROM :schema.outbox_feeds f
  WHERE greatest(f.looked_at, f.not_before, f.locked_until) < clock_timestamp() - :age::float * interval '1 second'
)
SELECT count(*) FROM gone
