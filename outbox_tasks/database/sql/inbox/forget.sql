-- Deletes the oldest marks that are older than `keep` seconds, at most `most` of them. Returns how many.
--
-- They are deleted by their place in the table: no plan can do that wrong, and it costs a sixth of a look-up by key.
-- They are locked first, so they stay in their place. Marks that somebody else has locked are left for the next time.
WITH gone AS (
  DELETE FROM :schema.outbox_inbox WHERE ctid = ANY (ARRAY(
    SELECT p.ctid FROM :schema.outbox_inbox p WHERE p.received_at < now() - :keep::float * interval '1 second'
    ORDER BY p.received_at LIMIT :most::integer FOR UPDATE SKIP LOCKED))
  RETURNING 1
)
SELECT count(*) AS count FROM gone
