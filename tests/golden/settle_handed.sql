WITH recovered AS (UPDATE outbox_destinations SET failures=%(param_1)s::INTEGER, opened_at=NULL, pause_until=NULL, probe=NULL, recovered_at=clock_timestamp() WHERE outbox_destinations.name = %(target)s::VARCHAR AND (outbox_destinations.failures > %(failures_1)s::INTEGER OR outbox_destinations.opened_at IS NOT NULL) RETURNING outbox_destinations.name), freed AS (UPDATE outbox_slots SET token=NULL, held_until=NULL WHERE outbox_slots.destination = %(target)s::VARCHAR AND outbox_slots.token = %(sender)s::UUID RETURNING outbox_slots.slot)
UPDATE outbox_messages
SET attempts=ticket.attempt,
  locked_until=(clock_timestamp() + ticket.within * power(%(power_1)s::INTEGER, -greatest(least(outbox_messages.outages, %(least_1)s::INTEGER), %(greatest_1)s::INTEGER)) * interval '1 second'),
  begun=false,
  outages=least(outbox_messages.outages, %(least_1)s::INTEGER),
  handed_at=clock_timestamp()
FROM json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER, within FLOAT)
WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
  AND (outbox_messages.attempts = ticket.attempt OR outbox_messages.attempts = ticket.attempt - %(attempt_1)s::INTEGER AND outbox_messages.begun = false)
  AND outbox_messages.lease = %(token)s::UUID
  AND outbox_messages.destination = %(target)s::VARCHAR
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_2)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
-- attempt_1 = 1
-- failures_1 = 0
-- greatest_1 = -6
-- least_1 = 0
-- param_1 = 0
-- param_2 = 'off'
-- power_1 = 2
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
