-- Gives back the singles of these `destinations` that wait in the broker's queue for their first send: their messages are due again.
UPDATE :schema.outbox_leases l SET locked_until = now(), holder = NULL
WHERE l.token IN (
  SELECT token FROM :schema.outbox_leases l
  WHERE l.locked_until > now() AND l.begun_at IS NULL AND l.destination = ANY (:destinations::text[])
    AND NOT EXISTS (SELECT FROM :schema.outbox_trouble t WHERE t.seq = l.seqs[1] AND t.attempts > 0)
  FOR UPDATE SKIP LOCKED)
