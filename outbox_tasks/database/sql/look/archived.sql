-- How many messages were sent or discarded: those of up to `most` rows of the journal (counted), whether there are more rows
-- (full), and as many as there would be if all rows were like these (estimated).
SELECT coalesce(sum(part.count), 0)::bigint AS counted, count(*) >= :most AS full,
       (coalesce(avg(part.count), 0) * (
         SELECT coalesce(sum(greatest(c.reltuples, 0)), 0) FROM pg_type t
         JOIN pg_inherits i ON i.inhparent = t.typrelid JOIN pg_class c ON c.oid = i.inhrelid
         WHERE t.oid = pg_typeof(CAST(NULL AS :schema.outbox_journal))::oid))::bigint AS estimated
FROM (SELECT count FROM :schema.outbox_journal LIMIT :most::integer) AS part
