DELETE FROM outbox_destinations
WHERE outbox_destinations.name = %(target)s::VARCHAR
RETURNING outbox_destinations.name;
