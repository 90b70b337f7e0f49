-- What people see of feeds.
SELECT name, holder, copied, waiting, age, failures, error,
       extract(epoch FROM clock_timestamp() - looked_at)::float AS looked, retry_at,
       extract(epoch FROM clock_timestamp() - failed_at)::float AS failing
FROM :schema.outbox_feeds ORDER BY name
