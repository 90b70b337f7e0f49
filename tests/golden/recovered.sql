UPDATE outbox_destinations
SET failures=%(failures)s::INTEGER,
  opened_at=NULL,
  pause_until=NULL,
  probe=NULL,
  recovered_at=clock_timestamp()
WHERE outbox_destinations.name = %(target)s::VARCHAR
  AND (outbox_destinations.failures > %(failures_1)s::INTEGER OR outbox_destinations.opened_at IS NOT NULL)
RETURNING outbox_destinations.name;
-- failures = 0
-- failures_1 = 0
