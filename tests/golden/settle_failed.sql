WITH freed AS (UPDATE outbox_slots SET token=NULL, held_until=NULL WHERE outbox_slots.destination = %(target)s::VARCHAR AND outbox_slots.token = %(sender)s::UUID RETURNING outbox_slots.slot)
UPDATE outbox_messages
SET attempts=CASE
    WHEN (ticket.outage AND (least(outbox_messages.outages, %(least_1)s::INTEGER) + %(least_2)s::INTEGER < %(patience)s::INTEGER OR (EXISTS (
  SELECT outbox_destinations.name
  FROM outbox_destinations
  WHERE outbox_destinations.name = %(target)s::VARCHAR
    AND outbox_destinations.opened_at IS NOT NULL
))) OR ticket.behind OR coalesce(ticket.code = %(param_1)s::VARCHAR, false)) THEN ticket.attempt - %(attempt_1)s::INTEGER
    ELSE ticket.attempt END, last_error_code=CASE
    WHEN ticket.behind THEN outbox_messages.last_error_code
    ELSE ticket.code END, last_error=CASE
    WHEN ticket.behind THEN outbox_messages.last_error
    ELSE ticket.error END, history=CASE
    WHEN ticket.behind THEN outbox_messages.history
    ELSE CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, CASE WHEN ticket.dead THEN %(param_2)s::VARCHAR WHEN ticket.outage THEN %(param_3)s::VARCHAR ELSE %(param_4)s::VARCHAR END, %(jsonb_build_object_3)s::VARCHAR, ticket.attempt, %(jsonb_build_object_4)s::VARCHAR, ticket.code, %(jsonb_build_object_5)s::VARCHAR, left(ticket.error, %(left_1)s::INTEGER), %(jsonb_build_object_6)s::VARCHAR, outbox_messages.locked_by))) AS JSONB) END, status=CASE
    WHEN ticket.dead THEN %(param_5)s::VARCHAR
    ELSE %(param_6)s::VARCHAR END, locked_until=(clock_timestamp() + ticket.hold * interval '1 second'), lease=CASE
    WHEN ticket.keep THEN outbox_messages.lease END, begun=false, dead_at=CASE
    WHEN ticket.dead THEN clock_timestamp() END, outages=CASE
    WHEN ticket.outage THEN least(outbox_messages.outages, %(least_3)s::INTEGER) + %(least_4)s::INTEGER
    WHEN ticket.behind THEN outbox_messages.outages
    ELSE %(param_7)s::INTEGER END
FROM json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER, hold FLOAT, keep BOOLEAN, dead BOOLEAN, outage BOOLEAN, behind BOOLEAN, code TEXT, error TEXT)
WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
  AND (outbox_messages.attempts = ticket.attempt OR outbox_messages.attempts = ticket.attempt - %(attempt_2)s::INTEGER AND outbox_messages.begun = false)
  AND outbox_messages.lease = %(token)s::UUID
  AND outbox_messages.destination = %(target)s::VARCHAR
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_8)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
-- attempt_1 = 1
-- attempt_2 = 1
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'attempt'
-- jsonb_build_object_4 = 'code'
-- jsonb_build_object_5 = 'error'
-- jsonb_build_object_6 = 'by'
-- least_1 = 1000000000
-- least_2 = 1
-- least_3 = 1000000000
-- least_4 = 1
-- left_1 = 300
-- param_1 = 'failed_together'
-- param_2 = 'dead'
-- param_3 = 'outage'
-- param_4 = 'failed'
-- param_5 = 'dead'
-- param_6 = 'pending'
-- param_7 = 0
-- param_8 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
