WITH slot AS (UPDATE outbox_slots SET token=%(sender)s::UUID, holder=%(holder)s::VARCHAR, taken_at=clock_timestamp(), held_until=(clock_timestamp() + %(keep)s * interval '1 second') WHERE outbox_slots.destination = %(target)s::VARCHAR AND outbox_slots.slot = (
  SELECT outbox_slots.slot
  FROM outbox_slots
  WHERE outbox_slots.destination = %(target)s::VARCHAR
    AND outbox_slots.slot < %(room)s::INTEGER
    AND (outbox_slots.held_until IS NULL OR outbox_slots.held_until < clock_timestamp())
  ORDER BY outbox_slots.slot
  LIMIT %(param_2)s::INTEGER
  FOR UPDATE SKIP LOCKED
) RETURNING outbox_slots.slot)
UPDATE outbox_messages
SET attempts=(least(outbox_messages.attempts, %(least_1)s::INTEGER) + %(least_2)s::INTEGER),
  last_error_code=CASE
    WHEN outbox_messages.begun THEN %(param_1)s::VARCHAR
    ELSE outbox_messages.last_error_code END,
  last_error=CASE
    WHEN outbox_messages.begun THEN format(%(format_1)s::VARCHAR, outbox_messages.attempts, outbox_messages.locked_by)
    ELSE outbox_messages.last_error END,
  locked_by=%(holder)s::VARCHAR,
  history=CASE
    WHEN outbox_messages.begun THEN CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR, outbox_messages.attempts, %(jsonb_build_object_5)s::VARCHAR, %(jsonb_build_object_6)s::VARCHAR, %(jsonb_build_object_7)s::VARCHAR, outbox_messages.locked_by))) AS JSONB)
    ELSE outbox_messages.history END,
  locked_until=greatest(outbox_messages.locked_until, clock_timestamp() + %(hold)s * interval '1 second'),
  begun=true
FROM json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER)
WHERE (
  SELECT %(room)s::INTEGER IS NULL OR (EXISTS (
    SELECT slot.slot
    FROM slot
  )) AS anon_1
)
  AND outbox_messages.id = ANY (ARRAY[ticket.id])
  AND outbox_messages.attempts = ticket.attempt
  AND outbox_messages.lease = %(token)s::UUID
  AND outbox_messages.destination = %(target)s::VARCHAR
  AND outbox_messages.locked_until > clock_timestamp()
  AND NOT (EXISTS (
  SELECT outbox_destinations.name
  FROM outbox_destinations
  WHERE outbox_destinations.name = %(target)s::VARCHAR
    AND (outbox_destinations.paused_at IS NOT NULL OR outbox_destinations.opened_at IS NOT NULL AND outbox_destinations.probe IS DISTINCT FROM %(token)s::UUID)
))
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_3)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id, outbox_messages.event_type, outbox_messages.destination, outbox_messages.key, outbox_messages.payload, outbox_messages.content_type, CAST(nullif(outbox_messages.headers, CAST('{}' AS JSONB)) AS TEXT) AS headers, outbox_messages.aggregate_type, outbox_messages.aggregate_id, date_part('epoch', outbox_messages.created_at) AS created_at, outbox_messages.attempts, outbox_messages.latest, greatest(least(date_part('epoch', clock_timestamp()) - date_part('epoch', coalesce(outbox_messages.deliver_at, outbox_messages.created_at)), 1e10), -1e10) AS age;
-- format_1 = 'attempt %s was begun by %s and never settled: it died or lost its lease; the message may have been delivered'
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'begun again'
-- jsonb_build_object_4 = 'attempt'
-- jsonb_build_object_5 = 'code'
-- jsonb_build_object_6 = 'unsettled'
-- jsonb_build_object_7 = 'by'
-- least_1 = 1000000000
-- least_2 = 1
-- param_1 = 'unsettled'
-- param_2 = 1
-- param_3 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
