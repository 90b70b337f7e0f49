-- What people see of feeds: those that fail first, then those whose rows have waited longest. most: so many of them.
SELECT name, holder, copied, waiting,
       CASE WHEN waiting > 0 THEN age + coalesce(extract(epoch FROM clock_timestamp() - looked_at), 0) ELSE 0 END::float AS age,
       failures, error, extract(epoch FROM clock_timestamp() - looked_at)::float AS looked,
       CASE WHEN not_before > clock_timestamp()
            THEN extract(epoch FROM not_before - clock_timestamp()) END::float AS not_before,
       extract(epoch FROM clock_timestamp() - failed_at)::float AS failing
FROM :schema.outbox_feeds ORDER BY failed_at, 5 DESC, name LIMIT :most::integer
