-- Lets the send of a bundle begin: the compare-and-set that decides who may send. Returns its messages.
--
-- Nothing begins for a destination that is paused, has its circuit open (unless this lease is the probe), or has no room.
-- token; destination; holder; hold: seconds that the send gets at least; room: how many sends to the destination may
-- run at once (null: any number), each for `keep` seconds at most.
WITH begun AS (
  UPDATE :schema.outbox_leases l
  SET begun_at = clock_timestamp(), holder = :holder::text,
      locked_until = greatest(l.locked_until, clock_timestamp() + :hold::float * interval '1 second')
  WHERE l.token = :token::uuid AND l.destination = :destination::text
    AND l.begun_at IS NULL AND l.locked_until > clock_timestamp()
    AND NOT EXISTS (SELECT FROM :schema.outbox_destinations d
                    WHERE d.name = :destination
                      AND (d.paused_at IS NOT NULL OR d.opened_at IS NOT NULL AND d.probe IS DISTINCT FROM :token::uuid))
    AND (SELECT :room::integer IS NULL OR :schema.outbox_has_room(:destination, :room, :keep::float))
    AND set_config('synchronous_commit', 'off', true) = 'off'  -- if a crash undoes this, a send is repeated, not lost
  RETURNING l.seqs
), ours AS MATERIALIZED (  -- between low and high: so only the partition of their day is read
  SELECT seqs, (SELECT min(s) FROM unnest(seqs) AS s) AS low, (SELECT max(s) FROM unnest(seqs) AS s) AS high,
         EXISTS (SELECT FROM :schema.outbox_trouble t WHERE t.seq = ANY (seqs)) AS troubled
  FROM begun
)
SELECT m.seq, m.id::text, m.event_type, m.destination, m.key, m.payload, m.content_type, m.headers,
       m.aggregate_type, m.aggregate_id, date_part('epoch', m.created_at) AS created_at, coalesce(t.attempts, 0) + 1 AS attempts,
       coalesce(t.spared, 0) AS spared, m.latest,
       date_part('epoch', clock_timestamp()) - date_part('epoch', coalesce(t.since, m.deliver_at, m.created_at)) AS age
FROM :schema.outbox_messages m
LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t
                   WHERE t.seq = m.seq AND (SELECT troubled FROM ours) LIMIT 1) AS t ON true
WHERE m.seq = ANY ((SELECT seqs FROM ours)::bigint[])
  AND m.seq >= (SELECT low FROM ours) AND m.seq <= (SELECT high FROM ours)
ORDER BY m.seq
