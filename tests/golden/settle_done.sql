WITH moved AS (
  DELETE FROM outbox_messages
  USING json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER, state TEXT, code TEXT, error TEXT)
  WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
    AND outbox_messages.attempts = ticket.attempt
    AND outbox_messages.lease = %(token)s::UUID
    AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
  RETURNING outbox_messages.seq, outbox_messages.id, outbox_messages.event_type, outbox_messages.aggregate_type, outbox_messages.aggregate_id, outbox_messages.destination, outbox_messages.key, outbox_messages.payload, outbox_messages.content_type, outbox_messages.headers, outbox_messages.attempts, coalesce(ticket.code, outbox_messages.last_error_code) AS last_error_code, coalesce(ticket.error, outbox_messages.last_error) AS last_error, outbox_messages.created_at, outbox_messages.locked_by, coalesce(ticket.state, %(param_2)s::VARCHAR) AS state
)
INSERT INTO outbox_archive (seq, id, event_type, aggregate_type, aggregate_id, destination, key, payload, content_type, headers, attempts, last_error_code, last_error, created_at, locked_by, state, finished_at)
SELECT moved.seq, moved.id, moved.event_type, moved.aggregate_type, moved.aggregate_id, moved.destination, moved.key, moved.payload, moved.content_type, moved.headers, moved.attempts, moved.last_error_code, moved.last_error, moved.created_at, moved.locked_by, moved.state, clock_timestamp() AS clock_timestamp_1
FROM moved
RETURNING CAST(outbox_archive.id AS TEXT) AS id;
-- param_1 = 'off'
-- param_2 = 'sent'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
