INSERT INTO outbox_heartbeats (name, kind)
VALUES (%(name)s::VARCHAR, %(kind)s::VARCHAR) ON CONFLICT (name) DO
UPDATE
SET seen_at = clock_timestamp()
WHERE outbox_heartbeats.seen_at < clock_timestamp() - %(pace)s * interval '1 second'
RETURNING outbox_heartbeats.name;
-- kind = 'look'
-- name = 'alerts'
