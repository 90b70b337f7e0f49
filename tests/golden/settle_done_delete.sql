WITH recovered AS (UPDATE outbox_destinations SET failures=%(param_1)s::INTEGER, opened_at=NULL, pause_until=NULL, probe=NULL, recovered_at=clock_timestamp() WHERE outbox_destinations.name = %(target)s::VARCHAR AND (outbox_destinations.failures > %(failures_1)s::INTEGER OR outbox_destinations.opened_at IS NOT NULL) RETURNING outbox_destinations.name), freed AS (UPDATE outbox_slots SET token=NULL, held_until=NULL WHERE outbox_slots.destination = %(target)s::VARCHAR AND outbox_slots.token = %(sender)s::UUID RETURNING outbox_slots.slot)
DELETE FROM outbox_messages
WHERE outbox_messages.id = ANY (CAST(%(ids)s::VARCHAR AS UUID[]))
  AND (outbox_messages.attempts = %(attempt)s::INTEGER OR outbox_messages.attempts = %(attempt)s::INTEGER - %(param_2)s::INTEGER AND outbox_messages.begun = false)
  AND outbox_messages.lease = %(token)s::UUID
  AND outbox_messages.destination = %(target)s::VARCHAR
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_3)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
-- failures_1 = 0
-- param_1 = 0
-- param_2 = 1
-- param_3 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
