SELECT CAST(EXTRACT(epoch FROM clock_timestamp() - max(outbox_versions.applied_at)) AS FLOAT) AS age
FROM outbox_versions;
