-- How many processes can send: those of the workers that serve drains, and whose heartbeat is at most `late` seconds old.
SELECT coalesce(sum(greatest(1, (h.facts ->> 'concurrency')::integer)), 0)::integer AS count
FROM :schema.outbox_heartbeats h
WHERE h.kind = 'worker' AND h.seen_at > now() - :late::float * interval '1 second' AND h.facts -> 'queues' @> '"outbox.drain"'
