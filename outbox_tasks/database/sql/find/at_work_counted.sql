-- Counts the messages of a page by destination, event type, state and last error, each with one of their ids. Parameters,
-- and the last row: as for at_work.sql; size is null.
\ir parts/at_work.sql
SELECT destination, event_type, state, last_error_code, count(*) AS count, min(id::text)::uuid AS id,
       NULL::bigint AS looked, NULL::bigint AS end_seq
FROM found GROUP BY destination, event_type, state, last_error_code
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, count(*), max(seq) FILTER (WHERE place = :look::integer)
FROM seen
