-- The alerts: those that are not over first, then the latest. size: how many.
SELECT code, which, severity, fact, cause, remedy, how_many, since, seen_at, told_at, over_at
FROM :schema.outbox_alerts ORDER BY over_at IS NOT NULL, told_at DESC, code, which LIMIT :size::integer
