UPDATE outbox_destinations
SET pause_until=clock_timestamp(),
  probe=NULL
WHERE outbox_destinations.name = %(target)s::VARCHAR
  AND outbox_destinations.probe = %(token)s::UUID;
