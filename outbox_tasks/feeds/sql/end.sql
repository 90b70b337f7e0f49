-- Gives the lease of a feed back, and notes what people see. Changes nothing if another bridge has it by now.
--
-- waiting, age: what is left at the source. error: why the run failed; then the next one waits longer the more runs in a
-- row have failed, `most` seconds at most.
UPDATE :schema.outbox_feeds SET
  token = NULL, holder = NULL, locked_until = '-infinity', error = :error::text,
  looked_at = CASE WHEN :error::text IS NULL THEN clock_timestamp() ELSE looked_at END,
  waiting = coalesce(:waiting::bigint, waiting), age = coalesce(:age::float, age),
  failures = CASE WHEN :error::text IS NULL THEN 0 ELSE failures + 1 END,
  failed_at = CASE WHEN :error::text IS NOT NULL THEN coalesce(failed_at, clock_timestamp()) END,
  not_before = CASE WHEN :error::text IS NOT NULL
    THEN clock_timestamp() + least(:most::float, 2 ^ least(failures, 20)) * interval '1 second' END
WHERE name = :feed AND token = :token::uuid
