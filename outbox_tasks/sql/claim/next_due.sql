-- In how many seconds the next wait is over, if that is within `ahead` seconds; else null.
SELECT date_part('epoch', min(due)) - date_part('epoch', clock_timestamp())
FROM (SELECT due FROM :schema.outbox_waiting
      WHERE due > now() AND due <= now() + :ahead::float * interval '1 second' ORDER BY due LIMIT 1) AS next
