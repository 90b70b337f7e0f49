-- The state of each `known` message, with its trouble: what is in no table of work, and not in the journal, is ready.
FROM (SELECT * FROM known ORDER BY place) AS m
LEFT JOIN LATERAL (
    SELECT t.attempts, t.since, t.code, t.error FROM :schema.outbox_trouble t WHERE t.seq = m.seq LIMIT 1
  ) AS t ON true
LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_dead d WHERE m.ended IS NULL AND d.seq = m.seq LIMIT 1) AS d ON true
LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_runs r WHERE m.ended IS NULL AND r.seq = m.seq LIMIT 1) AS r ON true
LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_waiting w WHERE m.ended IS NULL AND w.seq = m.seq LIMIT 1) AS w ON true
LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_held h
                   WHERE m.ended IS NULL AND h.destination = m.destination AND h.key = m.key AND h.seq = m.seq LIMIT 1) AS h ON true
CROSS JOIN LATERAL (
  SELECT CASE WHEN m.ended IS NULL AND d.seq IS NULL
              THEN coalesce(m.lease_end, r.locked_until, w.due, h.since, t.since, m.deliver_at, m.created_at) END AS locked_until,
         coalesce(r.attempts, coalesce(t.attempts, 0)
           + (m.begun_at IS NOT NULL OR m.ended IS NOT DISTINCT FROM 'sent')::integer) AS attempts
) AS a
CROSS JOIN LATERAL (
  SELECT a.*, CASE WHEN m.ended IS NOT NULL THEN m.ended
                   WHEN d.seq IS NOT NULL THEN 'dead'
                   WHEN r.locked_until > now() THEN r.state
                   WHEN m.lease_end > now() AND (m.begun_at IS NOT NULL OR coalesce(t.attempts, 0) = 0) THEN 'leased'
                   WHEN a.attempts > 0 THEN 'retrying'
                   WHEN m.lease_end IS NULL AND a.locked_until > now() THEN 'scheduled'
                   ELSE 'pending' END AS state
) AS s
