-- Lets the send of a single begin: the compare-and-set that decides who may send. Returns the message. Nothing is returned in three
-- cases: 1. Somebody else has the message, or has begun. 2. The lease has run out. 3. The destination is shut, and this lease is not its
-- probe.
--
-- token; destination; holder; hold: seconds that the send gets at least; largest: a payload with more bytes is not returned.
WITH begun AS (
  UPDATE :schema.outbox_leases l
  SET begun_at = clock_timestamp(), holder = :holder::text,
      locked_until = greatest(l.locked_until, clock_timestamp() + :hold::float * interval '1 second')
  WHERE l.token = :token::uuid AND l.destination = :destination::text
    AND l.begun_at IS NULL AND l.locked_until > clock_timestamp()
    AND NOT EXISTS (SELECT FROM :schema.outbox_destinations d
                    WHERE d.name = :destination
                      AND (d.paused_at IS NOT NULL OR d.opened_at IS NOT NULL AND d.probe IS DISTINCT FROM :token::uuid))
    AND set_config('synchronous_commit', 'off', true) = 'off'  -- if a crash undoes this, a send is repeated, not lost
  RETURNING l.seqs
)
SELECT h.* FROM begun CROSS JOIN LATERAL :schema.outbox_leased_messages(begun.seqs, :largest::integer) AS h
