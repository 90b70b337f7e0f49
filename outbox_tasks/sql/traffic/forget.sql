-- Removes processes that have sent nothing for a day. Returns how many.
WITH gone AS (DELETE FROM :schema.outbox_publishers WHERE seen_at < now() - interval '1 day' RETURNING 1)
SELECT count(*) AS count FROM gone
