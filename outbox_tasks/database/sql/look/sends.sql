-- The sends that run now, the longest first: destination, holder, seconds (for how long), messages. destination: null: all;
-- most: how many.
SELECT l.destination, l.holder, date_part('epoch', now() - l.begun_at) AS seconds, cardinality(l.seqs) AS messages
FROM :schema.outbox_leases l
WHERE l.begun_at IS NOT NULL AND l.locked_until > now() AND (:destination::text IS NULL OR l.destination = :destination)
ORDER BY l.begun_at LIMIT :most::integer
