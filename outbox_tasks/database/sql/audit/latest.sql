-- The latest acts, the last one first. size: how many; before: the seq that ends the page before (null: the first page).
SELECT
  \ir parts/shown.sql
FROM :schema.outbox_audit b
WHERE b.seq < coalesce(:before::bigint, 9223372036854775807) ORDER BY b.seq DESC LIMIT :size::integer
