-- The first rows, by number, with their age in seconds. Whoever writes has the whole database, so no earlier row comes
-- later.
--
-- most: rows.
SELECT number, id, ordering_key, (julianday('now') - julianday(created_at)) * 86400.0, message
FROM :schema.outbox_feed
ORDER BY number
LIMIT :most
