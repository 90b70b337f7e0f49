DELETE FROM outbox_heartbeats
WHERE outbox_heartbeats.kind = %(kind_1)s::VARCHAR
  AND outbox_heartbeats.seen_at < now() - %(keep)s * interval '1 second';
-- kind_1 = 'worker'
