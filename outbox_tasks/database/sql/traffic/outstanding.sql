-- Of each destination, how many singles and batches are on their way (leases), and of how many of these the send has been running for
-- `patience` seconds (slow). A single that waits for Celery's retry is not on its way. hold: seconds of a lease beyond such a wait.
SELECT destination, count(*) AS leases, count(*) FILTER (WHERE begun_at <= now() - :patience::float * interval '1 second') AS slow
FROM :schema.outbox_leases
WHERE locked_until > now() AND (begun_at IS NOT NULL OR locked_until <= now() + :hold::float * interval '1 second')
GROUP BY destination
