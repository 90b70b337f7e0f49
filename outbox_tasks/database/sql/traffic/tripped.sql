-- Counts a send that found the destination out of reach (an outage). With parts/recovered.sql this is the breaker's whole rule.
--
-- There are three cases:
--   1. The circuit is closed. It opens after `enough` outages in a row, if they were of at least `enough` different messages. Only
--      the first outage of a message counts as different: a repetition says something about the message, not about the destination.
--   2. It is open, and this send was its try: one message at a time tries. After each third try that failed there is a pause, twice as
--      long as the pause before, up to `longest` seconds.
--   3. It is open, and this send was no try, because it began before the circuit opened: only the error that is shown changes.
-- destination; token: of the lease; code; error; enough; pause, longest: seconds. Returns whether the circuit is open; returns no row
-- if the destination has no row yet: see add.sql.
WITH fresh AS (  -- the messages of this lease that meet their first outage; if the lease is gone, it counts as one message
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
