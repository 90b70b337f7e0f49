-- Counts a send that found the destination out of reach. The `enough`-th in a row opens the circuit for `pause` seconds, and
-- each further one for twice as long, up to `longest`. While it is open, only the failure of the probe counts: other sends
-- began before. destination; token; code; error; enough; pause; longest. Returns whether it is open.
INSERT INTO :schema.outbox_destinations AS d (name, failures, failed_at, error_code, error, opened_at, pause_until)
SELECT :destination::text, 1, clock_timestamp(), :code::text, :error::text,
       CASE WHEN :enough::integer <= 1 THEN clock_timestamp() END,
       CASE WHEN :enough <= 1
            THEN clock_timestamp() + least(:longest::float, :pause::float * 2 ^ least(1 - :enough, 30)) * interval '1 second' END
ON CONFLICT (name) DO UPDATE SET
  failures = d.failures + (d.opened_at IS NULL OR d.probe IS NOT DISTINCT FROM :token::uuid)::integer,
  failed_at = excluded.failed_at, error_code = excluded.error_code, error = excluded.error,
  opened_at = CASE WHEN d.opened_at IS NOT NULL THEN d.opened_at
                   WHEN d.failures + 1 >= :enough THEN clock_timestamp() END,
  pause_until = CASE WHEN (d.opened_at IS NULL OR d.probe = :token) AND d.failures + 1 >= :enough
                     THEN clock_timestamp()
                          + least(:longest, :pause * 2 ^ least(d.failures + 1 - :enough, 30)) * interval '1 second'
                     ELSE d.pause_until END,
  probe = CASE WHEN d.opened_at IS NULL OR d.probe = :token THEN NULL ELSE d.probe END
RETURNING opened_at IS NOT NULL AS open
