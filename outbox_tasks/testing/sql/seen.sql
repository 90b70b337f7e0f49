-- The messages of a test: those with a higher number than `since`, in any state, in the order in which they were written. Times
-- are seconds since 1970, because drivers and frameworks read a time in different ways.
SELECT id::text, event_type, destination, key, payload, content_type, coalesce(headers, '{}')::text AS headers, state, attempts,
       date_part('epoch', created_at) AS created_at, date_part('epoch', due) AS due, last_error_code AS error_code, last_error AS error
FROM (
  SELECT seq, id, event_type, destination, key, payload, content_type, headers, state, attempts, created_at,
         CASE WHEN place <> 'dead' THEN locked_until END AS due, last_error_code, last_error
  FROM :schema.outbox_at_work WHERE seq > :since::bigint
  UNION ALL
  SELECT seq, id, event_type, destination, key, payload, content_type, headers, state, attempts, created_at, NULL,
         last_error_code, last_error
  FROM :schema.outbox_archive WHERE seq > :since
) AS seen ORDER BY seq
