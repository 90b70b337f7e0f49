-- In how many seconds the next message is due, if that is within `ahead` seconds; else null. destinations: whose keys are looked at.
SELECT date_part('epoch', min(due)) - date_part('epoch', clock_timestamp())
FROM (
  (SELECT due FROM :schema.outbox_waiting
   WHERE due > now() AND due <= now() + :ahead::float * interval '1 second' ORDER BY due LIMIT 1)
  UNION ALL
  (SELECT min(k.due) FROM unnest(:destinations::text[]) AS d(name) CROSS JOIN LATERAL (
     SELECT due FROM :schema.outbox_keys k WHERE k.destination = d.name AND k.token IS NULL
       AND k.due > now() AND k.due <= now() + :ahead * interval '1 second' ORDER BY k.due LIMIT 1) AS k)
) AS next
