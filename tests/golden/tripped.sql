INSERT INTO outbox_destinations (name, failures, failed_at, error_code, error, opened_at, pause_until)
VALUES (%(target)s::VARCHAR, %(failures)s::INTEGER, clock_timestamp(), %(reason_code)s::VARCHAR, %(reason)s::VARCHAR, CASE WHEN (%(param_1)s::INTEGER >= %(enough)s::INTEGER) THEN clock_timestamp() END, CASE WHEN (%(param_2)s::INTEGER >= %(enough)s::INTEGER) THEN clock_timestamp() + least(%(longest)s, %(pause)s * power(%(power_1)s::INTEGER, least(%(param_3)s::INTEGER - %(enough)s::INTEGER, %(least_1)s::INTEGER))) * interval '1 second' END) ON CONFLICT (name) DO
UPDATE
SET failures = CASE
    WHEN (outbox_destinations.opened_at IS NULL OR outbox_destinations.probe = %(token)s::UUID) THEN outbox_destinations.failures + %(failures_1)s::INTEGER
    ELSE outbox_destinations.failures END,
  failed_at = clock_timestamp(),
  error_code = excluded.error_code,
  error = excluded.error,
  opened_at = CASE
    WHEN (outbox_destinations.opened_at IS NOT NULL) THEN outbox_destinations.opened_at
    WHEN (outbox_destinations.failures + %(failures_1)s::INTEGER >= %(enough)s::INTEGER) THEN clock_timestamp() END,
  pause_until = CASE
    WHEN ((outbox_destinations.opened_at IS NULL OR outbox_destinations.probe = %(token)s::UUID) AND outbox_destinations.failures + %(failures_1)s::INTEGER >= %(enough)s::INTEGER) THEN clock_timestamp() + least(%(longest)s, %(pause)s * power(%(power_2)s::INTEGER, least((outbox_destinations.failures + %(failures_1)s::INTEGER) - %(enough)s::INTEGER, %(least_2)s::INTEGER))) * interval '1 second'
    ELSE outbox_destinations.pause_until END,
  probe = CASE
    WHEN (outbox_destinations.opened_at IS NULL OR outbox_destinations.probe = %(token)s::UUID) THEN NULL
    ELSE outbox_destinations.probe END
RETURNING outbox_destinations.opened_at IS NOT NULL AS open, outbox_destinations.failures, outbox_destinations.pause_until;
-- failures = 1
-- failures_1 = 1
-- least_1 = 30
-- least_2 = 30
-- param_1 = 1
-- param_2 = 1
-- param_3 = 1
-- power_1 = 2
-- power_2 = 2
