-- Counts the dead letters of a page by destination, event type and last error, each with one of their ids. Parameters, and
-- the last row: as for dead.sql; size is null.
\ir parts/dead.sql
SELECT destination, event_type, state, last_error_code, count(*) AS count, min(id::text)::uuid AS id,
       NULL::bigint AS looked, NULL::timestamptz AS end_time, NULL::bigint AS end_seq
FROM found GROUP BY destination, event_type, state, last_error_code
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, count(*), max(dead_at) FILTER (WHERE place = :look::integer),
       max(seq) FILTER (WHERE place = :look::integer)
FROM seen
