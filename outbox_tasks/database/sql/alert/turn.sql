-- A row if no process of the cluster has looked for problems for `pace` seconds: then it is our turn.
INSERT INTO :schema.outbox_heartbeats AS h (name, kind) VALUES ('alerts', 'look')
ON CONFLICT (name) DO UPDATE SET seen_at = clock_timestamp()
WHERE h.seen_at < clock_timestamp() - :pace::float * interval '1 second'
RETURNING h.name
