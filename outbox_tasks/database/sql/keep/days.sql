-- The days that are not gone, the oldest first: number, date, began_at, ended_at, and the time now.
SELECT number, date, began_at, ended_at, clock_timestamp() AS now FROM :schema.outbox_days
WHERE gone_at IS NULL ORDER BY number
