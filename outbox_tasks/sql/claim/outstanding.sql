-- How many singles and batches of destinations are on their way (leases), and of how many the send has been running for `patience`
-- seconds (slow). One that waits for Celery's retry is not on its way. hold: seconds that a lease is granted beyond a wait.
SELECT destination, count(*) AS leases, count(*) FILTER (WHERE begun_at <= now() - :patience::float * interval '1 second') AS slow
FROM :schema.outbox_leases
WHERE locked_until > now() AND (begun_at IS NOT NULL OR locked_until <= now() + :hold::float * interval '1 second')
GROUP BY destination
