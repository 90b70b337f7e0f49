INSERT INTO outbox_destinations (name, paused_at, paused_by, paused_why)
VALUES (%(target)s::VARCHAR, clock_timestamp(), %(who)s::VARCHAR, %(why)s::VARCHAR) ON CONFLICT (name) DO
UPDATE
SET paused_at = excluded.paused_at,
  paused_by = excluded.paused_by,
  paused_why = excluded.paused_why;
