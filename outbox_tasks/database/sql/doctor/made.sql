-- Seconds since the tables were made.
SELECT date_part('epoch', clock_timestamp() - max(applied_at)) AS age FROM :schema.outbox_versions
