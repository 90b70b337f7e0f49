UPDATE outbox_messages
SET history=CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, 'not known', %(jsonb_build_object_3)s::VARCHAR, %(holder)s::VARCHAR))) AS JSONB),
  locked_until=(clock_timestamp() + %(wait)s * power(%(power_1)s::INTEGER, -greatest(least(outbox_messages.outages, %(least_1)s::INTEGER), %(greatest_1)s::INTEGER)) * interval '1 second')
WHERE outbox_messages.id = ANY (ARRAY[%(id)s::UUID])
  AND outbox_messages.handed_at IS NOT NULL
  AND NOT outbox_messages.begun
  AND outbox_messages.locked_until > clock_timestamp() + %(wait)s * power(%(power_1)s::INTEGER, -greatest(least(outbox_messages.outages, %(least_1)s::INTEGER), %(greatest_1)s::INTEGER)) * interval '1 second'
  AND left(encode(sha256(outbox_messages.payload || convert_to(coalesce((outbox_messages.headers ->> 'celery-message'), ''), 'UTF8')), 'hex'), 16) = %(content)s::VARCHAR
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
-- greatest_1 = -6
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'by'
-- least_1 = 0
-- param_1 = 'off'
-- power_1 = 2
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
