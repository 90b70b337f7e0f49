-- Of each destination, how many singles and batches are on their way (leases), and the sends of how many have been running for
-- `slow_seconds` (slow). A single that waits for Celery's retry is not on its way. hold: how many seconds longer than the wait for a
-- retry a lease is.
SELECT destination, count(*) AS leases, count(*) FILTER (WHERE begun_at <= now() - :slow_seconds::float * interval '1 second') AS slow
FROM :schema.outbox_leases
WHERE locked_until > now() AND (begun_at IS NOT NULL OR locked_until <= now() + :hold::float * interval '1 second')
GROUP BY destination
