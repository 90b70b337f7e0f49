  -- What is in somebody's hands. What nobody has begun yet has been due all the time, also while it is leased again.
  SELECT l.destination, 'leased', s.seq, t.attempts, CASE
           WHEN l.begun_at IS NULL AND coalesce(t.attempts, 0) = 0 AND t.code = 'lease_expired'
             THEN (SELECT coalesce(m.deliver_at, m.created_at) FROM :schema.outbox_messages m WHERE m.seq = s.seq)
           WHEN l.locked_until <= now() THEN l.locked_until END, NULL, NULL, NULL,
         CASE WHEN l.locked_until > now() AND (l.begun_at IS NOT NULL OR coalesce(t.attempts, 0) = 0) THEN 'leased'
              WHEN coalesce(t.attempts, 0) > 0 OR l.begun_at IS NOT NULL THEN 'retrying' ELSE 'pending' END
  FROM asked JOIN :schema.outbox_leases l ON l.destination = asked.destination
  CROSS JOIN LATERAL unnest(l.seqs) AS s(seq)
  LEFT JOIN LATERAL (SELECT t.attempts, t.code FROM :schema.outbox_trouble t WHERE t.seq = s.seq LIMIT 1) AS t ON true
