-- Rows that were copied, and perhaps not deleted at the source: number and id.
SELECT k.number, k.id
FROM :schema.outbox_copied c CROSS JOIN LATERAL unnest(c.numbers, c.ids) AS k(number, id)
WHERE c.feed = :feed AND NOT c.deleted
