-- Forgets what was copied more than `age` seconds ago, and is deleted at the source. most: batches. Returns how many.
WITH old AS (
  SELECT ctid FROM :schema.outbox_copied WHERE deleted AND at < clock_timestamp() - :age::float * interval '1 second'
  ORDER BY at LIMIT :most::integer FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM :schema.outbox_copied c USING old WHERE c.ctid = old.ctid RETURNING 1
)
SELECT count(*) FROM gone
