-- Adds to the counts of outcomes by the minute, and notes how the sends to each destination went last. Every process takes the
-- rows in the same order, so that none deadlock.
-- counted: JSON rows of ago (seconds), destination, outcome and count; arrived, failures, refusals: the outcomes of a send that
-- arrived, that failed, and that failed because the destination refused it.
WITH counted AS MATERIALIZED (
  SELECT now() - c.ago * interval '1 second' AS at, c.*, c.outcome = ANY (:arrived::text[]) AS has_arrived
  FROM json_to_recordset(:counted::json) AS c(ago float, destination text, outcome text, count bigint)
  WHERE set_config('synchronous_commit', 'off', true) = 'off'
), tallied AS (
  INSERT INTO :schema.outbox_tallies AS t (minute, destination, outcome, count)
  SELECT date_trunc('minute', at) AS minute, destination, outcome, sum(count) FROM counted
  GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
  ON CONFLICT (minute, destination, outcome) DO UPDATE SET count = t.count + excluded.count
), latest AS (
  SELECT destination, max(at) FILTER (WHERE has_arrived) AS arrived_at,
         max(at) FILTER (WHERE outcome = ANY (:failures::text[])) AS failed_at
  FROM counted GROUP BY destination
)
INSERT INTO :schema.outbox_sends AS s (destination, arrived_at, failed_at, refused)
SELECT l.destination, l.arrived_at, l.failed_at, coalesce((
         SELECT sum(c.count) FROM counted c
         WHERE c.destination = l.destination AND c.outcome = ANY (:refusals::text[]) AND c.at > coalesce(l.arrived_at, '-infinity')), 0)
FROM latest l WHERE l.destination <> '' AND coalesce(l.arrived_at, l.failed_at) IS NOT NULL
ORDER BY l.destination
ON CONFLICT (destination) DO UPDATE SET
  arrived_at = greatest(s.arrived_at, excluded.arrived_at), failed_at = greatest(s.failed_at, excluded.failed_at),
  refused = excluded.refused + CASE WHEN excluded.arrived_at IS NULL THEN s.refused ELSE 0 END
