-- Drops an ended day. day: its number. Returns whether it is gone: nobody was in the way, and nothing of it at work.
SELECT :schema.outbox_day_drop(:day::integer) AS dropped
