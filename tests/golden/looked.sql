UPDATE outbox_heartbeats
SET facts=jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, %(until)s::TIMESTAMP WITH TIME ZONE)
WHERE outbox_heartbeats.name = %(name_1)s::VARCHAR;
-- jsonb_build_object_1 = 'upto'
-- name_1 = 'alerts'
