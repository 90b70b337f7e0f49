-- Drops an ended day. day: its number. Returns whether it is gone. It stays if another transaction reads or writes in it, or if a
-- message of it is at work.
SELECT :schema.outbox_day_drop(:day::integer) AS dropped
