SELECT outbox_slots.destination, outbox_slots.holder, greatest(least(date_part('epoch', now()) - date_part('epoch', outbox_slots.taken_at), 1e10), -1e10) AS seconds
FROM outbox_slots
WHERE outbox_slots.held_until > now()
  AND outbox_slots.destination = %(target)s::VARCHAR
ORDER BY outbox_slots.taken_at
LIMIT %(size)s::INTEGER;
