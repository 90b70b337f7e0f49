-- The processes that sent within `recent` seconds, and whose names begin with `place`.
SELECT holder FROM :schema.outbox_publishers
WHERE starts_with(holder, :place::text) AND seen_at > now() - :recent::float * interval '1 second'
