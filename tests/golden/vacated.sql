UPDATE outbox_slots
SET token=NULL,
  held_until=NULL
WHERE outbox_slots.destination = %(target)s::VARCHAR
  AND outbox_slots.holder = any(%(gone)s::TEXT[]);
