-- Why nothing was begun: how many sends to a destination run now (busy), and how many of them for `patience` seconds or
-- longer (slow). destination; keep: seconds for which a send takes a place.
SELECT count(*) AS busy,
       count(*) FILTER (WHERE l.begun_at <= now() - :patience::float * interval '1 second') AS slow
FROM :schema.outbox_leases l
WHERE l.destination = :destination::text AND l.begun_at > now() - :keep::float * interval '1 second'
