WITH found AS (
  SELECT outbox_messages.id AS id
  FROM outbox_messages
  WHERE outbox_messages.status = 'pending'
    AND outbox_messages.lease IS NOT NULL
    AND outbox_messages.locked_until > now()
    AND (outbox_messages.begun = false AND outbox_messages.handed_at IS NULL AND (%(gone)s::VARCHAR IS NULL OR outbox_messages.locked_by = %(gone)s::VARCHAR) AND (NOT %(crashed)s OR outbox_messages.locked_until - %(hold)s * interval '1 second' < (
    SELECT stats_reset
    FROM pg_stat_bgwriter
  )) OR outbox_messages.begun AND outbox_messages.locked_by = %(gone)s::VARCHAR)
  FOR UPDATE SKIP LOCKED
)
UPDATE outbox_messages
SET locked_until=least(outbox_messages.locked_until, CASE WHEN outbox_messages.begun THEN (SELECT clock_timestamp() AS clock_timestamp_1) ELSE greatest((SELECT clock_timestamp() AS clock_timestamp_1), outbox_messages.locked_until - %(hold)s * interval '1 second') END)
FROM found
WHERE outbox_messages.id = ANY (ARRAY[found.id]);
