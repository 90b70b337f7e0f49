WITH freed AS (UPDATE outbox_slots SET token=NULL, held_until=NULL WHERE outbox_slots.destination = %(target)s::VARCHAR AND outbox_slots.token = %(sender)s::UUID RETURNING outbox_slots.slot)
SELECT (
  SELECT count(*) AS count_1
  FROM freed
) > %(param_1)s::INTEGER AS got, (
  SELECT count(*) AS count_2
  FROM outbox_slots
  WHERE outbox_slots.destination = %(target)s::VARCHAR
    AND outbox_slots.slot < %(room)s::INTEGER
    AND outbox_slots.held_until > now()
    AND outbox_slots.taken_at <= now() - %(param_2)s * interval '1 second'
) AS slow;
-- param_1 = 0
-- param_2 = 0.25
