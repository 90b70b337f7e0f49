-- Counts a send that found the destination out of reach: this is the breaker's whole rule, with parts/recovered.sql.
--
-- The circuit opens when `enough` sends in a row met that, of at least `enough` different messages. A message counts the
-- first time only: its repetitions say something about the message. While the circuit is open, one message at a time tries.
-- After three that failed there is a pause, each twice as long as the one before, up to `longest`. Other sends that fail
-- began before it opened.
-- destination; token; code; error; enough; pause; longest. Returns whether the circuit is open; no row, if the destination
-- has none yet.
WITH fresh AS (  -- of a lease that is gone nobody knows: one
  SELECT CASE WHEN count(*) = 0 THEN 1 ELSE count(*) FILTER (WHERE t.seq IS NULL) END::integer AS count
  FROM :schema.outbox_leases l CROSS JOIN LATERAL unnest(l.seqs) AS s
  LEFT JOIN :schema.outbox_trouble t ON t.seq = s AND t.outages > 0
  WHERE l.token = :token::uuid
), counted AS (
  SELECT d.name, d.opened_at, d.pause_until, d.opened_at IS NOT NULL AND d.probe IS NOT DISTINCT FROM :token AS tried,
         d.failures + (d.opened_at IS NULL OR d.probe IS NOT DISTINCT FROM :token)::integer AS failures,
         d.different + fresh.count AS different, clock_timestamp() AS now
  FROM :schema.outbox_destinations d CROSS JOIN fresh WHERE d.name = :destination::text FOR UPDATE OF d
), judged AS (
  SELECT *, opened_at IS NULL AND least(failures, different) >= :enough::integer AS opens, failures - :enough AS tries
  FROM counted
)
UPDATE :schema.outbox_destinations d
SET failed_at = now, error_code = :code::text, error = :error::text, different = j.different,
    failures = CASE WHEN opens THEN :enough ELSE j.failures END,
    opened_at = CASE WHEN opens THEN now ELSE j.opened_at END,
    probe = CASE WHEN tried THEN NULL ELSE d.probe END,
    pause_until = CASE WHEN opens THEN now + least(:longest::float, :pause::float) * interval '1 second'
                       WHEN tried AND tries % 3 <> 0 THEN now
                       WHEN tried THEN now + least(:longest, :pause * 2 ^ least(tries / 3, 30)) * interval '1 second'
                       ELSE j.pause_until END
FROM judged j WHERE d.name = j.name
RETURNING d.opened_at IS NOT NULL AS open
