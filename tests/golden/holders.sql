SELECT DISTINCT outbox_slots.holder
FROM outbox_slots
WHERE outbox_slots.destination = %(target)s::VARCHAR
  AND outbox_slots.held_until > now();
