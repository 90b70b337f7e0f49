-- Adds to the counts of outcomes of this minute, and notes how the sends to each destination went last. Every process takes the
-- rows in the same order, so that none deadlock.
-- counted: JSON rows of destination, outcome and count; arrived, failures, refusals: the outcomes of a send that arrived, that
-- failed, and that failed because the destination refused it.
WITH counted AS MATERIALIZED (
  SELECT c.* FROM json_to_recordset(:counted::json) AS c(destination text, outcome text, count bigint)
  WHERE set_config('synchronous_commit', 'off', true) = 'off'
), tallied AS (
  INSERT INTO :schema.outbox_tallies AS t (minute, destination, outcome, count)
  SELECT date_trunc('minute', now()), destination, outcome, count FROM counted ORDER BY 2, 3
  ON CONFLICT (minute, destination, outcome) DO UPDATE SET count = t.count + excluded.count
), latest AS (
  SELECT destination, CASE WHEN bool_or(outcome = ANY (:arrived::text[])) THEN now() END AS arrived_at,
         CASE WHEN bool_or(outcome = ANY (:failures::text[])) THEN now() END AS failed_at,
         coalesce(sum(count) FILTER (WHERE outcome = ANY (:refusals::text[])), 0) AS refused
  FROM counted WHERE destination <> '' GROUP BY destination
)
INSERT INTO :schema.outbox_sends AS s (destination, arrived_at, failed_at, refused)
SELECT destination, arrived_at, failed_at, CASE WHEN arrived_at IS NULL THEN refused ELSE 0 END
FROM latest WHERE coalesce(arrived_at, failed_at) IS NOT NULL ORDER BY destination
ON CONFLICT (destination) DO UPDATE SET
  arrived_at = greatest(s.arrived_at, excluded.arrived_at), failed_at = greatest(s.failed_at, excluded.failed_at),
  refused = excluded.refused + CASE WHEN excluded.arrived_at IS NULL THEN s.refused ELSE 0 END
