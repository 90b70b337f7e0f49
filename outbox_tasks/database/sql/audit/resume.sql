-- Ends a pause, and closes the breaker; notes it in the audit. A row if there was something to end. destination, person, reason.
WITH changed AS (
  DELETE FROM :schema.outbox_destinations WHERE name = :destination::text RETURNING name
), noted AS (
  INSERT INTO :schema.outbox_audit (who, why, action, target, facts, closed_at)
  SELECT :person::text, :reason::text, 'resume', name, '{}', clock_timestamp() FROM changed
)
SELECT name FROM changed
