WITH recovered AS (UPDATE outbox_destinations SET failures=%(param_1)s::INTEGER, opened_at=NULL, pause_until=NULL, probe=NULL, recovered_at=clock_timestamp() WHERE outbox_destinations.name = %(target)s::VARCHAR AND (outbox_destinations.failures > %(failures_1)s::INTEGER OR outbox_destinations.opened_at IS NOT NULL) RETURNING outbox_destinations.name), freed AS (UPDATE outbox_slots SET token=NULL, held_until=NULL WHERE outbox_slots.destination = %(target)s::VARCHAR AND outbox_slots.token = %(sender)s::UUID RETURNING outbox_slots.slot), moved AS (
  DELETE FROM outbox_messages
  USING json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER, state TEXT, code TEXT, error TEXT)
  WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
    AND (outbox_messages.attempts = ticket.attempt OR outbox_messages.attempts = ticket.attempt - %(attempt_1)s::INTEGER AND outbox_messages.begun = false)
    AND outbox_messages.lease = %(token)s::UUID
    AND outbox_messages.destination = %(target)s::VARCHAR
    AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_2)s::VARCHAR
  RETURNING outbox_messages.seq, outbox_messages.id, outbox_messages.event_type, outbox_messages.aggregate_type, outbox_messages.aggregate_id, outbox_messages.destination, outbox_messages.key, outbox_messages.payload, outbox_messages.content_type, outbox_messages.headers, ticket.attempt AS attempts, coalesce(ticket.code, outbox_messages.last_error_code) AS last_error_code, coalesce(ticket.error, outbox_messages.last_error) AS last_error, outbox_messages.created_at, outbox_messages.locked_by, outbox_messages.history, coalesce(ticket.state, %(param_3)s::VARCHAR) AS state
)
INSERT INTO outbox_archive (seq, id, event_type, aggregate_type, aggregate_id, destination, key, payload, content_type, headers, attempts, last_error_code, last_error, created_at, locked_by, history, state, finished_at)
SELECT moved.seq, moved.id, moved.event_type, moved.aggregate_type, moved.aggregate_id, moved.destination, moved.key, moved.payload, moved.content_type, moved.headers, moved.attempts, moved.last_error_code, moved.last_error, moved.created_at, moved.locked_by, moved.history, moved.state, clock_timestamp() AS clock_timestamp_1
FROM moved
RETURNING CAST(outbox_archive.id AS TEXT) AS id;
-- attempt_1 = 1
-- failures_1 = 0
-- param_1 = 0
-- param_2 = 'off'
-- param_3 = 'sent'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
