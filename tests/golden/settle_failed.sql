UPDATE outbox_messages
SET attempts=CASE
    WHEN (ticket.outage AND (outbox_messages.outages + %(outages_1)s::INTEGER < %(patience)s::INTEGER OR (EXISTS (
  SELECT outbox_destinations.name
  FROM outbox_destinations
  WHERE outbox_destinations.name = %(target)s::VARCHAR
    AND outbox_destinations.opened_at IS NOT NULL
)))) THEN outbox_messages.attempts - %(attempts_1)s::INTEGER
    ELSE outbox_messages.attempts END, last_error_code=ticket.code, last_error=ticket.error, status=CASE
    WHEN ticket.dead THEN %(param_1)s::VARCHAR
    ELSE %(param_2)s::VARCHAR END, locked_until=(clock_timestamp() + ticket.hold * interval '1 second'), lease=CASE
    WHEN ticket.keep THEN outbox_messages.lease END, begun=false, dead_at=CASE
    WHEN ticket.dead THEN clock_timestamp() END, outages=CASE
    WHEN ticket.outage THEN outbox_messages.outages + %(outages_2)s::INTEGER
    ELSE %(param_3)s::INTEGER END
FROM json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER, hold FLOAT, keep BOOLEAN, dead BOOLEAN, outage BOOLEAN, code TEXT, error TEXT)
WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
  AND outbox_messages.attempts = ticket.attempt
  AND outbox_messages.lease = %(token)s::UUID
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_4)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
-- attempts_1 = 1
-- outages_1 = 1
-- outages_2 = 1
-- param_1 = 'dead'
-- param_2 = 'pending'
-- param_3 = 0
-- param_4 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
