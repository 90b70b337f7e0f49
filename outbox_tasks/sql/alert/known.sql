-- The alerts: open ones first, then the latest. size: how many.
SELECT name, kind, destination, first_at, last_at, told_at, over_at, count, told, facts, untold, post_at
FROM :schema.outbox_alerts ORDER BY over_at IS NOT NULL, last_at DESC LIMIT :size::integer
