-- Why nothing was begun: whether the bundle could begin, were there room (ours); how many sends to its destination run for
-- `patience` seconds or longer (slow), and who sends (holders). token; destination; keep: seconds for which a send takes a
-- place.
SELECT EXISTS (SELECT FROM :schema.outbox_leases l WHERE l.token = :token::uuid AND l.begun_at IS NULL AND l.locked_until > now())
         AND NOT EXISTS (SELECT FROM :schema.outbox_destinations d
                         WHERE d.name = :destination::text
                           AND (d.paused_at IS NOT NULL OR d.opened_at IS NOT NULL AND d.probe IS DISTINCT FROM :token)) AS ours,
       count(*) FILTER (WHERE l.begun_at <= now() - :patience::float * interval '1 second') AS slow,
       array_agg(DISTINCT l.holder) AS holders
FROM :schema.outbox_leases l
WHERE l.destination = :destination AND l.begun_at > now() - :keep::float * interval '1 second' AND l.locked_until > now()
