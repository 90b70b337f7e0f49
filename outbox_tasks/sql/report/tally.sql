-- Adds to the counts of outcomes, by the minute. Each row once, and every process in the same order, so that none deadlock.
-- counted: JSON rows of ago (seconds), destination, outcome and count.
INSERT INTO :schema.outbox_tallies AS t (minute, destination, outcome, count)
SELECT date_trunc('minute', now() - c.ago * interval '1 second') AS minute, c.destination, c.outcome, sum(c.count)
FROM json_to_recordset(:counted::json) AS c(ago float, destination text, outcome text, count bigint)
WHERE set_config('synchronous_commit', 'off', true) = 'off'
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
ON CONFLICT (minute, destination, outcome) DO UPDATE SET count = t.count + excluded.count
