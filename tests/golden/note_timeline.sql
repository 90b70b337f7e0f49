WITH found AS (
  SELECT outbox_messages.id AS id
  FROM outbox_messages
  WHERE outbox_messages.status = 'pending'
    AND (outbox_messages.locked_until <= now() OR outbox_messages.lease IS NOT NULL)
    AND outbox_messages.begun = false
    AND outbox_messages.handed_at IS NULL
    AND outbox_messages.last_error_code IS NULL
  ORDER BY outbox_messages.locked_until
  LIMIT %(most)s::INTEGER
  FOR UPDATE SKIP LOCKED
)
UPDATE outbox_messages
SET last_error_code=%(last_error_code)s::VARCHAR,
  last_error=%(last_error)s::VARCHAR,
  history=CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR, %(param_1)s::VARCHAR))) AS JSONB)
FROM found
WHERE outbox_messages.id = ANY (ARRAY[found.id]);
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'noted'
-- jsonb_build_object_4 = 'code'
-- last_error = 'the database is on another timeline (a failover, or a restore); the message may have been delivered before'
-- last_error_code = 'timeline_changed'
-- param_1 = 'timeline_changed'
